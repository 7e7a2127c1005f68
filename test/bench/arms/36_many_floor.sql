-- title: INSERT of 100 rows into a heap with no index
-- about: floor of a bulk enqueue in SQL
-- events: 100
-- tables: bench.floor_outbox
\set id random(1, 1000000)
INSERT INTO bench.floor_outbox (aggregate_type, aggregate_id, event_type, payload)
	SELECT 'order', u.aggregate_id, u.event_type, u.payload
	  FROM unnest(ARRAY(SELECT (:id + g)::text FROM generate_series(1, 100) g),
				  array_fill('OrderCreated'::text, ARRAY[100]),
				  array_fill(:payload::jsonb, ARRAY[100])) u (aggregate_id, event_type, payload);
