--
-- Requests: verdicts, the three ends, recovery points, attempts, scopes, savepoints.
--
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
-- The tokens of requests: each token is known by the order in which it was seen.
CREATE TABLE t.tokens (key text, scope text, consumer text, n int, token bigint, PRIMARY KEY (key, scope, consumer, n));
CREATE FUNCTION t.token(key text, nth int = NULL, scope text = 's', consumer text = 'default') RETURNS bigint LANGUAGE sql AS $$
	SELECT token FROM t.tokens WHERE tokens.key = token.key AND tokens.scope = token.scope AND tokens.consumer = token.consumer
		AND n <= coalesce(nth, n) ORDER BY n DESC LIMIT 1 $$;
-- What claim_request says: the columns that are set, with times as what they are between
CREATE FUNCTION t.ask(key text, scope text = 's', fingerprint bytea = NULL, consumer text = 'default', lease interval = NULL, request jsonb = NULL)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	a record := idempotency.claim_request(key, scope, fingerprint, consumer, lease, request => request);
BEGIN
	IF a.token IS NOT NULL THEN
		IF a.token <= t.token(key, NULL, scope, consumer) THEN RAISE EXCEPTION 'token fell'; END IF;
		INSERT INTO t.tokens SELECT ask.key, ask.scope, ask.consumer, 1 + count(*), a.token FROM t.tokens
			WHERE tokens.key = ask.key AND tokens.scope = ask.scope AND tokens.consumer = ask.consumer;
	END IF;
	RETURN concat_ws(' ', a.result, CASE WHEN a.token IS NOT NULL THEN 'token' END, 'attempt ' || a.attempt, 'at ' || a.recovery_point, a.state, a.status, a.headers,
		'body ' || convert_from(a.body, 'UTF8'), CASE WHEN a.completed_at <= clock_timestamp() THEN 'completed' END,
		'expires after ' || extract(epoch FROM a.expires_at - a.completed_at)::int / 3600 || ' h',
		CASE WHEN a.retry_after = '0' THEN 'retry now' WHEN a.retry_after <= '1 min' THEN 'retry in a minute' WHEN a.retry_after > '1 min' THEN 'retry later' END);
END $$;
CREATE FUNCTION t.complete(key text, body text, scope text = 's', consumer text = 'default', token bigint = NULL) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idempotency.complete_request(key, scope, 200, body => convert_to(body, 'UTF8'), consumer => consumer, token => token);
	RETURN 'completed';
END $$;
-- The state of an error, its message and its detail
CREATE FUNCTION t.try(command text, OUT state text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command INTO message;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
	state := sqlstate;
END $$;
CREATE FUNCTION t.pass(us int = 2) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	WHILE clock_timestamp() <= started + us * interval '1 us' LOOP END LOOP;
END $$;
-- Executions that vanished: leases of a microsecond, each in a transaction of its own
CREATE PROCEDURE t.abandon(key text, n int = 1, consumer text = 'default', fingerprint bytea = NULL) LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. n LOOP
		PERFORM t.ask(key, 's', fingerprint, consumer, '1 us'), t.pass();
		COMMIT;
	END LOOP;
END $$;

-- In one transaction: started, executed, answered; a repeat is answered
BEGIN;
SELECT t.ask('one');
SELECT idempotency.complete_request('one', 's', 201, '{"Content-Type": "text/plain"}', 'made');
COMMIT;
SELECT t.ask('one');
SELECT t.ask('one', lease => '1 min');
SELECT result, token, attempt, recovery_point, state, retry_after, expires_at FROM idempotency.claim_request('one', 's');
-- not ended: COMMIT is refused, and nothing is left
BEGIN;
SELECT t.ask('open');
\set VERBOSITY default
COMMIT;
\set VERBOSITY terse
SELECT t.ask('open'), t.complete('open', 'x');
-- rolled back: nothing is left, and it is not an attempt
BEGIN;
SELECT t.ask('back'), t.complete('back', 'x');
ROLLBACK;
SELECT t.ask('back'), t.complete('back', 'y');
SELECT t.ask('back');
-- an end that nothing was started for
SELECT * FROM t.try($$SELECT idempotency.complete_request('none', 's', 200)$$);
SELECT * FROM t.try($$SELECT idempotency.fail_request('none', 's', 'e')$$);
SELECT * FROM t.try($$SELECT idempotency.release_request('none', 's')$$);
SELECT * FROM t.try($$SELECT idempotency.complete_request('one', 's', 200)$$);
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('one', 's', 200, token => 1)$$);
SELECT state, detail FROM t.try($$SELECT idempotency.advance_request('none', 's', 1, 'p')$$);

