-- title: claim_event, complete_event of a uuid in one statement
-- about: one round trip
-- tables: idempotency_data.processed% idempotency_data.store\_%
SELECT idempotency.claim_event(u.id), idempotency.complete_event(u.id)
  FROM (SELECT gen_random_uuid() AS id OFFSET 0) u;
