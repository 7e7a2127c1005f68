-- title: SKIP LOCKED poller, published_at, by 100
-- about: two pollers; UPDATE … RETURNING, then COMMIT once published
-- batch: 100
-- clients: 2
-- reset: TRUNCATE bench.usual_outbox
-- fill: INSERT INTO bench.usual_outbox (aggregate_type, aggregate_id, event_type, payload) SELECT 'order', (g % 1000)::text, 'OrderCreated', :payload FROM generate_series(1, 100) g
-- ready: VACUUM ANALYZE bench.usual_outbox
-- left: SELECT count(*) FROM bench.usual_outbox WHERE published_at IS NULL
BEGIN;
WITH batch AS MATERIALIZED (
	SELECT event_id FROM bench.usual_outbox WHERE published_at IS NULL
	 ORDER BY created_at LIMIT 100 FOR UPDATE SKIP LOCKED)
UPDATE bench.usual_outbox o SET published_at = now() FROM batch b WHERE o.event_id = b.event_id
RETURNING o.event_id, o.aggregate_type, o.aggregate_id, o.event_type, o.payload;
COMMIT;
