-- Without the library preloaded all but the relay works, and that says why.
\set VERBOSITY default
\set SHOW_CONTEXT never
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('r', 'nul');
SELECT count(*) FROM idempotency.stat_relay;
SELECT count(*) FROM idempotency.dead_letters;
SELECT idempotency.sink_setup_sql('nul');
BEGIN;
SELECT idempotency.claim_event('e');
SELECT idempotency.complete_event('e');
COMMIT;
SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}') IS NOT NULL AS enqueued;
SELECT count(*) FROM idempotency.outbox_events;
DROP SERVER nul;
-- A session in which nothing has loaded the library so far: a program is a superuser's to name all the same.
CREATE ROLE regress_nopreload;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_program TO regress_nopreload;
CREATE SERVER given FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'chosen', color 'red');
ALTER SERVER given OWNER TO regress_nopreload;
\c -
SET ROLE regress_nopreload;
ALTER SERVER given OPTIONS (SET program 'other');
\c -
SET ROLE regress_nopreload;
CREATE SERVER own FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'chosen');
\c -
SET ROLE regress_nopreload;
ALTER SERVER given OPTIONS (SET color 'blue');
SELECT srvname, srvoptions FROM pg_foreign_server;
RESET ROLE;
DROP SERVER given;
DROP OWNED BY regress_nopreload;
DROP ROLE regress_nopreload;
-- Where no hook saw what somebody made of a table, the next write names it and the remedy.
CREATE FUNCTION fired() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
CREATE FUNCTION write_all() RETURNS TABLE (writes text, state text, error text) LANGUAGE plpgsql AS $$
BEGIN
	FOREACH writes IN ARRAY ARRAY[
		$q$SELECT idempotency.claim_event('n1'), idempotency.complete_event('n1')$q$,
		$q$SELECT idempotency.lease_event('n2')$q$,
		$q$SELECT idempotency.claim_offset('c', 't', 0, 0)$q$,
		$q$SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')$q$]
	LOOP
		state := 'done';
		error := NULL;
		BEGIN
			EXECUTE writes;
			RAISE SQLSTATE 'UNDO0';
		EXCEPTION WHEN SQLSTATE 'UNDO0' THEN
			NULL;
		WHEN OTHERS THEN
			GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, error = MESSAGE_TEXT;
		END;
		writes := substring(writes FROM 'idempotency\.(\w+)');
		RETURN NEXT;
	END LOOP;
END
$$;
\c -
CREATE TRIGGER mine AFTER INSERT ON idempotency_data.store_segment_0 FOR EACH ROW EXECUTE FUNCTION fired();
ALTER TABLE idempotency_data.lease_log_0 SET UNLOGGED;
CREATE RULE mine AS ON INSERT TO idempotency_data.cursor_log_0 DO INSTEAD NOTHING;
ALTER TABLE idempotency_data.outbox_segment_0 REPLICA IDENTITY FULL;
\c -
SELECT * FROM write_all();
DROP TRIGGER mine ON idempotency_data.store_segment_0;
SELECT * FROM write_all() WHERE writes = 'lease_event';
ALTER TABLE idempotency_data.lease_log_0 SET LOGGED;
DROP RULE mine ON idempotency_data.cursor_log_0;
ALTER TABLE idempotency_data.outbox_segment_0 REPLICA IDENTITY DEFAULT;
SELECT * FROM write_all();
\c -
CREATE UNIQUE INDEX mine ON idempotency_data.store_segment_0 (digest, turn);
ALTER TABLE idempotency_data.lease_log_0 ADD CONSTRAINT mine_leases UNIQUE (number);
CREATE INDEX mine_cursors ON idempotency_data.cursor_log_0 (number);
ALTER SEQUENCE idempotency_data.outbox_seq SET UNLOGGED;
\c -
SELECT * FROM write_all();
SELECT idempotency.claim_event('n1'), idempotency.complete_event('n1');
DROP INDEX idempotency_data.mine, idempotency_data.mine_cursors;
SELECT idempotency.lease_event('n2');
ALTER TABLE idempotency_data.lease_log_0 DROP CONSTRAINT mine_leases;
ALTER SEQUENCE idempotency_data.outbox_seq SET LOGGED;
SELECT * FROM write_all();
-- So does the next read, where a crash would empty what is only read, or C code would misread it.
SELECT idempotency.consumer_create('w', private_locks => true);
\c -
ALTER TABLE idempotency_data.consumers SET UNLOGGED;
\c -
SELECT idempotency.claim_event('n3', consumer => 'w');
SELECT count(*) FROM idempotency.claim_consumers;
\c -
ALTER TABLE idempotency_data.consumers SET LOGGED;
ALTER TABLE idempotency_data.consumers ALTER COLUMN max_attempts TYPE bigint;
\c -
SELECT idempotency.claim_event('n3', consumer => 'w');
SET allow_system_table_mods = on;
ALTER TABLE idempotency_data.consumers ALTER COLUMN max_attempts TYPE integer;
RESET allow_system_table_mods;
SELECT idempotency.claim_event('n3', consumer => 'w'), idempotency.complete_event('n3', consumer => 'w');
DROP FUNCTION fired, write_all;
