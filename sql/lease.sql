--
-- Leases: verdicts, tokens, extension, completion, release, attempts, every misuse.
--
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
-- The tokens of the events: each token is known by the order in which it was seen.
CREATE TABLE t.tokens (event_id text, consumer text, n int, token bigint, PRIMARY KEY (event_id, consumer, n));
CREATE FUNCTION t.token(id text, nth int = NULL, consumer text = 'default') RETURNS bigint LANGUAGE sql AS $$
	SELECT token FROM t.tokens WHERE event_id = id AND tokens.consumer = token.consumer AND n <= coalesce(nth, n) ORDER BY n DESC LIMIT 1 $$;
CREATE FUNCTION t.lease(id text, consumer text = 'default', duration interval = NULL, holder text = NULL, valid_until timestamptz = NULL,
	OUT result text, OUT nth int, OUT attempt int, OUT lasts interval, OUT recovery_point text, OUT state jsonb, OUT event_result jsonb,
	OUT has_retry bool, OUT last_error text) LANGUAGE plpgsql AS $$
DECLARE
	a record;
BEGIN
	a := idempotency.lease_event(id, consumer, duration, holder, valid_until => valid_until);
	result := a.result; attempt := a.attempt; recovery_point := a.recovery_point; state := a.state;
	event_result := a.event_result; last_error := a.last_error; has_retry := a.retry_after IS NOT NULL;
	IF a.token IS NOT NULL THEN
		IF a.token <= t.token(id, NULL, consumer) THEN RAISE EXCEPTION 'token fell'; END IF;
		nth := 1 + (SELECT count(*) FROM t.tokens WHERE event_id = id AND tokens.consumer = lease.consumer);
		INSERT INTO t.tokens VALUES (id, consumer, nth, a.token);
		lasts := date_trunc('minute', a.lease_until - clock_timestamp() + '30 s');
	END IF;
