--
-- Numbers of events: a sequence that others have set is found before a number
-- is given out twice.
--
\set VERBOSITY default
CREATE FUNCTION enqueue() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	id uuid = idempotency.outbox_enqueue('a', '1', 't', '1');
BEGIN
	RETURN (SELECT seq FROM idempotency.outbox_events WHERE event_id = id);
END $$;
CREATE FUNCTION many(n int) RETURNS text LANGUAGE sql AS $$
	SELECT 'sent ' || count(*) FROM idempotency.outbox_enqueue_many('a', array_fill('i'::text, ARRAY[n]),
		array_fill('t'::text, ARRAY[n]), array_fill('1'::jsonb, ARRAY[n]))
$$;
CREATE FUNCTION twice() RETURNS bigint LANGUAGE sql AS
	$$SELECT count(*) - count(DISTINCT seq) FROM idempotency.outbox_events$$;

-- From the first on, without gaps in a session, over what is logged ahead
SELECT idempotency_data.outbox_last_seq();
SELECT enqueue(), enqueue(), enqueue();
SELECT many(1), many(300);
SELECT enqueue(), idempotency_data.outbox_last_seq(), twice();
SELECT count(*), min(seq), max(seq) FROM idempotency.outbox_events;
-- Those of a transaction that ends otherwise are not given out again
BEGIN;
SELECT enqueue();
ROLLBACK;
SELECT enqueue();

-- Back, as a restore would set it; to a place within what is logged ahead; to the
-- beginning; forward, which is found as well; by other means
SELECT setval('idempotency_data.outbox_seq', 5);
SELECT enqueue();
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
\set VERBOSITY terse
SELECT setval('idempotency_data.outbox_seq', 305);
SELECT enqueue();
SELECT many(2);
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
SELECT setval('idempotency_data.outbox_seq', 1, false);
SELECT enqueue();
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
SELECT setval('idempotency_data.outbox_seq', 1000);
SELECT enqueue();
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
SELECT nextval('idempotency_data.outbox_seq') > 1001 AS drawn;
SELECT enqueue();
SELECT idempotency.outbox_mend_seq() > 1001 AS mended;
ALTER SEQUENCE idempotency_data.outbox_seq RESTART;
SELECT enqueue();
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
-- The number of an event that is parked counts as well
SELECT setval('idempotency_data.outbox_seq', 1);
ALTER TABLE idempotency_data.relay_parked DISABLE TRIGGER relay_parked_restore;
INSERT INTO idempotency_data.relay_parked (relay_id, state, attempts, xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)
	VALUES (1000, 'dead', 1, '1', 5000, gen_random_uuid(), now(), 'a', 'b', 'c', '1');
ALTER TABLE idempotency_data.relay_parked ENABLE ALWAYS TRIGGER relay_parked_restore;
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
-- Beyond the greatest number of an event, which is of no account; up to it; and down again
SELECT setval('idempotency_data.outbox_seq', 9223372036854775807);
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
SELECT setval('idempotency_data.outbox_seq', 4611686018427387903);
SELECT idempotency.outbox_mend_seq();
SELECT enqueue();
SELECT setval('idempotency_data.outbox_seq', 1);
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
-- Mending what is well changes nothing
SELECT idempotency.outbox_mend_seq();
SELECT enqueue(), twice();
-- The other one alone is of no consequence
SELECT setval('idempotency_data.outbox_generation', 11);
SELECT enqueue(), current_segment FROM idempotency.stat_outbox;

-- Only for the owner; not in a read-only transaction
CREATE ROLE regress_outbox_seq;
SELECT idempotency.grant_role('operator', 'regress_outbox_seq');
SET ROLE regress_outbox_seq;
SELECT idempotency.outbox_mend_seq();
RESET ROLE;
SELECT idempotency.grant_role('operator', 'regress_outbox_seq');
DROP OWNED BY regress_outbox_seq;
DROP ROLE regress_outbox_seq;
BEGIN READ ONLY;
SELECT idempotency.outbox_mend_seq();
ROLLBACK;
