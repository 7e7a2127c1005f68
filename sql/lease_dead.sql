-- Dead events: an operator has them tried again, or remembered as completed.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.try(command text, OUT state text, OUT message text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE command INTO message;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	message := sqlerrm;
	state := sqlstate;
END $$;
CREATE FUNCTION t.lease(id text, consumer text = 'mail') RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', result, attempt, recovery_point, last_error) FROM idempotency.lease_event(id, consumer) $$;
CREATE PROCEDURE t.kill(ids text[], consumer text = 'mail') LANGUAGE plpgsql AS $$
DECLARE
	id text;
	token bigint;
BEGIN
	FOREACH id IN ARRAY ids LOOP
		token := (idempotency.lease_event(id, consumer)).token;
		PERFORM idempotency.extend_lease(id, token, consumer, recovery_point => 'half');
		PERFORM idempotency.release_lease(id, token, consumer, error => 'poison', park => true);
		COMMIT;
	END LOOP;
END $$;
SELECT idempotency.consumer_create('mail', max_attempts => 2);
CALL t.kill('{a,b,c,d,e}');
CALL t.kill('{a,b}', 'other');
SELECT t.lease('a');

-- Named: what is not dead is passed over, repeats count once
SELECT idempotency.consumer_redrive('mail', '{a,a,none}');
SELECT idempotency.consumer_redrive('mail', '{a}'), t.lease('a'), t.lease('a', 'other');
SELECT idempotency.consumer_redrive('mail', '{a}');
SELECT idempotency.consumer_discard('mail', '{b,none,a}');
SELECT t.lease('b'), t.lease('b', 'other'), status FROM idempotency.event_status('b', 'mail');
SELECT idempotency.claim_event('b', 'mail'), idempotency.event_result('b', 'mail');
SELECT idempotency.consumer_discard('mail', '{b}'), idempotency.consumer_redrive('mail', '{b}');
SELECT idempotency.consumer_redrive('mail', '{}');
-- A pause that is too long ends, if its event is named
SELECT FROM idempotency.lease_event('paused', 'mail') l, idempotency.release_lease('paused', l.token, 'mail', retry_after => '366 days');
SELECT t.lease('paused'), idempotency.consumer_discard('mail', '{paused}');
SELECT idempotency.consumer_redrive('mail', '{paused}'), idempotency.consumer_redrive('mail', '{paused}');
SELECT t.lease('paused');
-- rolled back
BEGIN;
SELECT idempotency.consumer_discard('mail');
SELECT t.lease('c'), t.lease('d');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idempotency.consumer_redrive('mail', '{c}');
ROLLBACK TO s;
SELECT idempotency.consumer_redrive('mail', '{c}');
-- until the end of the transaction the event is its
SELECT t.lease('c'), idempotency.claim_event('c', 'mail');
SELECT idempotency.consumer_discard('mail', '{c}');
COMMIT;
SELECT t.lease('c');

-- All of a consumer, as far as the budget of locks goes
SET idempotency.max_claim_locks = 1;
SELECT idempotency.consumer_redrive('mail');
SELECT idempotency.consumer_redrive('mail');
SELECT idempotency.consumer_redrive('mail');
RESET idempotency.max_claim_locks;
SELECT t.lease('d'), t.lease('e');
SELECT array_agg('n' || i) AS ids FROM generate_series(1, 30) AS i \gset
CALL t.kill(:'ids');
CALL t.kill('{n1}', 'other');
SELECT idempotency.consumer_discard('mail');
SELECT idempotency.consumer_discard('mail'), t.lease('n1'), t.lease('n1', 'other');
SET idempotency.max_claim_locks = 0;
SELECT * FROM t.try($$SELECT idempotency.consumer_redrive('other', '{a}')$$);
RESET idempotency.max_claim_locks;
-- dead again, and as often as it is redriven
SELECT idempotency.consumer_redrive('other', '{a}');
CALL t.kill('{a}', 'other');
SELECT t.lease('a', 'other');
SELECT idempotency.consumer_redrive('other', '{a}');
SELECT t.lease('a', 'other');

-- what the transaction itself has parked is among all of them
BEGIN;
SELECT token FROM idempotency.lease_event('own', 'mail') \gset
SELECT idempotency.release_lease('own', :token, 'mail', park => true);
SELECT idempotency.consumer_redrive('mail');
SELECT idempotency.consumer_redrive('mail');
COMMIT;
SELECT t.lease('own');

-- An overdue lease whose attempts are used up is dead for who asks first, and stays so for
-- that transaction, whatever it asks by
SELECT idempotency.consumer_create('once', max_attempts => 1);
SELECT result FROM idempotency.lease_events('{o1,o2,o3}', 'once', '1 us');
SELECT result FROM idempotency.claim_request('r', 's', '\x01', 'once', '1 us');
BEGIN;
SELECT t.lease('o1', 'once'), t.lease('o1', 'once'), idempotency.claim_event('o1', 'once');
SELECT idempotency.claim_event('o2', 'once'), idempotency.claim_event('o2', 'once'), t.lease('o2', 'once');
SELECT string_agg(result::text, ' ') FROM idempotency.lease_events('{o1,o3,o3}', 'once');
SELECT string_agg(result::text, ' ') FROM idempotency.claim_events('{o1,o3,o3}', 'once');
SELECT a.result, b.result AS again, c.result AS other FROM idempotency.claim_request('r', 's', '\x01', 'once', '1 h') AS a,
	idempotency.claim_request('r', 's', '\x01', 'once') AS b, idempotency.claim_request('r', 's', '\x02', 'once') AS c;
ROLLBACK;
SELECT t.lease('o1', 'once'), t.lease('o2', 'once');
SELECT t.lease('o1', 'once'), t.lease('o2', 'once');

-- A dump that is restored into the database that it is of: a lease is shown once.  Where the
-- rows of the completions have left the log since, leases of completed events are back; the
-- events' answers stay, and a discard takes the leases away
SELECT idempotency.consumer_create('dumped');
CALL t.kill('{gone,kept}', 'dumped');
SELECT t.lease('open', 'dumped'), t.lease('done', 'dumped');
CREATE TABLE t.dump AS SELECT * FROM idempotency_data.lease_log_0 WHERE consumer = 'dumped';
SELECT idempotency.consumer_discard('dumped', '{gone}');
SELECT idempotency.complete_event('done', 'dumped', token => token) FROM idempotency.leases WHERE event_id = 'done' AND consumer = 'dumped';
DELETE FROM idempotency_data.lease_log_0 WHERE digest IN (SELECT digest FROM t.dump WHERE event_id IN ('gone', 'done'));
INSERT INTO idempotency_data.lease_log_0 SELECT * FROM t.dump;
INSERT INTO idempotency_data.lease_log_1 SELECT * FROM t.dump WHERE event_id = 'open';
SELECT event_id, state FROM idempotency.leases WHERE consumer = 'dumped' ORDER BY event_id;
SELECT t.lease('gone', 'dumped'), t.lease('done', 'dumped');
SELECT idempotency.consumer_redrive('dumped', '{kept}');
SELECT idempotency.consumer_discard('dumped'), idempotency.consumer_discard('dumped', '{done}');
SELECT event_id, state FROM idempotency.leases WHERE consumer = 'dumped' ORDER BY event_id;
SELECT t.lease('gone', 'dumped'), t.lease('done', 'dumped'), t.lease('kept', 'dumped');

-- Misuse
SELECT c, t.state, t.message FROM unnest(ARRAY[$$NULL$$, $$''$$, $$'@relay'$$, $$repeat('x', 256)$$, $$'mail', '{NULL}'$$, $$'mail', '{{a}}'$$,
	$$'mail', '{""}'$$, $$'mail', '{a}', ''$$, $$'mail', NULL, repeat('x', 256)$$]) AS c, t.try('SELECT idempotency.consumer_redrive(' || c || ')') AS t;
BEGIN READ ONLY;
SELECT state FROM t.try($$SELECT idempotency.consumer_redrive('mail')$$);
SELECT state FROM t.try($$SELECT idempotency.consumer_discard('mail')$$);
COMMIT;
SELECT idempotency.consumer_drop('mail'), idempotency.consumer_drop('once'), idempotency.consumer_drop('dumped');
DROP SCHEMA t CASCADE;
