-- title: claim_event, complete_event in one transaction, pipelined
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
\startpipeline
BEGIN;
SELECT idempotency.claim_event(:id::text);
SELECT idempotency.complete_event(:id::text);
COMMIT;
\endpipeline
