#!/usr/bin/perl
# Measure one section of the benchmark on servers that are up.
#
#	measure.pl DIR setup			make the schema and the rivals
#	measure.pl DIR SECTION			measure it; DIR/SECTION.tsv says what was seen
#	measure.pl DIR --list			the sections that ONLY and QUICK choose
#	measure.pl DIR profile ARM		run an arm over and over; see Bench::Section::Profile
#
# BENCH_SERVERS says where: host:port:log, one per word.  Pins have a second, which
# is the one that is pinned; the section "pair" has one of the other tree and one
# to send to, and is not in the list.
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/lib";
use Bench::Arm;
use Bench::Others;
use Bench::Run;
use Bench::Server;

my %module = (
	claims => 'Arms', enqueues => 'Arms', drain => 'Drain', postgres => 'Postgres', latency => 'Latency', kafka => 'Kafka', http => 'Http', memory => 'Memory',
	parked => 'Parked', leases => 'Leases', cursors => 'Cursors', many => 'Many', redrive => 'Redrive', pair => 'Pair', backlog => 'Backlog', ids => 'Ids', connections => 'Connections', profile => 'Profile',
	(map { ($_ => 'Broker') } qw(nats redis rabbitmq mqtt)),
	map { ("pin-$_" => 'Pin') } qw(snapshot writer reader prepared));
my @always = qw(claims enqueues drain postgres parked latency kafka nats redis rabbitmq mqtt http memory backlog ids);
my @by_name = qw(many connections redrive leases cursors pin-snapshot pin-writer pin-reader pin-prepared);

sub chosen
{
	my $only = $ENV{ONLY};

	return grep { /^(?:$only)/ } @always, @by_name if $only;
	return (@always, $ENV{QUICK} ? @by_name : ());
}

my ($dir, $what, @arguments) = @ARGV;
die "usage: measure.pl DIR setup|SECTION|--list|profile ARM\n" unless $what;

if ($what eq '--list')
{
	my @sections = chosen() or die "no section is called $ENV{ONLY}; there are @always @by_name\n";
	print "$_\n" for @sections;
	exit;
}

$| = 1;
my @servers = map { Bench::Server->new(split /:/) } split ' ', $ENV{BENCH_SERVERS};

if ($what eq 'setup')
{
	for my $server (@servers[ 0 .. ($ENV{BENCH_TARGET} ? 1 : $#servers) ])
	{
		$server->run_file("$dir/schema.sql");
		Bench::Arm::install_rivals($dir, $server);
	}
	exit;
}

my $module = $module{$what} or die "no section $what\n";
eval "require Bench::Section::$module" or die $@;
my $run = Bench::Run->new($dir, $what, @servers);
my $others = Bench::Others->new(@servers);
$run->note('server', name => $_, value => $servers[0]->sql("SHOW $_"))
  for qw(server_version shared_buffers fsync wal_level full_page_writes max_wal_size
  checkpoint_timeout autovacuum autovacuum_naptime wal_compression jit max_prepared_transactions
  idempotency.max_claim_locks idempotency.outbox_retention idempotency.outbox_segment_size
  idempotency.outbox_rotation_interval);
Bench::Arm::note_versions($run);
"Bench::Section::$module"->can('run')->($run, $what, @arguments);
Bench::Server::end_session($_->{session}) for @servers;
$run->note('others', $others->took);
