--
-- Runs of packed ids in the slots of the dedup store, by functions of the tests' module.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE EXTENSION amcheck;
CREATE EXTENSION pg_visibility;
CREATE EXTENSION pageinspect;
CREATE SCHEMA t;
CREATE FUNCTION t.write(slot int, run bigint, query text, plain bool = false, finish bool = true, expected bigint = 1000)
	RETURNS void LANGUAGE c AS 'idempotency_test', 'idem_test_run_write_fn';
CREATE FUNCTION t.marks(slot int, OUT run bigint, OUT class int, OUT level int, OUT "column" int, OUT pages bigint,
	OUT first_block bigint, OUT digests bigint, OUT details bigint, OUT specials bigint, OUT replaces int, OUT packer bool)
	RETURNS SETOF record LANGUAGE c AS 'idempotency_test', 'idem_test_run_marks_fn';
CREATE FUNCTION t.found(slot int, run bigint, digests uuid[], shift int = 0)
	RETURNS bigint LANGUAGE c AS 'idempotency_test', 'idem_test_run_found_fn';
CREATE TYPE t.entry AS (digest uuid, turn smallint, state "char", has_detail bool, claimed_at timestamptz,
	completed_at timestamptz, event_id text, consumer text, result jsonb);
CREATE FUNCTION t.search(slot int, run bigint, digest uuid, shift int = 0, detail bool = true)
	RETURNS SETOF t.entry LANGUAGE c AS 'idempotency_test', 'idem_test_run_search_fn';
CREATE FUNCTION t.read(slot int, run bigint)
	RETURNS SETOF t.entry LANGUAGE c AS 'idempotency_test', 'idem_test_run_read_fn';

-- The digest of a number, digests of numbers, and completions without details
CREATE FUNCTION t.digest(i bigint) RETURNS uuid LANGUAGE sql IMMUTABLE AS
	$$ SELECT encode(substr(sha256(int8send(i)), 1, 16), 'hex')::uuid $$;
CREATE FUNCTION t.digests(first bigint, last bigint) RETURNS uuid[] LANGUAGE sql AS
	$$ SELECT coalesce(array_agg(t.digest(i)), '{}') FROM generate_series(first, last) AS i $$;
CREATE FUNCTION t.plain(first bigint, last bigint) RETURNS text LANGUAGE sql AS $$
	SELECT format('SELECT t.digest(i), 1::int2, ''c''::"char", false, ''2026-01-01''::timestamptz, ''2026-01-02''::timestamptz, '
		'NULL::text, NULL::text, NULL::jsonb FROM generate_series(%s, %s) AS i ORDER BY 1', first, last) $$;
-- The scans of a slot's index in this transaction
CREATE FUNCTION t.scans(slot int) RETURNS bigint LANGUAGE sql AS
	$$ SELECT pg_stat_get_xact_numscans(('idempotency_data.store_slot_' || slot || '_kind_run_digest_idx')::regclass) $$;
CREATE FUNCTION t.check(slot int) RETURNS TABLE (problem text) LANGUAGE sql AS $$
	SELECT bt_index_check('idempotency_data.store_slot_' || slot || '_kind_run_digest_idx', true)::text WHERE false
	UNION ALL SELECT bt_index_check(('idempotency_data.store_slot_' || slot || '_kind_run_digest_idx')::regclass, true)::text
	UNION ALL SELECT msg FROM verify_heapam('idempotency_data.store_slot_' || slot, check_toast => true) $$;

-- Runs of several sizes in one slot.  The last is too large for the filters that
-- the first runs made.
SELECT t.write(3, 10, t.plain(1, 0), expected => 0);
SELECT t.write(3, 11, t.plain(1, 1), expected => 5000);
SELECT t.write(3, 12, t.plain(1, 505), plain => true);
SELECT t.write(3, 13, t.plain(1, 506));
SELECT t.write(3, 14, t.plain(1, 5000));
SELECT t.write(3, 15, t.plain(1, 100000), expected => 100000);
SELECT run, class, level, "column", pages, first_block IS NOT NULL AS in_place, digests, details, specials, replaces, packer
	FROM t.marks(3);
