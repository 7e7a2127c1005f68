
# Copyright (c) 2026, the idempotency developers

# Updates between versions: each leaves what a fresh install of its target makes, in every
# catalog; what was remembered stays, who had rights has them, and a dump of the former
# version is restored into the next.  The library is that of the next version, which
# test/update/next.py makes.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename);
use FindBin;
use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $catalog = slurp_file("$FindBin::RealBin/../update/catalog.sql");
my $node = IdemTest::cluster('main', extension => 0);

sub sql
{
	my ($database, $sql) = @_;

	return $node->safe_psql($database, $sql);
}

# A database with the extension in this version, brought there by updates.
sub database
{
	my ($name, $version, @updates) = @_;

	sql('postgres', "CREATE DATABASE \"$name\"");
	# What the installing role gives away by default is not given of the extension.
	sql($name, <<"END");
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO gifted;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO gifted;
SET client_min_messages = warning;
CREATE EXTENSION idempotency VERSION '$version' CASCADE;
END
	update($name, $_) foreach @updates;
	return $name;
}

sub update
{
	my ($name, $version) = @_;

	sql($name, "ALTER EXTENSION idempotency UPDATE TO '$version'");
	return;
}

# What the catalogs say, and how two databases differ in it.
sub facts
{
	my ($name, $before) = @_;

	return { map { $_ => 1 } grep { $_ ne '' } split /\n(?=[a-z ]+: )/, sql($name, ($before // '') . $catalog) };
}

sub differences
{
	my ($one, $other) = @_;

	return join("\n", sort((map { "- $_" } grep { !$other->{$_} } keys %$one), map { "+ $_" } grep { !$one->{$_} } keys %$other));
}

sql('postgres', "CREATE ROLE $_") foreach qw(gifted producing consuming operating monitoring dumping);

# The scripts that are installed: the versions that CREATE EXTENSION knows, and each way from
# one to another.  Not those of the tests' own versions.
my (@versions, %steps);
foreach (map { basename($_) } glob("$ENV{IDEM_STAGE_SHAREDIR}/extension/idempotency--*.sql"))
{
	next if /test/;
	my ($from, $to) = /^idempotency--(.+?)(?:--(.+))?\.sql$/ or die "$_: no version in it";

	if (defined $to) { push @{ $steps{$from} }, $to }
	else { push @versions, $from }
}
my @ways;
foreach my $source (sort @versions)
{
	my %reached;
	my @next = ($source);

	@next = grep { !$reached{$_}++ } map { @{ $steps{$_} // [] } } @next while @next;
	push @ways, map { [ $source, $_ ] } grep { $reached{$_} } sort @versions;
}
my ($old, $new) = @{ $ways[-1] // BAIL_OUT('there is no update') };
my %fresh;

foreach my $way (@ways)
{
	my ($source, $target) = @$way;
	my $updated = database("$source to $target", $source, $target);

	$fresh{$target} //= facts(database("fresh $target", $target));
	cmp_ok(scalar(keys %{ $fresh{$target} }), '>', 1000, "$target has its facts");
	is(differences($fresh{$target}, facts($updated)), '', "$source to $target is what a fresh install makes");
}

# The comparison sees each kind of what a script may forget.
{
	my $facts = $fresh{$new};

	foreach my $wrong (
		'COMMENT ON COLUMN idempotency.stat_relay.note IS NULL',
		'ALTER TABLE idempotency_data.relays ALTER note DROP DEFAULT',
		'ALTER TABLE idempotency_data.relays ALTER halt_message SET NOT NULL',
		'ALTER TABLE idempotency_data.relays DROP CONSTRAINT sound',
		'ALTER TABLE idempotency_data.relays ENABLE TRIGGER relays_restore',
		'ALTER TABLE idempotency_data.relays ADD more int; ALTER TABLE idempotency_data.relays DROP more',
		'ALTER TABLE idempotency_data.relay_notes RESET (fillfactor)',
		'GRANT SELECT ON idempotency.stat_relay TO gifted',
		q{DELETE FROM pg_init_privs WHERE objoid = 'idempotency.stat_relay'::regclass},
		q{UPDATE pg_extension SET extconfig = trim_array(extconfig, 1), extcondition = trim_array(extcondition, 1) WHERE extname = 'idempotency'},
		'ALTER EXTENSION idempotency DROP TABLE idempotency_data.relay_notes',
		'ALTER FUNCTION idempotency_data.stat_relay_source() VOLATILE',
		q{ALTER TYPE idempotency.parked_state RENAME VALUE 'given back' TO 'returned'},
		'ALTER SEQUENCE idempotency_data.relay_log_id CYCLE')
	{
		isnt(differences($facts, facts("fresh $new", "BEGIN;\n$wrong;\n")), '', "seen: $wrong");
	}
	is(differences($facts, facts("fresh $new", "BEGIN;\n")), '', 'and nothing where nothing is wrong');
}

# At work: the rows of the former version under the SQL of the former, then of the next
my $grants = <<'END';
SELECT idempotency.grant_role(kind, role) FROM (VALUES ('producer', 'producing'::name), ('consumer', 'consuming'), ('operator', 'operating'),
	('monitor', 'monitoring'), ('backup', 'dumping')) AS g (kind, role);
END
# What the page has administrators do
my ($page) = slurp_file("$FindBin::RealBin/../../doc/howto/upgrade.md") =~ /^```sql\n(BEGIN;.*?)^```$/ms;
$page =~ s/ UPDATE;/ UPDATE TO '$new';/ or die 'upgrade.md has no update';
# What roles may do, by name
my $rights = <<'END';
SELECT string_agg(concat_ws(' ', kind, name, a::text), E'\n' ORDER BY kind, name, a::text)
FROM (SELECT 'relation', oid::regclass::text, relacl FROM pg_class
		WHERE relnamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace) AND relkind <> 'f'
	UNION ALL SELECT 'function', oid::regprocedure::text, proacl FROM pg_proc WHERE pronamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
	UNION ALL SELECT 'type', oid::regtype::text, typacl FROM pg_type WHERE typnamespace = 'idempotency'::regnamespace
	UNION ALL SELECT 'schema', nspname, nspacl FROM pg_namespace WHERE nspname IN ('idempotency', 'idempotency_data')) AS o (kind, name, acl), unnest(acl) a
END

database('shop', $old);
sql('shop', $grants . <<'END');
CREATE TABLE effects (event_id uuid PRIMARY KEY);
CREATE FUNCTION effect(event_id uuid) RETURNS void LANGUAGE sql AS 'INSERT INTO public.effects VALUES (event_id)';
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.effect');
SELECT idempotency.relay_create('effects', 'fn');
SELECT idempotency.claim_event('done'), idempotency.complete_event('done', result => '{"is": "kept"}');
SELECT idempotency.outbox_enqueue('a', 'k', 'E', '{}') FROM generate_series(1, 20);
CREATE VIEW mine AS SELECT relay, state FROM idempotency.stat_relay;
END
IdemTest::wait_for($node, 'SELECT count(*) = 20 FROM effects', 't', 'shop');
is(sql('shop', 'SELECT relay FROM idempotency.stat_relay'), 'effects', "views of $old with the next library");
my ($dump) = map { PostgreSQL::Test::Utils::tempdir() . "/$_" } 'old.dump';
my $mine = sql('shop', $rights);

sub dump_to
{
	my ($file) = @_;

	$node->command_ok([ 'pg_dump', '--format=custom', "--file=$file", 'shop' ], 'pg_dump');
	return;
}

# Restore as a server does whose default is the next version: a dump names no version.
sub restore
{
	my ($name, $file) = @_;
	my ($list) = run_command([ 'pg_restore', '--list', $file ]);

	$list =~ s/^.* SCHEMA - idempotency .*\n//mg;
	append_to_file("$file.list", $list);
	sql('postgres', "CREATE DATABASE \"$name\"");
	sql($name, "SET client_min_messages = warning; CREATE EXTENSION idempotency VERSION '$new' CASCADE");
	$node->command_ok([ 'pg_restore', '--exit-on-error', "--use-list=$file.list", "--dbname=$name", $file ], "pg_restore into $name");
	return;
}

# The dump of the former version becomes the next version.
sub restored
{
	my ($name, $file) = @_;

	restore($name, $file);
	is(sql($name, q{SELECT idempotency.claim_event('done')}), 'duplicate', "$name: what was completed is a duplicate");
	is(sql($name, q{SELECT idempotency.event_result('done')}), '{"is": "kept"}', "$name: with its result");
	is(sql($name, 'SELECT count(*) FROM idempotency.outbox_events'), '20', "$name: the outbox has its events");
	is(sql($name, 'SELECT relay, note, state FROM idempotency.stat_relay'), 'effects|none|unadopted', "$name: the relay waits for relay_adopt");
	return;
}

dump_to($dump);
restored('from old', $dump);
# Of a view that has another source since the update a role has to get the right again.
my $looks = 'SELECT relay FROM idempotency.stat_relay';
is(sql('shop', "SET ROLE monitoring; $looks"), 'effects', "a monitor of $old");
like(($node->psql('shop', "BEGIN; ALTER EXTENSION idempotency UPDATE TO '$new'; SET LOCAL ROLE monitoring; $looks"))[2],
	qr/permission denied for function stat_relay_source/, "is none of $new by the update alone");
sql('shop', $page);
is(sql('shop', "SET ROLE monitoring; $looks"), 'effects', 'but by what upgrade.md says');
my $now = sql('shop', $rights);
isnt($now, $mine, 'the rights are others');
sql("fresh $new", $grants);
is($now, sql("fresh $new", $rights), 'and those of a fresh install with the same roles');
sql('shop', $page);
is(sql('shop', $rights), $now, 'to repeat it changes nothing');
sql('shop', 'GRANT EXECUTE ON FUNCTION idempotency.relay_pause TO PUBLIC');
sql('shop', $page);
sql('shop', 'REVOKE EXECUTE ON FUNCTION idempotency.relay_pause FROM PUBLIC');
is(sql('shop', $rights), $now, 'nor does it fail for what PUBLIC was granted, or give PUBLIC more');

is(sql('shop', q{SELECT idempotency.claim_event('done')}), 'duplicate', 'what was completed before the update is a duplicate');
is(sql('shop', 'SELECT relay, note FROM idempotency.stat_relay'), 'effects|none', 'the new column');
sql('shop', q{SELECT idempotency.relay_alter('effects', batch_events => 7); SELECT idempotency.outbox_enqueue('a', 'k', 'E', '{}')});
IdemTest::wait_for($node, 'SELECT count(*) = 21 FROM effects', 't', 'shop');
is(sql('shop', 'SELECT count(*) FROM mine'), '1', 'a view of a user stands');

# A dump of the updated database gives roles what they had.
sql('shop', 'DELETE FROM effects');
dump_to("$dump.new");
restore('from new', "$dump.new");
is(sql('from new', $rights), $now, 'a restored database has the rights of the updated');

$node->stop;
done_testing();
