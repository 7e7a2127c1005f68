--
-- Requests: every argument's bad values.  The error names the argument, and nothing has
-- changed afterwards.
--
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.try(command text, OUT state text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command INTO message;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
	state := sqlstate;
END $$;
-- Requests that each call could change
CREATE TABLE t.token AS SELECT token FROM idempotency.claim_request('leased', 's', '\x01', lease => '1 hour', request => '{"a": 1}');
SELECT idempotency.advance_request('leased', 's', token, 'begun', state => '[1]') IS NOT NULL AS advanced FROM t.token;
SELECT r.result, idempotency.fail_request('failed', 's', 'e', retry_after => '1 hour') FROM idempotency.claim_request('failed', 's', '\x01') r;
SELECT r.result, idempotency.complete_request('completed', 's', 200, '{"A": "x"}', 'body') FROM idempotency.claim_request('completed', 's', '\x01') r;
-- All rows of the log and of the store
CREATE VIEW t.rows AS SELECT to_jsonb(l) AS r FROM (TABLE idempotency_data.lease_log_0 UNION ALL TABLE idempotency_data.lease_log_1 UNION ALL TABLE idempotency_data.lease_log_2) l
	UNION ALL SELECT to_jsonb(s) FROM idempotency_data.store_segment_0 s;
CREATE TABLE t.before AS TABLE t.rows;
CREATE FUNCTION t.changed() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM (SELECT r, count(*) FROM t.before GROUP BY 1 EXCEPT SELECT r, count(*) FROM t.rows GROUP BY 1) a
	FULL JOIN (SELECT r, count(*) FROM t.rows GROUP BY 1 EXCEPT SELECT r, count(*) FROM t.before GROUP BY 1) b USING (r) $$;

CREATE TABLE t.calls (n serial, call text, argument text, value text);
CREATE FUNCTION t.add(call text, argument text, VARIADIC bad text[]) RETURNS void LANGUAGE sql AS
	$$INSERT INTO t.calls (call, argument, value) SELECT call, argument, unnest(bad)$$;
\o /dev/null
-- what all have
SELECT t.add(c, 'key', 'NULL', $$''$$, $$repeat('x', 1025)$$, $$repeat('é', 513)$$), t.add(c, 'scope', 'NULL', $$''$$, $$repeat('x', 256)$$, $$repeat('é', 128)$$),
	t.add(c, 'consumer', 'NULL', $$''$$, $$repeat('x', 256)$$, $$repeat('é', 128)$$, $$'@request/default'$$, $$'@'$$)
  FROM unnest('{claim_request,advance_request,complete_request,fail_request,release_request}'::text[]) WITH ORDINALITY c(c, n) ORDER BY n;
SELECT t.add('claim_request', 'fingerprint', $$''$$, $$decode(repeat('00', 256), 'hex')$$),
	t.add('claim_request', 'lease', $$'0'$$, $$'-1 us'$$, $$'366 days 1 us'$$, $$'170000 years'$$, $$'-170000 years'$$, $$'1 month -31 days'$$),
	t.add('claim_request', 'wait', 'NULL', $$'-1 us'$$, $$'-1 month'$$, $$'-170000 years'$$, $$'1 hour -61 min'$$),
	t.add('claim_request', 'request', $$'1'$$, $$'null'$$),
	t.add('claim_request, lease', 'request', $$to_jsonb(repeat('x', 1048577))$$),
	t.add('advance_request', 'token', 'NULL', '0', '-1', '9223372036854775807'),
	t.add('advance_request', 'recovery_point', 'NULL', $$''$$, $$repeat('x', 256)$$, $$repeat('é', 128)$$),
	t.add('advance_request', 'state', $$to_jsonb(repeat('x', 1048577))$$),
	t.add('advance_request', 'lease', $$'0'$$, $$'-1 us'$$, $$'366 days 1 us'$$, $$'170000 years'$$),
	t.add('complete_request', 'status', 'NULL', '99', '600', '0', '-200', '2147483647', '-2147483648'),
	t.add('complete_request', 'headers', $$'1'$$, $$'{"A": 1}'$$, $$'{"A": "\r\n"}'$$, $$'[["A"]]'$$, $$jsonb_build_object('A', repeat('x', 1048577))$$),
	t.add('complete_request', 'body', $$decode(repeat('00', 1048577), 'hex')$$),
	t.add('fail_request', 'error', 'NULL', $$''$$),
	t.add('fail_request', 'retry_after', $$'-1 us'$$, $$'366 days 1 us'$$, $$'-170000 years'$$);
SELECT t.add(c, 'token', '0', '-1', '9223372036854775807', '-9223372036854775808') FROM unnest('{complete_request,fail_request,release_request}'::text[]) c;
\o
-- A call on the request that is leased, with an argument replaced
CREATE FUNCTION t.call(call text, argument text, value text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	name text := substring(call FROM '^\w+');
	arguments jsonb := jsonb_build_object('key', '''leased''', 'scope', '''s''', 'consumer', '''default''');
BEGIN
	arguments := arguments || CASE name WHEN 'claim_request' THEN '{}'::jsonb
		WHEN 'advance_request' THEN jsonb_build_object('recovery_point', '''p''', 'token', (SELECT token::text FROM t.token))
		WHEN 'complete_request' THEN jsonb_build_object('status', '200', 'token', (SELECT token::text FROM t.token))
		WHEN 'fail_request' THEN jsonb_build_object('error', '''e''', 'token', (SELECT token::text FROM t.token))
		ELSE jsonb_build_object('token', (SELECT token::text FROM t.token)) END;
	IF call LIKE '%, lease' THEN arguments := arguments || '{"lease": "''1 hour''"}'; END IF;
	arguments := arguments || jsonb_build_object(argument, value);
	RETURN format('SELECT idempotency.%s(%s)', name, (SELECT string_agg(format('%I => %s', a.key, a.value), ', ') FROM jsonb_each_text(arguments) a));
END $$;
SELECT call, argument, value, e.state, e.message, e.detail FROM t.calls, t.try(t.call(call, argument, value)) e ORDER BY n;
SELECT t.changed();
-- each of them without the bad value is good
CREATE FUNCTION t.good(command text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command;
	RAISE EXCEPTION 'good' USING ERRCODE = 'P0001';
EXCEPTION WHEN OTHERS THEN RETURN sqlerrm;
END $$;
SELECT call, t.good(t.call(call, 'key', '''leased''')), t.changed() FROM (SELECT DISTINCT call FROM t.calls) c ORDER BY 1;
SELECT idempotency.release_request('leased', 's', token => token) FROM t.token;
SELECT t.changed() > 0 AS changed;

-- A bad argument comes before any other reason, and before the first lock
BEGIN READ ONLY;
SELECT state, message FROM unnest(ARRAY['claim_request(''k'', ''s'')', 'advance_request(''k'', ''s'', 1, ''p'')', 'complete_request(''k'', ''s'', 200)',
	'fail_request(''k'', ''s'', ''e'')', 'release_request(''k'', ''s'')']) c, t.try('SELECT idempotency.' || c);
ROLLBACK;
BEGIN;
SELECT count(*) FROM t.calls, t.try(t.call(call, argument, value)) WHERE argument <> 'token';
SELECT count(*) AS locks FROM pg_locks WHERE pid = pg_backend_pid() AND (locktype = 'advisory' OR relation IN (SELECT oid FROM pg_class WHERE relnamespace = 'idempotency_data'::regnamespace));
ROLLBACK;
-- No argument that is missing is guessed
SELECT state FROM unnest(ARRAY['claim_request(''k'')', 'advance_request(''k'', ''s'', 1)', 'complete_request(''k'', ''s'')', 'fail_request(''k'', ''s'')', 'release_request(''k'')']) c,
	t.try('SELECT idempotency.' || c);
-- The longest that are taken; a time that is over at once; a wait without end for what is free
SELECT result FROM idempotency.claim_request(repeat('k', 1024), repeat('s', 255), decode(repeat('00', 255), 'hex'), repeat('c', 255), '366 days', '170000 years', to_jsonb(repeat('x', 1048500)));
SELECT idempotency.fail_request('short', 's', repeat('é', 5000)) FROM idempotency.claim_request('short', 's');
SELECT length(error), octet_length(error) FROM idempotency_data.lease_log_0 WHERE event_id = 'short';

-- Errors name the request by its key, never by its scope or what it has stored
SELECT r.result, idempotency.complete_request('hush', 'tenant-secret', 200, '{"X": "header-secret"}', 'body-secret') FROM idempotency.claim_request('hush', 'tenant-secret', 'print-secret') r;
SELECT result FROM idempotency.claim_request('hush 2', 'tenant-secret', 'print-secret', lease => '1 hour', request => '"request-secret"');
SELECT state, message, detail ~ 'secret' OR message ~ 'secret' AS tells FROM unnest(ARRAY[
	$$SELECT idempotency.complete_request('hush', 'tenant-secret', 200)$$, $$SELECT idempotency.complete_request('hush', 'tenant-secret', 200, token => 1)$$,
	$$SELECT idempotency.complete_request('hush 2', 'tenant-secret', 200, '{"X": "header-secret"}', 'body-secret', token => 1)$$,
	$$SELECT idempotency.fail_request('hush 2', 'tenant-secret', 'error-secret', token => 1)$$, $$SELECT idempotency.release_request('hush 2', 'tenant-secret', token => 1)$$,
	$$SELECT idempotency.advance_request('hush 2', 'tenant-secret', 1, 'point-secret', state => '"state-secret"')$$,
	$$SELECT idempotency.complete_request('hush', 'tenant-secret', 200, '{"X-secret": "header-secret\n"}', 'body-secret')$$,
	$$SELECT idempotency.complete_request('hush', 'tenant-secret', 200, body => convert_to(repeat('body-secret', 200000), 'UTF8'))$$]) c, t.try(c);
DROP SCHEMA t CASCADE;
