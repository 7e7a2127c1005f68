--
-- forget_event: an event whose next claim is answered "claimed".
--
SET TIME ZONE 'UTC';

-- Nothing is remembered
SELECT idempotency.forget_event('never');
SELECT count(*) FROM idempotency_data.store_segment_0 WHERE event_id = 'never';

-- A completion is forgotten, with its result
SELECT idempotency.claim_event('a'), idempotency.complete_event('a', result => '1');
SELECT idempotency.forget_event('a');
SELECT status FROM idempotency.event_status('a');
SELECT idempotency.event_result('a');
SELECT count(*) FROM idempotency.processed_events WHERE event_id = 'a';
SELECT idempotency.forget_event('a');

-- Claimed anew, it is an event as any other
SELECT idempotency.claim_event('a'), idempotency.complete_event('a', result => '2');
SELECT idempotency.claim_event('a');
SELECT idempotency.event_result('a');
SELECT event_id, status, result FROM idempotency.processed_events WHERE event_id = 'a';

-- Each consumer has its own
SELECT idempotency.claim_event('a', 'billing'), idempotency.complete_event('a', 'billing');
SELECT idempotency.forget_event('a', consumer => 'billing');
SELECT status FROM idempotency.event_status('a', 'billing');
SELECT status FROM idempotency.event_status('a');

-- By uuid
SELECT idempotency.claim_event('0195f000-0000-7000-8000-000000000001'::uuid),
	idempotency.complete_event('0195f000-0000-7000-8000-000000000001'::uuid);
SELECT idempotency.forget_event('0195F000-0000-7000-8000-000000000001'::uuid);
SELECT status FROM idempotency.event_status('0195f000-0000-7000-8000-000000000001');

-- In one transaction: forgotten, claimed, undone
BEGIN;
SELECT idempotency.forget_event('a');
SAVEPOINT s;
SELECT idempotency.claim_event('a'), idempotency.complete_event('a', result => '3');
SELECT idempotency.event_result('a');
ROLLBACK TO s;
SELECT status FROM idempotency.event_status('a');
ROLLBACK;
SELECT idempotency.event_result('a');

-- What this transaction claimed itself is not forgotten
BEGIN;
SELECT idempotency.claim_event('b');
SELECT idempotency.forget_event('b');
ROLLBACK;
BEGIN;
SELECT idempotency.claim_event('b'), idempotency.complete_event('b');
SELECT idempotency.forget_event('b');
ROLLBACK;
-- but what it released is
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('k');
RESET idempotency.uncompleted_claims;
BEGIN;
SELECT idempotency.claim_event('k');
SELECT idempotency.release_event('k');
SELECT idempotency.forget_event('k');
COMMIT;
SELECT status FROM idempotency.event_status('k');

-- Many in one transaction keep no locks of their events
BEGIN;
SELECT count(*) FROM idempotency.claim_events('{m1,m2,m3,m4,m5}');
SELECT idempotency.complete_events('{m1,m2,m3,m4,m5}');
COMMIT;
BEGIN;
SELECT count(*) FROM generate_series(1, 5) i WHERE idempotency.forget_event('m' || i);
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
COMMIT;
SELECT count(*) FROM generate_series(1, 5) i, idempotency.event_status('m' || i) s WHERE s.status = 'unknown';

-- Bad input
SELECT idempotency.forget_event(NULL::text);
SELECT idempotency.forget_event('');
SELECT idempotency.forget_event(repeat('x', 1025));
SELECT idempotency.forget_event('a', NULL);
SELECT idempotency.forget_event('a', '@outbox');
BEGIN READ ONLY;
SELECT idempotency.forget_event('a');
ROLLBACK;

-- For operators only
CREATE ROLE regress_forget_consumer;
CREATE ROLE regress_forget_operator;
SELECT idempotency.grant_role('consumer', 'regress_forget_consumer');
SELECT idempotency.grant_role('operator', 'regress_forget_operator');
SET ROLE regress_forget_consumer;
SELECT idempotency.forget_event('a');
SET ROLE regress_forget_operator;
SELECT idempotency.forget_event('a');
RESET ROLE;
SELECT status FROM idempotency.event_status('a');
DROP OWNED BY regress_forget_consumer, regress_forget_operator;
DROP ROLE regress_forget_consumer, regress_forget_operator;
