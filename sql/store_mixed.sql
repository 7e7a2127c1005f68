--
-- A restore into a store in use brings runs of another class into a slot: no class is
-- merged with another one.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA t;

-- Claim and complete the events from 1 to n; says which verdicts there were.
CREATE FUNCTION t.feed(consumer text, n int) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	mine text[];
	verdicts text;
BEGIN
	WITH v AS MATERIALIZED (
		SELECT c.event_id, c.result
		FROM idempotency.claim_events((SELECT array_agg(feed.consumer || '-' || i) FROM generate_series(1, n) AS i), consumer) AS c)
	SELECT (SELECT array_agg(v.event_id) FROM v WHERE v.result = 'claimed'),
		(SELECT string_agg(c.cnt || ' ' || c.result, ', ' ORDER BY c.result)
		 FROM (SELECT v.result, count(*) AS cnt FROM v GROUP BY 1) AS c)
	INTO mine, verdicts;
	IF mine IS NOT NULL THEN
		PERFORM idempotency.complete_events(mine, consumer);
	END IF;
	RETURN verdicts;
END
$$;

-- The current segment's rows become so old that it is packed.
CREATE PROCEDURE t.age() LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0 .. 7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET claimed_at = claimed_at - interval ''11 min''', n);
	END LOOP;
END
$$;

-- Pack until just so many runs and segments wait.
CREATE PROCEDURE t.settle(waiting int = 0) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		IF waiting = (
			SELECT count(*) FROM idempotency.stat_claim_segments AS s
			WHERE s.state NOT IN ('current', 'empty', 'searched')) THEN
			RETURN;
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
	RAISE EXCEPTION 'something is never packed';
END
$$;

-- Restore a run to a slot, as a run of each of these numbers.
CREATE FUNCTION t.restore(slot int, saved regclass, numbers bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	number bigint;
BEGIN
	FOREACH number IN ARRAY numbers LOOP
		EXECUTE format('INSERT INTO idempotency_data.store_slot_%s
			SELECT packer, %s, digest, kind, turn, state, claimed_at, completed_at, event_id, consumer, result, body
			FROM %s', slot, number, saved);
	END LOOP;
END
$$;
CREATE FUNCTION t.slots() RETURNS TABLE (slot int, class text) LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY SELECT DISTINCT s.slot, s.class FROM idempotency.stat_claim_segments AS s WHERE s.kind = 'run';
END
$$;

-- The dumped store, saved in tables whose bodies stay as a dump has them: ids for ever, and an order to forget one.  An hour's id lets the
-- segment be packed
SELECT idempotency.consumer_create('again', retention => '1 hour');
SELECT t.feed('ever', 50), t.feed('again', 1);
SELECT idempotency.forget_event('ever-50', 'ever');
CALL t.age();
CALL t.settle();
SELECT slot AS saved_slot FROM t.slots() WHERE class = 'for ever' \gset
CREATE TABLE t.saved (LIKE idempotency_data.store_slot_0 INCLUDING STORAGE);
INSERT INTO t.saved SELECT * FROM idempotency_data.store_slot_:saved_slot WHERE kind <> 2;
SELECT slot AS saved_slot FROM t.slots() WHERE class = 'hour' \gset
CREATE TABLE t.saved_again (LIKE idempotency_data.store_slot_0 INCLUDING STORAGE);
INSERT INTO t.saved_again SELECT * FROM idempotency_data.store_slot_:saved_slot WHERE kind <> 2;

-- The store in use: an hour's ids, and a day's
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SELECT idempotency.consumer_create(c.name, retention => c.retention::interval)
FROM (VALUES ('hour', '1 hour'), ('day', '1 day')) AS c (name, retention);
SELECT t.feed('hour', 50);
CALL t.age();
CALL t.settle();
SELECT slot AS used_slot, class FROM t.slots() \gset
SELECT :'class' AS class;

-- The restored runs come behind the one that is there, as the numbers of runs have it
SELECT t.restore(:used_slot, 't.saved', ARRAY(SELECT 9223372036854775807 - n FROM generate_series(1, 15) AS n));
SELECT t.feed('ever', 49), t.feed('hour', 50);
SELECT class, count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1 ORDER BY 1;
CALL t.settle();
SELECT count(*) AS slots, count(DISTINCT slot) AS of_one_class FROM t.slots();
SELECT class, max(entries) AS entries FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1 ORDER BY 1;
SELECT t.feed('ever', 49), t.feed('hour', 50);

-- Later the hour's ids are gone, and no other
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
SELECT t.store_add_time(4200);
CALL t.settle();
SELECT class, max(entries) AS entries FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1 ORDER BY 1;
SELECT t.feed('ever', 49), t.feed('hour', 50);
SELECT status FROM idempotency.event_status('ever-50', 'ever');

-- What is restored once more is remembered from then on, although it was merged after
-- the first time
SELECT t.restore(7, 't.saved_again', ARRAY(SELECT generate_series(1, 16)));
CALL t.settle();
SELECT level, entries FROM idempotency.stat_claim_segments WHERE class = 'hour';
SELECT t.store_add_time(3000);
SELECT t.restore(7, 't.saved_again', '{1}');
CALL t.settle();
-- the merged run has expired, and waits for the one that it replaces
SELECT t.store_add_time(1500);
CALL t.settle(1);
SELECT status FROM idempotency.event_status('again-1', 'again');

-- The same run twice in a slot, without a merge between, is merged like others
SELECT t.restore(8, 't.saved', ARRAY(SELECT 1000 + n % 8 FROM generate_series(0, 15) AS n));
CALL t.settle(1);
SELECT count(DISTINCT slot) FROM idempotency.stat_claim_segments WHERE slot = 8;

SELECT t.store_add_time(2700);
CALL t.settle();
SELECT status FROM idempotency.event_status('again-1', 'again');

-- A restore that commits row by row.  The dumped store: ids, and one with a result
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SELECT idempotency.consumer_create('hour', retention => '1 hour');
SELECT t.feed('slow', 50), t.feed('hour', 1);
SELECT idempotency.claim_event('result', 'slow'), idempotency.complete_event('result', 'slow', result => '42');
CALL t.age();
CALL t.settle();
SELECT slot AS saved_slot FROM t.slots() WHERE class = 'for ever' \gset
CREATE TABLE t.slow (LIKE idempotency_data.store_slot_0 INCLUDING STORAGE);
INSERT INTO t.slow SELECT * FROM idempotency_data.store_slot_:saved_slot WHERE kind <> 2;

-- The store in use: a slot whose sixteen runs are due for a merge, and a table whose end marks are to come
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SELECT idempotency.consumer_create('hour', retention => '1 hour');
SELECT t.feed('ever', 50), t.feed('hour', 1);
CALL t.age();
CALL t.settle();
SELECT slot AS used_slot FROM t.slots() WHERE class = 'for ever' \gset
INSERT INTO idempotency_data.store_slot_:used_slot SELECT * FROM t.slow WHERE kind = 3;
SELECT t.restore(:used_slot, 't.saved', ARRAY(SELECT 9223372036854775807 - n FROM generate_series(1, 16) AS n));
SELECT count(idempotency.claims_maintain()) FROM generate_series(1, 3);
SELECT slot = :used_slot AS used, state, held_by, count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1, 2, 3 ORDER BY 1;
INSERT INTO idempotency_data.store_slot_:used_slot SELECT * FROM t.slow WHERE kind = 1;
SELECT count(idempotency.claims_maintain()) FROM generate_series(1, 3);
BEGIN;
SELECT t.feed('slow', 50);
ROLLBACK;
INSERT INTO idempotency_data.store_slot_:used_slot SELECT * FROM t.slow WHERE kind = 0;
SELECT t.feed('slow', 50), idempotency.event_result('result', 'slow');
CALL t.settle();
SELECT slot = :used_slot AS used, state, held_by, count(*) FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1, 2, 3 ORDER BY 1;
SELECT t.feed('slow', 50), t.feed('ever', 49), idempotency.event_result('result', 'slow');

-- A restore that broke off: its rows go at last.  Meanwhile the time goes on, though nothing expires
SELECT t.store_add_time(86400);
CALL t.settle();
INSERT INTO idempotency_data.store_slot_40 SELECT * FROM t.slow WHERE kind = 3;
CREATE VIEW t.unfinished AS SELECT slot, state, held_by FROM idempotency.stat_claim_segments WHERE kind = 'slot';
CREATE FUNCTION t.store_unnoted(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_unnoted_fn';
SELECT t.store_unnoted(60);
SELECT last_value AS before FROM idempotency_data.store_clock \gset
SELECT idempotency.claims_maintain();
SELECT last_value > :before AS noted FROM idempotency_data.store_clock;
SELECT t.store_add_time(5 * 86400);
SELECT count(idempotency.claims_maintain()) FROM generate_series(1, 3);
TABLE t.unfinished;
-- it is begun once more
INSERT INTO idempotency_data.store_slot_40 SELECT * FROM t.slow WHERE kind = 3;
SELECT t.store_add_time(5 * 86400);
SELECT count(idempotency.claims_maintain()) FROM generate_series(1, 3);
TABLE t.unfinished;
SELECT t.store_add_time(2 * 86400);
SELECT count(idempotency.claims_maintain()) FROM generate_series(1, 3);
TABLE t.unfinished;
SELECT count(*) FROM idempotency_data.store_slot_40;
SELECT t.feed('slow', 50), t.feed('ever', 49), idempotency.event_result('result', 'slow');

DROP SCHEMA t CASCADE;
DROP EXTENSION idempotency;
