# Section "memory": what the worker holds of its own while it sends a backlog
# of small transactions, and one large transaction.
package Bench::Section::Memory;
use strict;
use warnings;
use Bench::Relay;

sub run_one
{
	my ($run, $what, $per, $round) = @_;
	my $events = $run->{memory_events};
	my $relay = Bench::Relay->new($run, $what)->create;

	Bench::Relay::enqueue_backlog($run, 'bytea', $events, $per);
	my $r = $relay->drain($events);
	$relay->drop;
	$relay->empty_outbox;
	$run->note('memory', what => $what, round => $round, per => $per || $events, events => $events, seconds => $r->{seconds},
		cpu => $r->{worker_cpu} + $r->{sink_cpu}, anon_kb => $r->{anon}, hwm_kb => $r->{hwm},
		sink_hwm_kb => $r->{sink_hwm});
	printf "   %-16s worker %d kB of its own, %d kB with shared buffers; program %d kB\n",
	  $what, @$r{qw(anon hwm sink_hwm)};
}

sub run
{
	my ($run) = @_;

	print "== memory of the worker\n";
	for my $round (1 .. $run->{memory_rounds})
	{
		run_one($run, 'small_transactions', 10, $round);
		run_one($run, 'one_transaction', 0, $round);
	}
}

1;
