--
-- Answers of requests: replayed byte for byte, also when they are packed, and forgotten
-- when they have expired; headers that are refused, answers that are too long; fingerprints.
--
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE EXTENSION idempotency CASCADE;
CREATE SCHEMA t;
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
CREATE FUNCTION t.try(command text, OUT state text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command INTO message;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
	state := sqlstate;
END $$;
SELECT idempotency.consumer_create(c.name, retention => c.retention::interval, keep_ids => c.keep_ids)
FROM (VALUES ('hour', '1 hour', false), ('day', '2 hours', false), ('ever', NULL, false), ('kept', '30 min', true)) AS c (name, retention, keep_ids);

-- Answers with all that may be in one
CREATE TABLE t.answers (key text, status int, headers jsonb, body bytea);
INSERT INTO t.answers VALUES
	('nothing', 204, NULL, NULL),
	('empty', 200, '{}', ''),
	('empty pairs', 200, '[]', NULL),
	('zero', 100, '{"A": ""}', '\x00'),
	('zeros', 599, '{"Content-Type": "application/octet-stream", "content-type": "text/plain"}', '\x0000ff00'),
	('pairs', 302, '[["Link", "</a>"], ["Link", "</b>"], ["link", "</a>"], ["Location", "/x?y=1,2"], ["Link", "</a>"]]', 'moved'),
	('all bytes', 200, NULL, (SELECT string_agg(set_byte('\x00', 0, i), '') FROM generate_series(0, 255) i)),
	('token', 200, '{"!#$%&''*+-.^_`|~09azAZ": "visible ~ \" \\ \t é € 😀"}', 'x'),
	('quotes', 200, '{"X": "\"; DROP TABLE x; --"}', '\x225c27'),
	('like an answer', 200, '{"status": "500", "body": "eA==", "fingerprint": "eA==", "headers": "x"}', '{"status": 500}'),
	('one MB', 200, NULL, (SELECT string_agg(decode(md5(i::text), 'hex'), '') FROM generate_series(1, 65536) i)),
	('one MB of zeros', 200, NULL, decode(repeat('00', 1048576), 'hex')),
	('many headers', 200, (SELECT jsonb_object_agg('X-' || i, repeat('v', i)) FROM generate_series(1, 500) i), 'x');
CREATE FUNCTION t.fingerprint(key text) RETURNS bytea LANGUAGE sql AS $$SELECT sha256(convert_to(key, 'UTF8'))$$;
CREATE TABLE t.consumers (consumer text);
INSERT INTO t.consumers VALUES ('hour'), ('day'), ('ever'), ('kept');
-- How many answers are not given as they were stored, in any part
CREATE FUNCTION t.wrong() RETURNS TABLE (consumer text, answers bigint, wrong text) LANGUAGE sql AS $$
	SELECT c.consumer, count(*) FILTER (WHERE r.result = 'replay'), string_agg(a.key, ', ' ORDER BY a.key) FILTER (WHERE r.result <> 'replay' OR r.status <> a.status OR
			r.headers::text IS DISTINCT FROM a.headers::text OR r.body IS DISTINCT FROM a.body OR r.completed_at IS NULL)
	  FROM t.answers a, t.consumers c, idempotency.claim_request(a.key, 's', t.fingerprint(a.key), c.consumer) r GROUP BY 1 ORDER BY 1 $$;
SELECT r.result, count(idempotency.complete_request(a.key, 's', a.status, a.headers, a.body, c.consumer)) FROM t.answers a, t.consumers c,
	idempotency.claim_request(a.key, 's', t.fingerprint(a.key), c.consumer) r GROUP BY 1;
SELECT * FROM t.wrong();
-- by a lease, it is the same
CREATE TABLE t.leases AS SELECT a.key, r.token FROM t.answers a, idempotency.claim_request('by lease ' || a.key, 's', t.fingerprint('by lease ' || a.key), 'day', '1 hour') r;
SELECT count(idempotency.complete_request('by lease ' || a.key, 's', a.status, a.headers, a.body, 'day', token)) FROM t.answers a JOIN t.leases USING (key);
SELECT count(*) FROM t.answers a, idempotency.claim_request('by lease ' || a.key, 's', t.fingerprint('by lease ' || a.key), 'day') r
 WHERE (r.result, r.status) = ('replay', a.status) AND r.headers::text IS NOT DISTINCT FROM a.headers::text AND r.body IS NOT DISTINCT FROM a.body;
SELECT count(*) FROM t.answers a, idempotency.claim_request('by lease ' || a.key, 's', t.fingerprint(a.key), 'day') r WHERE r.result = 'mismatch';

-- Headers that are refused; what they were to be stored for goes on
CREATE FUNCTION t.refused(headers text) RETURNS TABLE (state text, message text, detail text, afterwards text) LANGUAGE plpgsql AS $$
DECLARE
	e record;
BEGIN
	PERFORM idempotency.claim_request(headers, 'refused');
	e := t.try(format('SELECT idempotency.complete_request(%L, %L, 200, %L)', headers, 'refused', headers));
	RETURN QUERY SELECT e.state, e.message, e.detail, (idempotency.claim_request(headers, 'refused')).result::text;
	PERFORM idempotency.release_request(headers, 'refused');
END $$;
SELECT h AS headers, r.* FROM unnest(ARRAY['1', '"x"', 'null', 'true', '{"A": 1}', '{"A": null}', '{"A": ["x", "y"]}', '{"A": {}}', '{"": "x"}', '{"A:": "x"}', '{"A B": "x"}',
	'{"Ä": "x"}', '{"A\r\nB": "x"}', '{"A\n": "x"}', '{"A": "x\r\nSet-Cookie: a=b"}', '{"A": "x\n"}', '{"A": "\rx"}', '{"A": "\u0001"}', '{"A": "\u007f"}', '{"(A)": "x"}',
	'{"Good": "x", "Bad": "\u000b"}', '["A", "x"]', '[["A"]]', '[["A", "x", "y"]]', '[["A", 1]]', '[[1, "x"]]', '[["A\n", "x"]]', '[["A", "x\r\nB: y"]]', '[[]]', '[{"A": "x"}]',
	'[["Good", "x"], ["", "x"]]', '[[["A", "x"]]]', '[["A", ["x"]]]', '[null]']) h, t.refused(h) r;
SELECT count(*) AS left_behind FROM idempotency_data.store_segment_0 WHERE consumer = '@request/default';

-- Answers that are too long, and nothing half-done
SHOW idempotency.max_response_size;
CREATE FUNCTION t.sized(bytes int) RETURNS bytea LANGUAGE sql AS $$SELECT decode(repeat('61', bytes), 'hex')$$;
SELECT token FROM idempotency.claim_request('long', 's', lease => '1 hour') \gset
SELECT state FROM t.try(format('SELECT idempotency.complete_request(%L, %L, 200, body => t.sized(1048577), token => %s)', 'long', 's', :token));
SELECT idempotency.complete_request('long', 's', 200, body => 'short', token => :token);
BEGIN;
SELECT result FROM idempotency.claim_request('long 2', 's');
SAVEPOINT s;
\set VERBOSITY default
SELECT idempotency.complete_request('long 2', 's', 200, body => t.sized(1048577));
\set VERBOSITY terse
ROLLBACK TO s;
SELECT state FROM t.try($$SELECT idempotency.complete_request('long 2', 's', 200, '{"A": "x"}', t.sized(1048576))$$);
SELECT state FROM t.try($$SELECT idempotency.complete_request('long 2', 's', 200, jsonb_build_object('A', repeat('x', 1048577)))$$);
SELECT result FROM idempotency.claim_request('long 2', 's');
SELECT idempotency.complete_request('long 2', 's', 507, body => 'the answer is at /answers/2');
COMMIT;
SELECT status, body FROM idempotency.claim_request('long 2', 's');
SET idempotency.max_response_size = '2MB';
SELECT r.result, idempotency.complete_request('long 3', 's', 200, '{"A": "x"}', t.sized(1048576)) FROM idempotency.claim_request('long 3', 's') r;
SET idempotency.max_response_size = '1kB';
-- an answer that was stored is given whatever the setting is
SELECT result, length(body) FROM idempotency.claim_request('long 3', 's');
SELECT state, detail FROM t.try($$SELECT r.result, idempotency.complete_request('long 4', 's', 200, body => t.sized(1025)) FROM idempotency.claim_request('long 4', 's') r$$);
SELECT r.result, idempotency.complete_request('long 4', 's', 200, body => t.sized(1024)) FROM idempotency.claim_request('long 4', 's') r;
-- the text is the server's own, another in each version
\set VERBOSITY sqlstate
SET idempotency.max_response_size = '1023B';
SET idempotency.max_response_size = '129MB';
\set VERBOSITY terse
RESET idempotency.max_response_size;

-- Fingerprints, in every state: what says mismatch says nothing else
CREATE FUNCTION t.compare(key text, consumer text = 'default', OUT same text, OUT other text, OUT without text, OUT longer text, OUT said_more bool) LANGUAGE plpgsql AS $$
DECLARE
	r record;
BEGIN
	BEGIN
		same := (idempotency.claim_request(key, 'f', '\x01', consumer)).result;
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN END;
	BEGIN
		without := (idempotency.claim_request(key, 'f', NULL, consumer)).result;
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN END;
	BEGIN
		longer := (idempotency.claim_request(key, 'f', '\x0100', consumer, '1 min')).result;
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN END;
	BEGIN
		r := idempotency.claim_request(key, 'f', '\x02', consumer);
		other := r.result;
		IF other = 'mismatch' THEN said_more := num_nonnulls(r.token, r.attempt, r.recovery_point, r.state, r.status, r.headers, r.body, r.completed_at, r.expires_at, r.retry_after) > 0; END IF;
		RAISE EXCEPTION 'undo';
	EXCEPTION WHEN raise_exception THEN END;
END $$;
CREATE TABLE t.tokens (key text, token bigint);
CREATE FUNCTION t.lease(key text, fingerprint bytea, lease interval = '1 hour', consumer text = 'default') RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	INSERT INTO t.tokens SELECT lease.key, token FROM idempotency.claim_request(lease.key, 'f', fingerprint, consumer, lease);
	PERFORM pg_sleep(0.00001);
END $$;
CREATE FUNCTION t.token(key text) RETURNS bigint LANGUAGE sql AS 'SELECT max(token) FROM t.tokens WHERE key = $1';
SELECT 'never seen', * FROM t.compare('never');
BEGIN;
SELECT result FROM idempotency.claim_request('open', 'f', '\x01');
SELECT 'own transaction', * FROM t.compare('open');
SELECT idempotency.complete_request('open', 'f', 200, body => 'secret');
SELECT 'own, completed', * FROM t.compare('open');
COMMIT;
SELECT 'completed', * FROM t.compare('open');
SELECT t.lease('lease', '\x01');
SELECT 'leased', * FROM t.compare('lease');
SELECT idempotency.fail_request('lease', 'f', 'secret', token => t.token('lease'));
SELECT 'failed, waits', * FROM t.compare('lease');
SELECT t.lease('over', '\x01', '1 us');
SELECT 'lease is over', * FROM t.compare('over');
SELECT idempotency.fail_request('over', 'f', 'secret', token => t.token('over'), retry_after => '0');
SELECT 'failed, due', * FROM t.compare('over');
BEGIN;
SELECT result FROM idempotency.claim_request('over', 'f');
SELECT 'own, after an attempt', * FROM t.compare('over');
SELECT idempotency.complete_request('over', 'f', 200, body => 'secret');
COMMIT;
SELECT 'completed by one without', * FROM t.compare('over');
SELECT idempotency.consumer_create('once', max_attempts => 1);
SELECT t.lease('dead', '\x01', '1 us', 'once');
SELECT (idempotency.claim_request('dead', 'f', NULL, 'once')).result;
SELECT 'dead', * FROM t.compare('dead', 'once');
SELECT idempotency.consumer_redrive('once', scope => 'f');
SELECT 'redriven', * FROM t.compare('dead', 'once');
SELECT t.lease('lease 2', '\x01');
SELECT idempotency.advance_request('lease 2', 'f', t.token('lease 2'), 'p') IS NOT NULL AS advanced;
SELECT 'advanced', * FROM t.compare('lease 2');
BEGIN;
SELECT idempotency.advance_request('lease 2', 'f', t.token('lease 2'), 'q') IS NOT NULL AS advanced;
SELECT 'own, advanced', * FROM t.compare('lease 2');
SELECT idempotency.complete_request('lease 2', 'f', 200, body => 'secret');
COMMIT;
SELECT 'completed after advancing', * FROM t.compare('lease 2');
-- one that had none takes the first that is given
SELECT t.lease('first', NULL, '1 us');
SELECT 'none known', * FROM t.compare('first');
SELECT t.lease('first', '\x01', '1 us');
SELECT 'taken over with one', * FROM t.compare('first');
SELECT t.lease('first', NULL);
SELECT idempotency.complete_request('first', 'f', 200, token => t.token('first'));
SELECT 'completed', * FROM t.compare('first');
SELECT r.result, idempotency.complete_request('none', 'f', 200) FROM idempotency.claim_request('none', 'f') r;
SELECT 'completed without', * FROM t.compare('none');
SELECT t.lease('released', '\x01');
SELECT idempotency.release_request('released', 'f', token => t.token('released'));
SELECT 'released', * FROM t.compare('released');
BEGIN;
SELECT result FROM idempotency.claim_request('given back', 'f', '\x01');
SELECT idempotency.release_request('given back', 'f');
SELECT 'own, released', * FROM t.compare('given back');
COMMIT;
SELECT result FROM idempotency.claim_request('long print', 'f', decode(repeat('ab', 255), 'hex'), lease => '1 hour');
SELECT (idempotency.claim_request('long print', 'f', decode(repeat('ab', 255), 'hex'))).result, (idempotency.claim_request('long print', 'f', decode(repeat('ab', 254), 'hex'))).result;

-- Packed: the answer stays, the key goes
CREATE PROCEDURE t.settle() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3000 LOOP
		PERFORM idempotency.claims_maintain();
		COMMIT;
		IF NOT EXISTS (
			SELECT FROM idempotency.stat_claim_segments AS s
			WHERE s.state NOT IN ('current', 'empty', 'searched')) THEN
			RETURN;
		END IF;
		COMMIT;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
	RAISE EXCEPTION 'something is never packed';
END
$$;
CREATE PROCEDURE t.age(by interval) LANGUAGE plpgsql AS $$
BEGIN
	FOR n IN 0 .. 7 LOOP
		EXECUTE format('UPDATE idempotency_data.store_segment_%s SET claimed_at = claimed_at - %L::interval', n, by);
	END LOOP;
END
$$;
SELECT idempotency.claim_event('an event', c), idempotency.complete_event('an event', c) FROM unnest('{kept,ever}'::text[]) c;
SELECT consumer, event_id FROM idempotency.processed_events ORDER BY 1;
CALL t.age('11 min');
CALL t.settle();
SELECT class, sum(entries) > 0 AS packed FROM idempotency.stat_claim_segments WHERE kind = 'run' GROUP BY 1 ORDER BY 1;
SELECT * FROM t.wrong();
SELECT consumer, count(*) AS mismatches FROM t.answers a, t.consumers c, idempotency.claim_request(a.key, 's', '\x00', c.consumer) r WHERE r.result = 'mismatch' GROUP BY 1 ORDER BY 1;
SELECT consumer, count(*), bool_and(r.expires_at - r.completed_at = CASE consumer WHEN 'hour' THEN interval '1 hour' WHEN 'day' THEN '2 hours' WHEN 'kept' THEN '30 min' END) AS as_said
  FROM t.consumers c, t.answers a, idempotency.claim_request(a.key, 's', NULL, c.consumer) r GROUP BY 1 ORDER BY 1;
-- no view of events shows a request
SELECT consumer, event_id, result FROM idempotency.processed_events;

-- Not forgotten before it expires; afterwards it is, and its fingerprint with it
SELECT t.store_add_time(3599 - 120);
CALL t.settle();
SELECT * FROM t.wrong();
SELECT t.store_add_time(600 + 121);
CALL t.settle();
SELECT consumer, r.result, count(*), count(idempotency.release_request(a.key, 's', consumer)) FILTER (WHERE r.result = 'started') AS released
  FROM t.answers a, t.consumers c, idempotency.claim_request(a.key, 's', '\xff', consumer) r GROUP BY 1, 2 ORDER BY 1;
DELETE FROM t.consumers WHERE consumer IN ('hour', 'kept');
SELECT * FROM t.wrong();
DROP SCHEMA t CASCADE;
DROP EXTENSION idempotency;
