-- The views give out what the caller's snapshot sees, one row at a time, and give
-- everything back however a query ends.
\set SHOW_CONTEXT never
SET idempotency.store_maintenance = off;
CREATE VIEW held AS SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.pid = pg_backend_pid() AND c.relnamespace = 'idempotency_data'::regnamespace;
CREATE FUNCTION digest_of(id text, consumer text) RETURNS uuid LANGUAGE sql AS
	$$SELECT encode(substr(sha256(convert_to(consumer, 'UTF8') || '\x00' || convert_to(id, 'UTF8')), 1, 16), 'hex')::uuid$$;
INSERT INTO idempotency_data.store_segment_0 (claimed_at, completed_at, digest, turn, state, event_id, consumer, result)
	SELECT now(), now(), digest_of('e' || i, c), 1, 'c', 'e' || i, c, to_jsonb(i)
	FROM generate_series(1, 1000) i, LATERAL (SELECT CASE WHEN i % 2 = 0 THEN 'even' ELSE 'odd' END AS c) s;
INSERT INTO idempotency_data.store_segment_0 (claimed_at, completed_at, digest, turn, state, event_id, consumer)
	VALUES (now(), now(), digest_of('secret', '@own'), 1, 'c', 'secret', '@own'), (now(), NULL, digest_of('kept', 'odd'), 1, 'k', 'kept', 'odd');
-- Rows of one event in several segments: the newest is shown, wherever it stands
INSERT INTO idempotency_data.store_segment_5 (claimed_at, completed_at, digest, turn, state, event_id, consumer, result) VALUES
	(now(), now(), digest_of('anew', 'turns'), 2, 'c', 'anew', 'turns', '"second"'), (now(), NULL, digest_of('open', 'turns'), 2, 'k', 'open', 'turns', NULL),
	(now(), NULL, digest_of('gone', 'turns'), 2, 'f', 'gone', 'turns', NULL);
INSERT INTO idempotency_data.store_segment_2 (claimed_at, completed_at, digest, turn, state, event_id, consumer, result) VALUES
	(now(), NULL, digest_of('anew', 'turns'), 1, 'k', 'anew', 'turns', NULL), (now(), now(), digest_of('gone', 'turns'), 1, 'c', 'gone', 'turns', '"first"');
INSERT INTO idempotency_data.store_segment_7 (claimed_at, completed_at, digest, turn, state, event_id, consumer, result) VALUES
	(now(), now(), digest_of('open', 'turns'), 1, 'c', 'open', 'turns', '"first"');
SELECT event_id, status, result FROM idempotency.processed_events WHERE consumer = 'turns' ORDER BY 1;
SELECT id, (idempotency.event_status(id, 'turns')).status, idempotency.event_result(id, 'turns') FROM unnest('{anew,open,gone}'::text[]) id;
BEGIN;
SELECT id, idempotency.claim_event(id, 'turns') FROM unnest('{anew,open,gone}'::text[]) id;
SELECT idempotency.complete_events('{open,gone}', 'turns');
SELECT event_id, status, result FROM idempotency.processed_events WHERE consumer = 'turns' ORDER BY 1;
SELECT event_id, turn, state FROM idempotency_data.store_segment_0 WHERE consumer = 'turns' ORDER BY 1;
ROLLBACK;
TRUNCATE idempotency_data.store_segment_2, idempotency_data.store_segment_5, idempotency_data.store_segment_7;
SELECT count(*) FROM (SELECT idempotency.outbox_enqueue_many('t', array_agg(i::text), array_agg('e'::text),
	array_agg(jsonb_build_object('n', i, 'long', CASE WHEN i = 7 THEN (SELECT string_agg(md5(j::text), '') FROM generate_series(1, 1000) j) END)))
	FROM generate_series(1, 20) i) s;

-- One row at a time: no node collects all of them
EXPLAIN (COSTS OFF) SELECT event_id FROM idempotency.processed_events WHERE consumer = 'odd' LIMIT 1;
EXPLAIN (COSTS OFF) SELECT seq FROM idempotency.outbox_events LIMIT 1;

-- What there is
SELECT consumer, status, count(*), min(result::text::int), max(result::text::int) FROM idempotency.processed_events
	GROUP BY 1, 2 ORDER BY 1, 2;
SELECT count(*), min(seq), max(seq), sum(length(payload->>'long')), bool_and(payload_bytes IS NULL) FROM idempotency.outbox_events;
SELECT event_id FROM idempotency.processed_events WHERE event_id IN ('e1', 'e10', 'E1', 'kept') ORDER BY event_id;
SELECT c.relname, a.attname, a.attcollation::regcollation FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
	WHERE c.relnamespace = 'idempotency'::regnamespace AND c.relkind = 'v' AND a.attcollation = '"C"'::regcollation
	ORDER BY 1, a.attnum;

