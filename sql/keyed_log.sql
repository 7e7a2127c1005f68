--
-- The keyed log: appended rows, the newest of a key and kind counts, tables take
-- turns.  By functions of the tests' module.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE TABLE idempotency_data.test_keyed_0 (number bigint NOT NULL, digest uuid NOT NULL, kind "char" NOT NULL, value text);
CREATE TABLE idempotency_data.test_keyed_1 (LIKE idempotency_data.test_keyed_0);
CREATE TABLE idempotency_data.test_keyed_2 (LIKE idempotency_data.test_keyed_0);
CREATE INDEX test_keyed_0_key ON idempotency_data.test_keyed_0 (digest, kind, number DESC);
CREATE INDEX test_keyed_1_key ON idempotency_data.test_keyed_1 (digest, kind, number DESC);
CREATE INDEX test_keyed_2_key ON idempotency_data.test_keyed_2 (digest, kind, number DESC);
CREATE SEQUENCE idempotency_data.test_keyed_number;
CREATE SCHEMA t;
CREATE FUNCTION t.append(key int, kind "char", value text, n int = 1) RETURNS bigint
	LANGUAGE c AS 'idempotency_test', 'idem_test_keyed_append_fn';
CREATE FUNCTION t.look_up(key int, OUT state text, OUT note text, OUT in_snapshot bool)
	LANGUAGE c AS 'idempotency_test', 'idem_test_keyed_look_up_fn';
CREATE FUNCTION t.maintain() RETURNS bool
	LANGUAGE c AS 'idempotency_test', 'idem_test_keyed_maintain_fn';
CREATE FUNCTION t.forget_pass() RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_keyed_forget_pass_fn';
-- Take steps until there is none, each in a transaction of its own.
CREATE PROCEDURE t.maintain_all(OUT steps int) LANGUAGE plpgsql AS $$
BEGIN
	steps := 0;
	WHILE t.maintain() LOOP
		steps := steps + 1;
		COMMIT;
	END LOOP;
END
$$;
-- What stands where: the key and the kind of each part; repeated rows as one
CREATE VIEW t.rows AS
	SELECT "table", CASE kind WHEN 'm' THEN 'marker' ELSE right(digest::text, 2) || ' ' || kind::text END AS part,
		CASE WHEN length(value) > 20 THEN length(value)::text ELSE value END AS value, count(*)
	FROM (SELECT 0 AS "table", * FROM idempotency_data.test_keyed_0
		UNION ALL SELECT 1, * FROM idempotency_data.test_keyed_1
		UNION ALL SELECT 2, * FROM idempotency_data.test_keyed_2) AS r
	GROUP BY 1, 2, 3 ORDER BY 1, 2, min(number);

-- Nothing to read, nothing to do
SELECT * FROM t.look_up(1);
SELECT t.maintain();
SELECT * FROM t.rows;

-- The newest row of a kind counts; the kinds change without each other; a short
-- table keeps its turn
SELECT t.append(1, 's', 'old'), t.append(1, 's', 'new'), t.append(1, 'n', 'noted'), t.append(2, 's', 'kept'),
	t.append(3, 's', 'open'), t.append(3, 'n', 'lost'), t.append(3, 's', NULL);
SELECT * FROM t.look_up(1);
SELECT * FROM t.look_up(2);
SELECT * FROM t.look_up(3);
SELECT * FROM t.look_up(4);
SELECT t.append(2, 'n', 'before'), t.append(2, 's', 'anew');
SELECT * FROM t.look_up(2);
SELECT t.maintain();
SELECT * FROM t.rows;

-- A long table loses its turn, in steps; what is read is the same after each.  Only
-- what is needed is copied.  A value that was stored out of line is stored so again.
SELECT t.append(4, 's', (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i));
SELECT t.append(9, 'n', 'many', 400);
CALL t.maintain_all(NULL);
SELECT * FROM t.rows;
SELECT * FROM t.look_up(1);
SELECT * FROM t.look_up(2);
SELECT * FROM t.look_up(3);
SELECT md5(state) = md5((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)) AS same FROM t.look_up(4);

-- A state that says "free" goes with its table, if no other table has an older row
-- of the key.  So does a note that is older than the state.
SELECT t.append(5, 's', 'old'), t.append(5, 'n', 'old'), t.append(5, 's', NULL), t.append(1, 's', 'newer');
SELECT t.append(9, 'n', 'more', 400);
CALL t.maintain_all(NULL);
SELECT * FROM t.rows;
SELECT * FROM t.look_up(1);
SELECT * FROM t.look_up(5);

-- A row that is rolled back counts for nothing.  Neither does a pass whose copies
-- are rolled back.
BEGIN;
SELECT t.append(1, 's', 'rolled back');
SELECT state FROM t.look_up(1);
ROLLBACK;
SELECT state FROM t.look_up(1);
SELECT t.append(9, 'n', 'again', 400);
SELECT t.maintain();
SELECT t.maintain();
BEGIN;
SELECT t.maintain();
ROLLBACK;
CALL t.maintain_all(NULL);
SELECT * FROM t.rows;
SELECT state, note FROM t.look_up(1);

