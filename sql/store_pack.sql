--
-- The packer: closed segments become runs, runs are merged, and what was packed is
-- remembered as before.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
SELECT format('ALTER DATABASE %I SET idempotency.claim_segment_size = %L', current_database(), '64kB') \gexec
SELECT format('ALTER DATABASE %I SET idempotency.max_claim_locks = 100', current_database()) \gexec
\c
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;

-- Claim and complete the events from lo to hi; says how many got which verdict.
CREATE FUNCTION t.feed(lo int, hi int, consumer text = 'c', results bool = false) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
	mine text[];
	verdicts text;
BEGIN
	CREATE TEMPORARY TABLE v ON COMMIT DROP AS
		SELECT c.event_id, c.result
		FROM idempotency.claim_events((SELECT array_agg('event-' || i) FROM generate_series(lo, hi) AS i), consumer) AS c;
	SELECT string_agg(n || ' ' || result, ', ' ORDER BY result) INTO verdicts
	FROM (SELECT result, count(*) AS n FROM v GROUP BY 1) AS c;
	SELECT array_agg(event_id) INTO mine FROM v WHERE result = 'claimed';
	IF mine IS NOT NULL THEN
		PERFORM idempotency.complete_events(mine, consumer,
			CASE WHEN results THEN (SELECT array_agg(to_jsonb(m)) FROM unnest(mine) AS m) END);
	END IF;
	RETURN verdicts;
END
$$;

-- Where the entries are, without how many segments and runs there are
CREATE VIEW t.entries AS
	SELECT kind, state, sum(entries) AS entries
	FROM idempotency.stat_claim_segments WHERE entries > 0 GROUP BY 1, 2;
CREATE VIEW t.held AS
	SELECT kind, state,
		CASE WHEN held_by IN ('snapshot', 'transaction') THEN 'older transaction' ELSE held_by END AS held_by
	FROM idempotency.stat_claim_segments
	WHERE state NOT IN ('current', 'empty', 'searched') GROUP BY 1, 2, 3;

-- Pack until nothing waits but what these hold.  A call cannot empty what it has
-- packed, because its own caller's snapshot is older.
CREATE PROCEDURE t.settle(held_by text[] = '{}') LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		EXIT WHEN NOT EXISTS (SELECT FROM t.held AS h WHERE h.held_by = ANY (settle.held_by) IS NOT TRUE);
		COMMIT;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END
$$;

-- Nothing to do
SELECT idempotency.claims_maintain();
SELECT * FROM idempotency.stat_claim_segments WHERE held_by IS NOT NULL;

-- A segment that is full is closed, packed and emptied.  The claims start no packer,
-- which might close the segment under way.
SET idempotency.store_maintenance = off;
SELECT t.feed(1, 1000);
RESET idempotency.store_maintenance;
CALL t.settle();
SELECT * FROM t.entries;
SELECT t.feed(1, 1000);
\c
\set VERBOSITY terse
SELECT t.feed(1, 1000);
SELECT t.feed(501, 1500);

-- A run says what it has
SELECT level, class, entries, bytes, oldest <= newest AS times, held_by
FROM idempotency.stat_claim_segments WHERE kind = 'run';