-- Joins, rescans, LIMIT, the function in FROM
SELECT i, (SELECT count(*) FROM idempotency.processed_events p WHERE p.event_id = 'e' || i) FROM generate_series(0, 2) i;
SELECT i, seq FROM generate_series(1, 2) i, LATERAL (SELECT seq FROM idempotency.outbox_events WHERE seq > i LIMIT 1) e;
SELECT count(*) FROM idempotency_data.processed_events_source() a JOIN idempotency.processed_events b USING (event_id, consumer);
SELECT count(*) FROM (SELECT * FROM idempotency.processed_events LIMIT 3) s;
PREPARE one AS SELECT seq FROM idempotency.outbox_events WHERE payload->>'n' = $1;
EXECUTE one('2');
EXECUTE one('3');
DEALLOCATE one;

-- The snapshot is the caller's: his own rows, not those after it began
BEGIN;
DECLARE before CURSOR FOR SELECT count(*) FROM idempotency.processed_events WHERE consumer = 'mine';
SELECT idempotency.claim_event('x', 'mine'), idempotency.complete_event('x', 'mine');
SELECT count(*) FROM idempotency.processed_events WHERE consumer = 'mine';
FETCH before;
ROLLBACK;

-- However a query ends, nothing stays open
BEGIN;
DECLARE c CURSOR FOR SELECT seq FROM idempotency.outbox_events;
FETCH 2 c;
SELECT * FROM held;
SAVEPOINT s;
DECLARE d CURSOR FOR SELECT 1 / (seq - 3) FROM idempotency.outbox_events;
FETCH 5 d;
ROLLBACK TO s;
FETCH 1 c;
SELECT * FROM held;
CLOSE c;
SELECT * FROM held;
DECLARE h CURSOR WITH HOLD FOR SELECT seq FROM idempotency.outbox_events;
FETCH 1 h;
COMMIT;
FETCH 1 h;
CLOSE h;
DO $$
DECLARE
	r record;
	n int := 0;
BEGIN
	FOR r IN SELECT * FROM idempotency.processed_events LOOP
		BEGIN
			n := n + 1;
			PERFORM 1 / (n % 3);
		EXCEPTION WHEN division_by_zero THEN
			n := n + 1;
		END;
		EXIT WHEN n > 10;
	END LOOP;
	SELECT count(*) INTO n FROM held;
	RAISE NOTICE 'held: %', n;
END
$$;
CREATE FUNCTION first_seq() RETURNS bigint LANGUAGE sql AS 'SELECT seq FROM idempotency.outbox_events';
SELECT first_seq();

-- A condition that tells what it sees is not shown what the view hides
CREATE FUNCTION tell(text) RETURNS boolean LANGUAGE plpgsql COST 0.0000001 AS
	$$BEGIN IF $1 IN ('@own', 'secret') THEN RAISE NOTICE 'seen: %', $1; END IF; RETURN true; END$$;
SELECT count(*) FROM idempotency.processed_events WHERE tell(consumer) AND tell(event_id);

-- Columns that somebody adds are not shown; a segment that was altered is said to be
ALTER TABLE idempotency_data.store_segment_0 ADD COLUMN note text DEFAULT 'x';
SELECT event_id, result FROM idempotency.processed_events WHERE event_id = 'e5';
ALTER TABLE idempotency_data.outbox_segment_0 ADD COLUMN extra int;
SELECT count(*) FROM idempotency.outbox_events;
ALTER TABLE idempotency_data.outbox_segment_0 DROP COLUMN extra;
SELECT count(*) FROM idempotency.outbox_events;

-- Views of others' are read with the rights of who reads
CREATE ROLE regress_views_reader;
CREATE ROLE regress_views_operator;
SELECT idempotency.grant_role('operator', 'regress_views_operator');
CREATE VIEW mine AS SELECT count(*) FROM idempotency.processed_events;
GRANT SELECT ON mine TO regress_views_reader, regress_views_operator;
GRANT USAGE ON SCHEMA idempotency TO regress_views_reader;
GRANT SELECT ON idempotency.processed_events TO regress_views_reader;
SET ROLE regress_views_reader;
SELECT * FROM mine;
SELECT count(*) FROM idempotency.processed_events;
RESET ROLE;
SET ROLE regress_views_operator;
SELECT * FROM mine;
RESET ROLE;
GRANT EXECUTE ON FUNCTION idempotency_data.processed_events_source(), idempotency_data.processed_events_packed() TO regress_views_reader;
SET ROLE regress_views_reader;
SELECT * FROM mine;
RESET ROLE;
DROP VIEW mine;
DROP OWNED BY regress_views_reader, regress_views_operator;
DROP ROLE regress_views_reader, regress_views_operator;
