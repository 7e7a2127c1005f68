--
-- The ring of segments: closing, emptying, retention, and what is shown of it.
--
\set VERBOSITY terse
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.snapshot() RETURNS pg_snapshot
	LANGUAGE c AS 'idempotency_test', 'idem_test_snapshot_fn';
CREATE FUNCTION t.read(done pg_snapshot, cur pg_snapshot, k bigint, max int,
	OUT seq bigint, OUT xid xid8, OUT event_id uuid, OUT aggregate_type text,
	OUT aggregate_id text, OUT event_type text, OUT payload jsonb,
	OUT payload_bytes bytea, OUT headers jsonb) RETURNS SETOF record
	LANGUAGE c AS 'idempotency_test', 'idem_test_read_fn';
CREATE FUNCTION t.scan(done pg_snapshot, cur pg_snapshot, batch int,
	OUT events bigint, OUT first_seq bigint, OUT last_seq bigint, OUT ordered bool,
	OUT bytes bigint, OUT memory bigint)
	LANGUAGE c AS 'idempotency_test', 'idem_test_scan_fn';
CREATE FUNCTION t.find(id uuid, OUT found bool, OUT fetched bool, OUT seq bigint)
	LANGUAGE c AS 'idempotency_test', 'idem_test_find_fn';
CREATE FUNCTION t.lag(done pg_snapshot, cur pg_snapshot, k bigint,
	OUT events bigint, OUT bytes bigint, OUT oldest timestamptz)
	LANGUAGE c AS 'idempotency_test', 'idem_test_lag_fn';
CREATE FUNCTION t.maintain(done pg_snapshot[]) RETURNS int
	LANGUAGE c AS 'idempotency_test', 'idem_test_maintain_fn';
CREATE VIEW t.ring AS
SELECT segment, is_current, events, first_xid IS NOT NULL AS used FROM idempotency.outbox_segments()
WHERE is_current OR first_xid IS NOT NULL ORDER BY segment;
CREATE FUNCTION t.enqueue(id text) RETURNS void LANGUAGE sql AS
$$SELECT idempotency.outbox_enqueue('a', id, 't', '1')$$;

-- Empty, and an empty segment is not closed
SELECT generation, current_segment, segments_used, segments, events, oldest, newest, last_seq
FROM idempotency.stat_outbox;
SET idempotency.outbox_retention = 0;
SET idempotency.outbox_dump_size = 0;
SET idempotency.outbox_rotation_interval = 0;
SELECT t.maintain('{}');
SELECT * FROM t.ring;

-- Not before the interval, nor before a sixth of the retention
SELECT t.enqueue('1');
SET idempotency.outbox_rotation_interval = '1h';
SELECT t.maintain('{}');
SET idempotency.outbox_rotation_interval = 0;
SET idempotency.outbox_retention = '1d';
SELECT t.maintain('{}');
SELECT * FROM t.ring;
-- but when it is large
SET idempotency.outbox_segment_size = '8kB';
SELECT t.maintain('{}');
SELECT * FROM t.ring;
SELECT t.enqueue('2');
SELECT * FROM t.ring;
SELECT generation, current_segment, segments_used, segments, events,
	oldest < newest AS aged, last_seq FROM idempotency.stat_outbox;

-- Delivered, but younger than the retention
SELECT t.snapshot() AS s1 \gset
SELECT t.maintain(ARRAY[:'s1'::pg_snapshot]);
SELECT * FROM t.ring;
-- while half of the ring is empty, closing for size goes on; then not
SELECT t.enqueue('3');
SELECT t.maintain('{}');
SELECT t.enqueue('4');
SELECT t.maintain('{}');
SELECT t.enqueue('5');
SELECT t.maintain('{}');
SELECT t.enqueue('6');
SELECT t.maintain('{}');
SELECT * FROM t.ring;

-- Nothing is released without a position, nor before all are past it
SET idempotency.outbox_retention = 0;
SELECT t.maintain('{}');
SELECT * FROM t.ring;
SELECT t.snapshot() AS s2 \gset
SELECT t.maintain(ARRAY[:'s2', :'s1']::pg_snapshot[]) AS emptied;
SELECT * FROM t.ring;
SELECT aggregate_id FROM idempotency.outbox_events ORDER BY seq;
SELECT t.maintain(ARRAY[:'s2', :'s2']::pg_snapshot[]) AS emptied;
SELECT * FROM t.ring;
SELECT count(*) FROM idempotency.outbox_events;

-- Around the ring several times; files are given back, large values included
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		PERFORM idempotency.outbox_enqueue('ring', i::text, 't',
			(SELECT to_jsonb(string_agg(md5(i::text || g), '')) FROM generate_series(1, 1000) AS g));
		COMMIT;
		PERFORM t.maintain(ARRAY[t.snapshot()]);
		COMMIT;
	END LOOP;
END
$$;
SELECT generation > 20 AS turned, segments_used FROM idempotency.stat_outbox;
SELECT max(bytes) < 100000 AS small FROM idempotency.outbox_segments();
SELECT count(*) FROM idempotency.outbox_events;
SELECT events FROM t.scan(NULL, t.snapshot(), 10);
-- and they work again, heap, index and TOAST
SELECT idempotency.outbox_enqueue('again', '1', 't',
	(SELECT to_jsonb(string_agg(md5(g::text), '')) FROM generate_series(1, 1000) AS g)) IS NOT NULL AS ok;
