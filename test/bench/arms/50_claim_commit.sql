-- title: claim_event and complete_event in one statement, and one more commit
-- about: what a lease cannot do without: two transactions that write
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
SELECT idempotency.claim_event(:id::text), idempotency.complete_event(:id::text);
SELECT pg_current_xact_id();
