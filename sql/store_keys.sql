-- The keys of the store's segments: where the rows of an event stand
CREATE EXTENSION pgcrypto;
CREATE EXTENSION idempotency;
SET idempotency.store_maintenance = off;
CREATE SCHEMA t;
CREATE FUNCTION t.named(number int, digest uuid) RETURNS int LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_keys_named_fn';
CREATE FUNCTION t.missing(number int) RETURNS bigint LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_keys_missing_fn';
CREATE FUNCTION t.digest(id text) RETURNS uuid LANGUAGE sql AS $$ SELECT digest FROM idempotency_data.store_segment_0 WHERE event_id = id LIMIT 1 $$;
CREATE FUNCTION t.did(id text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict text := idempotency.claim_event(id);
BEGIN
	IF verdict = 'claimed' THEN PERFORM idempotency.complete_event(id); END IF;
	RETURN verdict;
END $$;
-- Reads of whole segments are counted.  Statistics of this transaction are told at its end.
CREATE FUNCTION t.reads() RETURNS bigint LANGUAGE sql AS $$
	SELECT sum(pg_stat_get_numscans(oid) + pg_stat_get_xact_numscans(oid))::bigint FROM pg_class WHERE relname LIKE 'store\_segment\__' $$;

-- No claim reads a segment, and the file grows with the rows
SELECT t.reads() AS before \gset
SELECT t.did('e' || i % 4000) AS verdict, count(*) FROM generate_series(1, 8000) i GROUP BY 1 ORDER BY 1;
BEGIN;
SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT 'b' || i FROM generate_series(1, 2000) i)) WHERE result = 'claimed';
SELECT idempotency.complete_events(ARRAY(SELECT 'b' || i FROM generate_series(1, 2000) i));
COMMIT;
SELECT count(*), min(status::text), max(status::text) FROM generate_series(0, 3999) i, idempotency.event_status('e' || i);
SELECT t.reads() - :before AS reads, t.missing(0),
	pg_relation_size('idempotency_data.store_keys_0') / 8192 BETWEEN 8 AND 20 AS pages;

-- A page's look is that of a page without rows, for whoever reads the sequence
SELECT count(*) FROM idempotency_data.store_keys_0;
SELECT nextval('idempotency_data.store_keys_0'), setval('idempotency_data.store_keys_0', 7);
SELECT t.did('e1'), t.missing(0);

-- An id that is tried and rolled back a thousand times has few places, and so has one that is used as often
DO $$
BEGIN
	FOR i IN 1 .. 1000 LOOP
		BEGIN
			PERFORM t.did('tried');
			RAISE 'undo';
		EXCEPTION WHEN raise_exception THEN
		END;
	END LOOP;
END $$;
SELECT t.did('tried'), t.named(0, t.digest('tried')) BETWEEN 1 AND 6 AS few;
DO $$
BEGIN
	FOR i IN 1 .. 300 LOOP
		PERFORM t.did('used');
		COMMIT;
		PERFORM idempotency.forget_event('used');
		COMMIT;
	END LOOP;
	PERFORM t.did('used');
END $$;
SELECT count(*) FROM idempotency_data.store_segment_0 WHERE event_id = 'used';
SELECT t.did('used'), t.named(0, t.digest('used')) BETWEEN 1 AND 6 AS few, t.missing(0);

-- A snapshot that sees an older row finds it, though the row has no place any more
CREATE EXTENSION dblink;
SELECT t.did('seen');
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT status FROM idempotency.event_status('seen');
SELECT dblink_exec('dbname=' || current_database() || ' port=' || current_setting('port') || ' host=' || split_part(current_setting('unix_socket_directories'), ',', 1), $$
	DO $do$ BEGIN FOR i IN 1 .. 20 LOOP PERFORM idempotency.forget_event('seen'); COMMIT; PERFORM t.did('seen'); COMMIT; END LOOP;
		PERFORM idempotency.forget_event('seen'); END $do$ $$);
SELECT t.named(0, t.digest('seen')) BETWEEN 1 AND 6 AS few;
SELECT status FROM idempotency.event_status('seen');
COMMIT;
SELECT status FROM idempotency.event_status('seen');

