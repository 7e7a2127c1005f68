-- title: INSERT … ON CONFLICT of 100 rows
-- events: 100
-- tables: bench.conflict
\set id random(1, 9000000000000000000)
INSERT INTO bench.conflict (consumer, event_id)
	SELECT 'default', hashint8extended(g, :id)::text FROM generate_series(1, 100) g
	ON CONFLICT DO NOTHING;