SELECT t.found(3, 10, t.digests(1, 100)), t.found(3, 11, t.digests(1, 1)), t.found(3, 11, t.digests(2, 100)),
	t.found(3, 12, t.digests(1, 505)), t.found(3, 12, t.digests(506, 1000)),
	t.found(3, 13, t.digests(1, 506)), t.found(3, 13, t.digests(507, 1000)),
	t.found(3, 14, t.digests(1, 5000)), t.found(3, 14, t.digests(5001, 15000));

-- All are found in place; of the others only those between two pages need the index
BEGIN;
SELECT t.scans(3) AS before \gset
SELECT t.found(3, 15, t.digests(1, 100000));
SELECT t.scans(3) - :before AS scans, t.scans(3) AS before \gset
SELECT :scans AS scans;
SELECT t.found(3, 15, t.digests(100001, 110000));
SELECT t.scans(3) - :before BETWEEN 1 AND 60 AS few;
COMMIT;
-- What one digest finds
SELECT turn, state, has_detail, claimed_at, completed_at, event_id, result FROM t.search(3, 15, t.digest(1));
-- Smaller and greater than all
SELECT t.found(3, 15, ARRAY['00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff']::uuid[]);
-- The mark is wrong, or says nothing: by the index
SELECT shift, t.found(3, 14, t.digests(1, 6000), shift), t.found(3, 15, t.digests(99000, 101000), shift)
	FROM unnest(ARRAY[-1000000, -5, -1, 1, 2, 9, 1000, 1000000, NULL]) AS shift;
-- In order, and nothing else
SELECT run, (SELECT count(*) FROM t.read(3, run)),
	(SELECT array_agg(digest) FROM t.read(3, run)) IS NOT DISTINCT FROM (SELECT array_agg(t.digest(i) ORDER BY t.digest(i)) FROM generate_series(1, digests) AS i) AS same
	FROM t.marks(3);
SELECT * FROM t.check(3);
SELECT count(*) FILTER (WHERE NOT all_visible) AS not_visible, count(*) FILTER (WHERE NOT all_frozen) AS not_frozen
	FROM pg_visibility_map('idempotency_data.store_slot_3');

-- Digests that somebody chose: guesses lead astray
CREATE TABLE t.chosen AS
	SELECT ('00000000-0000-0000-0000-' || lpad(to_hex(i), 12, '0'))::uuid AS digest FROM generate_series(1, 3000) AS i
	UNION ALL SELECT (lpad(to_hex(i), 8, '0') || '-ffff-ffff-ffff-ffffffffffff')::uuid FROM generate_series(1, 1000) AS i
	UNION ALL SELECT (rpad(repeat('f', i), 8, '0') || '-0000-0000-0000-000000000000')::uuid FROM generate_series(1, 8) AS i
	UNION ALL SELECT ('ffffffff-ffff-ffff-ffff-' || lpad(to_hex(i), 12, '0'))::uuid FROM generate_series(1, 3000) AS i;
SELECT t.write(4, 20, $$ SELECT digest, 1::int2, 'c'::"char", false, now(), now(), NULL::text, NULL::text, NULL::jsonb FROM t.chosen ORDER BY 1 $$,
	expected => 8000);
SELECT t.found(4, 20, (SELECT array_agg(digest) FROM t.chosen)) = (SELECT count(*) FROM t.chosen) AS all;
SELECT t.found(4, 20, t.digests(1, 1000));

