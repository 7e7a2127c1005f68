--
-- Classes of retention: of kept claims, when a slot cannot be had, and when the clock is set back.
--
\set VERBOSITY terse
SET client_min_messages = warning;
SET timezone = 'UTC';
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA t;
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
CREATE FUNCTION t.store_unnoted(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_unnoted_fn';
CREATE FUNCTION t.store_time() RETURNS bigint
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_time_fn';
SELECT idempotency.consumer_create('hour', retention => '1 hour'), idempotency.consumer_create('month', retention => '31 days');

-- The open rows.
DO $$
BEGIN
	EXECUTE 'CREATE VIEW t.open AS ' || (SELECT string_agg(format(
		'SELECT consumer, event_id, turn, class, state FROM idempotency_data.store_segment_%s', n), ' UNION ALL ') FROM generate_series(0, 7) AS n);
END
$$;
CREATE VIEW t.runs AS
	SELECT class, state, sum(entries) AS entries FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1, 2;
-- Claim and complete events; the verdicts.
CREATE FUNCTION t.feed(consumer text, VARIADIC ids text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdicts text[] := ARRAY(SELECT result::text FROM idempotency.claim_events(ids, consumer) ORDER BY ord);
BEGIN
	PERFORM idempotency.complete_events(ARRAY(SELECT id FROM unnest(ids, verdicts) AS v (id, verdict) WHERE verdict = 'claimed'), consumer);
	RETURN array_to_string(verdicts, ', ');
END
$$;
-- Open rows become so much older.
CREATE PROCEDURE t.age(by interval) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0 .. 7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET claimed_at = claimed_at - %L::interval, completed_at = completed_at - %L::interval', n, by, by);
	END LOOP;
END
$$;
-- Pack until nothing waits.
CREATE PROCEDURE t.settle() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		IF NOT EXISTS (
			SELECT FROM idempotency.stat_claim_segments AS s
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

-- A segment has two classes, and the slot for the second one is locked: none of the
-- two is packed, and both are as soon as the slot is free
SET idempotency.store_maintenance = off;
SELECT t.feed('default', 'a', 'b'), t.feed('hour', 'a', 'b', 'c');
CALL t.age('11 min');
RESET idempotency.store_maintenance;
BEGIN;
LOCK TABLE idempotency_data.store_slot_1 IN SHARE MODE;
SELECT idempotency.claims_maintain();
SELECT number FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND state = 'closed';
SELECT * FROM t.runs;
SELECT t.feed('default', 'a', 'b'), t.feed('hour', 'a', 'b', 'c');
COMMIT;
CALL t.settle();
SELECT * FROM t.runs ORDER BY class COLLATE "C";
SELECT t.feed('default', 'a', 'b'), t.feed('hour', 'a', 'b', 'c');

-- A kept claim has the class of its consumer
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept', 'hour'), idempotency.claim_event('taken', 'month'), idempotency.claim_event('kept', 'default');
RESET idempotency.uncompleted_claims;
SELECT * FROM t.open ORDER BY 1, 2, 3;
-- Its completion has the longer one of two: what was kept does not outlive it
SELECT idempotency.consumer_alter('month', retention => '1 hour');
SELECT t.feed('month', 'taken', 'new');
SELECT * FROM t.open WHERE consumer = 'month' ORDER BY 1, 2, 3;
CALL t.age('11 min');
CALL t.settle();
SELECT * FROM t.runs ORDER BY class COLLATE "C";
SELECT c, (idempotency.event_status(id, c)).status
FROM (VALUES ('hour', 'kept'), ('default', 'kept'), ('month', 'taken'), ('month', 'new')) AS v (c, id);
SELECT t.store_add_time(4200);
CALL t.settle();
SELECT * FROM t.runs ORDER BY class COLLATE "C";
SELECT c, id, (idempotency.event_status(id, c)).status
FROM (VALUES ('hour', 'kept'), ('default', 'kept'), ('month', 'taken'), ('month', 'new')) AS v (c, id);

-- The clock begins anew: the new clock is noted, and the store's time is not set back
SELECT t.store_unnoted(-86400);
SELECT t.store_time() AS stood, last_value & x'ffffffff'::bigint AS noted FROM idempotency_data.store_clock \gset
CALL t.settle();
SELECT t.store_time() >= :stood AS goes_on, (last_value & x'ffffffff'::bigint) >= :noted AS ahead
FROM idempotency_data.store_clock;

-- It is behind the times of rows: these are packed with those that come later, and are
-- remembered for an hour from then on
SELECT t.feed('hour', 'future');
CALL t.age('-1 day');
CALL t.settle();
SELECT * FROM t.open ORDER BY 1, 2, 3;
SELECT t.feed('hour', 'future', 'later');
CALL t.age('11 min');
CALL t.settle();
SELECT * FROM t.runs ORDER BY class COLLATE "C";
SELECT (s).status, (s).claimed_at > now() AS claimed, (s).completed_latest > now() AS completed FROM idempotency.event_status('future', 'hour') AS s;
SELECT t.store_add_time(3000);
CALL t.settle();
SELECT t.feed('hour', 'future', 'later');
SELECT t.store_add_time(1200);
CALL t.settle();
SELECT t.feed('hour', 'future', 'later');

-- An import leaves what it promises, also of what is remembered for less than that: by
-- hand, by a backfill, and with its result
SELECT idempotency.consumer_create('short', retention => '1 hour');
SELECT idempotency.claim_event('result', 'short'), idempotency.complete_event('result', 'short', '"r"');
SELECT t.feed('short', 'import', 'backfill', 'renew', 'none', 'late');
CREATE TABLE t.old AS SELECT 'backfill' AS id;
CALL t.age('11 min');
CALL t.settle();
SELECT t.store_add_time(3000);
CALL t.settle();
SELECT idempotency.consumer_alter('short', retention => '100 years');
SELECT idempotency.claims_import('short', '{import,result,new,import}');
CALL idempotency.claims_backfill('t.old', 'id', 'short');
SELECT idempotency.claims_renew('{renew,unknown}', 'short'), idempotency.claims_renew('{renew}', 'short');
-- an hour is as long as it was promised, from now on; and a longer time stays
SELECT idempotency.consumer_alter('short', retention => '30 min');
SELECT idempotency.claims_renew('{import,late}', 'short');
SELECT event_id, turn, class, state FROM t.open WHERE consumer = 'short' ORDER BY 1, 2;
SELECT t.store_add_time(1200);
CALL t.settle();
SELECT t.feed('short', 'import', 'result', 'new', 'backfill', 'renew', 'unknown', 'none', 'late');
SELECT idempotency.event_result('result', 'short');
-- What this transaction completed, or imported, itself
BEGIN;
SELECT t.feed('short', 'own');
SELECT idempotency.claims_import('short', '{own,own 2}');
SELECT idempotency.consumer_alter('short', retention => '31 days');
SELECT idempotency.claims_import('short', '{own,own 2}');
SELECT event_id, turn, class FROM t.open WHERE event_id LIKE 'own%' ORDER BY 1, 2;
COMMIT;
-- Who renews an event again and again does not use up its turns
SELECT idempotency.consumer_create('often', retention => '1 hour');
SELECT t.feed('often', 'o');
DO $$
BEGIN
	FOR n IN 0 .. 7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET turn = 20000 WHERE event_id = %L', n, 'o');
	END LOOP;
END $$;
SELECT idempotency.consumer_alter('often', retention => '1 day');
SELECT idempotency.claims_renew('{o}', 'often'), idempotency.claims_renew('{o}', 'often');
SELECT turn, class FROM t.open WHERE event_id = 'o' ORDER BY 1;

DROP SCHEMA t CASCADE;
DROP EXTENSION idempotency;
