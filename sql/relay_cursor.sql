--
-- The cursor of a relay: difference by difference, by ticks in a backlog.  Here by
-- functions of the tests' module, without a relay.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.start(base pg_snapshot, target pg_snapshot = NULL, seq bigint = 0) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_cursor_start_fn';
CREATE FUNCTION t.batch(max int, known pg_snapshot = NULL, OUT events text[], OUT newest bool, OUT catching_up bool)
	LANGUAGE c AS 'idempotency_test', 'idem_test_cursor_batch_fn';
CREATE FUNCTION t.position(OUT base pg_snapshot, OUT target pg_snapshot, OUT seq bigint)
	LANGUAGE c AS 'idempotency_test', 'idem_test_cursor_position_fn';
CREATE FUNCTION t.tick() RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_cursor_tick_fn';
CREATE FUNCTION t.enqueue(id text) RETURNS void LANGUAGE sql AS
$$SELECT idempotency.outbox_enqueue('a', id, 't', '1')$$;
-- A position as a relay would have stored it
CREATE TABLE t.stored (name text PRIMARY KEY, base pg_snapshot, target pg_snapshot, seq bigint);
CREATE FUNCTION t.store(name text) RETURNS void LANGUAGE sql AS
$$INSERT INTO t.stored SELECT name, base, target, seq FROM t.position()$$;
CREATE FUNCTION t.restart(wanted text) RETURNS void LANGUAGE sql AS
$$SELECT t.start(base, target, seq) FROM t.stored WHERE name = wanted$$;
CREATE VIEW t.standing AS
	SELECT target IS NOT NULL AS in_difference, seq > 0 AS in_its_middle FROM t.position();

-- A difference ends with its last event; without anything new none begins
SELECT t.start(pg_current_snapshot());
SELECT * FROM t.batch(10, (SELECT base FROM t.position()));
SELECT t.enqueue('1');
SELECT t.enqueue('2');
SELECT * FROM t.batch(10);
SELECT * FROM t.standing;
SELECT * FROM t.batch(10, (SELECT base FROM t.position()));

-- Batches of a difference: events that commit after its begin belong to the next one
SELECT count(t.enqueue(g::text)) FROM generate_series(3, 7) AS g;
SELECT * FROM t.batch(2);
SELECT * FROM t.standing;
SELECT t.store('within');
SELECT t.enqueue('8');
SELECT * FROM t.batch(2);
SELECT * FROM t.batch(2);
SELECT t.store('end');
SELECT * FROM t.batch(2);

-- A batch that is full with the last event does not end the difference: the next one does, empty
SELECT count(t.enqueue(g::text)) FROM generate_series(9, 10) AS g;
SELECT * FROM t.batch(2);
SELECT * FROM t.standing;
SELECT * FROM t.batch(2);
SELECT * FROM t.standing;

-- Back at a stored position: the same rest of the same difference, then the events after it
SELECT t.restart('within');
SELECT * FROM t.standing;
SELECT * FROM t.batch(10);
SELECT * FROM t.batch(10);
SELECT t.restart('end');
SELECT * FROM t.batch(10);

-- An event of a transaction that was under way belongs to the next difference
SELECT t.enqueue('11');
BEGIN;
SELECT t.enqueue('own');
SELECT * FROM t.batch(10);
COMMIT;
SELECT * FROM t.batch(10);

-- A restart reads a backlog by ticks; no tick follows the last part
SELECT t.store('backlog');
SELECT count(t.enqueue(g::text)) FROM generate_series(12, 14) AS g;
SELECT t.tick();
SELECT count(t.enqueue(g::text)) FROM generate_series(15, 16) AS g;
SELECT t.tick();
SELECT t.enqueue('17');
SELECT t.restart('backlog');
SELECT * FROM t.batch(2);
SELECT * FROM t.batch(2);
SELECT t.store('tick');
SELECT * FROM t.batch(10);
SELECT * FROM t.batch(10);
-- A relay that has caught up does not end a difference at a tick
SELECT t.enqueue('18');
SELECT t.tick();
SELECT t.enqueue('19');
SELECT * FROM t.batch(10);
-- A restart at a tick reads by ticks again
SELECT t.restart('tick');
SELECT * FROM t.batch(10);
SELECT * FROM t.batch(10);
SELECT * FROM t.batch(10);

-- Many numbers were given out since the last difference: ticks cut the backlog
SELECT t.enqueue('20');
SELECT t.tick();
SELECT setval('idempotency_data.outbox_seq', last_value + 150000) > 0 AS ok FROM idempotency_data.outbox_seq;
SELECT idempotency.outbox_mend_seq() IS NOT NULL AS ok;
SELECT t.enqueue('21');
SELECT * FROM t.batch(10);
SELECT * FROM t.batch(10);

-- A configuration that was read before a tick ends the difference before the tick
SELECT t.store('known');
SELECT t.enqueue('22');
SELECT pg_current_snapshot() AS known \gset
SELECT t.enqueue('23');
SELECT t.tick();
SELECT t.enqueue('24');
SELECT t.restart('known');
SELECT * FROM t.batch(10, :'known');
-- A relay that stands there, or further on, begins no difference with that configuration
SELECT * FROM t.batch(10, :'known');
SELECT * FROM t.batch(10);
SELECT * FROM t.batch(10, :'known');
SELECT * FROM t.batch(10);
