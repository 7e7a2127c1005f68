
# Copyright (c) 2026, the idempotency developers

# What bounds a function relay: a cancel, attempts, and the size of a batch.

use strict;
use warnings FATAL => 'all';

use IdemRelay;
use IdemTest;
use Test::More;

my $node = IdemTest::cluster('main');

$node->safe_psql('postgres', <<"END");
CREATE TABLE effects (event_type text, n int, xid xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION handle(event_type text, payload jsonb) RETURNS void LANGUAGE plpgsql AS \$\$
BEGIN
	IF event_type = 'Sleep' AND NOT EXISTS (SELECT FROM public.awake) THEN
		PERFORM pg_advisory_xact_lock(1), pg_sleep(3600);
	ELSIF event_type = 'Refused' AND (SELECT count(*) < 3 FROM public.tries) THEN
		RAISE EXCEPTION 'try % is refused', nextval('public.try');
	END IF;
	INSERT INTO public.effects VALUES (event_type, (payload->>'n')::int);
END \$\$;
CREATE SEQUENCE try;
CREATE TABLE awake ();
CREATE VIEW tries AS SELECT generate_series(1, last_value) FROM try WHERE is_called;
CREATE SERVER fn FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.handle', timeout '500');
SELECT idempotency.relay_create('fn', 'fn', max_attempts => 1);
END
# A cancel by an operator is that of the event whose handler runs, and does not count.
$node->safe_psql('postgres', q{
	ALTER SERVER fn OPTIONS (SET timeout '3600000');
	SELECT idempotency.outbox_enqueue('t', 'a', 'Sleep', '{"n": 3}'), idempotency.outbox_enqueue('t', 'b', 'Next', '{"n": 4}')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND classid = 0});
$node->safe_psql('postgres', q{INSERT INTO awake DEFAULT VALUES; SELECT pg_cancel_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = 1 AND classid = 0});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM effects WHERE n = 4});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM effects WHERE n = 3});
is(IdemRelay::stat($node, 'fn', 'last_error, dead'), 'canceling statement due to user request|0', 'a cancel is not lost');
IdemTest::wait_for($node, q{SELECT retrying = 0 AND sent = 2 FROM idempotency.stat_relay WHERE relay = 'fn'});

# What is delivered at a later attempt counts as sent, too.
my $sent = IdemRelay::stat($node, 'fn', 'sent');
my $retried = IdemRelay::stat($node, 'fn', 'retried');
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_alter('fn', max_attempts => 10, min_backoff => '10 ms', max_backoff => '10 ms');
	SELECT idempotency.outbox_enqueue('t', 'c', 'Refused', '{"n": 5}')});
IdemTest::wait_for($node, q{SELECT count(*) = 1 FROM effects WHERE n = 5});
IdemTest::wait_for($node, 'SELECT sent = ' . ($sent + 1) . " AND retried = $retried + 3 FROM idempotency.stat_relay WHERE relay = 'fn'");

# A batch ends with the event that reaches batch_size.
$node->safe_psql('postgres', q{
	SELECT idempotency.relay_alter('fn', batch_size => '4kB');
	SELECT count(idempotency.outbox_enqueue('t', 'd', 'Big', jsonb_build_object('n', i, 'pad', repeat('x', 1500))))
		FROM generate_series(101, 112) i});
IdemTest::wait_for($node, q{SELECT count(*) = 12 FROM effects WHERE event_type = 'Big'});
is( $node->safe_psql('postgres', q{SELECT array_agg(DISTINCT c) FROM
		(SELECT count(*) AS c FROM effects WHERE event_type = 'Big' GROUP BY xid) g}),
	'{3}', 'batches of the size that was set');

# A batch ends after a second: until then nobody has what its handlers locked.
$node->safe_psql('postgres', <<'END');
CREATE TABLE slow (xid xid8);
CREATE FUNCTION slow() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	PERFORM pg_sleep(0.4);
	INSERT INTO public.slow VALUES (pg_current_xact_id());
