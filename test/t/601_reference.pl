
# Copyright (c) 2026, the idempotency developers

# The reference names what there is: every function and argument, relation,
# column of a view, type and label, setting, wrapper and option, SQLSTATE, and
# state of a relay.

use strict;
use warnings FATAL => 'all';

use File::Find qw(find);
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;

use lib "$FindBin::RealBin/../perl";
use IdemTest;

my $top = "$FindBin::RealBin/../..";
my $reference = join "\n", map { slurp_file($_) } glob("$top/doc/reference/*.md");
my $node = IdemTest::cluster('reference');

sub page
{
	my ($name) = @_;
	return slurp_file("$top/doc/reference/$name.md");
}

# Each word stands in the text, as a word.
sub names_all
{
	my ($what, $text, @words) = @_;
	my @missing = grep { $text !~ /(?<![\w.])(?:idempotency\.)?\Q$_\E(?!\w)/ } @words;

	cmp_ok(scalar(@words), '>', 0, "there are $what");
	is("@missing", '', "$what are in the reference");
	return;
}

sub query
{
	my ($sql) = @_;
	return split /\n/, $node->safe_psql('postgres', $sql);
}

my $members = q{pg_depend d JOIN pg_extension e ON d.refobjid = e.oid
	AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'idempotency'};

# Functions that nobody names have no page.
my $public = q{p.pronamespace = 'idempotency'::regnamespace AND p.proname !~ '^test_'};

names_all('functions', $reference, query(qq{
	SELECT DISTINCT p.proname FROM $members JOIN pg_proc p ON p.oid = d.objid
	WHERE d.classid = 'pg_proc'::regclass AND $public}));
names_all('arguments', $reference, query(qq{
	SELECT DISTINCT a.name FROM $members JOIN pg_proc p ON p.oid = d.objid,
	LATERAL (SELECT p.proargnames[i] AS name FROM generate_series(1, p.pronargs) i) a
	WHERE d.classid = 'pg_proc'::regclass AND $public}));
names_all('views', $reference, query(qq{
	SELECT c.relname FROM $members JOIN pg_class c ON c.oid = d.objid
	WHERE d.classid = 'pg_class'::regclass AND c.relkind = 'v'}));
names_all('columns of views', $reference, query(qq{
	SELECT DISTINCT a.attname FROM $members JOIN pg_class c ON c.oid = d.objid
	JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
	WHERE d.classid = 'pg_class'::regclass AND c.relkind = 'v'}));
names_all('columns of stat_relay', page('relay'), query(
	q{SELECT attname FROM pg_attribute WHERE attrelid = 'idempotency.stat_relay'::regclass AND attnum > 0}));
names_all('labels', $reference, query(qq{
	SELECT DISTINCT l.enumlabel FROM $members JOIN pg_enum l ON l.enumtypid = d.objid
	WHERE d.classid = 'pg_type'::regclass}));
names_all('wrappers', page('sinks'), query(qq{
	SELECT w.fdwname FROM $members JOIN pg_foreign_data_wrapper w ON w.oid = d.objid
	WHERE d.classid = 'pg_foreign_data_wrapper'::regclass}));

# Settings with their defaults' units are for people; the names must be there.
names_all('settings', page('settings'),
	query(q{SELECT name FROM pg_settings WHERE name LIKE 'idempotency.%'}));
{
	my $settings = page('settings');
	my %context = (user => 'user', superuser => 'superuser', sighup => 'reload', postmaster => 'start');

	foreach my $line (query(q{SELECT name || ' ' || context FROM pg_settings WHERE name LIKE 'idempotency.%'}))
	{
		my ($name, $context) = split / /, $line;
		like($settings, qr/^\| `\Q$name\E` \|[^|]*\|[^|]*\|[^|]*\| $context{$context}\b/m,
			"context of $name");
	}
}

# The options are what a validator offers when it is asked for nonsense.
foreach my $wrapper (query(q{SELECT substr(fdwname, 13) FROM pg_foreign_data_wrapper WHERE fdwname ~ '^idempotency_'}))
{
	my ($rc, $out, $err) = $node->psql('postgres',
		"CREATE SERVER s FOREIGN DATA WRAPPER idempotency_$wrapper; "
		  . ($wrapper eq 'program' ? 'SELECT 1/0' : "ALTER SERVER s OPTIONS (nonsense 'x')"));
	my ($list) = $err =~ /HINT:\s+Valid options here are: (.*)\./;

	names_all("options of idempotency_$wrapper", page('sinks'),
		$wrapper eq 'program' ? 'program' : split /, /, $list // '');
	$node->psql('postgres',
		"CREATE USER MAPPING FOR CURRENT_USER SERVER s OPTIONS (nonsense 'x')", stderr => \$err);
	names_all("mapping options of idempotency_$wrapper", page('sinks'), split /, /, $1)
	  if $err =~ /HINT:\s+Valid options here are: (.*)\./;
	$node->safe_psql('postgres', 'DROP SERVER s CASCADE');
}

# SQLSTATEs by their macros, as the server's header and our own define them.
my %sqlstate;
my $include = `pg_config --includedir-server`;
chomp $include;
foreach my $header ("$include/utils/errcodes.h", "$top/src/shared/error.h")
{
	my $text = slurp_file($header);

	$sqlstate{$1} = join '', split /[',]+/, $2
	  while $text =~ /#define\s+(ERRCODE_\w+)\s+MAKE_SQLSTATE\(([^)]*)\)/g;
}
my %raised;
my $states = '';
find(
	{
		no_chdir => 1,
		wanted => sub {
			return unless /\.c$/ && !m{/src/sink/|/shared/fault\.c$};
			my $text = slurp_file($_);
			$raised{ $sqlstate{$1} // $1 } = 1 while $text =~ /errcode\((ERRCODE_\w+)/g;
			$states .= $text if m{/report\.c$};
		}
	},
	"$top/src");
names_all('SQLSTATEs', page('errors'), sort keys %raised);
names_all('own SQLSTATEs', page('errors'), grep { /^ID/ } sort values %sqlstate);

names_all('states', page('relay'), $states =~ /\[IDEM_RELAY_\w+\] = "([^"]+)"/g);
names_all('waits', page('relay'), $states =~ /\[IDEM_WAIT_\w+\] = "([^"]+)"/g);

$node->stop;
done_testing();