-- Details and specials: results up to 100 kB, several turns of an event.  Every
-- tenth has a result, some of them long; every hundredth was kept first; every
-- thousandth was forgotten and completed again.
CREATE TABLE t.entries AS
	SELECT t.digest(i) AS digest, turn::int2, state::"char",
		i % 10 = 0 OR turn > 1 OR state <> 'c' AS has_detail,
		'2026-01-01'::timestamptz + i * interval '1 s' AS claimed_at,
		CASE WHEN state = 'c' THEN '2026-01-02'::timestamptz + i * interval '1 s' END AS completed_at,
		CASE WHEN i % 20 = 0 THEN 'event ' || i END AS event_id, 'billing'::text AS consumer,
		CASE WHEN i % 10 = 0 AND state = 'c' THEN to_jsonb(
			(SELECT string_agg(md5(j::text || i), '') FROM generate_series(1, CASE i % 500 WHEN 0 THEN 3200 WHEN 10 THEN 100 ELSE 1 END) AS j))
		END AS result
	FROM generate_series(1, 5000) AS i,
		LATERAL (SELECT 1 AS turn, CASE i % 100 WHEN 50 THEN 'k' ELSE 'c' END AS state
			UNION ALL SELECT 2, 'c' WHERE i % 100 = 50
			UNION ALL SELECT 2, 'f' WHERE i % 1000 IN (0, 1)
			UNION ALL SELECT 3, 'c' WHERE i % 1000 = 0) AS turns;
SELECT t.write(5, 30, 'SELECT * FROM t.entries ORDER BY digest, turn', expected => 5000);
SELECT run, "column", pages, first_block IS NOT NULL AS in_place, digests, details, specials FROM t.marks(5);
SELECT count(*) AS entries, count(*) FILTER (WHERE has_detail) AS details, max(length(result::text)) FROM t.entries;
-- A plain completion is read without its times
CREATE VIEW t.packed AS
	SELECT digest, turn, state, has_detail, CASE WHEN has_detail THEN claimed_at END AS claimed_at,
		CASE WHEN has_detail THEN completed_at END AS completed_at, CASE WHEN has_detail THEN event_id END AS event_id,
		CASE WHEN has_detail THEN consumer END AS consumer, result FROM t.entries;
SELECT count(*) FROM (SELECT * FROM t.packed EXCEPT SELECT * FROM t.read(5, 30)) AS missing;
SELECT count(*) FROM (SELECT * FROM t.read(5, 30) EXCEPT SELECT * FROM t.packed) AS too_many;
SELECT count(*) FROM t.read(5, 30);
SELECT bool_and((digest, turn) > (before, turn_before)) AS in_order
	FROM (SELECT digest, turn, lag(digest) OVER () AS before, lag(turn) OVER () AS turn_before FROM t.read(5, 30)) AS r;
SELECT t.found(5, 30, t.digests(1, 5000)), t.found(5, 30, t.digests(5001, 15000)), t.found(5, 30, t.digests(1, 6000), NULL);
-- The highest turn, with its detail and without
CREATE VIEW t.searched AS
	SELECT s.*, detail FROM (SELECT DISTINCT digest FROM t.entries) AS e, unnest(ARRAY[true, false]) AS detail,
		LATERAL t.search(5, 30, e.digest, 0, detail) AS s;
SELECT count(*) FROM t.searched;
SELECT count(*) FROM (SELECT DISTINCT ON (digest) * FROM t.packed ORDER BY digest, turn DESC) AS p
	LEFT JOIN t.searched AS s ON s.digest = p.digest AND detail
	WHERE (p.digest, p.turn, p.state, p.has_detail, p.claimed_at, p.completed_at, p.event_id, p.consumer, p.result)
		IS DISTINCT FROM (s.digest, s.turn, s.state, s.has_detail, s.claimed_at, s.completed_at, s.event_id, s.consumer, s.result);
SELECT count(*) FROM (SELECT DISTINCT ON (digest) * FROM t.packed ORDER BY digest, turn DESC) AS p
	LEFT JOIN t.searched AS s ON s.digest = p.digest AND NOT detail
	WHERE (p.turn, p.state) IS DISTINCT FROM (s.turn, s.state) OR s.has_detail OR s.result IS NOT NULL OR s.event_id IS NOT NULL;
