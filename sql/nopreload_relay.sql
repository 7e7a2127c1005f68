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
