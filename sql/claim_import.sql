-- claims_import: a memory of events that was kept elsewhere.
\set SHOW_CONTEXT never
SET TIME ZONE 'UTC';
SET datestyle = iso;
SET idempotency.store_maintenance = off;
SELECT idempotency.consumer_create('month', retention => '31 days', keep_ids => true);

-- Events are completed, at the times given, and of the consumer's class
SELECT idempotency.claims_import('month', '{a,b,c,a}', '{2026-01-01,2026-01-02,NULL,2026-01-04}');
SELECT event_id, claimed_at, completed_at FROM idempotency.processed_events WHERE consumer = 'month' AND event_id < 'c' ORDER BY 1;
SELECT completed_at BETWEEN now() - interval '1 h' AND now() + interval '1 h' AS just_now FROM idempotency.event_status('c', 'month');
SELECT event_id, turn, class, state, keep_id FROM idempotency_data.store_segment_0 WHERE consumer = 'month' ORDER BY 1;
SELECT ord, result FROM idempotency.claim_events('{a,b,c}', 'month');
SELECT idempotency.claims_import('month', '{c,b,a}');
SELECT idempotency.claims_import('default', '{a}');
SELECT idempotency.claims_import('default', '{}'), idempotency.claims_import('default', '{}', '{}');
SELECT idempotency.claims_import(consumer => 'default', event_ids => '{A}', completed_at => NULL);

-- Kept and forgotten events are completed; results stay
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept');
RESET idempotency.uncompleted_claims;
SELECT idempotency.claim_event('gone'), idempotency.complete_event('gone', result => '1');
SELECT idempotency.claim_event('done'), idempotency.complete_event('done', result => '2');
SELECT idempotency.forget_event('gone');
SELECT idempotency.claims_import('default', '{kept,gone,done}');
SELECT id, s.status, idempotency.event_result(id) FROM unnest('{kept,gone,done}'::text[]) id, idempotency.event_status(id) s;

-- More than a chunk, with repeats; nothing is held afterwards
BEGIN;
SELECT idempotency.claims_import('default', array_agg('n' || i % 1000)) FROM generate_series(1, 3000) i;
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SAVEPOINT s;
SELECT idempotency.claims_import('default', '{undone}');
ROLLBACK TO s;
-- This transaction's own
SELECT idempotency.claim_event('own'), idempotency.complete_event('own');
SELECT idempotency.claims_import('default', '{own,more}');
SELECT idempotency.claim_event('open'), idempotency.claim_event('more');
SAVEPOINT s;
SELECT idempotency.claims_import('default', '{open}');
ROLLBACK TO s;
SELECT idempotency.release_event('open');
SELECT idempotency.claims_import('default', '{open}');
COMMIT;
SELECT count(*) FILTER (WHERE result = 'duplicate') AS duplicate
  FROM idempotency.claim_events(ARRAY(SELECT 'n' || i FROM generate_series(0, 999) i));
SELECT status FROM idempotency.event_status('undone');

-- Past the budget of locks, and for foreign lockers
SET idempotency.max_claim_locks = 0;
SELECT idempotency.consumer_create('foreign', foreign_lockers => true);
SELECT idempotency.claims_import('foreign', '{a,b}');
SELECT ord, result FROM idempotency.claim_events('{a,b,c}', 'foreign');
RESET idempotency.max_claim_locks;

-- Bad input
SELECT idempotency.claims_import(NULL, '{a}');
SELECT idempotency.claims_import('@outbox', '{a}');
SELECT idempotency.claims_import('', '{a}');
SELECT idempotency.claims_import('default', NULL);
SELECT idempotency.claims_import('default', '{a,NULL}');
SELECT idempotency.claims_import('default', '{a,""}');
SELECT idempotency.claims_import('default', '{{a},{b}}');
SELECT idempotency.claims_import('default', '{a,b}', '{now}');
SELECT idempotency.claims_import('default', '{a,b}', '{now,infinity}');
SELECT idempotency.claims_import('default', '{a,b}', '{{now},{now}}');
BEGIN READ ONLY;
SELECT idempotency.claims_import('default', '{a}');
ROLLBACK;

-- For operators only
CREATE ROLE regress_import_consumer;
CREATE ROLE regress_import_operator;
SELECT idempotency.grant_role('consumer', 'regress_import_consumer');
SELECT idempotency.grant_role('operator', 'regress_import_operator');
SET ROLE regress_import_consumer;
SELECT idempotency.claims_import('default', '{x}');
SET ROLE regress_import_operator;
SELECT idempotency.claims_import('default', '{x}');
RESET ROLE;
DROP OWNED BY regress_import_consumer, regress_import_operator;
DROP ROLE regress_import_consumer, regress_import_operator;
SELECT idempotency.consumer_drop('month'), idempotency.consumer_drop('foreign');