SELECT * FROM t.check(5);
-- The chunks of long results are frozen, too
SELECT count(*) > 0 AS chunks, count(*) FILTER (WHERE (t_infomask & 768) <> 768) AS not_frozen
	FROM pg_class c, generate_series(0, pg_relation_size(c.reltoastrelid) / current_setting('block_size')::int - 1) AS block,
		heap_page_items(get_raw_page(c.reltoastrelid::regclass::text, block::int))
	WHERE c.oid = 'idempotency_data.store_slot_5'::regclass AND lp_flags = 1;

-- Runs beside remains: of a run that was not finished, of a packer that failed
-- after the end mark.  The end mark counts.
SELECT t.write(5, 31, t.plain(1, 2000), finish => false);
SELECT t.write(5, 32, t.plain(5001, 9000));
BEGIN;
SELECT t.write(5, 33, 'SELECT * FROM t.entries WHERE event_id IS NOT NULL ORDER BY digest, turn');
ROLLBACK;
SELECT t.write(5, 34, t.plain(9001, 9010));
SELECT run, "column", pages, first_block IS NOT NULL AS in_place, digests, details, specials FROM t.marks(5);
SELECT t.found(5, 30, t.digests(1, 10000)), t.found(5, 32, t.digests(1, 10000)), t.found(5, 34, t.digests(1, 10000));
SELECT count(*), count(result) AS results, max(length(result::text)) FROM t.read(5, 33);
SELECT * FROM t.check(5);

-- Entries out of order, and twice
SELECT t.write(6, 40, replace(t.plain(1, 10), 'ORDER BY 1', 'ORDER BY 1 DESC'));
SELECT t.write(6, 40, 'SELECT * FROM t.entries, generate_series(1, 2) WHERE turn = 1 ORDER BY digest');
SELECT run FROM t.marks(6);

-- After VACUUM FULL the pages stand elsewhere, and are found by the index
VACUUM (FULL) idempotency_data.store_slot_3;
VACUUM (FULL) idempotency_data.store_slot_5;
SELECT t.found(3, 14, t.digests(1, 6000)), t.found(3, 15, t.digests(90000, 110000)),
	t.found(5, 30, t.digests(1, 6000)), t.found(5, 32, t.digests(1, 10000));
SELECT count(*) FROM (SELECT * FROM t.packed EXCEPT SELECT * FROM t.read(5, 30)) AS missing;
VACUUM (FREEZE) idempotency_data.store_slot_5;
REINDEX TABLE idempotency_data.store_slot_5;
SELECT t.found(5, 30, t.digests(1, 6000)), t.found(5, 32, t.digests(1, 10000));
SELECT * FROM t.check(5);
-- Runs that are written then stand in place again
SELECT t.write(5, 35, t.plain(1, 3000));
BEGIN;
SELECT t.scans(5) AS before \gset
SELECT t.found(5, 35, t.digests(1, 3000));
SELECT t.scans(5) - :before AS scans;
COMMIT;

-- Rows of a dump come by COPY.  Those of a restore that aborted are not there.
CREATE TABLE t.dump AS SELECT * FROM idempotency_data.store_slot_5 WHERE kind <> 2 ORDER BY ctid;
BEGIN;
INSERT INTO idempotency_data.store_slot_7 SELECT * FROM t.dump;
SELECT t.found(7, 30, t.digests(1, 6000));
ROLLBACK;
SELECT count(*) FROM t.marks(7);
INSERT INTO idempotency_data.store_slot_7 SELECT * FROM t.dump ORDER BY md5(digest::text || turn);
SELECT count(*) FROM idempotency_data.store_slot_7 WHERE CASE WHEN kind = 0 THEN packer <> '0' ELSE packer < '9223372036854775808' END;
SELECT run, "column", pages, first_block, digests, details, specials, packer FROM t.marks(7);
SELECT t.found(7, 30, t.digests(1, 6000)), t.found(7, 32, t.digests(1, 10000)), t.found(7, 35, t.digests(1, 4000));
SELECT count(*) FROM (SELECT * FROM t.packed EXCEPT SELECT * FROM t.read(7, 30)) AS missing;
SELECT bool_and((digest, turn) > (before, turn_before)) AS in_order
	FROM (SELECT digest, turn, lag(digest) OVER () AS before, lag(turn) OVER () AS turn_before FROM t.read(7, 30)) AS r;