-- Repeats of the same transaction, in the same statement too
BEGIN;
SELECT t.ask('own'), t.ask('own'), t.complete('own', 'x'), t.ask('own');
SELECT t.ask('own'), t.ask('own', lease => '1 min'), t.ask('own', fingerprint => '\x01');
SELECT * FROM t.try($$SELECT idempotency.complete_request('own', 's', 200)$$);
SELECT state FROM t.try($$SELECT idempotency.release_request('own', 's')$$);
SELECT state FROM t.try($$SELECT idempotency.fail_request('own', 's', 'e')$$);
-- nobody waits for oneself
SELECT t.ask('own 2'), (idempotency.claim_request('own 2', 's', wait => '1 hour')).result;
SELECT t.complete('own 2', 'y');
SELECT t.ask('own 3', lease => '1 hour'), t.ask('own 3'), t.ask('own 3', lease => '1 min'), (idempotency.claim_request('own 3', 's', wait => '1 hour')).result;
SELECT * FROM t.try($$SELECT idempotency.complete_request('own 3', 's', 200)$$);
-- The consumer was left out, which the started request names
SELECT (idempotency.claim_request('own 4', 's', consumer => 'other')).result;
DO $$
DECLARE
	detail text;
	hint text;
BEGIN
	PERFORM idempotency.complete_request('own 4', 's', 200);
EXCEPTION WHEN SQLSTATE 'ID002' THEN
	GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	RAISE WARNING '% / %', detail, hint;
END $$;
SELECT idempotency.complete_request('own 4', 's', 200, consumer => 'other');
COMMIT;
SELECT t.ask('own'), t.ask('own 2'), t.ask('own 3');
SELECT n, t.ask('many'), CASE n WHEN 2 THEN t.complete('many', 'z') END FROM generate_series(1, 4) n;

-- REPEATABLE READ: the transaction sees what it has stored itself
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT t.ask('one');
SELECT t.ask('rr'), t.complete('rr', 'x'), t.ask('rr');
SELECT t.ask('rr');
SAVEPOINT a;
SELECT t.ask('rr 2'), t.complete('rr 2', 'x'), t.ask('rr 2');
ROLLBACK TO a;
SELECT t.ask('rr 2', lease => '1 hour');
COMMIT;
SELECT t.ask('rr'), t.ask('rr 2');

-- With a lease: in several transactions
SELECT t.ask('lease', lease => '1 hour', request => '{"path": "/"}');
SELECT t.ask('lease'), t.ask('lease', lease => '1 hour');
SELECT * FROM t.try($$SELECT idempotency.complete_request('lease', 's', 200)$$);
SELECT idempotency.advance_request('lease', 's', t.token('lease'), 'charged', state => '{"charge": 1}') - now() BETWEEN '29 s' AND '31 s' AS lasts;
SELECT t.ask('lease');
SELECT idempotency.advance_request('lease', 's', t.token('lease'), 'mailed', lease => '10 min') - now() BETWEEN '9 min' AND '11 min' AS lasts;
SELECT t.ask('lease');
-- another token
SELECT * FROM t.try($$SELECT idempotency.advance_request('lease', 's', t.token('lease') + 1, 'p')$$);
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('lease', 's', 200, token => t.token('lease') - 1)$$);
SELECT state, detail FROM t.try($$SELECT idempotency.fail_request('lease', 's', 'e', token => 0)$$);
SELECT state, detail FROM t.try($$SELECT idempotency.release_request('lease', 's', token => -1)$$);
-- of another scope
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('lease', 'S', 200, token => t.token('lease'))$$);
SELECT t.complete('lease', 'done', token => t.token('lease'));
SELECT t.ask('lease');
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('lease', 's', 200, token => t.token('lease'))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.advance_request('lease', 's', t.token('lease'), 'p')$$);

