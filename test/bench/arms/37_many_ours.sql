-- title: outbox_enqueue_many of 100
-- events: 100
-- tables: idempotency_data.outbox_segment_%
\set id random(1, 1000000)
SELECT count(*) FROM idempotency.outbox_enqueue_many('order',
	ARRAY(SELECT (:id + g)::text FROM generate_series(1, 100) g),
	array_fill('OrderCreated'::text, ARRAY[100]),
	array_fill(:payload::jsonb, ARRAY[100]));
