-- Many events in one call, and the budget of locks.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE EXTENSION pgstattuple;
RESET client_min_messages;

-- Rows come in the order of the input; repeats follow the first
BEGIN;
SELECT idempotency.claim_event('known'), idempotency.complete_event('known');
COMMIT;
BEGIN;
SELECT * FROM idempotency.claim_events('{b,a,known,b,c,known,a}');
SELECT * FROM idempotency.claim_events('{c,d}');
SELECT idempotency.complete_events('{d,b,a,c}', results => '{null,"\"of b\"",null,"[3]"}');
COMMIT;
SELECT event_id, status, result FROM idempotency.processed_events ORDER BY event_id;
SELECT * FROM idempotency.claim_events('{d,c,b,a}');

-- Nothing to do
SELECT * FROM idempotency.claim_events('{}');
SELECT idempotency.complete_events('{}');
SELECT idempotency.complete_events('{}', results => '{}');

-- Misuse
SELECT * FROM idempotency.claim_events(NULL);
SELECT * FROM idempotency.claim_events('{a,NULL}');
SELECT * FROM idempotency.claim_events('{a,""}');
SELECT * FROM idempotency.claim_events(ARRAY['a', repeat('x', 1025)]);
SELECT * FROM idempotency.claim_events('{{a},{b}}');
SELECT * FROM idempotency.claim_events('{a}', NULL);
SELECT idempotency.complete_events(NULL);
SELECT idempotency.complete_events('{a,NULL}');
SELECT idempotency.complete_events('{x,y}', results => '{"1"}');
SELECT idempotency.complete_events('{not claimed}');
BEGIN;
SELECT * FROM idempotency.claim_events('{x}');
SELECT idempotency.complete_events('{x,x}');
ROLLBACK;

-- A set-returning claim in a cursor claims all at the first FETCH
BEGIN;
DECLARE c CURSOR FOR SELECT * FROM idempotency.claim_events('{f1,f2,f3}');
FETCH 1 FROM c;
CLOSE c;
SELECT idempotency.claim_event('f3');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT idempotency.complete_events('{f1,f2,f3}');
COMMIT;
-- and in the select list, LIMIT or not
BEGIN;
SELECT idempotency.claim_events('{g1,g2,g3}') LIMIT 1;
SELECT idempotency.complete_events('{g1,g2,g3}');
COMMIT;

-- 100,000 ids at default settings: few locks, one tuple each, none dead
SELECT string_agg('idempotency_data.store_segment_' || n, ', ') AS ring FROM generate_series(0, 7) n \gset
TRUNCATE :ring;
CREATE VIEW ring AS SELECT sum(tuple_count) AS tuple_count, sum(dead_tuple_count) AS dead_tuple_count
	FROM generate_series(0, 7) n, pgstattuple('idempotency_data.store_segment_' || n);
SET idempotency.store_maintenance = off;
CREATE TABLE ids AS SELECT 'e-' || i AS id FROM generate_series(1, 100000) i;
BEGIN;
SELECT result, count(*) FROM idempotency.claim_events(ARRAY(SELECT id FROM ids)) GROUP BY 1 ORDER BY 1;
SELECT count(*) = current_setting('max_locks_per_transaction')::int AS locks_within_budget
  FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT result, count(*) FROM idempotency.claim_events(ARRAY(SELECT id FROM ids)) GROUP BY 1 ORDER BY 1;
SELECT idempotency.complete_events(ARRAY(SELECT id FROM ids));
COMMIT;
SELECT result, count(*) FROM idempotency.claim_events(ARRAY(SELECT id FROM ids)) GROUP BY 1 ORDER BY 1;
SELECT * FROM ring;
SELECT count(*), count(DISTINCT event_id) FROM idempotency.processed_events WHERE status = 'completed';

-- One by one they are the same
TRUNCATE :ring;
DO $$
BEGIN
	FOR i IN 1 .. 500 LOOP
		IF idempotency.claim_event('s-' || i) <> 'claimed' THEN
			RAISE 'not claimed: %', i;
		END IF;
	END LOOP;
	FOR i IN 1 .. 500 LOOP
		PERFORM idempotency.complete_event('s-' || i);
	END LOOP;
END
$$;
SELECT * FROM ring;

-- Single transactions, with results
TRUNCATE :ring;
SELECT idempotency.claim_event('one'), idempotency.complete_event('one', result => '1');
SELECT idempotency.claim_event('two'), idempotency.complete_event('two', result => '2');
SELECT * FROM ring;

-- An event that is remembered is looked for once
SELECT pg_stat_force_next_flush();
SELECT probes AS before FROM idempotency.stat_claims \gset
SELECT idempotency.claim_event('one');
SELECT pg_stat_force_next_flush();
SELECT probes - :before AS probes FROM idempotency.stat_claims;

