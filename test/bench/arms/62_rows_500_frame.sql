-- title: the same rows, and a SELECT 1
-- about: per row; what one more statement costs
-- events: 500
-- tables: bench.record
BEGIN;
SELECT 1;
INSERT INTO bench.record SELECT g, md5(g::text) FROM generate_series(1, 500) AS g;
COMMIT;