-- Many transactions; runs are merged.  No other packer is at work: who finds the packer's
-- lock taken after it has copied a segment copies the segment once more.
CALL t.settle();
CREATE PROCEDURE t.feed_and_pack(lo int, hi int, step int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN lo .. hi BY step LOOP
		SET idempotency.store_maintenance = off;
		PERFORM t.feed(i, i + step - 1);
		COMMIT;
		SET idempotency.store_maintenance = on;
		PERFORM idempotency.claims_maintain();
		COMMIT;
	END LOOP;
END
$$;
CALL t.feed_and_pack(1501, 20000, 500);
CALL t.settle();
SELECT max(level) AS level, sum(entries) AS entries
FROM idempotency.stat_claim_segments WHERE state IN ('searched', 'current');
SELECT * FROM t.held;
SELECT t.feed(1, 10000);
SELECT t.feed(10001, 20000);
\c
\set VERBOSITY terse
SELECT t.feed(1, 10000);
SELECT t.feed(10001, 20000);
SELECT t.feed(1, 10, 'other');

-- Results, claims that were kept, and orders to forget survive packing and merging.
-- The filler closes the segment.
SELECT t.feed(1, 5, 'results', true);
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept', 'k');
SELECT idempotency.claim_event('kept and completed', 'k');
RESET idempotency.uncompleted_claims;
SELECT t.feed(1, 1000, 'filler');
CALL t.settle();
SELECT t.feed(1, 5, 'results');
SELECT idempotency.event_result('event-3', 'results');
SELECT status, completed_at IS NULL AS open FROM idempotency.event_status('kept', 'k');
BEGIN;
SELECT idempotency.claim_event('kept and completed', 'k');
SELECT idempotency.complete_event('kept and completed', 'k', '"done"');
COMMIT;
SELECT idempotency.forget_event('event-5', 'results');
CALL t.feed_and_pack(20001, 32000, 750);
CALL t.settle();
SELECT max(level) AS level FROM idempotency.stat_claim_segments WHERE state = 'searched';
SELECT idempotency.event_result('event-3', 'results');
SELECT status, completed_at IS NULL AS open FROM idempotency.event_status('kept', 'k');
SELECT idempotency.claim_event('kept and completed', 'k');
SELECT idempotency.event_result('kept and completed', 'k');
SELECT t.feed(1, 5, 'results', true);
SELECT t.feed(1, 5, 'results');
BEGIN;
SELECT idempotency.claim_event('kept', 'k');
ROLLBACK;

-- A prepared transaction keeps the segment open that it wrote to; other segments are
-- packed, and emptied when it has ended
BEGIN;
SELECT idempotency.claim_event('event-40001', 'c');
SELECT idempotency.complete_event('event-40001', 'c');
PREPARE TRANSACTION 'store_pack';
SELECT t.feed(40002, 41000);
CALL t.settle('{"prepared transaction"}');
SELECT * FROM t.held;
SELECT t.feed(41001, 44000);
CALL t.settle('{"prepared transaction","older transaction"}');
SELECT * FROM t.held ORDER BY 1, 2;
SELECT t.feed(40001, 44000);
COMMIT PREPARED 'store_pack';
CALL t.settle();
SELECT * FROM t.held;
SELECT t.feed(40001, 44000);

-- Slots that somebody has written anew
SELECT format('VACUUM FULL idempotency_data.store_slot_%s', n) FROM generate_series(0, 31) AS n \gexec
SELECT t.feed(1, 10000);
CALL t.feed_and_pack(50001, 60000, 500);
CALL t.settle();
SELECT t.feed(1, 20000);
SELECT t.feed(50001, 60000);
SELECT idempotency.event_result('event-3', 'results');

-- Only aborted rows
DO $$ BEGIN PERFORM t.feed(70001, 71000); RAISE 'undone'; END $$;
CALL t.settle();
SELECT * FROM t.held;
SELECT t.feed(70001, 71000);

-- A crash cut the emptying of a segment short: the index of long results has no blocks.  No
-- transaction needs it, and the segment is emptied once more.
CREATE FUNCTION t.cut_index(index regclass) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_cut_index_fn';
SELECT number AS empty FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND state = 'empty' LIMIT 1 \gset
SELECT indexrelid::regclass AS toast_index FROM pg_index
 WHERE indrelid = (SELECT reltoastrelid FROM pg_class WHERE oid = format('idempotency_data.store_segment_%s', :empty)::regclass) \gset
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT t.cut_index(:'toast_index');
SELECT t.feed(70991, 71010);
SELECT status FROM idempotency.event_status('event-71000', 'c');
SELECT status FROM idempotency.event_status('event-1', 'nobody');
COMMIT;
-- nor after a restore, when each segment is probed
BEGIN;
INSERT INTO idempotency_data.store_segment_0 (digest) SELECT NULL WHERE false;
SELECT t.feed(70991, 71010);
COMMIT;
CALL t.settle();
SELECT state FROM idempotency.stat_claim_segments WHERE kind = 'segment' AND number = :empty;

-- Where nothing may be written
BEGIN READ ONLY;
SELECT idempotency.claims_maintain();
ROLLBACK;

-- The extension goes and comes
SET client_min_messages = warning;
DROP EXTENSION idempotency CASCADE;
CREATE EXTENSION idempotency;
SELECT idempotency.claims_maintain();
SELECT * FROM idempotency.stat_claim_segments WHERE kind <> 'segment' OR bytes > 16384;

-- What a remembered id of 36 characters takes, as doc/reference says it: a row in a segment,
-- and the row of a dedup id, packed or not
CREATE VIEW t.held AS
	SELECT kind, state,
		CASE WHEN held_by IN ('snapshot', 'transaction') THEN 'older transaction' ELSE held_by END AS held_by
	FROM idempotency.stat_claim_segments
	WHERE state NOT IN ('current', 'empty', 'searched') GROUP BY 1, 2, 3;
CREATE FUNCTION t.size() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relnamespace = 'idempotency_data'::regnamespace AND relname ~ '^store_(segment|keys|slot)_[0-9]+$' $$;
SET idempotency.claim_segment_size = '64MB';
SET idempotency.store_maintenance = off;
SELECT t.size() AS before \gset
DO $$
BEGIN
	FOR i IN 1 .. 10000 LOOP
		PERFORM idempotency.claim_event(md5(i::text)::uuid::text), idempotency.complete_event(md5(i::text)::uuid::text);
	END LOOP;
END $$;
SELECT (t.size() - :before) / 10000 BETWEEN 135 AND 155 AS in_a_segment;
DROP EXTENSION idempotency CASCADE;
CREATE EXTENSION idempotency;
CREATE VIEW t.held AS
	SELECT kind, state,
		CASE WHEN held_by IN ('snapshot', 'transaction') THEN 'older transaction' ELSE held_by END AS held_by
	FROM idempotency.stat_claim_segments
	WHERE state NOT IN ('current', 'empty', 'searched') GROUP BY 1, 2, 3;
SELECT t.size() AS before \gset
SELECT count(idempotency.outbox_enqueue('order', '1', 'paid', '{}', dedup_id => md5(i::text)::uuid::text, dedup_window => '200 years')) FROM generate_series(1, 20000) AS i;
SELECT (t.size() - :before) / 20000 BETWEEN 220 AND 250 AS dedup_id;
RESET idempotency.store_maintenance;
RESET idempotency.claim_segment_size;
-- whose segment is closed by the next one
SELECT count(idempotency.outbox_enqueue('order', '1', 'paid', '{}', dedup_id => 'last', dedup_window => '200 years'));
CALL t.settle();
SELECT (t.size() - :before) / 20000 BETWEEN 280 AND 305 AS dedup_id_packed;
