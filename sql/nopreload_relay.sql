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
