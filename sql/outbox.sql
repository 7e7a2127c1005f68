--
-- Enqueueing events: what is returned, what is stored, what is refused.
--
\set VERBOSITY terse
CREATE TEMP VIEW events AS
SELECT seq, aggregate_type, aggregate_id, event_type, payload, payload_bytes,
	content_type, headers
FROM idempotency.outbox_events;

-- One event, by position and by name
SELECT idempotency.outbox_enqueue('order', '42', 'OrderCreated', '{"total": 99.90}') IS NOT NULL AS ok;
SELECT idempotency.outbox_enqueue(aggregate_type => 'order', aggregate_id => '43',
	event_type => 'OrderCreated', payload => 'null', headers => '{"trace": "abc"}',
	event_id => '00000000-0000-7000-8000-000000000001');
SELECT idempotency.outbox_enqueue_bytes('order', '44', 'OrderPacked', '\x00ff') IS NOT NULL AS ok;
SELECT idempotency.outbox_enqueue_bytes('order', '45', 'OrderPacked', '\x', 'application/x-protobuf') IS NOT NULL AS ok;
SELECT * FROM events ORDER BY seq;
SELECT event_id, now() - enqueued_at < interval '1 hour' AS recent
FROM idempotency.outbox_events WHERE aggregate_id = '43';

-- Many events, ids in input order
CREATE TEMP TABLE ids AS
SELECT ord, id FROM idempotency.outbox_enqueue_many('item',
	ARRAY['a', 'b', 'c'], ARRAY['Added', 'Added', 'Removed'],
	ARRAY['1', '2', '3']::jsonb[],
	headers => ARRAY[NULL, '{"n": 1}', NULL]::jsonb[],
	event_ids => ARRAY[NULL, '00000000-0000-7000-8000-000000000002', NULL]::uuid[])
	WITH ORDINALITY AS t(id, ord);
SELECT ord, aggregate_id, event_type, payload, headers,
	event_id = '00000000-0000-7000-8000-000000000002' AS given
FROM ids JOIN idempotency.outbox_events ON event_id = id ORDER BY ord;
SELECT * FROM idempotency.outbox_enqueue_many('item', '{}', '{}', '{}');
-- in the target list, too, and all of them even if few are asked for
SELECT count(*) FROM (SELECT idempotency.outbox_enqueue_many('item',
	ARRAY['l1', 'l2', 'l3'], ARRAY['L', 'L', 'L'], ARRAY['1', '2', '3']::jsonb[]) LIMIT 1) AS t;
SELECT count(*) FROM idempotency.outbox_events WHERE event_type = 'L';

-- More than a chunk at once, small and large
SELECT count(*), count(DISTINCT id) FROM idempotency.outbox_enqueue_many('bulk',
	ARRAY(SELECT g::text FROM generate_series(1, 1000) AS g),
	ARRAY(SELECT 'B' FROM generate_series(1, 1000)),
	ARRAY(SELECT to_jsonb(g) FROM generate_series(1, 1000) AS g)) AS id;
SELECT count(*), bool_and(payload = to_jsonb(aggregate_id::int)) AS same,
	bool_and(seq - first = aggregate_id::int - 1) AS numbered
FROM (SELECT *, min(seq) OVER () AS first FROM idempotency.outbox_events
	WHERE aggregate_type = 'bulk') AS t;
SELECT count(*) FROM idempotency.outbox_enqueue_many('large',
	ARRAY(SELECT g::text FROM generate_series(1, 20) AS g),
	ARRAY(SELECT 'B' FROM generate_series(1, 20)),
	ARRAY(SELECT to_jsonb(string_agg(md5(i::text || g), '')) FROM generate_series(1, 20) AS g,
		generate_series(1, 2000) AS i GROUP BY g ORDER BY g));
