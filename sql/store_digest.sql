--
-- Two ids of one digest.  No two ids are known that have one, so a function of the
-- tests' module writes the completion of one id with the digest of another.  The
-- document "How ids are remembered" tells what happens then.
--
\set VERBOSITY terse
SET client_min_messages = warning;
SELECT format('ALTER DATABASE %I SET idempotency.claim_segment_size = %L', current_database(), '8kB') \gexec
\c
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.write(digest uuid, event_id text, consumer text, result jsonb = NULL) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_write_fn';
-- The digest that is documented
CREATE FUNCTION t.digest(event_id text, consumer text) RETURNS uuid LANGUAGE sql AS $$
	SELECT encode(substr(sha256(CASE consumer WHEN 'default' THEN '' ELSE convert_to(consumer, 'UTF8') || '\x00'::bytea END
		|| convert_to(event_id, 'UTF8')), 1, 16), 'hex')::uuid $$;
-- A digest that differs from it in one bit: number 0 is the first of all, 127 the last
CREATE FUNCTION t.near(event_id text, consumer text, number int) RETURNS uuid LANGUAGE sql AS $$
	SELECT encode(set_bit(d, n, 1 - get_bit(d, n)), 'hex')::uuid
	FROM decode(replace(t.digest(event_id, consumer)::text, '-', ''), 'hex') AS d,
		LATERAL (SELECT number / 8 * 8 + 7 - number % 8) AS b(n) $$;
-- Pack until no segment has an entry
CREATE PROCEDURE t.settle() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		IF NOT EXISTS (SELECT FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND entries > 0) THEN
			RETURN;
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
	RAISE EXCEPTION 'something is never packed';
END
$$;
-- What the store answers, without doing anything
CREATE FUNCTION t.answers(event_id text, consumer text, OUT verdict text, OUT status text, OUT result jsonb) LANGUAGE plpgsql AS $$
BEGIN
	status := (idempotency.event_status(event_id, consumer)).status;
	result := idempotency.event_result(event_id, consumer);
	BEGIN
		verdict := idempotency.claim_event(event_id, consumer);
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN
	END;
END
$$;
CREATE VIEW t.told AS
	SELECT consumer, event_id, a.*
	FROM unnest('{default,billing}'::text[]) AS consumer, unnest('{second,near 0,near 63,near 64,near 127}'::text[]) AS event_id,
		LATERAL t.answers(event_id, consumer) AS a
	ORDER BY consumer, event_id;

-- The function writes what a claim writes
SELECT idempotency.claim_event('by claim', 'billing'), idempotency.complete_event('by claim', 'billing');
SELECT digest = t.digest(event_id, consumer) AS same FROM idempotency_data.store_segment_0;
SELECT t.write(t.digest('by hand', 'billing'), 'by hand', 'billing');
SELECT * FROM t.answers('by hand', 'billing');

-- The first id has the digest of the second: the second is answered "duplicate", and
-- has the result of the first.  One bit more, and the events are different ones: also
-- where they share the lock's key, the first 64 bits.
SELECT t.write(t.digest('second', consumer), 'first', consumer, '{"of": "first"}'),
	t.write(t.near('near 0', consumer, 0), 'another', consumer), t.write(t.near('near 63', consumer, 63), 'another', consumer),
	t.write(t.near('near 64', consumer, 64), 'another', consumer), t.write(t.near('near 127', consumer, 127), 'another', consumer)
FROM unnest('{default,billing}'::text[]) AS consumer;
TABLE t.told;
BEGIN;
SELECT event_id, result FROM idempotency.claim_events('{second,third}', 'billing');
ROLLBACK;
SELECT consumer, event_id FROM idempotency.processed_events WHERE event_id IN ('first', 'second') ORDER BY 1, 2;

-- In a run it is no different
CALL t.settle();
SELECT kind, sum(entries) AS entries FROM idempotency.stat_claim_segments GROUP BY 1 ORDER BY 1;
TABLE t.told;
BEGIN;
SELECT event_id, result FROM idempotency.claim_events('{second,third}', 'billing');
ROLLBACK;
\c
\set VERBOSITY terse
TABLE t.told;

-- Who forgets the second forgets the first, and who claims it anew remembers both
SELECT idempotency.forget_event('second', 'billing');
SELECT * FROM t.answers('second', 'billing');
SELECT idempotency.claim_event('second', 'billing'), idempotency.complete_event('second', 'billing', '{"of": "second"}');
SELECT * FROM t.answers('second', 'billing');
CALL t.settle();
SELECT * FROM t.answers('second', 'billing');

SET client_min_messages = warning;
DROP SCHEMA t CASCADE;
