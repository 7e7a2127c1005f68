
# Copyright (c) 2026, the idempotency developers

# The SQL of README.md and of doc/howto works and prints what stands there.
#
# A block ```sql is run in the page's own database, ```sql NAME in the target
# database of that name.  A block ```text that follows is its whole output,
# blanks at line ends and the widths of columns aside.  "poll" repeats a block
# until it prints that; "setup" runs what the last call of sink_setup_sql
# printed.  Host names of the pages are replaced by this server's socket.

use strict;
use warnings FATAL => 'all';

use File::Basename qw(basename);
use FindBin;
use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use lib "$FindBin::RealBin/../perl";
use IdemTest;

my $top = "$FindBin::RealBin/../..";
my $node = IdemTest::cluster('howto', extension => 0);
my $host = $node->host;
my $port = $node->port;

$node->safe_psql('postgres', 'CREATE ROLE relay LOGIN SUPERUSER');

# Blocks of a page as [info words, text].
sub blocks
{
	my ($file) = @_;
	my @blocks;
	my $page = slurp_file($file);

	while ($page =~ /^```(sql|text)([^\n]*)\n(.*?)^```$/msg)
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
	$text =~ s/[ \t]+/ /mg;
	$text =~ s/-+/-/mg;
	$text =~ s/^ | $//mg;
	$text =~ s/\n+\z//;
	$text =~ s/\n\n+/\n\n/g;
	return $text;
}

sub run_block
{
	my ($database, $sql) = @_;
	my ($out, $pid);

	$sql =~ s/host '[a-z]+-db'/host '$host', port '$port'/g;
	IPC::Run::run(
		[ 'psql', '-X', '-h', $host, '-p', $port, '-d', $database, '-f', '-' ],
		'<', \$sql, '>', \$out, '2>&1');
	return normal($out);
}

sub poll_block
{
	my ($database, $sql, $expected) = @_;
	my $out;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		$out = run_block($database, $sql);
		return $out if $out eq $expected;
		usleep(100_000);
	}
	return $out;
}

# The statements that sink_setup_sql gives for the last server of a page.
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
		my ($target) = grep { !/^(poll|setup)$/ } @{ $block->{info} };
		my $next = $blocks[ $i + 1 ];
		my $expected = $next && $next->{kind} eq 'text' ? normal($next->{text}) : undef;
		my $database = $target // "page $page";
		my $name = "$page, block " . ($i + 1);
		my $out;

		create_database($target, 0) if $target && !$made{$target}++;
		$server = $1 if $block->{text} =~ /^CREATE SERVER (\w+)/m;
		if ($words{setup})
		{
			$node->safe_psql($database, setup_sql("page $page", $server));
			next;
		}
		$out = $words{poll}
		  ? poll_block($database, $block->{text}, $expected)
		  : run_block($database, $block->{text});
		if (defined $expected)
		{
			is($out, $expected, $name);
		}
		else
		{
			unlike($out, qr/^(ERROR|FATAL|psql):/m, $name) or diag($out);
		}
	}
	# A page's relays must not be in the way of the next one's databases.
	$node->safe_psql('postgres', "DROP DATABASE \"page $page\"");
	$node->safe_psql('postgres', "DROP DATABASE \"$_\" WITH (FORCE)") foreach keys %made;
}

$node->stop;
done_testing();
