
# Copyright (c) 2026, the idempotency developers

# A sink that stores positions commits several batches in one transaction of its
# target.  The worker sends it enough of them, keeps to the credit and to a bound
# of its own, goes on behind the last one whatever ends the program, and parks
# nothing twice when a refusal makes the sink do them again one by one.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => "idempotency.sink_directory = '$dir'\n");
my $in_flight = 128;      # batches, as doc/sink-protocol.md says
my $share = 8;            # batches in one commit, if a relay says nothing else

# A relay with batches of 5 events, to a sink that gathers while its file is there.
sub relay
{
	my ($name, %opt) = @_;
	my $events = delete $opt{batch_events} // 5;

	IdemRelay::pytest_server($node, "s_$name", "$dir/$name.log", position => 'on', share => $share,
		gather => "$dir/$name.gather", %opt);
	$node->safe_psql('postgres', <<"END");
SELECT idempotency.relay_create('$name', 's_$name', aggregate_types => '{$name}', batch_events => $events,
	min_backoff => '50 ms', max_backoff => '100 ms')
END
	IdemRelay::wait_state($node, $name, 'streaming');
	return;
}

sub gather
{
	my ($name, $on) = @_;

	if ($on)
	{
		open(my $fh, '>', "$dir/$name.gather") or die "could not open a file: $!";
		close($fh);
	}
	else
	{
		unlink("$dir/$name.gather") or die "could not remove a file: $!";
	}
	return;
}

