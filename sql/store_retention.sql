--
-- Retention in the store: entries are packed by class, and expire by the store's time.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA t;
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
CREATE FUNCTION t.store_unnoted(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_unnoted_fn';
SELECT idempotency.consumer_create(c.name, retention => c.retention::interval, keep_ids => c.keep_ids)
FROM (VALUES ('hour', '1 hour', false), ('day', '2 hours', false), ('month', '2 days', false),
	('ever', NULL, false), ('kept', '30 min', true)) AS c (name, retention, keep_ids);

-- Claim and complete the events from lo to hi; says which verdicts there were.
CREATE FUNCTION t.feed(consumer text, lo int = 1, hi int = 50) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	mine text[];
	verdicts text;
BEGIN
	WITH v AS MATERIALIZED (
		SELECT c.event_id, c.result
		FROM idempotency.claim_events((SELECT array_agg(feed.consumer || '-' || i) FROM generate_series(lo, hi) AS i), consumer) AS c)
	SELECT (SELECT array_agg(v.event_id) FROM v WHERE v.result = 'claimed'),
		(SELECT string_agg(n || ' ' || result, ', ' ORDER BY result)
		 FROM (SELECT v.result, count(*) AS n FROM v GROUP BY 1) AS c)
	INTO mine, verdicts;
	IF mine IS NOT NULL THEN
		PERFORM idempotency.complete_events(mine, consumer);
	END IF;
	RETURN verdicts;
END
$$;

-- Rows of open segments become so much older.
CREATE PROCEDURE t.age(by interval) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0 .. 7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET claimed_at = claimed_at - %L::interval', n, by);
	END LOOP;
END
$$;

-- Pack until nothing waits.  A call cannot empty what it has packed, because its own
-- caller's snapshot is older.
CREATE PROCEDURE t.settle() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM idempotency.stat_claim_segments AS s
			WHERE s.state NOT IN ('current', 'empty', 'searched'));
		COMMIT;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END
$$;
CREATE VIEW t.runs AS
	SELECT class, state, sum(entries) AS entries, bool_and(expires IS NULL) AS for_ever
	FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1, 2;

SELECT consumer, t.feed(consumer) FROM unnest('{hour,day,month,ever,kept}'::text[]) AS consumer;

-- Young entries stay where they are; those of an hour are packed after ten minutes,
-- with all that is beside them
CALL t.settle();
SELECT * FROM t.runs ORDER BY 1;
CALL t.age('9 min');
CALL t.settle();
SELECT * FROM t.runs ORDER BY 1;
CALL t.age('2 min');
CALL t.settle();
SELECT * FROM t.runs ORDER BY 1;
SELECT consumer, t.feed(consumer) FROM unnest('{hour,day,month,ever,kept}'::text[]) AS consumer;

-- Ids stay in clear if the consumer wants it, and only then
SELECT consumer, count(*), min(event_id COLLATE "C"), bool_and(completed_at IS NOT NULL) AS completed
FROM idempotency.processed_events GROUP BY 1;

-- An order to forget does not expire before what it is about, not even if the
-- consumer's retention is shorter by then
UPDATE idempotency_data.consumers SET retention = '1 hour' WHERE consumer = 'month';
SELECT idempotency.forget_event('hour-1', 'hour'), idempotency.forget_event('month-1', 'month');

-- After an hour and a slice at most, an hour's entries are gone, and only those
SELECT t.store_add_time(3599 - 120);
CALL t.settle();
SELECT class, sum(entries) FROM idempotency.stat_claim_segments WHERE kind = 'run' AND class = 'hour' GROUP BY 1;
SELECT t.store_add_time(600 + 121);
CALL t.settle();
SELECT * FROM t.runs ORDER BY 1;
SELECT consumer, t.feed(consumer) FROM unnest('{hour,day,month,ever,kept}'::text[]) AS consumer;
SELECT status, completed_latest - completed_at < '1 hour' AS range FROM idempotency.event_status('day-1', 'day');

-- A slice that is over keeps one slot: many small segments, then time passes
DO $$ BEGIN
	FOR i IN 1 .. 20 LOOP
		PERFORM t.feed('day', 1000 + 10 * i, 1009 + 10 * i);
		CALL t.age('5 hours');
		CALL t.settle();
	END LOOP;
END $$;
SELECT t.store_add_time(14400);
CALL t.settle();
SELECT count(DISTINCT slot) AS slots, sum(entries) AS entries FROM idempotency.stat_claim_segments WHERE class = 'day';
SELECT t.feed('day', 1010, 1209);

-- Nothing expires because the clock jumped, or because nobody was there to see the time
SELECT t.store_unnoted(400 * 86400);
CALL t.settle();
SELECT * FROM t.runs ORDER BY 1;

-- Everything that is finite goes; what is for ever stays
SELECT t.store_add_time(40 * 86400);
CALL t.age('40 days');
CALL t.settle();
SELECT t.store_add_time(40 * 86400);
CALL t.settle();
SELECT * FROM t.runs ORDER BY 1;
SELECT t.feed('day', 1010, 1209), t.feed('month', 2, 9);
SELECT t.feed('ever');

DROP SCHEMA t CASCADE;
DROP EXTENSION idempotency;
