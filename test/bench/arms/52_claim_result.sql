-- title: claim_event, complete_event with a result of 2 kB, in one transaction
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
BEGIN;
SELECT idempotency.claim_event(:id::text);
SELECT idempotency.complete_event(:id::text, result => a.result) FROM bench.answer a;
COMMIT;
