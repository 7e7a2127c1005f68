-- title: INSERT … ON CONFLICT DO NOTHING, two varchar(255) key
-- tables: bench.conflict
\set id random(1, 9000000000000000000)
INSERT INTO bench.conflict (consumer, event_id) VALUES ('default', :id) ON CONFLICT DO NOTHING;
