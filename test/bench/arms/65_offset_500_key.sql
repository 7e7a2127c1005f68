-- title: the same rows, and claim_offset of their range
-- about: per row
-- events: 500
-- tables: bench.keyed_record
BEGIN;
SELECT result FROM idempotency.claim_offset('bench', 'range', :client_id, 0, (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
INSERT INTO bench.keyed_record (record, body) SELECT g, md5(g::text) FROM generate_series(1, 500) AS g;
COMMIT;