# Events n of the key n % 7, all in one transaction; types by n.
sub enqueue
{
	my ($name, $n, %type) = @_;

	$node->safe_psql('postgres', join("\n", 'BEGIN;',
		(map { my ($key, $type) = ($_ % 7, $type{$_} // 'T');
				"SELECT idempotency.outbox_enqueue('$name', '$key', '$type', '{\"n\": $_}');" } 1 .. $n), 'COMMIT;'));
	return;
}

sub lines
{
	my ($name, $what) = @_;

	return grep { defined $_->{$what} } IdemRelay::received("$dir/$name.log");
}

# The numbers of batches that each commit had.  A file may have many other lines.
sub shares
{
	my ($name) = @_;

	return join(' ', map { /"batches": (\d+)/ } grep { /"commit"/ } split /\n/, slurp_file("$dir/$name.log"));
}

# Each event once, of each key in order.
sub each_once
{
	my ($name, $n, $what) = @_;
	my @acked = IdemRelay::acked("$dir/$name.log");
	my %last;
	my $disorder = 0;

	is(scalar @acked, $n, "$what: so many events");
	is(IdemRelay::distinct(@acked), $n, "$what: each one once");
	$disorder += ($last{ $_->{aggregate_id} } // 0) > $_->{seq}, $last{ $_->{aggregate_id} } = $_->{seq} foreach @acked;
	is($disorder, 0, "$what: in the order of each key");
	IdemTest::wait_for($node,
		"SELECT lag_events = 0 AND dead = 0 AND waiting_for = 'events' FROM idempotency.stat_relay WHERE relay = '$name'");
	is($node->safe_psql('postgres', 'SELECT count(*) FROM idempotency_data.relay_parked'), '0', "$what: nothing stays parked");
	return;
}

# The worker fills what may be in flight without waiting for a verdict.
relay('all', share => $in_flight);
gather('all', 1);
enqueue('all', 5 * $in_flight + 7);
IdemRelay::wait_received("$dir/all.log", 5 * $in_flight);
is(shares('all'), $in_flight, 'a sink that commits a full share only gets it');
gather('all', 0);
IdemRelay::wait_received("$dir/all.log", 5 * $in_flight + 7);
each_once('all', 5 * $in_flight + 7, 'all batches that may be in flight, then two');

# No more than that.
relay('more', share => $in_flight + 1);
gather('more', 1);
enqueue('more', 5 * $in_flight + 7);
# the largest batches: of those past the eighth so many that 100,000 events are in flight
my @large = (batch_events => 10000, credit_messages => 1_000_000, credit_bytes => 1_000_000_000);
relay('large', share => 10, @large);
gather('large', 1);
relay('larger', share => 11, @large);
gather('larger', 1);
foreach my $name ('large', 'larger')
{
	$node->safe_psql('postgres',
		"SELECT count(idempotency.outbox_enqueue('$name', (i % 7)::text, 'T', '1')) FROM generate_series(1, 130000) i");
}
IdemRelay::wait_until('a share is full', sub { shares('large') ne '' });
is((split / /, shares('large'))[0], 10, 'ten batches of ten thousand events are in flight');
my ($memory) = slurp_file('/proc/' . IdemRelay::stat($node, 'large', 'pid') . '/status') =~ /RssAnon:\s+(\d+) kB/;
cmp_ok($memory, '<', 32 * 1024, 'the worker stays below 32 MB of its own');
gather('large', 0);
# The worker takes its relays in turns, so the others had their chance to send more.
IdemTest::wait_for($node, "SELECT lag_events = 0 AND sent = 130000 FROM idempotency.stat_relay WHERE relay = 'large'");
foreach my $name ('more', 'larger')
{
	IdemTest::wait_for($node, "SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = '$name'");
	is(shares($name), '', "$name: a share that is larger than what may be in flight is never full");
	gather($name, 0);
}
IdemRelay::wait_received("$dir/more.log", 5 * $in_flight + 7);
each_once('more', 5 * $in_flight + 7, 'a share that is too large');
IdemTest::wait_for($node, "SELECT lag_events = 0 AND sent = 130000 FROM idempotency.stat_relay WHERE relay = 'larger'");
is((split / /, shares('larger'))[0], 10, 'the share that could not become full had ten batches, too');

# It is the sink's credit that bounds what the sink has to keep.
relay('credit', credit_messages => 12, max_batch_events => 5);
gather('credit', 1);
enqueue('credit', 30);
IdemTest::wait_for($node, "SELECT waiting_for = 'answer' FROM idempotency.stat_relay WHERE relay = 'credit'");
gather('credit', 0);
IdemRelay::wait_received("$dir/credit.log", 30);
each_once('credit', 30, 'little credit');
is((grep { $_ > 3 } split / /, shares('credit')), 0, 'no more batches than the credit has room for');

# The program dies between the commit and the verdicts: the last position counts.
relay('lost', lose_type => 'Lost', fault_times => 1);
gather('lost', 1);
enqueue('lost', 45, 13 => 'Lost');
IdemRelay::wait_received("$dir/lost.log", 40);
gather('lost', 0);
IdemRelay::wait_received("$dir/lost.log", 45);
each_once('lost', 45, 'death behind the commit');
is((split / /, shares('lost'))[0], $share, 'it died of a shared commit');

# The target refuses an event when eight batches are committed: one by one.
relay('abort', abort_type => 'Bad', retry_times => 2);
gather('abort', 1);
enqueue('abort', 40, 18 => 'Bad', 19 => 'Bad');
IdemRelay::wait_until('it is aborted', sub { lines('abort', 'abort') >= 1 });
gather('abort', 0);
IdemRelay::wait_received("$dir/abort.log", 40);
is((lines('abort', 'abort'))[0]{batches}, $share, 'eight batches were aborted');
unlike(shares('abort'), qr/^\d* ?[2-8]/, 'and done again one by one');
each_once('abort', 40, 'a refusal in a shared transaction');

# Refused before the commit: such a batch has a transaction for itself.
relay('refuse', reject_type => 'Bad', retry_times => 1);
gather('refuse', 1);
enqueue('refuse', 40, 18 => 'Bad');
IdemRelay::wait_until('a batch is settled', sub { lines('refuse', 'settle') >= 1 });
gather('refuse', 0);
IdemRelay::wait_received("$dir/refuse.log", 40);
like(shares('refuse'), qr/^3 1/, 'three batches before it share one');
each_once('refuse', 40, 'a batch with a refused event');

# One by one, a batch still cannot be committed: the worker finds the event.
relay('hunt', verdict_type => 'Bad', verdict => 'aborted', fault_times => 3);
gather('hunt', 1);
enqueue('hunt', 40, 18 => 'Bad');
IdemRelay::wait_until('the program gives up', sub { lines('hunt', 'fault') >= 1 });
gather('hunt', 0);
IdemRelay::wait_received("$dir/hunt.log", 40);
each_once('hunt', 40, 'a batch that cannot be committed');

# A verdict out of turn breaks the protocol; what was committed is not repeated.
relay('turned', lie_type => 'Lie', lie => 'turned', fault_times => 1);
gather('turned', 1);
enqueue('turned', 40, 8 => 'Lie');
IdemTest::wait_for($node,
	"SELECT last_error LIKE '%an unexpected verdict%' FROM idempotency.stat_relay WHERE relay = 'turned'");
gather('turned', 0);
IdemRelay::wait_received("$dir/turned.log", 40);
each_once('turned', 40, 'verdicts out of turn');

# Kills at any time while batches are shared.
relay('kill');
foreach my $round (1 .. 6)
{
	enqueue('kill', 200);
	IdemRelay::wait_until('some of it arrives',
		sub { IdemRelay::distinct(IdemRelay::acked("$dir/kill.log")) > 200 * ($round - 1) + 20 });
	kill 'KILL', IdemRelay::stat($node, 'kill', 'sink_pid') || next;
}
IdemRelay::wait_received("$dir/kill.log", 1200);
each_once('kill', 1200, 'kills');
like(shares('kill'), qr/[2-8]/, 'some commits had several batches');

$node->stop;
done_testing();