END $$;
CREATE SERVER slow FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.slow');
SELECT count(idempotency.outbox_enqueue('slow', 'k' || i, 'E', '{}')) FROM generate_series(1, 7) i;
SELECT idempotency.relay_create('slow', 'slow', aggregate_types => '{slow}');
END
IdemTest::wait_for($node, q{SELECT count(*) = 7 FROM slow});
is($node->safe_psql('postgres', q{SELECT max(count) <= 3 FROM (SELECT count(*) FROM slow GROUP BY xid) g}), 't', 'slow handlers have small batches');

# Events under which the handler hangs, more than make an outage, cost each other event little: none waits for a
# try of each of them.
$node->safe_psql('postgres', <<'END');
CREATE TABLE passed (n int);
CREATE FUNCTION hang(aggregate_id text, payload jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF aggregate_id LIKE 'bad%' THEN
		PERFORM pg_sleep(3600);
	END IF;
	INSERT INTO public.passed VALUES (payload::int);
END $$;
CREATE SERVER hang FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.hang', timeout '1000');
SELECT count(idempotency.outbox_enqueue('hang', CASE WHEN i BETWEEN 11 AND 22 THEN 'bad' ELSE 'good' END || i, 'E', to_jsonb(i))) FROM generate_series(1, 400) i;
SELECT idempotency.relay_create('hang', 'hang', aggregate_types => '{hang}', max_attempts => 0);
END
IdemTest::wait_for($node, q{SELECT count(*) = 388 FROM passed});
cmp_ok($node->safe_psql('postgres', q{SELECT COALESCE(sum(attempts + deferrals), 0) FROM idempotency_data.relay_parked WHERE aggregate_type = 'hang'}),
	'<', 36, 'the good ones did not wait for three tries of each of the others');
$node->safe_psql('postgres', q{SELECT idempotency.relay_drop('hang')});

# Leases and partitions have a budget of locks in each transaction.  An event for which those before
# it left no room begins the next transaction, and no attempt is counted.
$node->safe_psql('postgres', <<'END');
CREATE TABLE leased (event_id uuid, xid xid8 DEFAULT pg_current_xact_id());
CREATE FUNCTION lease(event_id uuid, aggregate_id text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	IF aggregate_id = 'too much' THEN
		PERFORM idempotency.claim_offset('c', 't', p, 1) FROM generate_series(1, 100000) p;
	ELSIF aggregate_id LIKE 'p%' THEN
		PERFORM idempotency.claim_offset('c', aggregate_id, 0, 1);
	ELSE
		PERFORM idempotency.lease_event(event_id, 'mailer');
	END IF;
	INSERT INTO public.leased VALUES (event_id);
END $$;
CREATE SERVER leases FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.lease');
SELECT count(idempotency.outbox_enqueue('leases', CASE WHEN i % 2 = 0 THEN 'p' ELSE 'l' END || i, 'E', '{}')) FROM generate_series(1, 500) i;
SELECT idempotency.outbox_enqueue('leases', 'too much', 'E', '{}');
SELECT idempotency.relay_create('leases', 'leases', aggregate_types => '{leases}', max_attempts => 1);
END
IdemTest::wait_for($node, q{SELECT count(*) = 500 FROM leased});
IdemTest::wait_for($node, q{SELECT dead = 1 AND retrying = 0 FROM idempotency.stat_relay WHERE relay = 'leases'});
is($node->safe_psql('postgres', q{SELECT aggregate_id, sqlstate, attempts FROM idempotency_data.relay_parked WHERE state = 'dead' AND aggregate_type = 'leases'}),
	'too much|53400|1', 'only what has no room in a transaction of its own is refused');
cmp_ok($node->safe_psql('postgres', 'SELECT count(DISTINCT xid) FROM leased'), '<', 100, 'and the transactions are as large as may be');

$node->stop;
done_testing();
