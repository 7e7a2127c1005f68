-- title: lease_event, then complete_event with the token
-- about: two transactions, two round trips
-- tables: idempotency_data.processed% idempotency_data.store\_%
\set id random(1, 9000000000000000000)
SELECT token FROM idempotency.lease_event(:id::text) \gset
SELECT idempotency.complete_event(:id::text, token => :token);
