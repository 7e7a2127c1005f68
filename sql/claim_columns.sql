--
-- What somebody adds to the tables that C code writes to: indexes, triggers, rules, columns, constraints.
--
CREATE SCHEMA t;
CREATE TABLE t.keys (id int PRIMARY KEY);
CREATE TABLE t.parts (id int) PARTITION BY LIST (id);
CREATE TYPE t.kind AS (id int);
CREATE FUNCTION t.fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';

-- Run statements for a relation and undo them; the SQLSTATE of the first one that fails.
CREATE FUNCTION t.tried(relation regclass, statements text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE replace(statements, '%', relation::text);
	RAISE SQLSTATE 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
	RETURN 'done';
WHEN OTHERS THEN
	RETURN SQLSTATE;
END
$$;
CREATE VIEW t.relations AS
SELECT oid::regclass AS relation, relkind, regexp_replace(relname, '_?\d+$', '') AS kind FROM pg_class
 WHERE relnamespace = 'idempotency_data'::regnamespace AND relkind IN ('r', 'S');

-- Tables that C code writes refuse it; those that SQL writes take all but to be unlogged
SELECT statement, t.tried(relation, statement) AS state, string_agg(DISTINCT kind, ' ' ORDER BY kind) AS tables
  FROM t.relations, unnest(ARRAY[
	'ALTER TABLE % SET UNLOGGED',
	'ALTER TABLE % REPLICA IDENTITY FULL',
	'ALTER TABLE % ADD COLUMN mine int, ALTER COLUMN mine TYPE text',
	'ALTER TABLE t.parts ATTACH PARTITION % DEFAULT',
	'ALTER TABLE % INHERIT t.keys', 'ALTER TABLE t.keys INHERIT %', 'CREATE TABLE t.child () INHERITS (%)', 'ALTER TABLE % OF t.kind',
	'ALTER TABLE % SET (user_catalog_table = true)',
	'CREATE INDEX ON % ((1))', 'CREATE UNIQUE INDEX ON % ((1))',
	'CREATE TRIGGER mine AFTER INSERT ON % FOR EACH ROW EXECUTE FUNCTION t.fired()',
	'CREATE CONSTRAINT TRIGGER mine AFTER INSERT ON % FOR EACH ROW EXECUTE FUNCTION t.fired()',
	'CREATE RULE mine AS ON INSERT TO % DO INSTEAD NOTHING',
	'ALTER TABLE % ADD COLUMN mine int UNIQUE',
	'ALTER TABLE % ADD COLUMN mine int REFERENCES t.keys',
	'ALTER TABLE % ADD COLUMN mine int, ADD UNIQUE (mine)',
	'ALTER TABLE % ADD COLUMN mine int, ADD FOREIGN KEY (mine) REFERENCES t.keys',
	'ALTER TABLE % ADD COLUMN mine int, ADD EXCLUDE USING btree (mine WITH =)'
	]) AS statement
 -- an identity column has an error of its own from 17 on
 WHERE relkind = 'r' AND (kind NOT IN ('relay_parked', 'relay_blocked') OR statement !~ 'ATTACH') GROUP BY statement, state ORDER BY statement COLLATE "C", state;
-- What rewrites a table as a whole, and what a restore does, works on all; a table that has no index may get one
SELECT statement, t.tried(relation, statement) AS state, count(*) = (SELECT count(*) FROM t.relations WHERE relkind = 'r') AS all
  FROM t.relations, unnest(ARRAY[
	'REINDEX TABLE %', 'ALTER TABLE % SET TABLESPACE pg_default', 'ALTER TABLE % SET (fillfactor = 90)',
	'ALTER TABLE % DISABLE TRIGGER ALL', 'ALTER TABLE % ENABLE TRIGGER ALL', 'ALTER TABLE % REPLICA IDENTITY DEFAULT',
	'ALTER TABLE % REPLICA IDENTITY NOTHING', 'TRUNCATE %', 'ANALYZE %']) AS statement
 WHERE relkind = 'r' GROUP BY statement, state ORDER BY statement COLLATE "C", state;
SELECT kind, count(*), string_agg(DISTINCT t.tried(relation, 'ALTER SEQUENCE % SET UNLOGGED'), ' ') AS unlogged
  FROM t.relations WHERE relkind = 'S' GROUP BY kind ORDER BY kind;
SELECT i.index, t.tried(i.relation, format('DROP INDEX idempotency_data.%s; CREATE %s INDEX ON %% (%s)', i.index, kind, i.columns)) AS state
  FROM (VALUES ('idempotency_data.outbox_segment_0'::regclass, 'outbox_segment_0_xid_seq_idx', 'xid, seq')) AS i (relation, index, columns),
	   unnest('{NULL,UNIQUE}'::text[]) AS kind ORDER BY 1, 2;
\set VERBOSITY default
CREATE TRIGGER mine AFTER INSERT ON idempotency_data.store_segment_0 FOR EACH ROW EXECUTE FUNCTION t.fired();
CREATE UNIQUE INDEX ON idempotency_data.store_segment_0 (digest, turn);
ALTER TABLE idempotency_data.lease_log_1 SET UNLOGGED;
ALTER SEQUENCE idempotency_data.lease_number SET UNLOGGED;
ALTER TABLE idempotency_data.outbox_segment_7 REPLICA IDENTITY FULL;
CREATE RULE mine AS ON INSERT TO idempotency_data.relay_log_0 DO INSTEAD NOTHING;

-- What got past the hook is seen by whoever writes, with the name and the remedy; the remedy is not refused
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
CREATE FUNCTION t.seen(addition text) RETURNS TABLE (writes text, state text, error text, hint text) LANGUAGE plpgsql AS $$
DECLARE
	number text;
BEGIN
	FOREACH writes IN ARRAY ARRAY[
		$q$SELECT idempotency.claim_event('e'), idempotency.complete_event('e')$q$,
		$q$SELECT idempotency.complete_events(array_agg(event_id)) FROM idempotency.claim_events(ARRAY(SELECT 'e' || i FROM generate_series(1, 100) i))$q$,
		$q$SELECT idempotency.lease_event('e')$q$,
		$q$SELECT idempotency.claim_offset('c', 't', 0, 0)$q$,
		$q$SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')$q$,
		$q$SELECT idempotency.relay_create('r', 'nul')$q$]
	LOOP
		state := 'done';
		error := NULL;
		hint := NULL;
		BEGIN
			SET LOCAL allow_system_table_mods = on;
			EXECUTE (SELECT string_agg(replace(addition, '%', relation::text), ';') FROM t.relations WHERE relkind = 'r'
				AND relation::text ~ '(store_segment|lease_log|cursor_log|outbox_segment|relay_log)_\d$');
			SET LOCAL allow_system_table_mods = off;
			EXECUTE writes;
			RAISE SQLSTATE 'UNDO0';
		EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
			NULL;
		WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, error = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
		END;
		writes := substring(writes FROM 'idempotency\.(\w+)');
		RETURN NEXT;
	END LOOP;
END
$$;
SELECT * FROM t.seen('SELECT');
SELECT * FROM t.seen('CREATE TRIGGER mine AFTER INSERT ON % FOR EACH ROW EXECUTE FUNCTION t.fired()');
SELECT * FROM t.seen('CREATE RULE mine AS ON INSERT TO % DO INSTEAD NOTHING');
SELECT * FROM t.seen('ALTER TABLE % SET UNLOGGED');
SELECT * FROM t.seen('ALTER TABLE % REPLICA IDENTITY FULL');
SELECT writes, state, error FROM t.seen('ALTER TABLE % ADD COLUMN mine int, ADD CONSTRAINT mine FOREIGN KEY (mine) REFERENCES t.keys');
SELECT writes, state, regexp_replace(error, 'index "\w+"', 'index "..."') AS error, regexp_replace(hint, 'INDEX \S+', 'INDEX ...') AS hint
  FROM t.seen('CREATE INDEX ON % ((1))');
\set VERBOSITY terse

-- Claims maintain no index, so they refuse one even where the superuser says that he knows
SET allow_system_table_mods = on;
CREATE INDEX on_range ON idempotency_data.store_segment_0 USING brin (completed_at);
SELECT idempotency.claim_event('i1');
DROP INDEX idempotency_data.on_range;
SELECT idempotency.claim_event('i1'), idempotency.complete_event('i1', result => '1');
RESET allow_system_table_mods;

-- What the executor would enforce, and claims do not, is refused
BEGIN;
TRUNCATE idempotency_data.store_segment_0;
ALTER TABLE idempotency_data.store_segment_0 ADD CONSTRAINT short CHECK (length(event_id) < 3);
SAVEPOINT s;
SELECT idempotency.claim_event('long');
ROLLBACK TO s;
ALTER TABLE idempotency_data.store_segment_0 DROP CONSTRAINT short, ALTER COLUMN result SET NOT NULL;
SAVEPOINT s;
SELECT ord, result FROM idempotency.claim_events('{c1,c2}');
ROLLBACK TO s;
ALTER TABLE idempotency_data.store_segment_0 ALTER COLUMN result DROP NOT NULL, ADD COLUMN tenant text NOT NULL DEFAULT 'x';
SAVEPOINT s;
SELECT idempotency.claim_event('c1');
ROLLBACK TO s;
ALTER TABLE idempotency_data.store_segment_0 DROP COLUMN tenant, ADD COLUMN size int GENERATED ALWAYS AS (length(event_id)) STORED;
SAVEPOINT s;
SELECT idempotency.claim_event('c1');
ROLLBACK TO s;
SELECT idempotency.event_result('c1');
ALTER TABLE idempotency_data.store_segment_0 DROP COLUMN size, ADD COLUMN note text;
SELECT idempotency.claim_event('c1'), idempotency.complete_event('c1', result => '1');
SELECT event_id, result, note FROM idempotency_data.store_segment_0;
ROLLBACK;

-- What is only read is checked, too: it must be logged, and have the types by which C code reads it
SELECT format('ALTER DATABASE %I SET idempotency.claim_segment_size = %L', current_database(), '64kB') \gexec
\c
\set VERBOSITY terse
SET client_min_messages = warning;
DO $$
BEGIN
	FOR k IN 1..8 LOOP
		PERFORM idempotency.claim_event('r' || k || '-' || i), idempotency.complete_event('r' || k || '-' || i) FROM generate_series(1, 400) i;
		COMMIT;
	END LOOP;
END
$$;
DO $$
BEGIN
	FOR i IN 1..600 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		EXIT WHEN EXISTS (SELECT FROM idempotency.stat_claim_segments WHERE kind = 'run' AND entries > 0);
		PERFORM pg_sleep(0.1);
	END LOOP;
END
$$;
SELECT idempotency.claim_event('r9'), idempotency.complete_event('r9');
CREATE FUNCTION t.reader(kind text) RETURNS text IMMUTABLE RETURN CASE kind
	WHEN 'lease_log' THEN $q$SELECT idempotency.lease_event('e')$q$
	WHEN 'cursor_log' THEN 'SELECT count(*) FROM idempotency.cursors'
	WHEN 'outbox_segment' THEN 'SELECT count(*) FROM idempotency.outbox_events'
	WHEN 'relay_log' THEN $q$SELECT idempotency.relay_create('r2', 'nul'); SELECT idempotency.relay_replay('r2', since => now())$q$
	WHEN 'relays' THEN 'SELECT count(*) FROM idempotency.stat_relay'
	WHEN 'relay_parked' THEN 'SELECT count(*) FROM idempotency.dead_letters'
	WHEN 'relay_blocked' THEN 'SELECT count(*) FROM idempotency.stat_relay'
	WHEN 'relay_attempts' THEN 'SELECT count(*) FROM idempotency.stat_relay'
	WHEN 'store_segment' THEN 'SELECT count(*) FROM idempotency.processed_events'
	ELSE $q$SELECT idempotency.claim_event('r10')$q$ END;
-- Run statements past the hook, then read the table; the SQLSTATE.
CREATE FUNCTION t.read_after(relation regclass, kind text, statements text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	SET LOCAL allow_system_table_mods = on;
	EXECUTE replace(statements, '%', relation::text);
	SET LOCAL allow_system_table_mods = off;
	EXECUTE t.reader(kind);
	RAISE SQLSTATE 'UNDO0';
EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
	RETURN 'done';
WHEN OTHERS THEN
	RETURN SQLSTATE || ' ' || regexp_replace(SQLERRM, '_\d+"| of column \S+ of .*|_\d+_digest.*', '');
END
$$;
-- Of each kind the table that has most rows; only a restore into an unused outbox reads outbox_restored
CREATE VIEW t.read AS SELECT DISTINCT ON (kind) relation, kind FROM t.relations WHERE relkind = 'r' AND kind <> 'outbox_restored' ORDER BY kind, pg_relation_size(relation) DESC;
SELECT kind, t.read_after(relation, kind, 'SELECT') AS untouched, t.read_after(relation, kind, 'ALTER TABLE % SET UNLOGGED') AS unlogged
  FROM t.read ORDER BY kind;
SELECT kind, t.read_after(relation, kind, format('ALTER TABLE %% DROP CONSTRAINT IF EXISTS sound, ALTER %I DROP DEFAULT, ALTER %1$I TYPE %s USING 0::%2$s', attname,
			CASE atttypid WHEN 'bool'::regtype THEN 'int' ELSE 'bool' END)) AS state,
	   count(*) AS columns
  FROM t.read JOIN pg_attribute ON attrelid = relation AND attnum > 0 AND NOT attisdropped
 -- an identity column has a type of numbers, and the state is in indexes
 WHERE (kind, attname) NOT IN (('relay_parked', 'parked_id'), ('relay_parked', 'state'), ('relay_blocked', 'blocked_id')) GROUP BY 1, 2 ORDER BY 1, 2;
SELECT kind, t.read_after(relation, kind, 'ALTER TABLE % DROP CONSTRAINT sound, ALTER ' || attname || ' TYPE varchar') AS state
  FROM t.read JOIN pg_attribute ON attrelid = relation AND attnum > 0 AND NOT attisdropped AND atttypid = 'text'::regtype AND attname = 'event_id' ORDER BY 1;
-- Columns behind a table's own, with values in each row, and what is left of them when they are dropped
SELECT kind, t.read_after(relation, kind, addition) AS added, t.read_after(relation, kind, addition || '; ALTER TABLE % DROP mine, DROP note') AS dropped
  FROM t.read, format('ALTER TABLE %% ADD mine int%1$s, ADD note text%1$s',
	-- a row of this kind has no room for more
	CASE kind WHEN 'store_slot' THEN '' ELSE ' DEFAULT random()' END) AS addition ORDER BY kind;
-- A table of the extension is no child whose parent takes it along
SET allow_system_table_mods = on;
CREATE TABLE t.parent AS TABLE idempotency_data.store_slot_0 WITH NO DATA;
ALTER TABLE idempotency_data.store_slot_0 INHERIT t.parent;
RESET allow_system_table_mods;
ALTER TABLE t.parent ALTER COLUMN run TYPE numeric;
ALTER TABLE t.parent ADD COLUMN mine int REFERENCES t.keys;
ALTER TABLE ONLY idempotency_data.store_slot_0 NO INHERIT t.parent;
ALTER TABLE t.parent ALTER COLUMN run TYPE numeric;
DROP SCHEMA t CASCADE;