-- Past the budget
SET idempotency.max_claim_locks = 0;
BEGIN;
SELECT idempotency.claim_event('p1'), idempotency.claim_event('p2'), idempotency.claim_event('p3');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
SELECT idempotency.claim_event('p1');
SELECT idempotency.event_result('p1') IS NULL AS not_completed;
SELECT idempotency.complete_event('p1');
SELECT idempotency.complete_event('p2', result => '"with a result"');
COMMIT;		-- p3 was left
BEGIN;
SELECT * FROM idempotency.claim_events('{p1,p2,p3}');
SELECT idempotency.complete_event('p1'), idempotency.complete_event('p2', result => '"with a result"');
SELECT idempotency.release_event('p3');
COMMIT;
SELECT event_id, status, result FROM idempotency.processed_events WHERE event_id LIKE 'p%' ORDER BY 1;
-- claimed, completed with a result and asked for in one statement
SELECT idempotency.claim_event('p4'), idempotency.complete_event('p4', result => '4'), idempotency.event_result('p4');
SELECT idempotency.claim_event('p4'), idempotency.event_result('p4');
-- claimed and released in one statement, then claimed again
BEGIN;
SELECT idempotency.claim_event('p5'), idempotency.release_event('p5');
SELECT idempotency.claim_event('p5'), idempotency.complete_event('p5');
COMMIT;
SELECT idempotency.claim_event('p5');
-- kept and taken over
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('p6');
SELECT status, completed_at IS NULL AS open FROM idempotency.processed_events WHERE event_id = 'p6';
RESET idempotency.uncompleted_claims;
BEGIN;
SELECT idempotency.claim_event('p6'), idempotency.claim_event('p6');
SELECT idempotency.complete_event('p6', result => '6');
COMMIT;
SELECT idempotency.claim_event('p6'), idempotency.event_result('p6');
SELECT count(*) FROM idempotency.processed_events WHERE event_id = 'p6';
RESET idempotency.max_claim_locks;

-- A consumer with foreign lockers keeps every lock, and is busy past the budget
SELECT idempotency.consumer_create('migrating', foreign_lockers => true);
SELECT idempotency.consumer_create('migrating');
SELECT idempotency.consumer_create('@x');
SELECT idempotency.consumer_create('');
SELECT idempotency.consumer_create(NULL);
SET idempotency.max_claim_locks = 2;
BEGIN;
SELECT * FROM idempotency.claim_events('{m1,m2,m3}', 'migrating');
SELECT idempotency.claim_event('m3', 'migrating'), idempotency.claim_event('m3', 'ordinary');
-- No wait makes room in the budget: the answer comes at once
SET LOCAL statement_timeout = '60 s';
SELECT idempotency.claim_event('m3', 'migrating', wait => '1 h');
SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;
SELECT idempotency.consumer_drop('migrating');
SELECT idempotency.consumer_drop('migrating');
SELECT idempotency.consumer_drop(NULL);
BEGIN;
SELECT * FROM idempotency.claim_events('{m1,m2,m3}', 'migrating');
ROLLBACK;
RESET idempotency.max_claim_locks;

-- One with private locks: as many, in a space of their own
SELECT idempotency.consumer_create('p', true, true);
SELECT idempotency.consumer_create('default', private_locks => true);
SELECT idempotency.consumer_create('p', private_locks => NULL);
SELECT idempotency.consumer_create('p', private_locks => true);
SELECT idempotency.consumer_create('p', private_locks => true);
SELECT * FROM idempotency_data.consumers;
SET idempotency.max_claim_locks = 2;
BEGIN;
SELECT * FROM idempotency.claim_events('{m1,m2,m3}', 'p');
SELECT idempotency.claim_event('m1', 'ordinary');
SELECT objsubid, count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() GROUP BY 1 ORDER BY 1;
SELECT idempotency.release_event('m1', 'p'), idempotency.complete_events('{m2,m3}', 'p');
SELECT objsubid, count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() GROUP BY 1 ORDER BY 1;
SELECT idempotency.consumer_drop('p');
ROLLBACK;
RESET idempotency.max_claim_locks;
BEGIN;
-- the claim's lock, and the two that announce the change
SELECT idempotency.consumer_create('q', private_locks => true);
SELECT idempotency.claim_event('m1', 'q'), idempotency.complete_event('m1', 'q');
SELECT objsubid, count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() GROUP BY 1 ORDER BY 1;
ROLLBACK;
BEGIN;
SELECT idempotency.claim_event('m1', 'q'), idempotency.complete_event('m1', 'q');
SELECT objsubid, count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid() GROUP BY 1 ORDER BY 1;
ROLLBACK;
SELECT idempotency.lock_key('m1', 'p') = ('x' || substr(encode(sha256('\x70006d31'), 'hex'), 1, 16))::bit(64)::bigint AS same_number;
SELECT idempotency_data.consumer_changes();
SELECT idempotency.consumer_drop('p');

-- The view of what it costs
SELECT live_rows >= 0 AS live, rows_written >= 0 AS written, dead_rows >= 0 AS dead, table_bytes > 0 AS "table", index_bytes > 0 AS index
  FROM idempotency.stat_claims;