-- The lease is over: the next attempt goes on at the recovery point, and the former
-- holder has lost it
CALL t.abandon('over');
SELECT idempotency.advance_request('over', 's', t.token('over'), 'half', state => '[1]', lease => '1 us') IS NOT NULL AS advanced, t.pass();
SELECT t.ask('over', lease => '1 us'), t.pass();
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('over', 's', 200, token => t.token('over', 1))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.advance_request('over', 's', t.token('over', 1), 'p')$$);
SELECT state, detail FROM t.try($$SELECT idempotency.fail_request('over', 's', 'e', token => t.token('over', 1))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.release_request('over', 's', token => t.token('over', 1))$$);
-- an overdue holder completes as long as nobody has taken over
SELECT t.complete('over', 'late', token => t.token('over')), t.ask('over');
-- one transaction takes over what a lease has begun, and gives it up
CALL t.abandon('taken');
SELECT idempotency.advance_request('taken', 's', t.token('taken'), 'half', lease => '1 us') IS NOT NULL AS advanced, t.pass();
BEGIN;
SELECT t.ask('taken');
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('taken', 's', 200, token => t.token('taken'))$$);
ROLLBACK;
BEGIN;
SELECT t.ask('taken'), idempotency.release_request('taken', 's');
SELECT t.ask('taken'), t.complete('taken', 'x');
COMMIT;
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('taken', 's', 200, token => t.token('taken'))$$);
SELECT t.ask('taken');

-- Advancing makes the lease the claim of the transaction
SELECT t.ask('claim', lease => '1 hour');
BEGIN;
SELECT idempotency.advance_request('claim', 's', t.token('claim'), 'p') IS NOT NULL AS advanced;
SELECT t.ask('claim');
SELECT t.complete('claim', 'x');
SELECT t.ask('claim');
COMMIT;
SELECT t.ask('claim');
-- which need not end with it
SELECT t.ask('claim 2', lease => '1 hour');
BEGIN;
SELECT idempotency.advance_request('claim 2', 's', t.token('claim 2'), 'p') IS NOT NULL AS advanced;
COMMIT;
SELECT state, detail FROM t.try($$SELECT idempotency.release_request('claim 2', 's')$$);
BEGIN;
SELECT idempotency.advance_request('claim 2', 's', t.token('claim 2'), 'q') IS NOT NULL AS advanced;
SELECT idempotency.fail_request('claim 2', 's', 'no route', retry_after => '0');
COMMIT;
SELECT t.ask('claim 2', lease => '1 hour');

-- Failing: a pause, then another attempt; a transaction without a lease fails likewise
SELECT t.ask('fail'), idempotency.fail_request('fail', 's', 'broken', retry_after => '1 hour');
SELECT t.ask('fail');
SELECT t.ask('fail 2'), idempotency.fail_request('fail 2', 's', 'broken', retry_after => '0');
SELECT t.ask('fail 2'), idempotency.fail_request('fail 2', 's', 'broken again', retry_after => '0');
SELECT t.ask('fail 2', lease => '1 hour');
SELECT idempotency.fail_request('fail 2', 's', 'third', token => t.token('fail 2'));
SELECT t.ask('fail 2');
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('fail 2', 's', 200, token => t.token('fail 2'))$$);
-- in the transaction that failed, nothing more
BEGIN;
SELECT t.ask('fail 3'), idempotency.fail_request('fail 3', 's', 'x', retry_after => '0'), t.ask('fail 3');
SELECT * FROM t.try($$SELECT idempotency.complete_request('fail 3', 's', 200)$$);
COMMIT;
BEGIN;
SELECT t.ask('fail 3');
ROLLBACK;
SELECT t.ask('fail 3'), t.complete('fail 3', 'x');

