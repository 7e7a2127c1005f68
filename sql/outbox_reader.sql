--
-- Reading the outbox as differences of snapshots.
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
CREATE FUNCTION t.enqueue(id text) RETURNS void LANGUAGE sql AS
$$SELECT idempotency.outbox_enqueue('a', id, 't', '1')$$;
SELECT t.snapshot() AS s0 \gset

-- No difference, nothing, one, and what comes after
SELECT aggregate_id FROM t.read(:'s0', NULL, 0, 10);
SELECT aggregate_id FROM t.read(NULL, :'s0', 0, 10);
SELECT t.enqueue('1');
SELECT t.snapshot() AS s1 \gset
SELECT t.enqueue(g::text) FROM generate_series(2, 4) AS g;
SELECT idempotency.outbox_enqueue_bytes('b', '5', 'bytes', '\x0102', headers => '{"h": 1}') IS NOT NULL AS ok;
SELECT t.snapshot() AS s2 \gset
SELECT t.enqueue('6');
SELECT aggregate_id FROM t.read(:'s0', :'s1', 0, 10);
SELECT seq, aggregate_type, aggregate_id, event_type, payload, payload_bytes, headers
FROM t.read(:'s1', :'s2', 0, 10);
SELECT aggregate_id FROM t.read(NULL, :'s2', 0, 10);
SELECT aggregate_id FROM t.read(:'s2', :'s2', 0, 10);
-- the same again, from a number on, and cut
SELECT aggregate_id FROM t.read(:'s1', :'s2', 0, 10);
SELECT aggregate_id FROM t.read(:'s1', :'s2', 3, 10);
SELECT aggregate_id FROM t.read(:'s1', :'s2', 3, 1);
SELECT aggregate_id FROM t.read(:'s1', :'s2', 100, 10);
SELECT events, first_seq, last_seq, ordered FROM t.scan(:'s0', :'s2', 2);

-- A transaction's own events have not happened yet
BEGIN;
SELECT t.enqueue('own');
SELECT t.snapshot() AS s3 \gset
SELECT aggregate_id FROM t.read(:'s2', :'s3', 0, 10);
COMMIT;
SELECT t.snapshot() AS s4 \gset
SELECT aggregate_id FROM t.read(:'s3', :'s4', 0, 10);

-- Rolled back: transactions, subtransactions, and a transaction of both
BEGIN;
SELECT t.enqueue('gone');
ROLLBACK;
BEGIN;
SELECT t.enqueue('7');
SAVEPOINT a;
SELECT t.enqueue('gone');
SAVEPOINT b;
SELECT t.enqueue('gone');
RELEASE b;
ROLLBACK TO a;
SELECT t.enqueue('8');
RELEASE a;
SELECT t.enqueue('9');
COMMIT;
SELECT t.snapshot() AS s5 \gset
SELECT aggregate_id FROM t.read(:'s4', :'s5', 0, 10);
SELECT events, ordered FROM t.scan(:'s4', :'s5', 1);

-- Prepared transactions appear when they commit
BEGIN;
SELECT t.enqueue('prepared');
PREPARE TRANSACTION 'outbox_reader_1';
SELECT t.enqueue('10');
SELECT t.snapshot() AS s6 \gset
SELECT aggregate_id FROM t.read(:'s5', :'s6', 0, 10);
COMMIT PREPARED 'outbox_reader_1';
SELECT t.snapshot() AS s7 \gset
SELECT aggregate_id FROM t.read(:'s6', :'s7', 0, 10);
SELECT aggregate_id FROM t.read(:'s5', :'s7', 0, 10);
-- a difference stays what it is
SELECT aggregate_id FROM t.read(:'s5', :'s6', 0, 10);

-- By id and by place
SELECT idempotency.outbox_enqueue('f', 'find', 't', '1', event_id => '00000000-0000-7000-8000-0000000000aa') AS id \gset
SELECT found, fetched FROM t.find(:'id');
SELECT found, fetched FROM t.find('00000000-0000-7000-8000-0000000000ab');

-- A table that was rewritten
SELECT t.snapshot() AS s8 \gset
VACUUM FULL idempotency_data.outbox_segment_0;
SELECT aggregate_id FROM t.read(:'s4', :'s8', 0, 20);

