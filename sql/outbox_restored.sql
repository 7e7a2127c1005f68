--
-- Housekeeping of an outbox that was restored, before and after its first event: it says of
-- no sequence that somebody has set it, and refuses no row of a restore under way.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.maintain(done pg_snapshot[]) RETURNS int
	LANGUAGE c AS 'idempotency_test', 'idem_test_maintain_fn';
CREATE FUNCTION t.restore(segment int, seq bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO idempotency_data.outbox_segment_%s (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)'
		' VALUES (''1'', %s, gen_random_uuid(), ''2026-01-01'', ''a'', ''restored'', ''t'', ''1'')', segment, seq);
END
$$;
CREATE VIEW t.ring AS
SELECT segment, is_current, events FROM idempotency.outbox_segments() WHERE is_current OR events > 0 ORDER BY segment;
SET idempotency.outbox_retention = 0;
SET idempotency.outbox_dump_size = 0;
SET idempotency.outbox_rotation_interval = 0;

-- An old event is restored: its segment is due, and is not closed
SELECT t.restore(0, 7);
SELECT t.maintain('{}');
SELECT * FROM t.ring;
-- so that the restore can go on
SELECT t.restore(1, 8);
SELECT t.maintain('{}');
SELECT generation, last_seq FROM idempotency.stat_outbox;
-- and the first event gets the next number
SELECT idempotency.outbox_enqueue('a', 'first', 't', '1') IS NOT NULL AS enqueued;
SELECT aggregate_id, seq FROM idempotency.outbox_events ORDER BY seq;

-- From then on segments are closed
SELECT t.maintain('{}');
SELECT * FROM t.ring;
SELECT idempotency.outbox_enqueue('a', 'next', 't', '1') IS NOT NULL AS enqueued;
SELECT aggregate_id, seq FROM idempotency.outbox_events ORDER BY seq;
SELECT t.restore(1, 20);
