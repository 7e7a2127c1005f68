-- event_status: what is remembered of an event, asked without claiming it.
\set SHOW_CONTEXT never
CREATE FUNCTION told(event_id text, consumer text = 'default') RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', status, CASE WHEN claimed_at IS NOT NULL THEN 'claimed' END,
		CASE WHEN completed_at IS NOT NULL THEN 'completed' END,
		CASE WHEN completed_latest <> completed_at THEN 'within a range' END,
		CASE WHEN completed_at < claimed_at THEN 'too early' END)
	  FROM idempotency.event_status(event_id, consumer)
$$;

-- One row, whatever there is; completed without result is not never seen
SELECT * FROM idempotency.event_status('evt-1');
SELECT idempotency.claim_event('evt-1'), idempotency.complete_event('evt-1');
SELECT told('evt-1'), idempotency.event_result('evt-1') IS NULL AS no_result;
SELECT told('nobody knows'), idempotency.event_result('nobody knows') IS NULL AS no_result;
SELECT s.status, s.claimed_at = p.claimed_at AND s.completed_at = p.completed_at AND
	   s.completed_latest = p.completed_at AS same
  FROM idempotency.processed_events p, idempotency.event_status(p.event_id, p.consumer) s;
SELECT (idempotency.event_status('evt-1')).status = 'completed' AS in_target_list;
SELECT event_id, status FROM unnest('{evt-1,evt-0}'::text[]) event_id, idempotency.event_status(event_id);

-- Consumers are independent; a uuid is its canonical text
SELECT told('evt-1', 'billing');
SELECT idempotency.claim_event('A0EEBC999C0B4EF8BB6D6BB9BD380A11'::uuid, 'billing'),
	   idempotency.complete_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'billing');
SELECT status, told('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'billing')
  FROM idempotency.event_status('A0EEBC999C0B4EF8BB6D6BB9BD380A11'::uuid, consumer => 'billing');

-- This transaction's own claims, within the budget of locks and past it; in the
-- very statement, too
BEGIN;
SELECT idempotency.claim_event('own'), told('own');
SELECT idempotency.complete_event('own'), told('own');
SAVEPOINT s;
SELECT idempotency.claim_event('released'), told('released');
SELECT idempotency.release_event('released'), told('released');
SELECT idempotency.claim_event('undone'), idempotency.complete_event('undone');
SELECT told('undone');
ROLLBACK TO s;
SELECT told('own'), told('released'), told('undone');
SELECT count(*), count(*) FILTER (WHERE told(event_id) = 'processing claimed') AS own
  FROM idempotency.claim_events('{b1,b2,b3}');
SELECT idempotency.complete_events('{b1,b2}', results => '{1,NULL}'), idempotency.release_event('b3');
SELECT told('b1'), told('b2'), told('b3');
ROLLBACK;
SELECT told('own'), told('b1');
SET idempotency.max_claim_locks = 0;
BEGIN;
SELECT idempotency.claim_event('own'), told('own');
SELECT claimed_at >= now() AS times, completed_at IS NULL AS open
  FROM idempotency.event_status('own');
SAVEPOINT s;
SELECT idempotency.complete_event('own', result => '1'), told('own');
ROLLBACK TO s;
SELECT told('own');
SELECT idempotency.release_event('own'), told('own');
COMMIT;
RESET idempotency.max_claim_locks;

-- Kept uncompleted; taken over; released again, completed
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept');
RESET idempotency.uncompleted_claims;
SELECT told('kept'), idempotency.event_result('kept') IS NULL AS no_result;
SELECT s.claimed_at = p.claimed_at AS same FROM idempotency.processed_events p, idempotency.event_status('kept') s
 WHERE p.event_id = 'kept';
BEGIN;
SELECT idempotency.claim_event('kept');
SELECT s.status, s.claimed_at <> p.claimed_at AS own FROM idempotency.processed_events p, idempotency.event_status('kept') s
 WHERE p.event_id = 'kept';
SELECT idempotency.release_event('kept'), told('kept');
SELECT idempotency.claim_event('kept'), idempotency.complete_event('kept'), told('kept');
COMMIT;
SELECT told('kept');

-- Nothing is locked to the end, nothing is written, a read-only transaction may ask
BEGIN READ ONLY;
SELECT told('evt-1'), told('nobody knows');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;

-- Misuse
SELECT idempotency.event_status(NULL::text);
SELECT idempotency.event_status(NULL::uuid);
SELECT idempotency.event_status('x', NULL);
SELECT idempotency.event_status('');
SELECT idempotency.event_status('x', '');
SELECT idempotency.event_status('x', '@outbox');
\echo :LAST_ERROR_SQLSTATE
SELECT idempotency.event_status(repeat('x', 1025));
DROP FUNCTION told;
