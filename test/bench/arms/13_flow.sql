-- title: published flow: lock, select, insert, update
-- about: one transaction, six round trips
-- tables: bench.flow
\set id random(1, 9000000000000000000)
BEGIN;
SELECT pg_try_advisory_xact_lock(:id::bigint);
SELECT status FROM bench.flow WHERE consumer = 'default' AND event_id = :id;
INSERT INTO bench.flow (consumer, event_id, status) VALUES ('default', :id, 'PROCESSING');
UPDATE bench.flow SET status = 'COMPLETED', completed_at = now() WHERE consumer = 'default' AND event_id = :id;
COMMIT;
