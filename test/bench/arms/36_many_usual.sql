-- title: the usual outbox table, INSERT of 100 rows
-- events: 100
-- tables: bench.usual_outbox
\set id random(1, 1000000)
INSERT INTO bench.usual_outbox (aggregate_type, aggregate_id, event_type, payload)
	SELECT 'order', u.aggregate_id, u.event_type, u.payload
	  FROM unnest(ARRAY(SELECT (:id + g)::text FROM generate_series(1, 100) g),
				  array_fill('OrderCreated'::text, ARRAY[100]),
				  array_fill(:payload::jsonb, ARRAY[100])) u (aggregate_id, event_type, payload);
