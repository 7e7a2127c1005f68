# Section "parked": copies that wait behind a parked event of their key, drained once it
# goes through, beside as many plain events by the same kind of relay in the same round.
package Bench::Section::Parked;
use strict;
use warnings;
use Bench::Relay;
use Bench::Server;

*until_true = \&Bench::Server::until_true;

my @cases = map { my $sink = $_; map { { sink => $sink, keys => $_ } } 1, 100 } qw(null_sink idle_sink);

sub parked_table
{
	my ($server) = @_;

	return $server->sql("SELECT oid::regclass FROM pg_class WHERE relname = 'relay_parked'");
}

# The first event of each key is parked for an hour; the others wait behind it.
sub park
{
	my ($run, $relay, $keys) = @_;
	my $server = $run->{server};
	my $table = parked_table($server);
	my $n = $run->{parked_events};
	my $enqueue = sub {
		my ($type, $count) = @_;

		$server->sql("SELECT count(idempotency.outbox_enqueue('order', 'k' || (g % $keys), '$type', '"
			  . $run->payload . "')) FROM generate_series(1, $count) g");
	};

	$enqueue->('Head', $keys);
	$server->sql("SELECT count(idempotency.relay_replay('$relay->{name}', event_id => event_id))"
		  . " FROM idempotency.outbox_events WHERE event_type = 'Head'");
	$server->sql("UPDATE $table SET next_attempt_at = now() + interval '1 hour'");
	$relay->resume;
	$enqueue->('Copy', $n);
	until_true(300, 'the copies are not parked',
		sub { $server->sql("SELECT count(*) FROM $table WHERE state = 'waiting'") >= $n });
	$relay->pause;
	$server->sql("UPDATE $table SET next_attempt_at = now() WHERE state = 'retry'");
}

sub run_one
{
	my ($run, $case, $round) = @_;
	my $server = $run->{server};
	my $n = $run->{parked_events};
	my $name = "parked_$case->{keys}";
	my $relay = Bench::Relay->new($run, $name, $case->{sink})->create;

	Bench::Relay::enqueue_backlog($run, 'jsonb', $n, 0);
	my $plain = $relay->drain($n);
	$relay->pause;
	park($run, $relay, $case->{keys});
	my $parked = $relay->drain($n + $case->{keys});
	$relay->drop;
	$relay->empty_outbox;
	$run->note('parked', %$case, round => $round, events => $n,
		plain_seconds => $plain->{seconds}, parked_seconds => $parked->{seconds});
	printf "   %-12s %3d keys: plain %8.0f events/s, parked %8.0f\n", @$case{qw(sink keys)},
	  map { $n / $_->{seconds} } $plain, $parked;
}

sub run
{
	my ($run) = @_;

	for my $round (1 .. $run->{parked_rounds})
	{
		print "== parked copies, round $round of $run->{parked_rounds}\n";
		run_one($run, $_, $round) for @cases;
	}
}

1;
