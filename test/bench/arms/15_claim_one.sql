-- title: claim_event, complete_event in one statement
-- about: one round trip
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
SELECT idempotency.claim_event(:id::text), idempotency.complete_event(:id::text);