SELECT length(payload #>> '{}') FROM t.read(NULL, t.snapshot(), 0, 10);
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;

-- A transaction that was running at the position keeps its own segment only;
-- the ring steps over it
SELECT current_segment AS stuck FROM idempotency.stat_outbox \gset
BEGIN;
SELECT t.enqueue('stuck');
PREPARE TRANSACTION 'outbox_segments_1';
SELECT t.enqueue('beside');
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
DO $$
BEGIN
	FOR i IN 1..20 LOOP
		PERFORM t.enqueue(i::text);
		COMMIT;
		PERFORM t.maintain(ARRAY[t.snapshot()]);
		COMMIT;
	END LOOP;
END
$$;
SELECT segment = :stuck AS is_stuck, is_current, events, used FROM t.ring ORDER BY is_current;
SELECT t.snapshot() AS s3 \gset
COMMIT PREPARED 'outbox_segments_1';
-- its lock is gone, but the position does not have it yet
SELECT t.maintain(ARRAY[:'s3'::pg_snapshot]) AS emptied;
SELECT aggregate_id FROM t.read(:'s3', t.snapshot(), 0, 10);
SELECT t.maintain(ARRAY[t.snapshot(), :'s3']) AS emptied;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
SELECT count(*) FROM idempotency.outbox_events;

-- What only an aborted transaction wrote goes, too
BEGIN;
SELECT t.enqueue('gone');
ROLLBACK;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
SELECT used FROM t.ring;

-- An open cursor of the same session keeps a segment
SELECT t.enqueue('cursor');
BEGIN;
DECLARE c CURSOR FOR SELECT aggregate_id FROM idempotency.outbox_events;
FETCH 1 FROM c;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
CLOSE c;
COMMIT;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;

-- Its newest event decides how old a segment is
SELECT t.enqueue('old'), t.enqueue('new');
DO $$
BEGIN
	FOR i IN 0..7 LOOP
		EXECUTE format('UPDATE idempotency_data.outbox_segment_%s SET enqueued_at = enqueued_at - interval ''2 h'''
			' WHERE aggregate_id = ''old''', i);
	END LOOP;
END
$$;
SET idempotency.outbox_retention = '1h';
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
SET idempotency.outbox_retention = 0;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;

-- wherever it is: sessions that take turns do not fill the pages in order
SET idempotency.outbox_retention = '1h';
SELECT current_segment AS cur FROM idempotency.stat_outbox \gset
SELECT format('ALTER TABLE idempotency_data.outbox_segment_%s DISABLE TRIGGER outbox_restamp', :cur) \gexec
SELECT format('INSERT INTO idempotency_data.outbox_segment_%s (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)'
	' SELECT pg_current_xact_id(), n, gen_random_uuid(),'
	' now() - CASE n WHEN 1 THEN interval ''0'' ELSE ''2 h'' END, ''a'', ''page'', ''t'', ''{}'' FROM generate_series(1, 300) n', :cur) AS insert \gset
:insert;
SELECT format('ALTER TABLE idempotency_data.outbox_segment_%s ENABLE ALWAYS TRIGGER outbox_restamp', :cur) \gexec
SELECT pg_relation_size(format('idempotency_data.outbox_segment_%s', :cur)) > 8192 AS pages;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
SET idempotency.outbox_retention = 0;
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;

-- Rows that come by SQL come from a dump, and a log in use takes none
SELECT current_segment AS cur FROM idempotency.stat_outbox \gset
SELECT format('COPY idempotency_data.outbox_segment_%s (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload) FROM stdin', :cur) AS copy \gset
SELECT t.snapshot() AS s4 \gset
SET session_replication_role = replica;
:copy;
99999999999	7	00000000-0000-7000-8000-000000000001	2026-01-01 00:00:00+00	restored	1	t	{}
\.
RESET session_replication_role;
SELECT aggregate_type, seq FROM t.read(:'s4', t.snapshot(), 0, 10);

-- A clock that was ahead for a while makes no segment eternal
SELECT format('ALTER TABLE idempotency_data.outbox_segment_%s DISABLE TRIGGER outbox_restamp', :cur) \gexec
SELECT format('INSERT INTO idempotency_data.outbox_segment_%s (xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)'
	' SELECT pg_current_xact_id(), 8, gen_random_uuid(), ''2126-01-01 00:00:00+00'', ''ahead'', ''1'', ''t'', ''{}''', :cur) \gexec
SELECT format('ALTER TABLE idempotency_data.outbox_segment_%s ENABLE ALWAYS TRIGGER outbox_restamp', :cur) \gexec
SET idempotency.outbox_rotation_interval = '1h';
SET idempotency.outbox_retention = '1h';
SELECT t.maintain(ARRAY[t.snapshot()]) AS emptied;
SET idempotency.outbox_rotation_interval = 0;
SET idempotency.outbox_retention = 0;

-- Numbers of events that were emptied are in use no longer, and may come again
CREATE FUNCTION t.numbered() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
	id uuid = idempotency.outbox_enqueue('a', '1', 't', '1');
BEGIN
	RETURN (SELECT seq FROM idempotency.outbox_events WHERE event_id = id);
END $$;
SELECT t.numbered() AS emptied \gset
SELECT t.maintain(ARRAY[t.snapshot()]) > 0 AS emptied;
SELECT count(*) FROM idempotency.outbox_events;
SELECT setval('idempotency_data.outbox_seq', 1);
SELECT idempotency.outbox_mend_seq();
SELECT t.numbered() <= :emptied AS again;

SELECT idempotency_data.outbox_restamp();
CREATE TABLE t.other (xid xid8);
CREATE TRIGGER wrong AFTER INSERT ON t.other FOR EACH ROW EXECUTE FUNCTION idempotency_data.outbox_restamp();
INSERT INTO t.other VALUES ('1');

-- Settings have limits
\set VERBOSITY sqlstate
SET idempotency.outbox_retention = -1;
SET idempotency.outbox_segment_size = '1kB';