-- The backoff doubles, and has an end
SELECT idempotency.consumer_create('slow', min_backoff => '10 s', max_backoff => '30 s');
CREATE FUNCTION t.fail(key text, consumer text, OUT verdict text, OUT state text, OUT pause numeric) LANGUAGE plpgsql AS $$
BEGIN
	verdict := t.ask(key, consumer => consumer, lease => '1 hour');
	state := idempotency.fail_request(key, 's', 'e', consumer, t.token(key, consumer => consumer));
END $$;
CREATE FUNCTION t.pause(key text, consumer text) RETURNS interval LANGUAGE sql AS
	$$SELECT retry_after FROM idempotency.claim_request(key, 's', consumer => consumer)$$;
SELECT verdict, state FROM t.fail('b', 'slow');
SELECT t.pause('b', 'slow') BETWEEN '1 s' AND '10 s' AS pause;
SELECT idempotency.consumer_alter('slow', min_backoff => '10 min', max_backoff => '30 min');
SELECT verdict, state FROM t.fail('b2', 'slow');
SELECT t.pause('b2', 'slow') BETWEEN '4 min' AND '10 min' AS pause;
SELECT t.ask('b3', consumer => 'slow'), idempotency.fail_request('b3', 's', 'e', 'slow');
SELECT t.pause('b3', 'slow') BETWEEN '4 min' AND '10 min' AS pause;
CALL t.abandon('b4', 6, 'slow');
SELECT verdict, state FROM t.fail('b4', 'slow');
SELECT t.pause('b4', 'slow') BETWEEN '14 min' AND '30 min' AS pause;

-- max_attempts: the last attempt is followed by none, however it ended
SELECT idempotency.consumer_create('once', max_attempts => 1, lease_duration => '5 min'), idempotency.consumer_create('twice', max_attempts => 2);
SELECT t.ask('k', consumer => 'once', lease => '1 us'), t.pass();
SELECT t.ask('k', consumer => 'once', lease => '1 min');
SELECT t.ask('k', consumer => 'once');
SELECT state, detail FROM t.try($$SELECT idempotency.complete_request('k', 's', 200, consumer => 'once', token => t.token('k', consumer => 'once'))$$);
SELECT t.ask('k 2', consumer => 'once'), idempotency.fail_request('k 2', 's', 'e', 'once');
SELECT t.ask('k 2', consumer => 'once');
SELECT t.ask('k 3', consumer => 'once', lease => '1 min'), idempotency.fail_request('k 3', 's', 'e', 'once', t.token('k 3', consumer => 'once'));
SELECT t.ask('k 3', consumer => 'once', lease => '1 min');
SELECT t.ask('k 3', consumer => 'once', lease => '1 min', fingerprint => '\x01');
-- what was given back is no attempt
SELECT t.ask('k 4', consumer => 'once', lease => '1 min');
SELECT idempotency.release_request('k 4', 's', 'once', t.token('k 4', consumer => 'once'));
SELECT t.ask('k 4', consumer => 'once', lease => '1 min');
SELECT verdict, state FROM t.fail('k', 'twice');
CALL t.abandon('k 5', 2, 'twice');
SELECT t.ask('k 5', consumer => 'twice');
BEGIN;
SELECT t.ask('k 5', consumer => 'twice');
ROLLBACK;
SELECT t.ask('k 5', consumer => 'twice');

