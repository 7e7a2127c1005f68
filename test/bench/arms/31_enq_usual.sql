-- title: the usual outbox table (uuid key, partial index)
-- tables: bench.usual_outbox
\set id random(1, 1000000)
INSERT INTO bench.usual_outbox (aggregate_type, aggregate_id, event_type, payload)
	VALUES ('order', :id, 'OrderCreated', :payload);
