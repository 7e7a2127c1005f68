--
-- Many events at once put their index entries into their pages together.
-- The index is complete and in order, whatever is there before.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION amcheck;
CREATE EXTENSION pgstattuple;
CREATE SCHEMA t;
CREATE FUNCTION t.many(key text, n int) RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM idempotency.outbox_enqueue_many('a', array_fill(key, ARRAY[n]),
		array_fill('t'::text, ARRAY[n]), array_fill('1'::jsonb, ARRAY[n]))
$$;
CREATE FUNCTION t.judge(OUT key text, OUT events bigint) RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
	PERFORM bt_index_parent_check('idempotency_data.outbox_segment_0_xid_seq_idx', true);
	RETURN QUERY SELECT aggregate_id, count(*) FROM idempotency_data.outbox_segment_0
	GROUP BY aggregate_id ORDER BY aggregate_id COLLATE "C";
END
$$;

-- In an index without a page; few and many, to a page and beyond, to a second level and beyond
SELECT t.many('a0', 100);
SELECT sum(t.many('a1', n)) FROM generate_series(1, 40) AS n;
SELECT * FROM t.judge();
SELECT sum(t.many('b', n)) FROM unnest(ARRAY[290, 1, 291, 7, 8, 292, 255, 256, 257, 511, 512, 513, 1000]) AS n;
SELECT sum(t.many('c', 3000)) FROM generate_series(1, 30);
SELECT * FROM t.judge();
SELECT tree_level, deleted_pages FROM pgstatindex('idempotency_data.outbox_segment_0_xid_seq_idx');

-- Beside single ones, in one transaction; subtransactions; what is rolled back
BEGIN;
SELECT idempotency.outbox_enqueue('a', 'd', 't', '1') IS NOT NULL AS ok;
SELECT t.many('d', 20);
SAVEPOINT s;
SELECT t.many('never', 400);
ROLLBACK TO s;
SELECT t.many('d', 20);
SELECT idempotency.outbox_enqueue('a', 'd', 't', '1') IS NOT NULL AS ok;
COMMIT;
BEGIN;
SELECT t.many('never', 400);
ROLLBACK;
SELECT * FROM t.judge() WHERE key IN ('d', 'never');

-- Rows that somebody deletes, and pages that VACUUM empties
DELETE FROM idempotency_data.outbox_segment_0 WHERE aggregate_id IN ('c', 'd');
VACUUM (INDEX_CLEANUP on, TRUNCATE on) idempotency_data.outbox_segment_0;
SELECT t.many('e', 200);
SELECT t.many('e', 200);
SELECT * FROM t.judge();
REINDEX INDEX idempotency_data.outbox_segment_0_xid_seq_idx;
SELECT t.many('f', 300);
ALTER INDEX idempotency_data.outbox_segment_0_xid_seq_idx SET (fillfactor = 50, deduplicate_items = off);
REINDEX INDEX idempotency_data.outbox_segment_0_xid_seq_idx;
SELECT t.many('g', 300);
SELECT * FROM t.judge();

-- Two indexes, one of them left behind by REINDEX CONCURRENTLY, are both filled
SET allow_system_table_mods = on;
CREATE INDEX another ON idempotency_data.outbox_segment_0 (xid, seq);
SELECT t.many('h', 300);
SELECT bt_index_check('idempotency_data.another', true);
SELECT * FROM t.judge() WHERE key = 'h';
DROP INDEX idempotency_data.another;

-- An index of another order is not one of the outbox
CREATE FUNCTION t.backwards(a bigint, b bigint) RETURNS int LANGUAGE sql IMMUTABLE AS $$SELECT sign(b::numeric - a)::int$$;
CREATE OPERATOR CLASS t.backwards FOR TYPE bigint USING btree AS
	OPERATOR 1 >, OPERATOR 2 >=, OPERATOR 3 =, OPERATOR 4 <=, OPERATOR 5 <, FUNCTION 1 t.backwards(bigint, bigint);
CREATE INDEX another ON idempotency_data.outbox_segment_0 (xid, seq t.backwards);
RESET allow_system_table_mods;
SELECT t.many('never', 100);
SELECT idempotency.outbox_enqueue('a', 'never', 't', '1');
DROP INDEX idempotency_data.another;

-- Entries that somebody put by hand where the next ones belong: in the way on a page, and at its end
ALTER TABLE idempotency_data.outbox_segment_0 DISABLE TRIGGER USER;
CREATE FUNCTION t.by_hand(step int, n int) RETURNS void LANGUAGE sql AS $$
	INSERT INTO idempotency_data.outbox_segment_0
	SELECT (e).* FROM (SELECT jsonb_populate_record(s, jsonb_build_object('xid', pg_current_xact_id()::text,
			'seq', (SELECT last_seq FROM idempotency.stat_outbox) + step * g, 'aggregate_id', 'by hand', 'event_id', gen_random_uuid())) AS e
		FROM idempotency_data.outbox_segment_0 AS s, generate_series(1, n) AS g
		WHERE aggregate_id = 'g' AND ctid = (SELECT min(ctid) FROM idempotency_data.outbox_segment_0 WHERE aggregate_id = 'g')) AS r
$$;
BEGIN;
SELECT t.by_hand(50, 1);
SELECT t.many('i', 100);
COMMIT;
SELECT * FROM t.judge() WHERE key IN ('by hand', 'i');
BEGIN;
SELECT t.by_hand(10, 600);
SELECT sum(t.many('j', 8)) FROM generate_series(1, 800);
COMMIT;
SELECT * FROM t.judge() WHERE key IN ('by hand', 'j');

DROP SCHEMA t CASCADE;
DROP EXTENSION pgstattuple;
DROP EXTENSION amcheck;