SELECT * FROM t.check(7);
-- A run that lacks rows must not be merged
DELETE FROM idempotency_data.store_slot_7 WHERE run = 35 AND kind = 1 AND ctid = (SELECT min(ctid) FROM idempotency_data.store_slot_7 WHERE run = 35 AND kind = 1);
SELECT count(*) FROM t.read(7, 35);

-- A table that somebody altered
ALTER TABLE idempotency_data.store_slot_8 ADD COLUMN mine int;
SELECT t.write(8, 50, t.plain(1, 10));
ALTER TABLE idempotency_data.store_slot_8 DROP COLUMN mine;
SET allow_system_table_mods = on;
CREATE INDEX mine ON idempotency_data.store_slot_8 (run);
CREATE TRIGGER mine AFTER INSERT ON idempotency_data.store_slot_9 FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger();
RESET allow_system_table_mods;
SELECT t.write(9, 50, t.plain(1, 10));
DROP TRIGGER mine ON idempotency_data.store_slot_9;
SELECT t.write(8, 50, t.plain(1, 10));
DROP INDEX idempotency_data.mine;
ALTER TABLE idempotency_data.store_slot_8 ALTER COLUMN body SET STORAGE EXTENDED;
SELECT t.write(8, 50, t.plain(1, 10));
ALTER TABLE idempotency_data.store_slot_8 ALTER COLUMN body SET STORAGE PLAIN;
SELECT t.write(8, 50, t.plain(1, 1000));
SELECT t.found(8, 50, t.digests(1, 2000));

-- A run that is damaged cannot be merged.  The tries leave few remains behind, and the other
-- slots are merged all the same
DO $$ BEGIN EXECUTE 'TRUNCATE ' || (SELECT string_agg('idempotency_data.store_slot_' || n, ', ') FROM generate_series(0, 47) AS n); END $$;
SELECT count(t.write(6, 100 + i, t.plain(i * 5000, i * 5000 + 4999))) FROM generate_series(1, 16) AS i;
CREATE VIEW t.slots AS
	SELECT sum(pg_relation_size('idempotency_data.store_slot_' || n)) / 8192 AS blocks, sum((SELECT count(*) FROM t.marks(n) WHERE level > 0)) AS merged
	FROM generate_series(0, 47) AS n;
SELECT idempotency.claims_maintain();
SELECT blocks AS before, merged FROM t.slots \gset
SELECT :merged AS merged;
SELECT count(t.write(5, 200 + i, t.plain(i * 5000, i * 5000 + 4999))) FROM generate_series(1, 16) AS i;
DELETE FROM idempotency_data.store_slot_5 WHERE ctid = (SELECT max(ctid) FROM idempotency_data.store_slot_5 WHERE run = 216 AND kind = 1);
SELECT count(t.write(7, 300 + i, t.plain(100000 + i * 5000, i * 5000 + 104999))) FROM generate_series(1, 16) AS i;
-- as many as would be fifteen times what was there
SELECT count(idempotency.claims_maintain()) FROM generate_series(1, 60);
SELECT blocks < 5 * :before AS few, merged > :merged AS others FROM t.slots;
-- More rows than the mark counts: what is written ends with those
SELECT t.write(9, 401, t.plain(1, 1000)), t.write(9, 402, t.plain(1001, 4000));
UPDATE idempotency_data.store_slot_9 SET run = 401 WHERE run = 402 AND kind = 1;
\set VERBOSITY default
SELECT count(*) FROM t.read(9, 401);
