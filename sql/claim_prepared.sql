-- Claims and leases in prepared transactions, and the view of them.  A test of its own:
-- many servers allow no prepared transactions.
\set SHOW_CONTEXT never
-- what is prepared by mistake holds its locks for ever
SET lock_timeout = '1min';

-- PREPARE TRANSACTION refuses a claim that was left undecided, as COMMIT does
BEGIN;
SELECT idempotency.claim_event('left-a');
PREPARE TRANSACTION 'left';
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- What is prepared is another transaction's
BEGIN;
SELECT idempotency.claim_event('2pc-1'), idempotency.complete_event('2pc-1', result => '1');
PREPARE TRANSACTION 'claims-1';
SELECT idempotency.claim_event('2pc-1');
SELECT idempotency.event_result('2pc-1') IS NULL AS undecided;
SELECT status, claimed_at, completed_at FROM idempotency.event_status('2pc-1');
COMMIT PREPARED 'claims-1';
SELECT idempotency.claim_event('2pc-1'), idempotency.event_result('2pc-1');
SELECT status, claimed_at <= completed_at AS in_order FROM idempotency.event_status('2pc-1');
BEGIN;
SELECT idempotency.claim_event('2pc-2'), idempotency.complete_event('2pc-2');
PREPARE TRANSACTION 'claims-2';
ROLLBACK PREPARED 'claims-2';
BEGIN;
SELECT idempotency.claim_event('2pc-2');
ROLLBACK;
SET idempotency.uncompleted_claims = keep;
BEGIN;
SELECT idempotency.claim_event('2pc-3');
PREPARE TRANSACTION 'claims-3';
COMMIT PREPARED 'claims-3';
SELECT status FROM idempotency.processed_events WHERE event_id = '2pc-3';

-- Past the budget
CREATE TABLE kept AS SELECT claimed_at FROM idempotency.processed_events WHERE event_id = '2pc-3';
RESET idempotency.uncompleted_claims;
SET idempotency.max_claim_locks = 0;
BEGIN;
SELECT idempotency.claim_event('p2pc');
PREPARE TRANSACTION 'claims-p';
BEGIN;
SELECT idempotency.claim_event('p2pc'), idempotency.complete_event('p2pc');
PREPARE TRANSACTION 'claims-p';
SELECT idempotency.claim_event('p2pc');
COMMIT PREPARED 'claims-p';
SELECT idempotency.claim_event('p2pc');
-- a claim that was kept before and is released stays kept, since the same time
BEGIN;
SELECT idempotency.claim_event('2pc-3');
SAVEPOINT s;
SELECT idempotency.release_event('2pc-3');
SELECT idempotency.claim_event('2pc-3');
ROLLBACK TO s;
SELECT idempotency.claim_event('2pc-3');
SELECT idempotency.release_event('2pc-3');
SELECT idempotency.claim_event('2pc-3');
SELECT idempotency.release_event('2pc-3');
PREPARE TRANSACTION 'claims-kept';
SELECT idempotency.claim_event('2pc-3');
COMMIT PREPARED 'claims-kept';
SELECT status, claimed_at = (SELECT k.claimed_at FROM kept k) AS same_time
FROM idempotency.processed_events WHERE event_id = '2pc-3';
RESET idempotency.max_claim_locks;

-- The view: of claims, of leases, of locks that are no claims
SELECT idempotency.consumer_create('priv', private_locks => true);
BEGIN;
SELECT idempotency.claim_event('p1'), idempotency.claim_event('p2', 'priv'), idempotency.complete_event('p1'), idempotency.complete_event('p2', 'priv');
SELECT pg_advisory_xact_lock(1, 2);
PREPARE TRANSACTION 'claims';
BEGIN;
SELECT result FROM idempotency.lease_event('p3');
SELECT idempotency.extend_lease('p3', token) IS NOT NULL AS extended FROM idempotency.leases WHERE event_id = 'p3';
SELECT result FROM idempotency.claim_request('p4', 'tenant', consumer => 'pay', lease => '1 hour');
PREPARE TRANSACTION 'leases';
BEGIN;
SELECT pg_advisory_xact_lock(3), pg_current_xact_id() IS NOT NULL AS xid;
PREPARE TRANSACTION 'none';
BEGIN;
SET LOCAL idempotency.max_claim_locks = 1;
SELECT count(*) FROM idempotency.claim_events('{q1,q2,q3}');
SELECT idempotency.complete_events('{q1,q2,q3}');
PREPARE TRANSACTION 'past budget';
SELECT gid, owner = current_user AS owner, prepared <= now() AS prepared, age > '0' AS age, claims FROM idempotency.prepared_claims ORDER BY gid;
SELECT prepared_transactions FROM idempotency.stat_leases;
ROLLBACK PREPARED 'claims';
COMMIT PREPARED 'past budget';
SELECT gid, claims FROM idempotency.prepared_claims ORDER BY gid;

-- as each kind of role
CREATE ROLE regress_cp_consumer;
CREATE ROLE regress_cp_operator;
CREATE ROLE regress_cp_monitor;
CREATE ROLE regress_cp_producer;
SELECT idempotency.grant_role(kind, ('regress_cp_' || kind)::name) FROM unnest('{consumer,operator,monitor,producer}'::text[]) AS kind;
SET ROLE regress_cp_consumer;
SELECT count(*) FROM idempotency.prepared_claims;
SET ROLE regress_cp_operator;
SELECT count(*) FROM idempotency.prepared_claims;
SET ROLE regress_cp_monitor;
SELECT count(*) FROM idempotency.prepared_claims;
SET ROLE regress_cp_producer;
SELECT count(*) FROM idempotency.prepared_claims;
RESET ROLE;
DROP OWNED BY regress_cp_consumer, regress_cp_operator, regress_cp_monitor, regress_cp_producer;
DROP ROLE regress_cp_consumer, regress_cp_operator, regress_cp_monitor, regress_cp_producer;

COMMIT PREPARED 'leases';
SELECT count(*) FROM idempotency.prepared_claims;
SELECT event_id, state FROM idempotency.leases WHERE event_id IN ('p3', 'p4') ORDER BY 1;
ROLLBACK PREPARED 'none';
DROP TABLE kept;