-- A process that has just started knows nothing of a pass, and begins anew: nothing
-- is copied twice.
SELECT t.append(9, 'n', 'again', 400);
SELECT t.maintain();
SELECT t.maintain();
SELECT t.maintain();
SELECT t.forget_pass();
CALL t.maintain_all(NULL);
SELECT * FROM t.rows;

-- Columns that somebody added to the tables, and dropped again, do not go along: they need
-- not be the same in all of them.  Nor does a long value come to harm that is fetched.
CREATE PROCEDURE t.add(to_rows regclass, to_other regclass) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('ALTER TABLE %s ADD a int DEFAULT 1e9 + 0 * random()', to_rows);
	EXECUTE format('ALTER TABLE %s ADD a text', to_other);
	EXECUTE format('ALTER TABLE %s DROP a', to_rows);
	EXECUTE format('ALTER TABLE %s DROP a', to_other);
END
$$;
CALL t.add('idempotency_data.test_keyed_0', 'idempotency_data.test_keyed_1');
SELECT t.append(9, 'n', 'again', 400);
CALL t.maintain_all(NULL);
SELECT * FROM t.rows;
CALL t.add('idempotency_data.test_keyed_1', 'idempotency_data.test_keyed_0');
SELECT state, note FROM t.look_up(1);
SELECT md5(state) = md5((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)) AS same FROM t.look_up(4);

-- A crash that cuts an emptying short leaves a table whose index has entries, or no
-- blocks.  The table is emptied again before its turn.
CREATE FUNCTION t.cut(relation regclass) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_cut_index_fn';
CREATE VIEW t.empty AS
	SELECT i.indexrelid, pg_relation_size(i.indexrelid) AS index_bytes
	FROM pg_class AS r JOIN pg_index AS i ON i.indrelid = r.oid
	WHERE r.relname ~ '^test_keyed_[0-2]$' AND pg_relation_size(r.oid) = 0;
SELECT count(t.cut(indexrelid)), min(index_bytes) FROM t.empty;
SELECT count(*), min(index_bytes), max(index_bytes) FROM t.empty;
SELECT * FROM t.look_up(1);
CALL t.maintain_all(NULL);
SELECT count(*), min(index_bytes), max(index_bytes) FROM t.empty;

-- REPEATABLE READ: the row counts, and the caller learns that its snapshot is older
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM t.look_up(1);
SELECT t.append(1, 's', 'own');
SELECT * FROM t.look_up(1);
ROLLBACK;

-- A restore may write to any table, and on any page, at each step of a pass: what it brings goes
-- along.
CREATE FUNCTION t.restore(key int) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	former text;
BEGIN
	SELECT 'test_keyed_' || "table" INTO former FROM (
		SELECT "table", max(number) AS marker FROM (
			SELECT 0 AS "table", * FROM idempotency_data.test_keyed_0
			UNION ALL SELECT 1, * FROM idempotency_data.test_keyed_1
			UNION ALL SELECT 2, * FROM idempotency_data.test_keyed_2) AS r
		WHERE kind = 'm' GROUP BY 1) AS m
	ORDER BY marker LIMIT 1;
	EXECUTE format('INSERT INTO idempotency_data.%I VALUES (nextval(''idempotency_data.test_keyed_number''),
		(''00000000-0000-0000-0000-'' || lpad(to_hex($1), 12, ''0''))::uuid, ''s'', ''restored'')', former) USING key;
END
$$;
SELECT t.append(9, 'n', 'again', 400);
SELECT t.maintain();
DO $$
BEGIN
	FOR step IN 1 .. 20 LOOP
		PERFORM t.restore(100 + step);
		COMMIT;
		PERFORM t.maintain();
		COMMIT;
	END LOOP;
END
$$;
CALL t.maintain_all(NULL);
SELECT count(*), min(state), count(DISTINCT "table") FROM generate_series(101, 120) AS key, t.look_up(key),
	t.rows WHERE part = lpad(to_hex(key), 2, '0') || ' s';

-- An index that only the executor could maintain is refused
CREATE INDEX partial ON idempotency_data.test_keyed_0 (number) WHERE value IS NULL;
CREATE INDEX partial1 ON idempotency_data.test_keyed_1 (number) WHERE value IS NULL;
CREATE INDEX partial2 ON idempotency_data.test_keyed_2 (number) WHERE value IS NULL;
DO $$
BEGIN
	PERFORM t.append(1, 's', 'unindexed');
EXCEPTION WHEN feature_not_supported THEN
	RAISE WARNING 'refused';
END
$$;
DROP INDEX idempotency_data.partial, idempotency_data.partial1, idempotency_data.partial2;

DROP VIEW t.empty;
DROP VIEW t.rows;
DROP TABLE idempotency_data.test_keyed_0, idempotency_data.test_keyed_1, idempotency_data.test_keyed_2;
DROP SEQUENCE idempotency_data.test_keyed_number;
DROP SCHEMA t CASCADE;
