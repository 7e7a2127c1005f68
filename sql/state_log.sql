--
-- The state log: appended rows, the newest of a key wins, tables take turns.
-- Here three tables, by functions of the tests' module.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE TABLE idempotency_data.test_state_0 (id bigint, key int, value text);
CREATE TABLE idempotency_data.test_state_1 (LIKE idempotency_data.test_state_0);
CREATE TABLE idempotency_data.test_state_2 (LIKE idempotency_data.test_state_0);
CREATE SEQUENCE idempotency_data.test_state_id;
CREATE SCHEMA t;
CREATE FUNCTION t.append(key int, value text, n int = 1) RETURNS bigint
	LANGUAGE c AS 'idempotency_test', 'idem_test_state_append_fn';
CREATE FUNCTION t.value(key int, waits bool = false) RETURNS text
	LANGUAGE c AS 'idempotency_test', 'idem_test_state_value_fn';
CREATE FUNCTION t.maintain() RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_state_maintain_fn';
-- What stands where; repeated rows as one, a long value by its length
CREATE VIEW t.rows AS
	SELECT "table", key, CASE WHEN length(value) > 20 THEN length(value)::text ELSE value END AS value,
		count(*), min(id) AS first_id, max(id) AS last_id
	FROM (SELECT 0 AS "table", * FROM idempotency_data.test_state_0
		UNION ALL SELECT 1, * FROM idempotency_data.test_state_1
		UNION ALL SELECT 2, * FROM idempotency_data.test_state_2) AS r
	GROUP BY 1, 2, 3 ORDER BY 1, 5;

-- Nothing to read, nothing to do
SELECT t.value(1);
SELECT t.maintain();
SELECT * FROM t.rows;

-- The newest row of a key wins; a short table keeps its turn
SELECT t.append(1, 'old'), t.append(1, 'new'), t.append(2, 'kept'), t.append(3, 'open'), t.append(3, NULL);
SELECT t.value(1), t.value(2), t.value(3), t.value(4);
SELECT t.maintain();
SELECT * FROM t.rows;

-- A long one loses it, in steps; what is read is the same after each.  A value
-- that was stored out of line is stored so again.
SELECT t.append(4, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i));
SELECT t.append(9, 'many', 400);
SELECT t.maintain();
SELECT * FROM t.rows WHERE "table" > 0;
SELECT t.append(2, 'later');
SELECT t.value(1), t.value(2), t.value(3), length(t.value(4));
SELECT t.maintain();
SELECT * FROM t.rows WHERE "table" > 0;
SELECT t.value(1), t.value(2), t.value(3), length(t.value(4)), count(*) FROM t.rows WHERE "table" = 0;
SELECT t.maintain();
SELECT * FROM t.rows;
SELECT t.value(1), t.value(2), t.value(3), md5(t.value(4)) = md5((SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i)) AS same;
SELECT pg_relation_size('idempotency_data.test_state_0') AS bytes,
	(SELECT pg_relation_size(reltoastrelid) FROM pg_class WHERE oid = 'idempotency_data.test_state_0'::regclass) AS toast;

-- A row that is rolled back counts for nothing; a copy that is, neither: the table
-- is not emptied
BEGIN;
SELECT t.append(1, 'rolled back');
ROLLBACK;
SELECT t.value(1);
SELECT t.append(9, 'more', 400);
SELECT t.maintain();
BEGIN;
SELECT t.maintain();
SELECT count(*) FROM t.rows WHERE "table" = 0;
ROLLBACK;
SELECT * FROM t.rows;
SELECT t.maintain();
SELECT t.maintain();
SELECT * FROM t.rows;
SELECT t.value(1), t.value(2), t.value(3), length(t.value(4)), t.value(9);

-- A writer that was late appends to a former table; its row is copied, too
SELECT t.append(9, 'again', 400);
SELECT t.maintain();
INSERT INTO idempotency_data.test_state_0 VALUES (nextval('idempotency_data.test_state_id'), 2, 'late');
SELECT t.value(2);
SELECT t.maintain();
SELECT t.maintain();
SELECT * FROM t.rows;

-- Columns that somebody added to the tables, and dropped again, do not go along: they need
-- not be the same in all of them
ALTER TABLE idempotency_data.test_state_1 ADD a int DEFAULT 1e9 + 0 * random();
ALTER TABLE idempotency_data.test_state_0 ADD a text;
ALTER TABLE idempotency_data.test_state_1 DROP a;
ALTER TABLE idempotency_data.test_state_0 DROP a;
SELECT t.append(9, 'again', 400);
SELECT t.maintain() FROM generate_series(1, 2);
SELECT t.maintain();
SELECT t.maintain();
SELECT * FROM t.rows;
SELECT t.value(1), t.value(2), t.value(3), length(t.value(4));

-- A crash that cuts an emptying short leaves a TOAST table whose index has no blocks.
-- The table is emptied again before its turn; else no long value could be written.
CREATE FUNCTION t.remains() RETURNS bool
	LANGUAGE c AS 'idempotency_test', 'idem_test_state_remains_fn';
CREATE FUNCTION t.cut(index regclass) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_cut_index_fn';
CREATE VIEW t.empty AS
	SELECT r.relname, i.indexrelid, pg_relation_size(i.indexrelid) AS index_bytes
	FROM pg_class AS r JOIN pg_index AS i ON i.indrelid = r.reltoastrelid
	WHERE r.relname ~ '^test_state_[0-2]$' AND pg_relation_size(r.oid) = 0;
SELECT relname, index_bytes, t.remains() FROM t.empty ORDER BY 1;
SELECT count(t.cut(indexrelid)) FROM t.empty;
SELECT relname, index_bytes, t.remains() FROM t.empty ORDER BY 1;
SELECT t.append(9, 'and again', 400);
SELECT t.maintain();
SELECT t.maintain();
SELECT relname, index_bytes, t.remains() FROM t.empty ORDER BY 1;
SELECT t.maintain();
SELECT t.append(5, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i));
SELECT length(t.value(4)), length(t.value(5));
SELECT * FROM t.rows;

-- Where no table has rows the first one is current, and may be what a crash left.
TRUNCATE idempotency_data.test_state_0, idempotency_data.test_state_1, idempotency_data.test_state_2;
SELECT count(t.cut(indexrelid)) FROM t.empty;
SELECT t.maintain();
SELECT t.maintain();
SELECT t.maintain();
SELECT relname, index_bytes, t.remains() FROM t.empty ORDER BY 1;
SELECT t.append(6, (SELECT string_agg(md5(i::text), '') FROM generate_series(1, 300) AS i));
SELECT length(t.value(6));

DROP VIEW t.empty;
DROP VIEW t.rows;
DROP TABLE idempotency_data.test_state_0, idempotency_data.test_state_1, idempotency_data.test_state_2;
DROP SEQUENCE idempotency_data.test_state_id;
DROP SCHEMA t CASCADE;
