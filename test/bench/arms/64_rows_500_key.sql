-- title: 500 rows with a primary key in one transaction
-- about: per row
-- events: 500
-- tables: bench.keyed_record
BEGIN;
INSERT INTO bench.keyed_record (record, body) SELECT g, md5(g::text) FROM generate_series(1, 500) AS g;
COMMIT;
