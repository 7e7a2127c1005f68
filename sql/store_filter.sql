--
-- Filters of the dedup store, by functions of the tests' module: matrices of a slot,
-- made, filled and asked.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.fill(slot int, level int, filter_column int, seed int, n bigint, expected bigint, stop_after bigint = NULL) RETURNS text
	LANGUAGE c AS 'idempotency_test', 'idem_test_filter_fill_fn';
CREATE FUNCTION t.load(slot int, level int) RETURNS int[]
	LANGUAGE c AS 'idempotency_test', 'idem_test_filter_load_fn';
CREATE FUNCTION t.ask(slot int, columns int, seed int, n bigint) RETURNS int[]
	LANGUAGE c AS 'idempotency_test', 'idem_test_filter_ask_fn';
-- Do the filters that were loaded have all of a run's digests in its column, and of
-- others at most this share of false positives?  The seed of column c is 100 + c.
CREATE FUNCTION t.check(slot int, columns int[], n bigint, max_percent numeric,
	OUT "column" int, OUT all_found bool, OUT few_false bool) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT c, (t.ask(slot, 1 << c, 100 + c, n))[c + 1] = n,
		(t.ask(slot, 1 << c, 99, 100000))[c + 1] <= 100000 * max_percent / 100
	FROM unnest(columns) AS c ORDER BY c $$;
-- The rows of a slot's matrices
CREATE FUNCTION t.rows(slot int, OUT matrix int, OUT pages bigint, OUT blocks text) RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY EXECUTE format($q$
		SELECT ('x' || substr(replace(digest::text, '-', ''), 9, 8))::bit(32)::int, count(*),
			CASE WHEN count(DISTINCT (ctid::text::point)[0]) = count(*) THEN 'one row each' ELSE 'shared' END
		FROM idempotency_data.store_slot_%s WHERE kind = 2 GROUP BY 1 ORDER BY 1$q$, slot);
END $$;
-- Remove the row of a page, as nothing but damage does
CREATE FUNCTION t.remove(slot int, matrix int, page int) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('DELETE FROM idempotency_data.store_slot_%s WHERE kind = 2 AND digest = %L', slot,
		lpad(to_hex(matrix), 16, '0') || lpad(to_hex(page), 16, '0'));
END $$;

-- No matrix: every run may have every digest; only columns that are asked for answer
SELECT t.load(0, 0);
SELECT t.ask(0, 5, 99, 10);
SELECT t.load(1, 1);
SELECT t.ask(1, x'8001'::int, 99, 10);

-- Level 0: one matrix for 16 runs.  A column that nobody filled has every digest.
SELECT t.fill(0, 0, c, 100 + c, 100000, 100000) FROM unnest('{0, 1, 15}'::int[]) AS c;
SELECT t.load(0, 0);
SELECT * FROM t.check(0, '{0, 1, 15}', 100000, 1);
SELECT t.ask(0, x'4000'::int, 99, 10);
SELECT * FROM t.rows(0);

-- One question answers for all columns that are asked for, and for these only
SELECT (t.ask(0, x'8003'::int, 101, 1000))[2] AS of_1, (t.ask(0, x'8001'::int, 101, 1000))[2] AS not_asked;

-- Level 1: a narrow matrix for the first 4 runs, a wide one for the others
SELECT t.fill(1, 1, c, 100 + c, 100000, 100000) FROM generate_series(0, 5) AS c;
SELECT t.load(1, 1);
SELECT * FROM t.check(1, '{0, 1, 2, 3, 4, 5}', 100000, 1);
SELECT * FROM t.rows(1);

-- Packers died before the end mark, and while they filled a column.  The next run overwrites what remains.
SELECT t.fill(1, 1, 6, 7, 100000, 100000), t.fill(1, 1, 6, 8, 100000, 100000, 60000);
SELECT t.fill(1, 1, 6, 106, 50000, 50000);
SELECT t.load(1, 1);
SELECT * FROM t.check(1, '{3, 4, 5}', 100000, 1);
SELECT * FROM t.check(1, '{6}', 50000, 1);
SELECT (t.ask(1, 64, 7, 100000))[7] < 1000 AND (t.ask(1, 64, 8, 100000))[7] < 1000 AS forgotten;

-- Runs that are larger than the matrix was made for: 1.5 times, 4 times, and much
SELECT t.fill(2, 1, 0, 100, 10000, 10000), t.fill(2, 1, 1, 101, 15000, 15000),
	t.fill(2, 1, 2, 102, 40000, 40000), t.fill(2, 1, 3, 103, 60000, 60000);
SELECT t.load(2, 1);
SELECT * FROM t.check(2, '{0}', 10000, 1);
SELECT * FROM t.check(2, '{1}', 15000, 2);
SELECT * FROM t.check(2, '{2}', 40000, 50);

-- A run with nothing, and the smallest matrix
SELECT t.fill(2, 1, 4, 104, 0, 0), t.fill(2, 1, 5, 105, 1, 1);
SELECT t.load(2, 1);
SELECT t.ask(2, 48, 105, 1);

-- A matrix that was not finished counts as none.  The next run makes it anew, not smaller,
-- and with all bits set.
SELECT t.remove(2, 0, 8);
SELECT t.load(2, 1);
SELECT (t.ask(2, 15, 99, 10))[1:4];
SELECT t.fill(2, 1, 2, 102, 100, 100);
SELECT t.load(2, 1);
SELECT (t.ask(2, 15, 99, 1000))[1:2] AS not_filled;
SELECT * FROM t.check(2, '{0, 2}', 100, 100);
SELECT * FROM t.check(2, '{2}', 100, 1);
SELECT matrix, pages FROM t.rows(2);

-- VACUUM FULL moves rows: who loaded before it finds pages by the index
SELECT t.remove(1, 0, 3);
VACUUM FULL idempotency_data.store_slot_1;
SELECT * FROM t.check(1, '{4, 5}', 100000, 1);
SELECT * FROM t.check(1, '{6}', 50000, 1);
SELECT t.load(1, 1);
SELECT * FROM t.check(1, '{4, 5}', 100000, 1);
SELECT * FROM t.check(1, '{6}', 50000, 1);
SELECT t.fill(1, 1, 7, 107, 100000, 100000);
SELECT * FROM t.check(1, '{5, 7}', 100000, 1);

-- A page that is lost has every digest, here one of 84.  A run that cannot fill it has no filter.
SELECT t.check(1, '{0}', 100000, 100), (t.ask(1, 1, 99, 100000))[1] BETWEEN 1000 AND 2000 AS page_found;
SELECT t.fill(1, 1, 3, 103, 100000, 100000);

-- Emptied since it was loaded
TRUNCATE idempotency_data.store_slot_1;
SELECT t.ask(1, x'ffff'::int, 99, 10);
SELECT t.fill(1, 1, 0, 100, 100000, 90000);
SELECT t.ask(1, x'ffff'::int, 99, 10);

TRUNCATE idempotency_data.store_slot_0, idempotency_data.store_slot_1, idempotency_data.store_slot_2;
DROP SCHEMA t CASCADE;