-- What somebody does by hand: the newest row goes, and an older one counts again
DELETE FROM idempotency_data.store_segment_0 WHERE event_id = 'used' AND turn > 3;
SELECT turn, state FROM idempotency_data.store_segment_0 WHERE event_id = 'used' ORDER BY turn;
SELECT t.did('used'), t.missing(0);
-- twice, while a probe is between the keys and the rows
CREATE FUNCTION t.probed(digest uuid, first text, second text) RETURNS int LANGUAGE c STRICT AS 'idempotency_test', 'idem_test_keys_probed_fn';
CREATE FUNCTION t.beside(command text) RETURNS text LANGUAGE sql AS $$
	SELECT format('SELECT public.dblink_exec(%L, %L)', 'dbname=' || current_database() || ' port=' || current_setting('port') || ' host=' ||
		split_part(current_setting('unix_socket_directories'), ',', 1), command) $$;
DO $$ BEGIN FOR i IN 1 .. 8 LOOP PERFORM t.did('beside'); COMMIT; PERFORM idempotency.forget_event('beside'); COMMIT; END LOOP; END $$;
SELECT t.probed(t.digest('beside'),
	t.beside($$DELETE FROM idempotency_data.store_segment_0 WHERE event_id = 'beside' AND turn = 16$$),
	t.beside($$DELETE FROM idempotency_data.store_segment_0 WHERE event_id = 'beside' AND turn > 1$$)) AS turn;
SELECT t.did('beside'), t.missing(0);
-- a row becomes another event's
SELECT t.digest('e5') AS e5, t.digest('e6') AS e6 \gset
DELETE FROM idempotency_data.store_segment_0 WHERE digest = :'e5';
SELECT t.did('e5');
DELETE FROM idempotency_data.store_segment_0 WHERE digest = :'e5';
UPDATE idempotency_data.store_segment_0 SET digest = :'e5' WHERE digest = :'e6';
SELECT t.did('e5') AS e5, t.did('e6') AS e6, t.missing(0);
-- and back, where it is rolled back
BEGIN;
UPDATE idempotency_data.store_segment_0 SET digest = gen_random_uuid() WHERE digest = :'e5';
SELECT t.did('e5');
ROLLBACK;
SELECT t.did('e5'), t.missing(0);

-- Rows that come while the trigger is off: claims read the segment meanwhile, and say so once
CREATE TABLE t.row AS SELECT * FROM idempotency_data.store_segment_0 WHERE event_id = 'e7';
DELETE FROM idempotency_data.store_segment_0 WHERE event_id = 'e7';
SELECT t.did('e8');
ALTER TABLE idempotency_data.store_segment_0 DISABLE TRIGGER ALL;
INSERT INTO idempotency_data.store_segment_0 SELECT * FROM t.row;
SELECT t.did('e7');
SELECT t.did('e8');
ALTER TABLE idempotency_data.store_segment_0 ENABLE TRIGGER ALL;
SELECT t.did('e7');
DELETE FROM idempotency_data.store_segment_0 WHERE event_id = 'e7';
ALTER TABLE idempotency_data.store_segment_0 ENABLE ALWAYS TRIGGER store_restored, ENABLE ALWAYS TRIGGER store_keyed;
SELECT t.reads() AS before \gset
SELECT t.named(0, t.digest('e8'));
-- nobody claims in between
ALTER TABLE idempotency_data.store_segment_0 DISABLE TRIGGER ALL;
INSERT INTO idempotency_data.store_segment_0 SELECT * FROM t.row;
ALTER TABLE idempotency_data.store_segment_0 ENABLE ALWAYS TRIGGER store_restored, ENABLE ALWAYS TRIGGER store_keyed;
SELECT t.did('e7'), t.missing(0), t.reads() - :before - 2 AS reads;

-- A rewrite that is rolled back takes its keys with it, to a savepoint and as a whole
BEGIN;
SAVEPOINT s;
TRUNCATE idempotency_data.store_segment_0;
SELECT t.did('e9'), t.did('new');
ROLLBACK TO s;
SELECT t.did('e9'), t.did('new');
COMMIT;
BEGIN;
TRUNCATE idempotency_data.store_segment_0;
SELECT t.did('e10');
ROLLBACK;
SELECT t.did('e10'), t.missing(0);
VACUUM FULL idempotency_data.store_segment_0;
SELECT t.did('e10'), t.missing(0);