-- also between two batches, when the reader has the old places in memory; the
-- first row goes to the end
SELECT aggregate_id, seq AS k FROM t.read(:'s4', :'s8', 0, 1) \gset
UPDATE idempotency_data.outbox_segment_0 SET headers = '{"moved": true}' WHERE aggregate_id = '8';
VACUUM FULL idempotency_data.outbox_segment_0;
SELECT aggregate_id, headers FROM t.read(:'s4', :'s8', :k, 20);
-- and when it was emptied since: no error, and nothing old
SELECT aggregate_id, seq AS k FROM t.read(:'s4', :'s8', 0, 1) \gset
BEGIN;
CREATE TEMP TABLE saved AS SELECT * FROM idempotency_data.outbox_segment_0;
TRUNCATE idempotency_data.outbox_segment_0;
COMMIT;
SELECT aggregate_id FROM t.read(:'s4', :'s8', :k, 20);
ALTER TABLE idempotency_data.outbox_segment_0 DISABLE TRIGGER outbox_restamp;
INSERT INTO idempotency_data.outbox_segment_0 SELECT * FROM saved ORDER BY seq DESC;
ALTER TABLE idempotency_data.outbox_segment_0 ENABLE ALWAYS TRIGGER outbox_restamp;
SELECT aggregate_id FROM t.read(:'s4', :'s8', 0, 20);

-- A row that was deleted by hand is skipped
DELETE FROM idempotency_data.outbox_segment_0 WHERE aggregate_id = '8';
SELECT aggregate_id FROM t.read(:'s4', :'s5', 0, 10);
VACUUM idempotency_data.outbox_segment_0;
SELECT aggregate_id FROM t.read(:'s4', :'s5', 0, 10);

-- More keys than the buffer holds
DO $$
BEGIN
	FOR i IN 1..300 LOOP
		PERFORM idempotency.outbox_enqueue_many('m',
			array_fill(i::text, ARRAY[1000]), array_fill('t'::text, ARRAY[1000]),
			array_fill('1'::jsonb, ARRAY[1000]));
		IF i % 3 = 0 THEN
			COMMIT;
		END IF;
	END LOOP;
END
$$;
SELECT t.snapshot() AS s9 \gset
SELECT events, last_seq - first_seq + 1 AS numbers, ordered, memory < 6000000 AS bounded
FROM t.scan(:'s8', :'s9', 1000);
-- one batch after the other, as a relay would that starts anew each time
SELECT count(*), count(DISTINCT seq) FROM (
	SELECT (t.read(:'s8', :'s9', k, 2)).seq FROM generate_series(
		(SELECT first_seq - 1 FROM t.scan(:'s8', :'s9', 1000)),
		(SELECT last_seq - 1 FROM t.scan(:'s8', :'s9', 1000)), 60000) AS k) AS x;

-- Lag
SELECT events, bytes > 1000000 AS bytes, oldest IS NOT NULL AS oldest FROM t.lag(:'s8', NULL, 0);
SELECT * FROM t.lag(:'s9', NULL, 0);
SELECT l.events FROM t.scan(:'s8', :'s9', 1000) AS s, t.lag(:'s8', :'s9', s.last_seq - 10) AS l;
SELECT events > 300000 AS all_of_them FROM t.lag(NULL, NULL, 0);

-- A column that somebody adds stops writer and readers; to drop it again, as the
-- hint says, lets them go on
ALTER TABLE idempotency_data.outbox_segment_0 ADD COLUMN extra int DEFAULT 7, ADD COLUMN other text;
SELECT t.enqueue('altered');
SELECT aggregate_id FROM t.read(:'s9', t.snapshot(), 0, 10);
\set VERBOSITY default
SELECT segment FROM idempotency.outbox_segments();
\set VERBOSITY terse
ALTER TABLE idempotency_data.outbox_segment_0 DROP COLUMN extra, DROP COLUMN other;
\set VERBOSITY default
-- Each hint names what helps: an index can be made again, a column cannot
BEGIN;
DROP INDEX idempotency_data.outbox_segment_0_xid_seq_idx;
SAVEPOINT s;
SELECT t.enqueue('altered');
ROLLBACK TO s;
CREATE INDEX ON idempotency_data.outbox_segment_0 (xid, seq);
SELECT count(*) AS segments FROM idempotency.outbox_segments();
ALTER TABLE idempotency_data.outbox_segment_0 DROP COLUMN headers;
SELECT t.enqueue('altered');
ROLLBACK;
\set VERBOSITY terse
SELECT t.enqueue('one');
SELECT count(*) FROM idempotency.outbox_enqueue_many('a', ARRAY['two', 'three'], ARRAY['t', 't'],
	ARRAY['2', '{"n": 3}']::jsonb[], headers => ARRAY[NULL, '{"h": 3}']::jsonb[]);
SELECT aggregate_id, payload, headers FROM t.read(:'s9', t.snapshot(), 0, 10);
SELECT aggregate_id, payload, headers FROM idempotency.outbox_events WHERE aggregate_type = 'a'
	AND aggregate_id IN ('one', 'two', 'three') ORDER BY seq;
