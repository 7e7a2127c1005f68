--
-- Indexes, columns and constraints that somebody adds to the tables that claims write to.
--

-- Every index of the table is maintained, whatever its kind
CREATE INDEX on_completed ON idempotency_data.store_segment_0 (completed_at);
CREATE INDEX on_expr ON idempotency_data.store_segment_0 (upper(event_id)) WHERE result IS NOT NULL;
CREATE INDEX on_range ON idempotency_data.store_segment_0 USING brin (completed_at);
BEGIN;
SELECT idempotency.claim_event('i1'), idempotency.complete_event('i1', result => '1');
SELECT result, count(*) FROM idempotency.claim_events(ARRAY(SELECT 'i' || i FROM generate_series(1, 200) i)) GROUP BY 1 ORDER BY 1;
SELECT idempotency.complete_events(ARRAY(SELECT 'i' || i FROM generate_series(2, 200) i));
COMMIT;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
EXPLAIN (COSTS OFF) SELECT event_id FROM idempotency_data.store_segment_0 WHERE upper(event_id) = 'I1' AND result IS NOT NULL;
SELECT event_id FROM idempotency_data.store_segment_0 WHERE upper(event_id) = 'I1' AND result IS NOT NULL;
SELECT count(*) FROM idempotency_data.store_segment_0 WHERE completed_at > '-infinity' AND event_id LIKE 'i%';
RESET enable_seqscan;
RESET enable_bitmapscan;
CREATE EXTENSION amcheck;
SELECT bt_index_check('idempotency_data.' || i, true)
  FROM unnest('{store_segment_0_pkey,on_completed,on_expr}'::text[]) i;
DROP INDEX idempotency_data.on_completed, idempotency_data.on_expr, idempotency_data.on_range;

-- What the executor would enforce, and claims do not, is refused
BEGIN;
TRUNCATE idempotency_data.store_segment_0;
ALTER TABLE idempotency_data.store_segment_0 ADD CONSTRAINT short CHECK (length(event_id) < 3);
SAVEPOINT s;
SELECT idempotency.claim_event('long');
ROLLBACK TO s;
ALTER TABLE idempotency_data.store_segment_0 DROP CONSTRAINT short, ALTER COLUMN result SET NOT NULL;
SAVEPOINT s;
SELECT ord, result FROM idempotency.claim_events('{c1,c2}');
ROLLBACK TO s;
ALTER TABLE idempotency_data.store_segment_0 ALTER COLUMN result DROP NOT NULL, ADD COLUMN tenant text NOT NULL DEFAULT 'x';
SAVEPOINT s;
SELECT idempotency.claim_event('c1');
ROLLBACK TO s;
ALTER TABLE idempotency_data.store_segment_0 DROP COLUMN tenant, ADD COLUMN size int GENERATED ALWAYS AS (length(event_id)) STORED;
SAVEPOINT s;
SELECT idempotency.claim_event('c1');
ROLLBACK TO s;
SELECT idempotency.event_result('c1');
ALTER TABLE idempotency_data.store_segment_0 DROP COLUMN size, ADD COLUMN note text;
SELECT idempotency.claim_event('c1'), idempotency.complete_event('c1', result => '1');
SELECT event_id, result, note FROM idempotency_data.store_segment_0;
ROLLBACK;