-- An operator has dead requests of a scope tried again, or answered without an answer
CREATE PROCEDURE t.kill(key text, scope text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM t.ask(key, scope, '\x01', 'once'), idempotency.fail_request(key, scope, 'e', 'once');
	COMMIT;
END $$;
CALL t.kill('d1', 'a');
CALL t.kill('d2', 'a');
CALL t.kill('d1', 'b');
SELECT idempotency.consumer_redrive('once', '{d1}'), idempotency.consumer_redrive('once', '{d1}', 'c'), idempotency.consumer_redrive('once', '{d1,none}', 'a');
SELECT t.ask('d1', 'a', '\x02', 'once'), t.ask('d1', 'b', '\x01', 'once');
SELECT t.ask('d1', 'a', '\x01', 'once'), t.complete('d1', 'x', 'a', 'once');
SELECT idempotency.consumer_discard('once', scope => 'a'), t.ask('d2', 'a', '\x02', 'once'), t.ask('d1', 'b', '\x01', 'once');
SELECT t.ask('d2', 'a', '\x01', 'once');
-- without a scope: all of the consumer, of requests too
SELECT idempotency.consumer_discard('once');
SELECT t.ask('d1', 'b', '\x01', 'once'), t.ask('k', consumer => 'once');
SELECT idempotency.consumer_redrive('once');

-- Releasing: the key is free, for another payload too
SELECT t.ask('free', fingerprint => '\x01'), idempotency.release_request('free', 's');
SELECT t.ask('free', fingerprint => '\x02', lease => '1 hour');
SELECT idempotency.release_request('free', 's', token => t.token('free'));
SELECT state, detail FROM t.try($$SELECT idempotency.release_request('free', 's', token => t.token('free'))$$);
SELECT t.ask('free', fingerprint => '\x03'), t.complete('free', 'x');
BEGIN;
SELECT t.ask('free 2', fingerprint => '\x01'), idempotency.release_request('free 2', 's'), t.ask('free 2', fingerprint => '\x02');
SELECT idempotency.release_request('free 2', 's'), t.ask('free 2', fingerprint => '\x03', lease => '1 hour');
COMMIT;
SELECT t.ask('free 2', fingerprint => '\x02'), t.ask('free 2', fingerprint => '\x03');
-- a former attempt began: its payload stays the request's
CALL t.abandon('began', fingerprint => '\x01');
SELECT t.ask('began', lease => '1 hour'), idempotency.release_request('began', 's', token => t.token('began'));
SELECT t.ask('began', fingerprint => '\x02', lease => '1 hour');
SELECT t.ask('began', fingerprint => '\x01', lease => '1 hour'), idempotency.advance_request('began', 's', t.token('began'), 'p') IS NOT NULL AS advanced,
	idempotency.release_request('began', 's', token => t.token('began'));
SELECT t.ask('began', fingerprint => '\x02', lease => '1 hour'), t.ask('began', fingerprint => '\x01', lease => '1 hour');
-- and it does so after a redrive, which gives the attempts back
SELECT t.ask('redriven', 's', '\x01', 'once', '1 us', '{"path": "/a"}'), t.pass();
SELECT t.ask('redriven', 's', '\x01', 'once'), idempotency.consumer_redrive('once', '{redriven}', 's');
SELECT t.ask('redriven', 's', '\x02', 'once'), t.ask('redriven', 's', '\x01', 'once', '1 hour');
SELECT idempotency.release_request('redriven', 's', 'once', t.token('redriven', consumer => 'once'));
SELECT t.ask('redriven', 's', '\x02', 'once', '1 hour');
SELECT state, attempt, request FROM idempotency.requests WHERE key = 'redriven';
SELECT t.ask('redriven', 's', '\x01', 'once', '1 hour'),
	idempotency.complete_request('redriven', 's', 200, consumer => 'once', token => t.token('redriven', consumer => 'once'));

-- Scopes and consumers: names that look alike are different requests
CREATE TABLE t.names (n serial, key text, scope text, consumer text);
INSERT INTO t.names (key, scope, consumer) VALUES ('bc', 'a', 'x'), ('c', 'ab', 'x'), ('abc', 'x', 'default'), ('a', 'bc', 'x'), ('c', 'b', 'xa'),
	('k', 's', 'x:y'), ('k', 'y:s', 'x'), ('y:k', 's', 'x'), ('k', 's', 'x/y'), ('y/k', 's', 'x'), ('k', 'y/s', 'x'), ('k', 's', 'x@y'), ('k', 'y@s', 'x'),
	('k', '@s', 'x'), ('@k', 's', 'x'), ('k', 's', 'X'), ('k', 'S', 'x'), ('K', 's', 'x'), ('k', 's ', 'x'), ('k ', 's', 'x'), (' k', 's', 'x'), ('k', 's', 'x'),
	('k', 's', 'default'), ('s', 'default', 'default'), ('k', 'default', 's'), ('default', 's', 'k'), ('\0k', 's', 'x'), ('0k', 's\', 'x'),
	('k', repeat('x', 255), repeat('y', 255)), (repeat('k', 1024), repeat('x', 255), repeat('y', 255)), (repeat('k', 1023), repeat('x', 255), repeat('y', 255)),
	(repeat('é', 512), repeat('é', 127), repeat('ü', 127)), (E'a\tb\nc', E'\r\n', 'Z'), ('"', '''', '{}');
SELECT count(*), count(DISTINCT (key, scope, consumer)) FROM t.names;
SELECT t.ask(key, scope, NULL, consumer) AS verdict, count(*), sum(length(t.complete(key, n::text, scope, consumer))) / 9 AS completed FROM t.names GROUP BY 1;
SELECT count(*) FROM t.names WHERE t.ask(key, scope, NULL, consumer) = '' || 'replay 200 body ' || n || ' completed';
DELETE FROM t.names WHERE octet_length(key) = 1024;
SELECT count(*) FROM t.names WHERE t.ask(key || '!', scope, NULL, consumer, '1 hour') = 'started token attempt 1';
SELECT count(*) FROM t.names WHERE t.complete(key || '!', n::text, scope, consumer, t.token(key || '!', NULL, scope, consumer)) = 'completed';
SELECT count(*) FROM t.names WHERE t.ask(key || '!', scope, NULL, consumer) = 'replay 200 body ' || n || ' completed';

-- A request and an event of equal names do not meet
BEGIN;
SELECT t.ask('e', 'c'), idempotency.claim_event('e', 'c'), idempotency.claim_event('e'), idempotency.claim_event('c'), t.ask('e', 'default'), t.ask('e', 'c', NULL, 'c');
SELECT idempotency.complete_event('e', 'c'), idempotency.release_event('e'), idempotency.complete_event('c');
SELECT t.complete('e', 'request', 'c'), idempotency.release_request('e', 'default'), idempotency.fail_request('e', 'c', 'x', 'c', retry_after => '0');
COMMIT;
SELECT t.ask('e', 'c'), idempotency.claim_event('e', 'c'), idempotency.event_result('e', 'c'), t.ask('c', 'e'), t.complete('c', 'x', 'e');
SELECT status FROM unnest('{e,c}'::text[]) AS id, unnest('{c,default}'::text[]) AS consumer, idempotency.event_status(id, consumer) ORDER BY id, consumer;
SELECT t.ask('f', 'c', NULL, 'mail', '1 hour'), (idempotency.lease_event('f', 'mail')).result, (idempotency.lease_event('c', 'mail')).result;
SELECT state, detail FROM t.try($$SELECT idempotency.complete_event('f', 'mail', token => t.token('f', 1, 'c', 'mail'))$$);
SELECT state, detail FROM t.try($$SELECT idempotency.assert_lease('f', t.token('f', 1, 'c', 'mail'), 'mail')$$);
SELECT idempotency.consumer_redrive('mail', '{f}'), idempotency.forget_event('e'), idempotency.forget_event('e', 'c');
SELECT t.ask('e', 'c');
SELECT consumer, event_id, result FROM idempotency.processed_events WHERE event_id IN ('one', 'lease', 'e', 'c') OR consumer LIKE '@%' ORDER BY 1, 2;
-- also where events of the consumer exclude foreign clients
SELECT idempotency.consumer_create('foreign', foreign_lockers => true), idempotency.consumer_create('private', private_locks => true);
SELECT t.ask('k', 's', NULL, c), t.ask('k 2', 's', NULL, c, '1 hour'), t.complete('k', 'x', 's', c), t.complete('k 2', 'x', 's', c, t.token('k 2', NULL, 's', c))
  FROM unnest('{foreign,private}'::text[]) c;
-- the lock is private always: no SQL function sees it taken
BEGIN;
SELECT t.ask('locked'), t.ask('locked', lease => '1 min');
SELECT DISTINCT objsubid NOT IN (1, 2) AS private, mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;

-- Savepoints
BEGIN;
SAVEPOINT a;
SELECT t.ask('sp', fingerprint => '\x01');
ROLLBACK TO a;
SELECT state FROM t.try($$SELECT idempotency.complete_request('sp', 's', 200)$$);
SELECT t.ask('sp', fingerprint => '\x02');
SAVEPOINT b;
SELECT t.complete('sp', 'undone');
SELECT t.ask('sp');
ROLLBACK TO b;
SELECT t.ask('sp'), t.ask('sp', fingerprint => '\x01');
SAVEPOINT c;
SELECT idempotency.release_request('sp', 's'), t.ask('sp', fingerprint => '\x03');
ROLLBACK TO c;
SAVEPOINT d;
SELECT idempotency.fail_request('sp', 's', 'undone');
ROLLBACK TO d;
SAVEPOINT e;
SELECT t.ask('sp lease', lease => '1 hour'), t.ask('sp 2'), t.complete('sp 2', 'x');
RELEASE e;
SELECT t.complete('sp', 'kept');
COMMIT;
SELECT t.ask('sp', fingerprint => '\x02'), t.ask('sp', fingerprint => '\x01'), t.ask('sp lease'), t.ask('sp 2');
BEGIN;
SAVEPOINT a;
SELECT idempotency.advance_request('sp lease', 's', t.token('sp lease'), 'undone') IS NOT NULL AS advanced;
ROLLBACK TO a;
SELECT state FROM t.try($$SELECT idempotency.complete_request('sp lease', 's', 200)$$);
SAVEPOINT b;
SELECT t.complete('sp lease', 'undone', token => t.token('sp lease'));
ROLLBACK TO b;
SELECT t.ask('sp lease');
SELECT idempotency.fail_request('sp lease', 's', 'e', token => t.token('sp lease'), retry_after => '0');
COMMIT;
SELECT t.ask('sp lease', lease => '1 hour');
-- the effect failed; its answer is stored all the same
CREATE TABLE t.effects (id int CHECK (id > 0));
BEGIN;
SELECT t.ask('failed');
SAVEPOINT effect;
INSERT INTO t.effects VALUES (1), (0);
ROLLBACK TO effect;
SELECT idempotency.complete_request('failed', 's', 500, body => 'it failed');
COMMIT;
SELECT t.ask('failed'), (SELECT count(*) FROM t.effects) AS effects;
-- PL/pgSQL blocks are savepoints
DO $$
BEGIN
	PERFORM t.ask('block');
	BEGIN
		PERFORM t.complete('block', 'undone'), t.ask('inner'), 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
	END;
	RAISE WARNING 'block %, inner %', t.ask('block'), t.ask('inner');
	PERFORM idempotency.release_request('inner', 's'), t.complete('block', 'caught');
END $$;
SELECT t.ask('block'), t.ask('inner'), t.complete('inner', 'x');
-- Cursors: what the fetches inside of the savepoint did is undone
BEGIN;
DECLARE c CURSOR FOR SELECT t.ask('cursor ' || n), t.complete('cursor ' || n, 'x') FROM generate_series(1, 3) n;
FETCH c;
SAVEPOINT a;
FETCH c;
ROLLBACK TO a;
COMMIT;
SELECT n, t.ask('cursor ' || n), (idempotency.claim_request('cursor ' || n, 's')).result FROM generate_series(1, 1) n;
SELECT t.ask('cursor 2'), t.complete('cursor 2', 'x');

-- The budget of locks
SET idempotency.max_claim_locks = 1;
BEGIN;
SELECT t.ask('budget 1'), t.ask('budget 1'), t.ask('one');
SELECT * FROM t.try($$SELECT t.ask('budget 2')$$);
SELECT * FROM t.try($$SELECT t.ask('budget 2', lease => '1 min')$$);
SELECT * FROM t.try($$SELECT idempotency.claim_request('budget 2', 's', wait => '1 hour')$$);
SELECT (idempotency.claim_request('claim 2', 's', wait => '1 hour')).result;
SELECT t.complete('budget 1', 'x');
SELECT * FROM t.try($$SELECT idempotency.advance_request('claim 2', 's', t.token('claim 2'), 'p')$$);
SELECT state FROM t.try($$SELECT idempotency.complete_request('claim 2', 's', 200, token => t.token('claim 2'))$$);
COMMIT;
RESET idempotency.max_claim_locks;
-- Kept instead of refused: without its fingerprint
SET idempotency.uncompleted_claims = keep;
SELECT t.ask('kept', fingerprint => '\x01');
RESET idempotency.uncompleted_claims;
BEGIN;
SELECT t.ask('kept', fingerprint => '\x02'), t.complete('kept', 'x');
COMMIT;
SELECT t.ask('kept', fingerprint => '\x01'), t.ask('kept', fingerprint => '\x02');

-- Expiry of answers is that of the consumer
SELECT idempotency.consumer_create('day', retention => '1 day');
SELECT t.ask('k', consumer => 'day'), t.complete('k', 'x', consumer => 'day');
SELECT t.ask('k', consumer => 'day');
-- at its completion, and at the start of its execution, if that was shorter
SELECT idempotency.consumer_alter('day', retention => '2 days 1 hour');
SELECT t.ask('k', consumer => 'day');
SELECT t.ask('l', consumer => 'day'), idempotency.consumer_alter('day', retention => '12 hours'), t.complete('l', 'x', consumer => 'day'), t.ask('l', consumer => 'day');
SELECT t.ask('m', consumer => 'day'), idempotency.consumer_alter('day', retention => '3 days'), t.complete('m', 'x', consumer => 'day'), t.ask('m', consumer => 'day');
SELECT t.ask('n', consumer => 'day'), idempotency.consumer_alter('day', retention => '1000 years'), t.complete('n', 'x', consumer => 'day'), t.ask('n', consumer => 'day');
SELECT t.ask('o', consumer => 'day'), t.complete('o', 'x', consumer => 'day'), t.ask('o', consumer => 'day');
SELECT t.ask(key, consumer => 'day') FROM unnest('{k,l,m,n,o}'::text[]) key;
-- a guard of the consumer's tables lets the execution of a request write
CREATE TABLE t.guarded (id int);
CREATE TRIGGER fence BEFORE INSERT ON t.guarded FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('day');
SELECT state FROM t.try('INSERT INTO t.guarded VALUES (1) RETURNING 1');
BEGIN;
SELECT t.ask('k 2', consumer => 'day');
INSERT INTO t.guarded VALUES (1);
SELECT t.complete('k 2', 'x', consumer => 'day');
COMMIT;
-- What the transaction that has ended an attempt is told: free, in progress or dead.  For others
-- a lease that was given back is free from the COMMIT on.
BEGIN;
SELECT t.ask('ends 1'), idempotency.release_request('ends 1', 's');
SELECT t.ask('ends 1');
SELECT t.ask('ends 2'), idempotency.fail_request('ends 2', 's', 'x', retry_after => '0');
SELECT t.ask('ends 2');
ROLLBACK;
SELECT token FROM idempotency.claim_request('ends 3', 's', lease => '1 hour') \gset
BEGIN;
SELECT idempotency.release_request('ends 3', 's', token => :token);
SELECT result, retry_after FROM idempotency.claim_request('ends 3', 's', lease => '1 hour');
COMMIT;
SELECT result FROM idempotency.claim_request('ends 3', 's', lease => '1 hour');
BEGIN;
SELECT token FROM idempotency.claim_request('ends 4', 's', '\x01', 'once', '1 hour') \gset
SELECT idempotency.fail_request('ends 4', 's', 'x', 'once', :token);
SELECT t.ask('ends 4', 's', '\x01', 'once'), t.ask('ends 4', 's', '\x02', 'once');
ROLLBACK;
SELECT idempotency.consumer_drop(c) FROM unnest('{slow,once,twice,foreign,private,day}'::text[]) c;
DROP SCHEMA t CASCADE;
