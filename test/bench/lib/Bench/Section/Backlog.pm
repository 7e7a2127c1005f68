# Section "backlog": what an enqueue and its delivery cost beside 1e4, 1e5 ...
# maxsize events that wait, in our outbox and in the usual table.
#
# Ours: one relay stands at the beginning for the whole time, so all events
# are needed; others deliver the new ones, one after the other.  Each has
# delivered one event before, so that what its start costs is known and can be
# taken off: it is more than the delivery of a few thousand events.  At each
# size another carries the whole backlog out, start of its program included.
# What is enqueued adds to the backlog, so the number that waits is counted.  The usual table: pollers
# take the oldest events, as many as were enqueued, from a table just vacuumed.
package Bench::Section::Backlog;
use strict;
use warnings;
use Bench::Relay;
use Bench::Section::Ids;
use Bench::Stat;

my $usual_fill = "INSERT INTO bench.usual_outbox (aggregate_type, aggregate_id, event_type, payload)"
  . " SELECT 'order', (g %% 1000)::text, 'OrderCreated', '%s' FROM generate_series(1, 1000) g;";

sub note_one
{
	my ($run, $side, $n, $round, $waiting, $enqueue, $deliver_cpu, $start_cpu) = @_;
	my $events = $enqueue->{done};
	my %v = (enqueue_us => 1e6 * $enqueue->{server_cpu} / $events, wal => $enqueue->{wal} / $events,
		deliver_us => 1e6 * $deliver_cpu / $events, start_us => 1e6 * $start_cpu);

	$run->note('backlog', side => $side, n => $n, at => $waiting + $events / 2, round => $round, map { $_ => $v{$_} } sort keys %v);
	printf "   %-5s beside %9d: enqueue %.2f us, delivery %.2f us CPU\n", $side, $waiting, @v{qw(enqueue_us deliver_us)};
}

sub enqueue
{
	my ($run, $arm) = @_;

	return $run->cost_of('off', $run->load, '-t', $run->{growth_transactions} / $run->{clients},
		'-f', $run->arm_file($arm));
}

sub cpu_of_drain
{
	my ($relay, $events) = @_;
	my $r = $relay->drain($events);

	return $r->{worker_cpu} + $r->{sink_cpu};
}

sub ours
{
	my ($run, $n, $round) = @_;
	my @relays = map { Bench::Relay->new($run, "live$_")->create } 1 .. $run->{growth_relays};

	Bench::Relay::enqueue_backlog($run, 'jsonb', 1, 0);
	my $start_cpu = mean(map { my $cpu = cpu_of_drain($_, 1); $_->pause; $cpu } @relays);
	my $waiting = $run->{server}->sql('SELECT count(*) FROM idempotency.outbox_events');
	my $enqueued = enqueue($run, 'enq_ours');
	my $deliver_cpu = mean(map { cpu_of_drain($_, $enqueued->{done}) } @relays);

	$_->drop for @relays;
	note_one($run, 'ours', $n, $round, $waiting, $enqueued, $deliver_cpu - $start_cpu, $start_cpu);
}

sub usual
{
	my ($run, $n, $round) = @_;
	my $waiting = $run->{server}->sql('SELECT count(*) FROM bench.usual_outbox WHERE published_at IS NULL');
	my $enqueued = enqueue($run, 'enq_usual');
	my ($file) = glob "$run->{dir}/drain/*_skip_published.sql";

	$run->{server}->sql('VACUUM ANALYZE bench.usual_outbox');
	my $r = $run->cost_of('off', '-c', 2, '-j', 1, '-t', int($enqueued->{done} / 200 + 0.5), '-f', $file);
	note_one($run, 'usual', $n, $round, $waiting, $enqueued, $r->{server_cpu} + $r->{cpu}, 0);
}

sub drain_all
{
	my ($run, $n) = @_;
	my $server = $run->{server};
	my $events = $server->sql('SELECT count(*) FROM idempotency.outbox_events');
	my $relay = Bench::Relay->new($run, 'all')->create('earliest');
	my $r = $relay->drain($events);

	$relay->drop;
	$run->note('whole', n => $n, events => $events, seconds => $r->{seconds},
		us => 1e6 * ($r->{worker_cpu} + $r->{sink_cpu}) / $events);
	printf "   ours  the whole backlog of %d: %.2f us CPU per event\n", $events,
	  1e6 * ($r->{worker_cpu} + $r->{sink_cpu}) / $events;
}

sub run
{
	my ($run) = @_;
	my $server = $run->{server};
	my $behind = Bench::Relay->new($run, 'behind');
	my $filled = 0;

	print "== backlog\n";
	$behind->empty_outbox;
	$server->truncate('bench.usual_outbox');
	$behind->create;
	for my $n (Bench::Section::Ids::sizes($run->{maxsize}))
	{
		Bench::Relay::enqueue_backlog($run, 'bytea', $n - $filled, 100);
		$run->fill(sprintf($usual_fill, $run->payload), ($n - $filled) / 1000);
		$filled = $n;
		$server->sql('VACUUM ANALYZE bench.usual_outbox');
		for my $round (1 .. $run->{growth_rounds})
		{
			$_->($run, $n, $round) for $round % 2 ? (\&ours, \&usual) : (\&usual, \&ours);
		}
		drain_all($run, $n);
	}
	$behind->drop;
	$behind->empty_outbox;
	$server->truncate('bench.usual_outbox');
}

1;