-- A transaction that rewrites the segment itself gives up the rows that it wrote, and no other ones
BEGIN;
SET LOCAL idempotency.max_claim_locks = 0;
SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT 'x' || i FROM generate_series(1, 100) i)) WHERE result = 'claimed';
SET LOCAL allow_system_table_mods = on;
CREATE INDEX mine ON idempotency_data.store_segment_0 (digest);
CLUSTER idempotency_data.store_segment_0 USING mine;
DROP INDEX idempotency_data.mine;
RESET allow_system_table_mods;
SELECT count(idempotency.release_event('x' || i)) FROM generate_series(1, 50) i;
SELECT idempotency.complete_events(ARRAY(SELECT 'x' || i FROM generate_series(51, 100) i));
COMMIT;
SELECT status, count(*) FROM generate_series(1, 100) i, idempotency.event_status('x' || i) GROUP BY 1 ORDER BY 1;
SELECT status, count(*) FROM generate_series(8, 3999) i, idempotency.event_status('e' || i) GROUP BY 1;
SELECT t.missing(0);

-- The sequence is altered: its file is another one, or is logged
ALTER SEQUENCE idempotency_data.store_keys_0 RESTART;
SET allow_system_table_mods = on;
ALTER SEQUENCE idempotency_data.store_keys_0 RESTART;
SELECT t.did('e10'), t.missing(0);
BEGIN;
ALTER SEQUENCE idempotency_data.store_keys_0 RESTART;
SELECT t.did('e11'), t.did('newer');
ROLLBACK;
SELECT t.did('e11'), t.did('newer'), t.missing(0);
RESET allow_system_table_mods;
ALTER SEQUENCE idempotency_data.store_keys_0 SET LOGGED;
SET allow_system_table_mods = on;
ALTER SEQUENCE idempotency_data.store_keys_0 SET LOGGED;
RESET allow_system_table_mods;
SELECT t.did('e11');
ALTER SEQUENCE idempotency_data.store_keys_0 SET UNLOGGED;
SELECT t.did('e11'), t.missing(0);

-- One transaction that writes more rows of an id than a page of keys has places: what stands on the page is found by
-- reading the segment, as long as the segment lives
BEGIN;
SET LOCAL idempotency.max_claim_locks = 0;
SELECT count(idempotency.claim_event('often')), count(idempotency.release_event('often')) FROM generate_series(1, 1100);
SELECT t.did('often'), t.missing(0);
SELECT t.named(0, t.digest('often'));
COMMIT;
SELECT t.did('often'), count(t.did('o' || i)), t.missing(0) FROM generate_series(1, 200) i GROUP BY 1;
SELECT t.did('o' || i) AS verdict, count(*) FROM generate_series(1, 200) i GROUP BY 1;
TRUNCATE idempotency_data.store_segment_0;
SELECT t.did('often'), t.named(0, t.digest('often'));

-- Places of rows that were rolled back do not fill the pages for good
SELECT statement FROM generate_series(1, 15) i, unnest(ARRAY[
	$q$DO $$ BEGIN PERFORM t.did('r' || random()) FROM generate_series(1, 700); RAISE 'undo'; EXCEPTION WHEN raise_exception THEN END; $$$q$,
	'VACUUM (TRUNCATE) idempotency_data.store_segment_0']) WITH ORDINALITY AS s (statement, n) ORDER BY i, n \gexec
SELECT count(t.did('s' || i)) FROM generate_series(1, 500) i;
SELECT t.missing(0), bool_and(t.named(0, digest) > 0) AS named FROM idempotency_data.store_segment_0;
TRUNCATE idempotency_data.store_segment_0;

-- VACUUM cuts a file whose rows were rolled back; their places are beyond its end
DO $$ BEGIN FOR i IN 1 .. 2000 LOOP PERFORM t.did('v' || i); END LOOP; RAISE 'undo'; END $$;
VACUUM (TRUNCATE) idempotency_data.store_segment_0;
SELECT t.did('v' || i) AS verdict, count(*) FROM generate_series(1, 2000) i GROUP BY 1;
SELECT t.missing(0);
DROP EXTENSION idempotency CASCADE;
