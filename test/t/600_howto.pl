
# Copyright (c) 2026, the idempotency developers

# The SQL of README.md and of doc/howto works and prints what stands there.
#
# The test runs a block ```sql in the page's own database, and a block ```sql NAME
# in the target database of that name.  A block ```text that follows is the whole
# output of the block before it.  The comparison ignores blanks at line ends,
# widths of columns, and which uuid the server drew.  The word "poll" repeats a
# block until it prints its output.  The word "figures" makes the comparison ignore
# numbers and the units of sizes.  The word "setup" says that the block is what
# sink_setup_sql prints for the page's last server; the test compares the two,
# and runs the block.  This server's socket replaces the host names of the pages.
# A shell runs a block ```sh run with psql's connections replaced likewise.  The
# statement of README.md's Install that preloads the library runs on servers that
# preload something else already.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename);
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(time usleep);

use lib "$FindBin::RealBin/../perl";
use IdemTest;

my $top = "$FindBin::RealBin/../..";
my $node = IdemTest::cluster('howto', extension => 0);
my $host = $node->host;
my $port = $node->port;

# Blocks of a page as [info words, text].
sub blocks
{
	my ($file) = @_;
	my @blocks;
	my $page = slurp_file($file);

	while ($page =~ /^```(sql|text|sh(?= run))([^\n]*)\n(.*?)^```$/msg)
	{
		my ($kind, $info, $text) = ($1, $2, $3);
		push @blocks, { kind => $kind, info => [ split ' ', $info ], text => $text };
	}
	return @blocks;
}

# What a run of psql and a page are compared by.
sub normal
{
	my ($text) = @_;

	$text =~ s/^psql:<stdin>:\d+: //mg;
	$text =~ s/\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b/UUID/g;
	$text =~ s/[ \t]+/ /mg;
	$text =~ s/-+/-/mg;
	$text =~ s/^ | $//mg;
	$text =~ s/\n+\z//;
	$text =~ s/\n\n+/\n\n/g;
	return $text;
}

# The same without numbers and units of sizes.
sub without_figures
{
	my ($text) = @_;

	$text =~ s/\d+( (bytes|[kMGTP]B)\b)?/N/g;
	return $text;
}

sub run_block
{
	my ($database, $sql) = @_;
	my ($out, $pid);

	$sql =~ s/host '[a-z]+-db', port '5432'/host '$host', port '$port'/g;
	# Nothing listens on port 1, whatever else runs on this machine.
	$sql =~ s/127\.0\.0\.1:8000/127.0.0.1:1/g;
	IPC::Run::run(
		[ 'psql', '-X', '-h', $host, '-p', $port, '-d', $database, '-f', '-' ],
		'<', \$sql, '>', \$out, '2>&1');
	$out =~ s/127\.0\.0\.1:1\b/127.0.0.1:8000/g;
	return normal($out);
}

sub poll_block
{
	my ($database, $sql, $expected) = @_;
	my $until = time + $PostgreSQL::Test::Utils::timeout_default;
	my $out;

	while (time < $until)
	{
		$out = run_block($database, $sql);
		return $out if $out eq $expected;
		usleep(100_000);
	}
	return $out;
}

# A block of the shell, in which the database "shop" is the page's own, and all hosts
# are this server.
sub run_shell
{
	my ($database, $command) = @_;
	my $out;
	local %ENV = (%ENV, PGHOST => $host, PGPORT => $port);

	$command =~ s/ -d shop / -d '$database' /g;
	$command =~ s/ -h [a-z]+-db / /g;
	IPC::Run::run([ 'sh', '-c', $command ], '>', \$out, '2>&1');
	return normal($out);
}

# The statements that sink_setup_sql prints for a server.
sub setup_sql
{
	my ($database, $server) = @_;

	return $node->safe_psql($database, "SELECT idempotency.sink_setup_sql('$server')");
}

sub create_database
{
	my ($name, $extension) = @_;

	$node->safe_psql('postgres', "CREATE DATABASE \"$name\"");
	IdemTest::create_extension($node, $name) if $extension;
	return;
}

foreach my $file ("$top/README.md", sort glob("$top/doc/howto/*.md"))
{
	my $page = basename($file, '.md');
	# On servers of its own: 603_backup.pl
	next if $page eq 'backup';
	my @blocks = blocks($file);
	my %made;
	my $server;

	cmp_ok(scalar(@blocks), '>', 3, "$page has blocks to run");
	create_database("page $page", 1);
	for (my $i = 0; $i < @blocks; $i++)
	{
		my $block = $blocks[$i];
		next if $block->{kind} eq 'text';

		my %words = map { $_ => 1 } @{ $block->{info} };
		my ($target) = grep { !/^(poll|setup|figures|run)$/ } @{ $block->{info} };
		my $next = $blocks[ $i + 1 ];
		my $expected = $next && $next->{kind} eq 'text' ? normal($next->{text}) : undef;
		my $database = $target // "page $page";
		my $name = "$page, block " . ($i + 1);
		my $out;

		create_database($target, 0) if $target && !$made{$target}++;
		$server = $1 if $block->{text} =~ /^CREATE SERVER (\w+)/m;
		like($block->{text}, qr/\S/, "$name is not empty");
		is($block->{text}, setup_sql("page $page", $server), "$name is what sink_setup_sql prints")
		  if $words{setup};
		$out =
			$block->{kind} eq 'sh' ? run_shell($database, $block->{text})
		  : $words{poll} ? poll_block($database, $block->{text}, $expected)
		  : run_block($database, $block->{text});
		if (defined $expected)
		{
			($out, $expected) = map { without_figures($_) } $out, $expected if $words{figures};
			is($out, $expected, $name);
		}
		else
		{
			unlike($out, qr/^(ERROR|FATAL|psql|sh):/m, $name) or diag($out);
		}
	}
	# A page's relays and role must not be in the way of the next page.
	$node->safe_psql('postgres', "DROP DATABASE \"page $page\"");
	$node->safe_psql('postgres', "DROP DATABASE \"$_\" WITH (FORCE)") foreach keys %made;
	$node->safe_psql('postgres', 'DROP ROLE IF EXISTS relay');
}

$node->stop;

# Install keeps what the server preloads, in its order, and can be repeated.
{
	my ($select) = slurp_file("$top/README.md") =~ /<<'END'[^\n]*\n(.*?)^ *END$/ms;
	my $preload = sub {
		my $statement = $node->safe_psql('postgres', $select);

		like($statement, qr/^ALTER SYSTEM SET shared_preload_libraries = '[^;]*$/, 'Install prints one statement');
		$node->safe_psql('postgres', $statement);
		$node->restart;
		return $node->safe_psql('postgres', 'SHOW shared_preload_libraries');
	};

	$node->append_conf('postgresql.conf', 'shared_preload_libraries = \'\'');
	$node->start;
	is($preload->(), 'idempotency', 'Install preloads the library');
	$node->safe_psql('postgres', 'ALTER SYSTEM SET shared_preload_libraries = auto_explain, "$libdir/passwordcheck"');
	$node->restart;
	is($preload->(), 'auto_explain, "$libdir/passwordcheck", idempotency', 'and keeps what is preloaded');
	is($preload->(), 'auto_explain, "$libdir/passwordcheck", idempotency', 'also when it is repeated');
	$node->stop;
}
done_testing();
