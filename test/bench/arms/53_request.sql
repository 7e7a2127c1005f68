-- title: claim_request, complete_request with a body of 2 kB, in one transaction
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
BEGIN;
SELECT result FROM idempotency.claim_request(:id::text, 'tenant', '\x000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f');
SELECT idempotency.complete_request(:id::text, 'tenant', 200, a.headers, a.body) FROM bench.answer a;
COMMIT;