SELECT count(*), min(length(payload #>> '{}')), max(length(payload #>> '{}'))
FROM idempotency.outbox_events WHERE aggregate_type = 'large';

-- More events than one call takes: refused before any work
SELECT count(*) FROM idempotency.outbox_enqueue_many('huge', array_fill('1'::text, ARRAY[10000001]), '{H}', '{1}');
-- A cancel comes before a number is drawn, however many events there are
SELECT last_value AS number FROM idempotency_data.outbox_seq \gset
SELECT idempotency.outbox_enqueue_many('cancelled', ARRAY[pg_cancel_backend(pg_backend_pid())::text], '{C}', '{1}');
SELECT last_value = :number AS none_drawn FROM idempotency_data.outbox_seq;

-- Version 7 ids: variant and version, the time, ascending in a session
CREATE TEMP TABLE gen AS
SELECT g, idempotency.outbox_enqueue('gen', g::text, 'G', '1') AS id FROM generate_series(1, 2000) AS g;
SELECT count(DISTINCT id), bool_and(substr(id::text, 15, 1) = '7') AS version,
	bool_and(substr(id::text, 20, 1) IN ('8', '9', 'a', 'b')) AS variant FROM gen;
SELECT bool_and(id > before) AS ascending FROM (SELECT id, lag(id) OVER (ORDER BY g) AS before FROM gen) AS t
WHERE before IS NOT NULL;
SELECT bool_and(abs(extract(epoch FROM now()) -
	('x' || lpad(left(replace(id::text, '-', ''), 12), 16, '0'))::bit(64)::bigint / 1000.0) < 3600) AS time
FROM gen;

-- Transactions and savepoints
BEGIN;
SELECT idempotency.outbox_enqueue('tx', 'keep1', 'T', '1') IS NOT NULL AS ok;
SAVEPOINT s;
SELECT idempotency.outbox_enqueue('tx', 'gone', 'T', '1') IS NOT NULL AS ok;
ROLLBACK TO s;
SAVEPOINT s2;
SELECT idempotency.outbox_enqueue('tx', 'keep2', 'T', '1') IS NOT NULL AS ok;
RELEASE s2;
COMMIT;
BEGIN;
SELECT idempotency.outbox_enqueue('tx', 'gone', 'T', '1') IS NOT NULL AS ok;
ROLLBACK;
DO $$
BEGIN
	PERFORM idempotency.outbox_enqueue('tx', 'gone', 'T', '1');
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
	PERFORM idempotency.outbox_enqueue('tx', 'keep3', 'T', '1');
END
$$;
SELECT aggregate_id FROM events WHERE aggregate_type = 'tx' ORDER BY seq;

-- Ids given by the caller are unique: in a batch, a transaction, and for good
SELECT idempotency.outbox_enqueue('dup', '1', 'D', '1', event_id => '00000000-0000-7000-8000-000000000001');
SELECT idempotency.outbox_enqueue_bytes('dup', '1', 'D', '\x', event_id => '00000000-0000-7000-8000-000000000001');
SELECT idempotency.outbox_enqueue_many('dup', ARRAY['1', '2'], ARRAY['D', 'D'], ARRAY['1', '2']::jsonb[],
	event_ids => ARRAY['00000000-0000-7000-8000-000000000003', '00000000-0000-7000-8000-000000000003']::uuid[]);
BEGIN;
SELECT idempotency.outbox_enqueue('dup', 'one', 'D', '1', event_id => '00000000-0000-7000-8000-000000000004');
SAVEPOINT s;
SELECT idempotency.outbox_enqueue('dup', 'two', 'D', '1', event_id => '00000000-0000-7000-8000-000000000004');
ROLLBACK TO s;
COMMIT;
-- an id whose event was rolled back is free again
BEGIN;
SELECT idempotency.outbox_enqueue('dup', 'gone', 'D', '1', event_id => '00000000-0000-7000-8000-000000000005');
ROLLBACK;
SELECT idempotency.outbox_enqueue('dup', 'three', 'D', '1', event_id => '00000000-0000-7000-8000-000000000005');
SELECT aggregate_id FROM events WHERE aggregate_type = 'dup' ORDER BY seq;
-- and no consumer of that name can be seen
SELECT count(*) FROM idempotency.processed_events;

-- Refused, with the SQLSTATE, and nothing is changed
CREATE FUNCTION pg_temp.try(call text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT ' || call;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	RETURN sqlstate || ' ' || sqlerrm;
END
$$;
SELECT last_seq AS seq_before FROM idempotency.stat_outbox \gset
SELECT pg_temp.try('idempotency.outbox_' || call) FROM (VALUES
	($$enqueue(NULL, 'i', 't', '1')$$),
	($$enqueue('a', NULL, 't', '1')$$),
	($$enqueue('a', 'i', NULL, '1')$$),
	($$enqueue('a', 'i', 't', NULL)$$),
	($$enqueue('', 'i', 't', '1')$$),
	($$enqueue('a', '', 't', '1')$$),
	($$enqueue('a', 'i', '', '1')$$),
	($$enqueue(repeat('x', 256), 'i', 't', '1')$$),
	($$enqueue('a', repeat('x', 256), 't', '1')$$),
	($$enqueue('a', 'i', repeat('é', 128), '1')$$),
	($$enqueue('a', 'i', 't', '1', headers => '[1]')$$),
	($$enqueue('a', 'i', 't', '1', headers => 'null')$$),
	($$enqueue_bytes('a', 'i', 't', NULL)$$),
	($$enqueue_bytes('a', 'i', 't', '\x', NULL)$$),
	($$enqueue_bytes('a', 'i', 't', '\x', '')$$),
	($$enqueue_bytes('a', 'i', 't', '\x', E'text/plain\r\nEvil: 1')$$),
	($$enqueue_bytes('a', 'i', 't', '\x', 'tëxt/plain')$$),
	($$enqueue_many(NULL, '{a}', '{t}', '{1}')$$),
	($$enqueue_many('a', NULL, '{t}', '{1}')$$),
	($$enqueue_many('a', '{a}', NULL, '{1}')$$),
	($$enqueue_many('a', '{a}', '{t}', NULL)$$),
	($$enqueue_many('a', '{a,NULL}', '{t,t}', '{1,1}')$$),
	($$enqueue_many('a', '{a,b}', '{NULL,t}', '{1,1}')$$),
	($$enqueue_many('a', '{a,b}', '{t,t}', '{1,NULL}')$$),
	($$enqueue_many('a', '{a,""}', '{t,t}', '{1,1}')$$),
	($$enqueue_many('a', '{a,b}', '{t}', '{1,1}')$$),
	($$enqueue_many('a', '{a,b}', '{t,t}', '{1}')$$),
	($$enqueue_many('a', '{a,b}', '{t,t}', '{1,1}', headers => '{NULL}')$$),
	($$enqueue_many('a', '{a,b}', '{t,t}', '{1,1}', headers => '{}')$$),
	($$enqueue_many('a', '{a,b}', '{t,t}', '{1,1}', headers => ARRAY[NULL, '2']::jsonb[])$$),
	($$enqueue_many('a', '{a,b}', '{t,t}', '{1,1}', event_ids => '{NULL}')$$),
	($$enqueue_many('a', '{}', '{}', '{}', event_ids => '{NULL}')$$),
	($$enqueue_many('a', '{{a,b},{a,b}}', '{t,t,t,t}', '{1,1,1,1}')$$)
) AS calls(call);
SELECT last_seq = :seq_before AS unchanged FROM idempotency.stat_outbox;
-- the longest that is allowed
SELECT idempotency.outbox_enqueue(repeat('x', 255), repeat('y', 255), repeat('z', 255), '1') IS NOT NULL AS ok;
SELECT length(aggregate_type), length(aggregate_id), length(event_type)
FROM idempotency.outbox_events WHERE event_type LIKE 'zzz%';

-- Size of payload and headers, compressible or not
SHOW idempotency.max_payload_size;
SET idempotency.max_payload_size = '2kB';
SELECT idempotency.outbox_enqueue('size', '1', 'S', to_jsonb(repeat('x', 2000))) IS NOT NULL AS ok;
SELECT pg_temp.try($$idempotency.outbox_enqueue('size', '2', 'S', to_jsonb(repeat('x', 2048)))$$);
SELECT pg_temp.try($$idempotency.outbox_enqueue('size', '2', 'S', '1', headers => jsonb_build_object('h', repeat('x', 2048)))$$);
SELECT pg_temp.try($$idempotency.outbox_enqueue_bytes('size', '2', 'S', decode(repeat('00', 2049), 'hex'))$$);
SELECT pg_temp.try($$idempotency.outbox_enqueue_many('size', '{2,3}', '{S,S}', ARRAY['1', to_jsonb(repeat('x', 2048))])$$);
SELECT idempotency.outbox_enqueue_bytes('size', '2', 'S', decode(repeat('00', 2048), 'hex')) IS NOT NULL AS ok;
RESET idempotency.max_payload_size;
-- a value that is toasted in the caller's own table
CREATE TEMP TABLE big AS SELECT to_jsonb(string_agg(md5(i::text), '')) AS v FROM generate_series(1, 5000) AS i;
SELECT idempotency.outbox_enqueue('size', 'toasted', 'S', v) IS NOT NULL AS ok FROM big;
DROP TABLE big;
SELECT length(payload #>> '{}') FROM idempotency.outbox_events WHERE aggregate_id = 'toasted';

-- A read-only transaction is refused before anything else
BEGIN READ ONLY;
SELECT idempotency.outbox_enqueue(NULL, 'i', 't', '1');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.outbox_enqueue_bytes('a', 'i', 't', '\x');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.outbox_enqueue_many('a', '{a}', '{t}', '{1}');
ROLLBACK;

-- Neither the search_path, nor objects of the same name, nor the replica role
CREATE SCHEMA evil;
CREATE TABLE evil.outbox_segment_0 (x int);
CREATE SEQUENCE evil.outbox_seq START 1000000;
CREATE SEQUENCE evil.outbox_generation MINVALUE 0 START 5;
CREATE TEMP TABLE outbox_segment_0 (x int);
CREATE FUNCTION evil.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 7::bigint';
SET search_path = pg_temp, evil, public, pg_catalog;
SET session_replication_role = replica;
SELECT idempotency.outbox_enqueue('path', '1', 'P', '1') IS NOT NULL AS ok;
RESET session_replication_role;
RESET search_path;
SELECT aggregate_id, seq < 1000000 AS numbered FROM idempotency.outbox_events WHERE aggregate_type = 'path';
SELECT count(*) FROM evil.outbox_segment_0;
DROP TABLE pg_temp.outbox_segment_0;
DROP SCHEMA evil CASCADE;

-- A role without any right to the tables enqueues with EXECUTE alone
CREATE ROLE outbox_test_role;
SET ROLE outbox_test_role;
SELECT idempotency.outbox_enqueue('role', '1', 'R', '1');
RESET ROLE;
GRANT USAGE ON SCHEMA idempotency TO outbox_test_role;
SET ROLE outbox_test_role;
SELECT idempotency.outbox_enqueue('role', '1', 'R', '1');
SELECT idempotency.outbox_enqueue_bytes('role', '1', 'R', '\x');
SELECT idempotency.outbox_enqueue_many('role', '{1}', '{R}', '{1}');
SELECT * FROM idempotency.outbox_events;
SELECT * FROM idempotency.stat_outbox;
SELECT nextval('idempotency_data.outbox_seq');
RESET ROLE;
GRANT EXECUTE ON FUNCTION idempotency.outbox_enqueue TO outbox_test_role;
SET ROLE outbox_test_role;
SELECT idempotency.outbox_enqueue('role', '2', 'R', '1') IS NOT NULL AS ok;
SELECT count(*) FROM idempotency_data.outbox_segment_0;
RESET ROLE;
SELECT aggregate_id FROM events WHERE aggregate_type = 'role';
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA idempotency FROM outbox_test_role;
REVOKE ALL ON SCHEMA idempotency FROM outbox_test_role;
DROP ROLE outbox_test_role;

-- Kinds of roles: a producer enqueues, a monitor reads stat_outbox only
CREATE ROLE outbox_test_producer;
CREATE ROLE outbox_test_monitor IN ROLE pg_monitor;
SELECT idempotency.grant_role('producer', 'outbox_test_producer');
SET ROLE outbox_test_producer;
SELECT idempotency.outbox_enqueue('kind', '1', 'K', '1') IS NOT NULL AS one,
	idempotency.outbox_enqueue_bytes('kind', '2', 'K', '\x') IS NOT NULL AS bytes,
	(SELECT count(*) FROM idempotency.outbox_enqueue_many('kind', '{3}', '{K}', '{1}')) AS many;
SELECT * FROM idempotency.stat_outbox;
SET ROLE outbox_test_monitor;
SELECT segments FROM idempotency.stat_outbox;
SELECT count(*) FROM idempotency.outbox_segments();
SELECT * FROM idempotency.outbox_events;
SELECT idempotency.outbox_enqueue('kind', '4', 'K', '1');
RESET ROLE;
DROP OWNED BY outbox_test_producer;
DROP ROLE outbox_test_producer, outbox_test_monitor;

-- A segment with another index would not be kept up to date: refused
CREATE INDEX extra ON idempotency_data.outbox_segment_0 (event_id);
SET allow_system_table_mods = on;
CREATE INDEX extra ON idempotency_data.outbox_segment_0 (event_id);
RESET allow_system_table_mods;
SELECT idempotency.outbox_enqueue('altered', '1', 'A', '1');
DROP INDEX idempotency_data.extra;
SELECT idempotency.outbox_enqueue('altered', '2', 'A', '1') IS NOT NULL AS ok;
