-- Claims: verdicts, completion, release, results, and every misuse.
SET search_path = public;
\set SHOW_CONTEXT never

-- One event, from claim to duplicate
BEGIN;
SELECT idempotency.claim_event('evt-1');
SELECT idempotency.claim_event('evt-1');	-- this transaction's already
SELECT idempotency.event_result('evt-1') IS NULL AS no_result_yet;
SELECT idempotency.complete_event('evt-1', result => '{"invoice": 42}');
SELECT idempotency.claim_event('evt-1');
SELECT idempotency.event_result('evt-1');
COMMIT;
SELECT idempotency.claim_event('evt-1');
SELECT idempotency.event_result('evt-1');
SELECT consumer, event_id, status, claimed_at <= completed_at AS in_order, result
  FROM idempotency.processed_events;

-- Claim and completion in one statement, verdict and result in one
SELECT idempotency.claim_event('evt-2'), idempotency.complete_event('evt-2');
SELECT idempotency.claim_event('evt-1'), idempotency.event_result('evt-1');
SELECT idempotency.event_result('evt-2') IS NULL AS completed_without_result;
SELECT idempotency.event_result('nobody knows') IS NULL AS never_seen;

-- Consumers are independent of each other
BEGIN;
SELECT idempotency.claim_event('evt-1', consumer => 'billing');
SELECT idempotency.complete_event('evt-1', consumer => 'billing', result => '7');
COMMIT;
SELECT idempotency.event_result('evt-1', 'billing'), idempotency.event_result('evt-1');

-- A rollback takes the completion with it
BEGIN;
SELECT idempotency.claim_event('evt-3');
SELECT idempotency.complete_event('evt-3');
ROLLBACK;
BEGIN;
SELECT idempotency.claim_event('evt-3');
ROLLBACK;

-- Released claims may be claimed again, and need no completion
BEGIN;
SELECT idempotency.claim_event('evt-3');
SELECT idempotency.release_event('evt-3');
SELECT idempotency.claim_event('evt-3');
SELECT idempotency.release_event('evt-3');
COMMIT;
SELECT count(*) FROM idempotency.processed_events WHERE event_id = 'evt-3';

