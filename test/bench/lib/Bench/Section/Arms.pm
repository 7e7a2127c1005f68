# Sections "claims" and "enqueues": the arms of arms/, interleaved.
#
# After each run the rows of the arm's tables are counted: an arm that did not
# do its work stops the benchmark.
package Bench::Section::Arms;
use strict;
use warnings;
use Bench::Arm;

my $leases = qr/^(claim_commit|lease_(floor|plain|usual|complete)|claim_result|request)$/;
my $cursors = qr/^(offset|sequence|rows)_|^(claim_one|floor)$/;
my %take = (
	claims => sub { $_[0] !~ /^(enq|many|offset|sequence|rows)_|$leases/ },
	enqueues => sub { $_[0] =~ /^(enq|many)_/ },
	leases => sub { $_[0] =~ $leases },
	cursors => sub { $_[0] =~ $cursors });

sub run_arm
{
	my ($run, $arm, $mode, $round) = @_;
	my $server = $run->{server};
	my @tables = $server->tables($arm->{tables});

	$server->truncate($arm->{tables});
	$server->sql($arm->{before}) if defined $arm->{before};
	my $dead_before = $server->dead_elsewhere(@tables);
	my $r = $run->cost_of($mode, $run->load, '-T', $run->{seconds}, '-f', $arm->{file});
	my $events = $r->{done} * $arm->{events};
	my ($rows, $dead, $bytes) = $server->table_state(@tables);
	die "$arm->{name}: $events events, but $rows rows\n" if @tables && $rows != $events * $arm->{rows};
	$run->note('run', arm => $arm->{name}, sync => $mode, round => $round,
		rate => $r->{tps} * $arm->{events}, events => $events, latency_ms => $r->{latency_ms},
		cpu_us => 1e6 * $r->{server_cpu} / $events, wal => $r->{wal} / $events,
		dead => $dead / $events, dead_elsewhere => $server->dead_elsewhere(@tables) - $dead_before,
		bytes => $bytes / $events);
	printf "   %-14s sync %-3s %10.0f events/s  %7.2f us CPU  %6.0f B WAL\n",
	  $arm->{name}, $mode, $r->{tps} * $arm->{events}, 1e6 * $r->{server_cpu} / $events, $r->{wal} / $events;
}

# A B C … C B A, twice in a full run.
sub run
{
	my ($run, $section) = @_;
	my @arms = Bench::Arm::take($run, 'arms', $take{$section});

	for my $mode ('on', 'off')
	{
		for my $round (1 .. $run->{rounds})
		{
			my @order = $round % 4 < 2 ? @arms : reverse @arms;

			print "== $section, synchronous_commit $mode, round $round of $run->{rounds}\n";
			run_arm($run, $_, $mode, $round) for @order;
		}
	}
}

1;
