
# Copyright (c) 2026, the idempotency developers

# What a login of the kind producer may lock, fill, read, stop and learn.

use strict;
use warnings FATAL => 'all';

use PostgreSQL::Test::Utils;
use Test::More;
use Time::HiRes qw(usleep);

use IdemAttack;
use IdemTest;

my $node = IdemAttack::victim('producer', 'mallory', conf => <<'END');
idempotency.outbox_retention = 0
idempotency.outbox_rotation_interval = 0
idempotency.max_parked = 20
END

IdemAttack::common($node, 'mallory', 'producer');

# Lock, stop: transactions that stay open, with events in the outbox
my $id = '00000000-0000-4000-8000-000000000001';
my $open = IdemAttack::session($node, 'mallory');
$open->query('BEGIN');
$open->query(q{SELECT idempotency.outbox_enqueue('order', 'k', 'Placed', '1')});
$open->query("SELECT idempotency.outbox_enqueue('order', 'k', 'Placed', '1', event_id => '$id')");
$open->query(q{SAVEPOINT s; DECLARE c CURSOR FOR SELECT idempotency.outbox_enqueue('order', 'k', 'Placed', '1') FROM generate_series(1, 3)});
$open->query('FETCH 1 FROM c');
IdemAttack::alive($node, 'a producer leaves a transaction open');
IdemAttack::refused($node, 'shop',
	"SET lock_timeout = '100ms'; SELECT idempotency.outbox_enqueue('order', 'k', 'Placed', '1', event_id => '$id')",
	qr/being enqueued|lock timeout|another transaction/, 'who enqueues the same event id waits for lock_timeout');
$node->safe_psql('postgres', q{SET lock_timeout = '10s'; VACUUM; ANALYZE});
pass('VACUUM goes on');

# Fill: an open transaction keeps its segment, and no other; afterwards that one is emptied, too
sub turn_to
{
	my ($generation, $what) = @_;

	for (1 .. 10 * $PostgreSQL::Test::Utils::timeout_default)
	{
		last if $node->safe_psql('postgres', 'SELECT generation FROM idempotency.stat_outbox') >= $generation;
		IdemAttack::sql($node, 'shop', q{SELECT idempotency.outbox_enqueue('order', 'turn', 'Placed', '1')});
		usleep(100_000);
	}
	return cmp_ok($node->safe_psql('postgres', 'SELECT generation FROM idempotency.stat_outbox'), '>=', $generation, $what);
}

# The segment may have changed since, or between its events: its locks tell the last one.
my $generation = $node->safe_psql('postgres', q{
	SELECT max(g) FROM pg_locks l, idempotency.stat_outbox o, generate_series(greatest(o.generation - 7, 0), o.generation) g
	WHERE l.pid = } . $open->query_safe('SELECT pg_backend_pid()') . q{ AND l.locktype = 'relation' AND l.mode = 'RowExclusiveLock'
		AND l.relation = ('idempotency_data.outbox_segment_' || g % 8)::regclass});
my $empty = 'SELECT first_xid IS NULL FROM idempotency.outbox_segments() WHERE segment = ';

$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('elsewhere')});
turn_to($generation + 2, 'segments are closed beside an open transaction');
IdemTest::wait_for($node, $empty . ($generation + 1) % 8);
is($node->safe_psql('postgres', $empty . $generation % 8), 'f', 'one that it has no event in is emptied, its own is not');
$open->query('ROLLBACK');
IdemTest::wait_for($node, $empty . $generation % 8);

# The same with a prepared transaction, whose session is gone
IdemAttack::sql($node, 'mallory', "BEGIN; SELECT idempotency.outbox_enqueue('order', 'k', 'Placed', '1', event_id => '$id'); PREPARE TRANSACTION 'mallory'");
IdemAttack::alive($node, 'a producer leaves a prepared transaction');
IdemAttack::sql($node, 'mallory', "ROLLBACK PREPARED 'mallory'");

# Fill: what is too large is refused, and nothing of it stays
foreach my $too (
	[ q{'order', 'k', 'Placed', to_jsonb(repeat('x', 2000000))}, qr/54000|max_payload_size|larger/ ],
	[ q{'order', 'k', 'Placed', '1', jsonb_build_object('h', repeat('x', 2000000))}, qr/max_payload_size|larger/ ],
	[ q{'order', 'k', 'Placed', '1', '[]'}, qr/object/ ],
	[ q{repeat('o', 256), 'k', 'Placed', '1'}, qr/aggregate_type/ ], [ q{'order', repeat('k', 256), 'Placed', '1'}, qr/aggregate_id/ ],
	[ q{'order', 'k', repeat('P', 256), '1'}, qr/event_type/ ], [ q{'', 'k', 'Placed', '1'}, qr/aggregate_type/ ],
	[ q{'order', 'k', NULL, '1'}, qr/event_type/ ])
{
	IdemAttack::refused($node, 'mallory', "SELECT idempotency.outbox_enqueue($too->[0])", $too->[1]);
}
IdemAttack::refused($node, 'mallory',
	q{SELECT idempotency.outbox_enqueue_bytes('order', 'k', 'Placed', 'x', content_type => E'text/plain\r\nX: y')}, qr/content_type/);
IdemAttack::refused($node, 'mallory',
	q{SELECT count(*) FROM idempotency.outbox_enqueue_many('order', ARRAY['a','b'], ARRAY['x'], ARRAY['1'::jsonb])}, qr/argument|elements/);

