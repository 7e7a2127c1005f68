-- title: outbox_enqueue (jsonb)
-- tables: idempotency_data.outbox_segment_%
\set id random(1, 1000000)
SELECT idempotency.outbox_enqueue('order', :id::text, 'OrderCreated', :payload);
