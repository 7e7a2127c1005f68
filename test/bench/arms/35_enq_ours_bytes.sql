-- title: outbox_enqueue_bytes (bytea)
-- tables: idempotency_data.outbox_segment_%
\set id random(1, 1000000)
SELECT idempotency.outbox_enqueue_bytes('order', :id::text, 'OrderCreated', :payload);
