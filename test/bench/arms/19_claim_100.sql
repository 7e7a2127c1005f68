-- title: claim_events, complete_events of 100 in one transaction
-- about: BEGIN, two calls, COMMIT
-- events: 100
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
BEGIN;
SELECT count(*) FROM idempotency.claim_events(ARRAY(SELECT hashint8extended(g, :id)::text FROM generate_series(1, 100) g));
SELECT idempotency.complete_events(ARRAY(SELECT hashint8extended(g, :id)::text FROM generate_series(1, 100) g));
COMMIT;
