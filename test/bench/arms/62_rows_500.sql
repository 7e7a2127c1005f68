-- title: 500 rows without an index in one transaction
-- about: per row
-- events: 500
-- tables: bench.record
BEGIN;
INSERT INTO bench.record SELECT g, md5(g::text) FROM generate_series(1, 500) AS g;
COMMIT;
