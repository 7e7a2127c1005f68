
# Copyright (c) 2026, the idempotency developers

# A repeated event that a sink which stores positions refused, and copies that the sink
# passed over for it, stay due when the configuration changes between SETTLE and the VERDICT.
# Refused events that are read anew have their turns in the order of their last refusals.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use PostgreSQL::Test::Utils;
use Test::More;

my $dir = IdemRelay::sink_directory();
my $node = IdemTest::cluster('main', conf => <<"END");
idempotency.sink_directory = '$dir'
idempotency.sink_timeout = 1h
autovacuum = off
END
my $file = "$dir/held.log";
my $hold = "$dir/hold";

sub sql { return $node->safe_psql('postgres', @_); }

# Make the parked event of a type due at once.
sub replay
{
	my ($type) = @_;

	sql("SELECT idempotency.relay_replay('r', event_id => event_id) FROM idempotency_data.relay_parked WHERE event_type = '$type'");
	return;
}

sub parked
{
	return sql(q{SELECT string_agg(event_type || ' ' || state, ', ' ORDER BY seq) FROM idempotency_data.relay_parked});
}

IdemRelay::pytest_server($node, 'srv', $file, position => 'on', reject_type => 'A,B', retry_times => 1, hold => $hold);
IdemRelay::pytest_server($node, 'other', "$dir/other.log");
sql(q{SELECT idempotency.relay_create('r', 'srv', aggregate_types => '{t}', min_backoff => '1 h', max_backoff => '1 h')});
IdemRelay::enqueue($node, 'k', 'A');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM idempotency_data.relay_parked WHERE state = 'retry'});
IdemRelay::enqueue($node, 'k', $_) foreach qw(B C);
IdemTest::wait_for($node, q{SELECT count(*) = 2 FROM idempotency_data.relay_parked WHERE state = 'waiting'});

# A is accepted now.  The batch of B and C follows: B is refused, C is passed over for B.
append_to_file($hold, '');
replay('A');
IdemRelay::wait_until('the sink holds its verdict', sub { grep { exists $_->{held} } IdemRelay::received($file) });
is(parked(), 'B retry, C waiting', 'both are parked while the sink holds its verdict');

# The worker serves its relays in turn: when this one streams, relay r has read the parked events anew.
sql(q{SELECT idempotency.relay_create('other', 'other', aggregate_types => '{other}')});
IdemRelay::wait_state($node, 'other', 'streaming');
is(IdemRelay::stat($node, 'r', 'waiting_for'), 'answer', 'the verdict is awaited still');

unlink($hold) or die "could not remove $hold: $!";
IdemTest::wait_for($node, q{SELECT waiting_for <> 'answer' FROM idempotency.stat_relay WHERE relay = 'r'});
is(IdemRelay::stat($node, 'r', 'waiting_for'), 'retry', 'the relay waits until the refused event is due again');
is(parked(), 'B retry, C waiting', 'both are parked after the verdict');
replay('B');
IdemRelay::wait_received($file, 3);
is(join(' ', map { $_->{event_type} } IdemRelay::acked($file)), 'A B C', 'each comes once, in order');

# In order of their numbers those at the end might wait for ever, if all take longer than it takes until
# they are read again.
my $ordered = "$dir/ordered.log";
IdemRelay::pytest_server($node, 'ordered', $ordered, reject_type => 'R', retry_times => 1);
sql(q{SELECT idempotency.relay_create('ordered', 'ordered', aggregate_types => '{o}', batch_events => 1, min_backoff => '1 h', max_backoff => '1 h')});
sql(q{SELECT idempotency.outbox_enqueue('o', t || i, t, '1') FROM generate_series(1, 6) i, unnest('{R,Good}'::text[]) t});
IdemTest::wait_for($node, q{SELECT retrying = 6 AND sent = 6 FROM idempotency.stat_relay WHERE relay = 'ordered'});
sql(q{SELECT idempotency.relay_pause('ordered')});
IdemRelay::wait_state($node, 'ordered', 'paused');
sql(q{UPDATE idempotency_data.relay_parked SET next_attempt_at = now(), last_failed_at = now() - right(aggregate_id, 1)::int * '1 s'::interval
	WHERE aggregate_type = 'o'});
sql(q{SELECT idempotency.relay_resume('ordered')});
IdemTest::wait_for($node, q{SELECT retrying = 0 AND sent = 12 FROM idempotency.stat_relay WHERE relay = 'ordered'});
is(join(' ', map { $_->{aggregate_id} } grep { $_->{event_type} eq 'R' } IdemRelay::acked($ordered)), 'R6 R5 R4 R3 R2 R1',
	'those that were refused longest ago come first, batch by batch');

$node->stop;
done_testing();