-- uuid ids are their canonical text
BEGIN;
SELECT idempotency.claim_event('A0EEBC999C0B4EF8BB6D6BB9BD380A11'::uuid);
SELECT idempotency.claim_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
SELECT idempotency.release_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid);
SELECT idempotency.claim_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, consumer => 'billing');
SELECT idempotency.complete_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, 'billing', '[1]');
SELECT idempotency.event_result('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'::uuid, 'billing');
COMMIT;
SELECT idempotency.event_result('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'billing');

-- A uuid and its lower-case text are one event; its upper-case text is another
BEGIN;
SELECT idempotency.claim_event('B0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid) AS uuid,
	   idempotency.claim_event('b0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11') AS lower_text,
	   idempotency.claim_event('B0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11') AS upper_text;
SELECT * FROM idempotency.claim_events('{C0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11, c0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}');
ROLLBACK;
BEGIN;
SELECT * FROM idempotency.claim_events(
	'{C0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11, c0eebc999c0b4ef8bb6d6bb9bd380a11}'::uuid[]::text[]);
ROLLBACK;

-- Ids are bytes: case, trailing space and normalization count
BEGIN;
SELECT idempotency.claim_event('é'), idempotency.claim_event(U&'e\0301'),
	   idempotency.claim_event('É'), idempotency.claim_event('é ');
ROLLBACK;

-- 1 kB is the limit, 255 bytes that of names
BEGIN;
SELECT idempotency.claim_event(repeat('é', 512), repeat('c', 255));
SELECT idempotency.complete_event(repeat('é', 512), repeat('c', 255));
COMMIT;
SELECT idempotency.claim_event(repeat('é', 512), repeat('c', 255));
SELECT idempotency.claim_event(repeat('é', 512) || 'x');
SELECT idempotency.claim_event('x', repeat('c', 256));

-- A large result goes out of line
BEGIN;
SELECT idempotency.claim_event('large');
SELECT idempotency.complete_event('large',
	result => (SELECT jsonb_agg(md5(i::text)) FROM generate_series(1, 1000) i));
COMMIT;
SELECT jsonb_array_length(idempotency.event_result('large'));

-- NULL and empty
SELECT idempotency.claim_event(NULL::text);
SELECT idempotency.claim_event(NULL::uuid);
SELECT idempotency.claim_event('x', NULL);
SELECT idempotency.claim_event('x', wait => NULL);
SELECT idempotency.claim_event('');
SELECT idempotency.claim_event('x', '');
SELECT idempotency.complete_event(NULL::text);
SELECT idempotency.complete_event('x', NULL);
SELECT idempotency.release_event(NULL::text);
SELECT idempotency.release_event('');
SELECT idempotency.event_result(NULL::text);
SELECT idempotency.event_result('');
SELECT idempotency.lock_key(NULL::text);
SELECT idempotency.lock_key('x', NULL);

-- What is not built, out of range or reserved
SELECT idempotency.complete_event('x', token => 1);
SELECT idempotency.claim_event('x', wait => '-1 s');
\echo :LAST_ERROR_SQLSTATE
SELECT idempotency.claim_event('x', '@outbox');
SELECT idempotency.claim_events('{x}', '@outbox');
SELECT idempotency.complete_event('x', '@outbox');
SELECT idempotency.release_event('x', '@outbox');
SELECT idempotency.event_result('x', '@outbox');

-- Completing or releasing what is not held
SELECT idempotency.complete_event('evt-1');
\echo :LAST_ERROR_SQLSTATE
SELECT idempotency.release_event('evt-1');
BEGIN;
SELECT idempotency.claim_event('twice');
SELECT idempotency.complete_event('twice');
SELECT idempotency.complete_event('twice');
ROLLBACK;
BEGIN;
SELECT idempotency.claim_event('twice');
SELECT idempotency.complete_event('twice');
SELECT idempotency.release_event('twice');
ROLLBACK;
BEGIN;
SELECT idempotency.claim_event('twice');
SELECT idempotency.release_event('twice');
SELECT idempotency.complete_event('twice');
ROLLBACK;
BEGIN;
SELECT idempotency.claim_event('twice');
SELECT idempotency.complete_event('twice', 'another consumer');
ROLLBACK;

-- COMMIT refuses a claim that was left undecided, as PREPARE TRANSACTION does (claim_prepared)
BEGIN;
SELECT idempotency.claim_event('left-b');
SELECT idempotency.claim_event('left-a');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT idempotency.claim_event('left-a');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- unless it is to be kept; the next claim takes it over
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept');
SELECT event_id, status, completed_at IS NULL AS open
  FROM idempotency.processed_events WHERE event_id = 'kept';
SELECT idempotency.event_result('kept') IS NULL AS nothing;
SELECT idempotency.claim_event('kept');		-- taken over, kept once more
SET idempotency.uncompleted_claims = error;
SELECT idempotency.claim_event('kept');		-- taken over, left again
BEGIN;
SELECT idempotency.claim_event('kept');
SELECT idempotency.release_event('kept');
COMMIT;
SELECT status FROM idempotency.processed_events WHERE event_id = 'kept';
BEGIN;
SELECT idempotency.claim_event('kept');
SELECT idempotency.complete_event('kept', result => '"done"');
COMMIT;
SELECT idempotency.claim_event('kept'), idempotency.event_result('kept');
SELECT status FROM idempotency.processed_events WHERE event_id = 'kept';

SET idempotency.uncompleted_claims = perhaps;

-- Read-only transactions are refused before anything is locked
BEGIN READ ONLY;
SELECT idempotency.claim_event('ro');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.claim_events('{ro}');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.complete_event('ro');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.complete_events('{ro}');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.release_event('ro');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.event_result('evt-1');
COMMIT;

-- A claim that waits for nobody does not wait
SELECT idempotency.claim_event('evt-1', wait => '1 year');