# Fill: many event ids of one's own in one transaction stay within the budget of locks
my $many = IdemAttack::session($node, 'mallory');
$many->query('BEGIN');
$many->query(q{SELECT count(idempotency.outbox_enqueue('other', 'k', 'Placed', '1', event_id => gen_random_uuid())) FROM generate_series(1, 20000)});
cmp_ok($node->safe_psql('postgres', 'SELECT count(*) FROM pg_locks'), '<', 1000, 'locks are within the budget');
IdemAttack::alive($node, '20,000 event ids in an open transaction');
$many->query('ROLLBACK');
$many->quit;

# Stop: events that are hard to handle
my $long = '1' x 255;
my @hard = (
	q{SELECT idempotency.outbox_enqueue_bytes('order', 'bytes', 'Placed', '\x00ff')},
	q{SELECT idempotency.outbox_enqueue('order', 'null', 'Placed', 'null')},
	q{SELECT idempotency.outbox_enqueue('order', 'large', 'Placed', to_jsonb(repeat('x', 1000000)), jsonb_build_object('h', repeat('y', 1000000)))},
	q{SELECT idempotency.outbox_enqueue('order', 'deep', 'Placed', (repeat('[', 3000) || repeat(']', 3000))::jsonb)},
	q{SELECT idempotency.outbox_enqueue('order', 'wide', 'Placed', (SELECT jsonb_object_agg(i, i) FROM generate_series(1, 25000) i))},
	q{SELECT idempotency.outbox_enqueue('order', 'numbers', 'Placed', '[1e131071, 1e-16383, 123456789012345678901234567890]')},
	q{SELECT idempotency.outbox_enqueue('order', E'line\n2026-11-22 12:00:00.000 UTC [1] LOG:  forged\r\t\033[31m', E'Placed\n', '1', '{"a\nb": "c\r\nd"}')},
	q{SELECT idempotency.outbox_enqueue('order', 'ü€😀', '\\x00', '"\\u0001"')},
	qq{SELECT idempotency.outbox_enqueue('order', '$long', '$long', '1')},
	q{SELECT idempotency.outbox_enqueue('order', '''; DROP TABLE app.got; --', '$1 %s %n \\', '1')},
	q{SELECT count(*) FROM idempotency.outbox_enqueue_many('order', ARRAY(SELECT 'm' || i FROM generate_series(1, 20000) i),
		ARRAY(SELECT 'Placed' FROM generate_series(1, 20000)), ARRAY(SELECT '1'::jsonb FROM generate_series(1, 20000)))});
IdemAttack::sql($node, 'mallory', $_) foreach @hard;
IdemAttack::alive($node, 'events that are hard to handle');
is($node->safe_psql('postgres', q{SELECT count(*) FROM app.got WHERE aggregate_id IN ('deep', 'wide', 'numbers', 'null', 'large')}),
	'5', 'what is only odd is handled');
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM app.got WHERE aggregate_id LIKE 'line%'});
unlike(slurp_file($node->logfile), qr/^2026-11-22 12:00:00\.000 UTC \[1\] LOG:  forged/m, 'no line of the log is forged');

# As deep as this login can make it, by whatever it may call
IdemAttack::try($node, 'mallory', <<'SQL');
DO $$
DECLARE
	deep jsonb := '1';
BEGIN
	FOR i IN 1 .. 20000 LOOP
		deep := jsonb_build_array(deep);
		IF i % 1000 = 0 THEN
			PERFORM idempotency.outbox_enqueue('order', 'deeper', 'Placed', deep);
		END IF;
	END LOOP;
EXCEPTION WHEN OTHERS THEN
	NULL;
END
$$;
SQL
IdemAttack::alive($node, 'payloads as deep as can be built');

# Fill, stop: a flood of events that are refused holds up the relays that want them, which say so, and no others
IdemAttack::sql($node, 'mallory', q{SELECT count(idempotency.outbox_enqueue('card', i::text, 'Created', '1')) FROM generate_series(1, 100) i});
IdemTest::wait_for($node, q{SELECT state = 'outage' AND last_error IS NOT NULL FROM idempotency.stat_relay WHERE relay = 'cards'});
IdemAttack::alive($node, 'all events of a relay are refused');

# Learn: an id of somebody else's event is told from a new one, as the documents say, and nothing else of it
my $taken = '00000000-0000-4000-8000-00000000000a';
IdemAttack::sql($node, 'shop', "SELECT idempotency.outbox_enqueue('order', 's3cret', 's3cret', '\"s3cret\"', event_id => '$taken')");
my $error = IdemAttack::try($node, 'mallory', "\\set VERBOSITY verbose\nSELECT idempotency.outbox_enqueue('order', 'k', 'Placed', '1', event_id => '$taken')");
like($error, qr/23505/, 'an id that is taken is refused');
unlike($error, qr/s3cret/, 'by an error that says nothing of the event');
foreach my $query ('SELECT * FROM idempotency.stat_relay', 'SELECT * FROM idempotency.stat_outbox', 'SELECT * FROM idempotency.outbox_events',
	"SELECT idempotency.event_result('$taken')", "SELECT idempotency.lock_key('a')", "SELECT idempotency.claim_event('$taken')",
	q{SELECT idempotency_data.outbox_last_seq()}, q{SELECT idempotency.outbox_mend_seq()}, q{SELECT idempotency.relay_pause('orders')},
	q{SELECT idempotency.consumer_create('x')}, q{SELECT idempotency.grant_role('operator', 'mallory')})
{
	IdemAttack::refused($node, 'mallory', $query, qr/permission denied/);
}

$open->quit;
IdemAttack::alive($node, 'after all that a producer tried');
$node->stop;
done_testing();
