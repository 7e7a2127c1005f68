
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
		my ($target) = grep { !/^(poll|setup|figures)$/ } @{ $block->{info} };
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
		$out = $words{poll}
		  ? poll_block($database, $block->{text}, $expected)
		  : run_block($database, $block->{text});
		if (defined $expected)
		{
			($out, $expected) = map { without_figures($_) } $out, $expected if $words{figures};
			is($out, $expected, $name);
		}
		else
		{
			unlike($out, qr/^(ERROR|FATAL|psql):/m, $name) or diag($out);
		}
	}
	# A page's relays and role must not be in the way of the next page.
	$node->safe_psql('postgres', "DROP DATABASE \"page $page\"");
	$node->safe_psql('postgres', "DROP DATABASE \"$_\" WITH (FORCE)") foreach keys %made;
	$node->safe_psql('postgres', 'DROP ROLE IF EXISTS relay');
}

$node->stop;
done_testing();
