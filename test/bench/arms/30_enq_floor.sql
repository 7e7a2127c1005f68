-- title: INSERT into a heap with no index
-- about: floor of an enqueue
-- tables: bench.floor_outbox
\set id random(1, 1000000)
INSERT INTO bench.floor_outbox (aggregate_type, aggregate_id, event_type, payload)
	VALUES ('order', :id, 'OrderCreated', :payload);