END $$;
-- The state of an error, its message, detail and hint
CREATE FUNCTION t.try(command text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command INTO message;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	state := sqlstate;
END $$;
-- A lease that is over: of one microsecond
CREATE FUNCTION t.overdue(id text, consumer text = 'default') RETURNS int LANGUAGE plpgsql AS $$
DECLARE
	l record := t.lease(id, consumer, '1 microsecond');
	started timestamptz := clock_timestamp();
BEGIN
	WHILE clock_timestamp() <= started + '2 microseconds' LOOP END LOOP;
	RETURN l.nth;
END $$;

-- Several of them in turn, each in a transaction of its own
CREATE PROCEDURE t.overdue_times(id text, consumer text, n int) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM t.overdue(id, consumer);
		COMMIT;
	END LOOP;
END $$;

-- A lease, while it lasts
SELECT * FROM t.lease('a', duration => '10 min', holder => 'worker 1');
SELECT * FROM t.lease('a');
SELECT idempotency.claim_event('a');
SELECT result, token, attempt, retry_after BETWEEN '9 min' AND '10 min' AS retry FROM idempotency.lease_event('a');
SELECT idempotency.extend_lease('a', t.token('a'), duration => '1 hour') - now() BETWEEN '59 min' AND '61 min' AS extended;
SELECT retry_after > '50 min' AS retry FROM idempotency.lease_event('a');
SELECT idempotency.complete_event('a', result => '{"id": 7}', token => t.token('a'));
SELECT * FROM t.lease('a');
SELECT idempotency.claim_event('a'), idempotency.event_result('a');
SELECT status FROM idempotency.event_status('a');
SELECT * FROM t.try($$SELECT idempotency.complete_event('a', token => t.token('a'))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.extend_lease('a', t.token('a'))$$);

-- Overdue: the holder goes on until somebody takes the event over
SELECT t.overdue('b');
SELECT idempotency.extend_lease('b', t.token('b')) IS NOT NULL AS extended;
SELECT result FROM t.lease('b');
SELECT idempotency.extend_lease('b', t.token('b'), duration => '1 microsecond') IS NOT NULL AS overdue;
SELECT * FROM t.lease('b');
SELECT * FROM t.try($$SELECT idempotency.complete_event('b', token => t.token('b', 1))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.extend_lease('b', t.token('b', 1))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.assert_lease('b', t.token('b', 1))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.release_lease('b', t.token('b', 1))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.assert_lease('b', 9007199254740993)$$);
SELECT idempotency.complete_event('b', token => t.token('b'));

-- A claim takes an overdue lease over, by completing the event
SELECT t.overdue('c');
BEGIN;
SELECT idempotency.claim_event('c');
SELECT state, detail FROM t.try($$SELECT idempotency.assert_lease('c', t.token('c'))$$);
SELECT idempotency.release_event('c');
COMMIT;
SELECT idempotency.assert_lease('c', t.token('c'));
BEGIN;
SELECT idempotency.claim_event('c');
SELECT idempotency.complete_event('c');
COMMIT;
SELECT state, detail FROM t.try($$SELECT idempotency.complete_event('c', token => t.token('c'))$$);
SELECT result FROM t.lease('c');
-- past the budget of locks a claim cannot
SELECT t.overdue('c2');
BEGIN;
SET LOCAL idempotency.max_claim_locks = 0;
SELECT idempotency.claim_event('c2'), idempotency.claim_event('c2', wait => '1 hour');
SELECT * FROM t.try($$SELECT result FROM t.lease('c3')$$);
SELECT * FROM t.try($$SELECT idempotency.assert_lease('c2', t.token('c2'))$$);
COMMIT;

-- What the next attempt gets
SELECT result FROM t.lease('d');
SELECT idempotency.extend_lease('d', t.token('d'), recovery_point => 'charged', state => '{"charge": 1}') IS NOT NULL AS ok;
SELECT idempotency.extend_lease('d', t.token('d'), state => '{"charge": 2}') IS NOT NULL AS ok;
SELECT idempotency.extend_lease('d', t.token('d'), duration => '1 microsecond') IS NOT NULL AS ok;
SELECT * FROM t.lease('d');
SELECT idempotency.release_lease('d', t.token('d'), error => 'no route', retry_after => '0');
SELECT * FROM t.lease('d');
SELECT state, detail FROM t.try($$SELECT idempotency.assert_lease('d', t.token('d', 2))$$);
-- a clean release gives the attempt back
SELECT idempotency.release_lease('d', t.token('d'));
SELECT state, detail FROM t.try($$SELECT idempotency.assert_lease('d', t.token('d'))$$);
SELECT attempt, recovery_point, state, last_error FROM t.lease('d');
SELECT idempotency.release_lease('d', t.token('d'), retry_after => '1 hour');
SELECT result, has_retry FROM t.lease('d');
SELECT idempotency.claim_event('d');
SELECT result FROM t.lease('e');
SELECT idempotency.release_lease('e', t.token('e'));
SELECT * FROM t.try($$SELECT idempotency.assert_lease('e', t.token('e'))$$);
SELECT idempotency.claim_event('e'), idempotency.complete_event('e');

-- Assert: the lease is the transaction's claim
SELECT result FROM t.lease('f');
BEGIN;
SELECT idempotency.assert_lease('f', t.token('f'));
-- no duplicate: the transaction may commit without completing it
SELECT idempotency.claim_event('f', wait => '1 hour'), (t.lease('f')).result;
SELECT array_agg(result) FROM idempotency.claim_events('{f,f}');
SELECT idempotency.extend_lease('f', t.token('f')) IS NOT NULL AS extended;
SELECT * FROM t.try($$SELECT idempotency.release_event('f')$$);
SELECT idempotency.complete_event('f', result => '1');
SELECT state FROM t.try($$SELECT idempotency.complete_event('f')$$);
SELECT (t.lease('f')).event_result;
COMMIT;
SELECT idempotency.event_result('f');
-- neither completed nor released: nothing happens at COMMIT
SELECT result FROM t.lease('g');
BEGIN;
SELECT idempotency.assert_lease('g', t.token('g'));
SAVEPOINT s;
SELECT idempotency.complete_event('g');
ROLLBACK TO s;
COMMIT;
SELECT state, detail FROM t.try($$SELECT idempotency.complete_event('g')$$);
-- a savepoint undoes it
BEGIN;
SAVEPOINT s;
SELECT idempotency.assert_lease('g', t.token('g'));
ROLLBACK TO s;
SELECT state, detail FROM t.try($$SELECT idempotency.complete_event('g')$$);
SELECT idempotency.complete_events('{}'), idempotency.complete_event('g', token => t.token('g'));
COMMIT;

-- A lease in the transaction that took it, and in savepoints
BEGIN;
SELECT result FROM t.lease('h');
SELECT result, has_retry FROM t.lease('h');
SELECT idempotency.claim_event('h'), idempotency.claim_event('h', wait => '1 hour');
SELECT state, detail FROM t.try($$SELECT idempotency.complete_event('h')$$);
SAVEPOINT s;
SELECT idempotency.complete_event('h', token => t.token('h'));
ROLLBACK TO s;
SELECT idempotency.release_lease('h', t.token('h'), error => 'x', retry_after => '0');
SELECT result FROM t.lease('h');
ROLLBACK;
SELECT result, attempt FROM t.lease('h');
BEGIN;
SAVEPOINT s;
SELECT result FROM t.lease('i');
ROLLBACK TO s;
SELECT idempotency.claim_event('i'), (t.lease('i')).result;
SELECT idempotency.release_event('i');
SELECT result FROM t.lease('i');
COMMIT;

-- Many at once: a repeat is busy, since the event is not done at COMMIT
SELECT idempotency.claim_event('m-done'), idempotency.complete_event('m-done', result => '{"m": 1}');
SELECT ord, event_id, result, token IS NOT NULL AS leased, attempt, event_result
  FROM idempotency.lease_events('{m1,m2,m1,m-done,a}', duration => '1 min', holder => 'batch');
-- as many as the budget of locks lets
SET idempotency.max_claim_locks = 64;
SELECT result, count(*) FROM idempotency.lease_events(ARRAY(SELECT 'n' || i FROM generate_series(1, 200) AS i)) GROUP BY 1 ORDER BY 1;
RESET idempotency.max_claim_locks;
SELECT result, count(*) FROM idempotency.lease_events('{}') GROUP BY 1;

-- Attempts, backoff, dead
SELECT idempotency.consumer_create('mail', lease_duration => '2 min', max_attempts => 3, min_backoff => '1 hour', max_backoff => '90 min');
SELECT consumer, lease_duration, max_attempts, min_backoff, max_backoff FROM idempotency.claim_consumers;
SELECT * FROM t.lease('x', 'mail');
SELECT idempotency.release_lease('x', t.token('x', NULL, 'mail'), 'mail', error => 'first');
SELECT result, retry_after BETWEEN '29 min' AND '1 hour' AS bounded FROM idempotency.lease_event('x', 'mail');
CALL t.overdue_times('y', 'mail', 2);
SELECT idempotency.release_lease('y', t.token('y', NULL, 'mail'), 'mail', error => repeat('é', 1000));
SELECT result, retry_after BETWEEN '44 min' AND '90 min' AS bounded FROM idempotency.lease_event('y', 'mail');
CALL t.overdue_times('z', 'mail', 3);
SELECT * FROM t.lease('z', 'mail');
SELECT * FROM t.lease('z', 'mail');
SELECT idempotency.claim_event('z', 'mail');
SELECT state, detail FROM t.try($$SELECT idempotency.complete_event('z', 'mail', token => t.token('z', NULL, 'mail'))$$);
-- a claim parks it as well
CALL t.overdue_times('z2', 'mail', 3);
SELECT idempotency.claim_event('z2', 'mail');
SELECT result, attempt, last_error FROM t.lease('z2', 'mail');
-- the last attempt fails
CALL t.overdue_times('w', 'mail', 3);
SELECT idempotency.release_lease('w', t.token('w', NULL, 'mail'), 'mail', error => repeat('é', 1000), retry_after => '0');
SELECT result, attempt, octet_length(last_error) FROM t.lease('w', 'mail');
-- the last attempt is given back
CALL t.overdue_times('v', 'mail', 3);
SELECT idempotency.release_lease('v', t.token('v', NULL, 'mail'), 'mail');
SELECT result, attempt FROM t.lease('v', 'mail');
SELECT idempotency.release_lease('v', t.token('v', NULL, 'mail'), 'mail', park => true);
SELECT result, attempt, last_error FROM t.lease('v', 'mail');
-- a consumer without a limit
SELECT idempotency.release_lease('m-park', (idempotency.lease_event('m-park')).token, error => 'poison', park => true);
SELECT result, last_error FROM t.lease('m-park');
SELECT idempotency.consumer_drop('mail');

-- Too old
SELECT result FROM t.lease('old', valid_until => '-infinity');
SELECT result FROM t.lease('old', valid_until => 'infinity');
SELECT result FROM t.lease('a', valid_until => '-infinity');

-- by the age of the id; not what is completed, whatever its age, nor what is no canonical uuid
SELECT idempotency.consumer_create('aged', retention => '1 hour');
CREATE FUNCTION t.uuid7(age interval) RETURNS text LANGUAGE sql AS $$
	SELECT substr(n, 1, 8) || '-' || substr(n, 9, 4) || '-7000-8000-00000000000a' FROM lpad(to_hex((extract(epoch FROM clock_timestamp() - age) * 1000)::bigint), 12, '0') n $$;
SELECT t.uuid7('2 hours') AS old, t.uuid7('30 min') AS young, t.uuid7('-1 hour') AS future \gset
SELECT result FROM t.lease(:'old', 'aged');
SELECT idempotency.complete_event(:'old', 'aged', token => t.token(:'old', NULL, 'aged'));
SELECT result FROM t.lease(left(:'old', 35) || 'e', 'aged', '1 microsecond');
SELECT idempotency.consumer_alter('aged', expire_by_id_age => true);
SELECT result FROM t.lease(:'old', 'aged');
-- a lease that nobody holds on to is given out no more
SELECT result FROM t.lease(left(:'old', 35) || 'e', 'aged');
SELECT result, attempt FROM t.lease(left(:'old', 35) || 'e', 'aged', valid_until => 'infinity');
SELECT result FROM t.lease(upper(:'old'), 'aged');
SELECT result FROM t.lease(left(:'old', 35) || 'b', 'aged');
SELECT result FROM t.lease(:'young', 'aged');
SELECT result FROM t.lease(:'future', 'aged');
SELECT ord, result FROM idempotency.lease_events(ARRAY[left(:'old', 35) || 'c', left(:'young', 35) || 'c', :'old'], 'aged');
SELECT result FROM idempotency.claim_request(left(:'old', 35) || 'd', 's', consumer => 'aged', lease => '1 hour');
SELECT result FROM t.lease('edge', valid_until => clock_timestamp() + '1 hour');
SELECT result FROM t.lease('edge 2', valid_until => clock_timestamp());
SELECT idempotency.consumer_drop('aged');

-- Other ways to complete, and to forget
SELECT * FROM t.try($$SELECT idempotency.claims_import('default', '{old}')$$);
SELECT idempotency.forget_event('old'), idempotency.forget_event('a');
SELECT result, attempt FROM t.lease('a');

-- A uuid is its canonical text
SELECT result FROM idempotency.lease_event('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid);
SELECT result FROM t.lease('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11');
SELECT state FROM t.try($$SELECT idempotency.extend_lease('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, 1)$$);
SELECT state FROM t.try($$SELECT idempotency.assert_lease('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, 1)$$);
SELECT state FROM t.try($$SELECT idempotency.release_lease('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, 1)$$);
SELECT state FROM t.try($$SELECT idempotency.complete_event('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid, token => 1)$$);

-- Misuse
SELECT idempotency.consumer_create('foreign', foreign_lockers => true);
CREATE TABLE t.misuse (ord serial, call text);
INSERT INTO t.misuse (call) VALUES
	($$lease_event(NULL::text)$$), ($$lease_event('')$$), ($$lease_event(repeat('x', 1025))$$), ($$lease_event(NULL::uuid)$$),
	($$lease_event('p', NULL)$$), ($$lease_event('p', '')$$), ($$lease_event('p', repeat('x', 256))$$), ($$lease_event('p', '@relay')$$),
	($$lease_event('p', 'foreign')$$), ($$lease_events('{p}', 'foreign')$$),
	($$lease_event('p', duration => '0')$$), ($$lease_event('p', duration => '-1 s')$$), ($$lease_event('p', duration => '367 days')$$),
	($$lease_event('p', duration => '178000000 years')$$), ($$lease_event('p', duration => '1 month -40 days')$$),
	($$lease_event('p', holder => '')$$), ($$lease_event('p', holder => repeat('x', 256))$$),
	($$lease_event('p', wait => NULL)$$), ($$lease_event('p', wait => '-1 s')$$),
	($$lease_events(NULL)$$), ($$lease_events('{p,NULL}')$$), ($$lease_events('{{p}}')$$), ($$lease_events('{p,""}')$$),
	($$lease_events(ARRAY[repeat('x', 1025)])$$), ($$lease_events('{p}', NULL)$$), ($$lease_events('{p}', duration => '0')$$),
	($$extend_lease('i', NULL)$$), ($$extend_lease(NULL::text, 1)$$), ($$extend_lease('i', 1, NULL)$$), ($$extend_lease('i', 1, duration => '-1 us')$$),
	($$extend_lease('i', 1, recovery_point => '')$$), ($$extend_lease('i', 1, recovery_point => repeat('x', 256))$$),
	($$extend_lease('i', 1, state => to_jsonb(repeat('x', 1048576)))$$), ($$extend_lease('i', -1)$$), ($$extend_lease('none', 1)$$),
	($$assert_lease('i', NULL)$$), ($$assert_lease('', 1)$$), ($$assert_lease('i', 0)$$),
	($$release_lease('i', NULL)$$), ($$release_lease('i', 1, park => NULL)$$), ($$release_lease('i', 1, error => '')$$),
	($$release_lease('i', 1, retry_after => '-1 s')$$), ($$release_lease('i', 1, retry_after => '1000 years')$$),
	($$release_lease('i', 1, retry_after => '1 s', park => true)$$), ($$complete_event('i', token => 0)$$),
	($$consumer_create('c', max_attempts => -1)$$), ($$consumer_create('c', lease_duration => '0')$$), ($$consumer_create('c', min_backoff => '-1 s')$$),
	($$consumer_create('c', max_backoff => '367 days')$$), ($$consumer_create('c', lease_duration => '1 year -366 days')$$), ($$consumer_create('c', min_backoff => '10 min')$$), ($$consumer_create('c', max_attempts => NULL)$$),
	($$consumer_alter('foreign', max_backoff => '1 ms')$$);
SELECT substr(call, 1, 60) AS call, t.state, t.message FROM t.misuse, t.try('SELECT idempotency.' || call) AS t ORDER BY ord;
SELECT idempotency.consumer_drop('foreign');
-- nor does a consumer with leases get foreign lockers
SELECT idempotency.consumer_create('brief');
SELECT result FROM t.lease('e', 'brief', '1 microsecond');
SELECT result FROM t.lease('e', 'unregistered', '1 hour');
SELECT result FROM idempotency.claim_request('e', 's', consumer => 'asked', lease => '1 hour');
SELECT * FROM t.try($$SELECT idempotency.consumer_alter('brief', foreign_lockers => true)$$);
SELECT state, message FROM t.try($$SELECT idempotency.consumer_create('unregistered', foreign_lockers => true)$$);
SELECT idempotency.consumer_alter('brief', max_attempts => 5), idempotency.consumer_create('asked', foreign_lockers => true);
SELECT idempotency.release_lease('e', t.token('e', NULL, 'brief'), 'brief', retry_after => '1 hour'),
	idempotency.complete_event('e', 'unregistered', token => t.token('e', NULL, 'unregistered'));
SELECT idempotency.consumer_alter('brief', foreign_lockers => true), idempotency.consumer_create('unregistered', foreign_lockers => true);
SELECT idempotency.consumer_drop(c) FROM unnest('{brief,unregistered,asked}'::text[]) c;
BEGIN READ ONLY;
SELECT state FROM t.try($$SELECT idempotency.lease_event('ro')$$);
SELECT state FROM t.try($$SELECT idempotency.extend_lease('i', 1)$$);
SELECT state FROM t.try($$SELECT idempotency.assert_lease('i', 1)$$);
SELECT state FROM t.try($$SELECT idempotency.release_lease('i', 1)$$);
COMMIT;

-- The log is short, whatever is extended: the tables take turns
SELECT result FROM t.lease('long', duration => '1 day');
DO $$
BEGIN
	FOR i IN 1 .. 30 LOOP
		PERFORM idempotency.extend_lease('long', t.token('long'), state => to_jsonb(i)) FROM generate_series(1, 1000);
		COMMIT;
	END LOOP;
END $$;
-- until the background worker has caught up
DO $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	WHILE (SELECT sum(pg_relation_size(c.oid)) FROM pg_class AS c WHERE c.relname ~ '^lease_log_\d$') > 3 * 1024 * 1024 LOOP
		IF clock_timestamp() > started + '3 min' THEN RAISE EXCEPTION 'the log of leases is long'; END IF;
		PERFORM idempotency.extend_lease('long', t.token('long')) FROM generate_series(1, 100);
		COMMIT;
	END LOOP;
END $$;
-- So it is if the states are large
DO $$
DECLARE
	token bigint := t.token('long');
	large jsonb := (SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 28000) AS i);
	started timestamptz := clock_timestamp();
BEGIN
	FOR i IN 1 .. 120 LOOP
		PERFORM idempotency.extend_lease('long', token, state => large);
		COMMIT;
	END LOOP;
	WHILE (SELECT sum(pg_table_size(c.oid)) FROM pg_class AS c WHERE c.relname ~ '^lease_log_\d$') > 80 * 1024 * 1024 LOOP
		IF clock_timestamp() > started + '3 min' THEN RAISE EXCEPTION 'the log of leases is long'; END IF;
		-- this asks for a worker again, if no process was free
		PERFORM idempotency.extend_lease('long', token, state => large), pg_sleep(0.5);
		COMMIT;
	END LOOP;
END $$;
-- What hundreds of refusals have looked at is not kept until the call ends
CREATE FUNCTION t.peak_mb() RETURNS int LANGUAGE sql AS
	$$SELECT substring(pg_read_file('/proc/' || pg_backend_pid() || '/status') FROM 'VmHWM:\s+(\d+) kB')::int / 1024$$;
SELECT idempotency.extend_lease('long', t.token('long'), duration => '1 day', state =>
	(SELECT to_jsonb(string_agg(md5(i::text), '')) FROM generate_series(1, 28000) AS i)) IS NOT NULL AS large;
SELECT t.peak_mb() AS peak \gset
SELECT result, count(*) FROM idempotency.lease_events(array_fill('long'::text, '{1000}')) GROUP BY 1;
SELECT result, count(*) FROM idempotency.claim_events(ARRAY(SELECT 'long' FROM generate_series(1, 100))) GROUP BY 1;
SELECT t.peak_mb() - :peak < 200 AS little;
SELECT idempotency.extend_lease('long', t.token('long'), duration => '1 microsecond', state => '30') IS NOT NULL AS overdue;
SELECT attempt, recovery_point, state FROM t.lease('long');
SELECT result, attempt FROM t.lease('d');
SELECT result, last_error FROM t.lease('m-park');
DROP SCHEMA t CASCADE;
