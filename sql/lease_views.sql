-- What is open: the views leases, requests, stat_consumers, stat_leases and, as far as without
-- a prepared transaction (claim_prepared), prepared_claims; event_status of what is open.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE VIEW t.held AS SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.pid = pg_backend_pid() AND c.relnamespace = 'idempotency_data'::regnamespace;
CREATE FUNCTION t.digest_of(id text, consumer text) RETURNS uuid LANGUAGE sql AS
	$$SELECT encode(substr(sha256(convert_to(consumer, 'UTF8') || '\x00' || convert_to(id, 'UTF8')), 1, 16), 'hex')::uuid$$;
-- A lease, and the state after it
CREATE PROCEDURE t.put(id text, consumer text, state text, error text = NULL) LANGUAGE plpgsql AS $$
DECLARE
	token bigint := (idempotency.lease_event(id, consumer, CASE state WHEN 'overdue' THEN '1 microsecond' ELSE '1 hour' END::interval, 'host ' || id)).token;
BEGIN
	CASE state
		WHEN 'waiting' THEN PERFORM idempotency.release_lease(id, token, consumer, error, '1 hour');
		WHEN 'ready' THEN PERFORM idempotency.release_lease(id, token, consumer, error, '0');
		WHEN 'dead' THEN PERFORM idempotency.release_lease(id, token, consumer, error, park => true);
		WHEN 'done' THEN PERFORM idempotency.complete_event(id, consumer, token => token);
		ELSE NULL;
	END CASE;
	COMMIT;
END $$;
-- Times as what they are beside the present
CREATE FUNCTION t.time(at timestamptz) RETURNS text LANGUAGE sql AS $$
	SELECT CASE WHEN at < now() - '1 min'::interval THEN 'long ago' WHEN at <= clock_timestamp() THEN 'past'
		WHEN at < now() + '2 hours'::interval THEN 'in an hour' WHEN at IS NOT NULL THEN 'in ' || round(extract(epoch FROM at - now()) / 86400) || ' days' END $$;
CREATE VIEW t.leases AS
	SELECT consumer, scope, event_id, state, token IS NOT NULL AS token, attempt, holder, t.time(since) AS since,
		t.time(lease_until) AS lease_until, t.time(retry_at) AS retry_at, due, recovery_point, last_error, t.time(expires_at) AS expires
	FROM idempotency.leases ORDER BY consumer, scope, event_id;

-- Nothing is open, and nobody is there
SELECT * FROM t.leases;
SELECT * FROM idempotency.requests;
SELECT * FROM idempotency.stat_consumers;
SELECT held_by, prepared_transactions FROM idempotency.stat_leases;
SELECT * FROM idempotency.prepared_claims;

-- Each state
SELECT idempotency.consumer_create('mail', max_attempts => 3);
SELECT idempotency.consumer_create('idle');
CALL t.put('leased', 'mail', 'leased');
CALL t.put('overdue', 'mail', 'overdue');
CALL t.put('waiting', 'mail', 'waiting', 'no route');
CALL t.put('ready', 'mail', 'ready', 'no route');
CALL t.put('dead', 'mail', 'dead', 'poison');
CALL t.put('dead', 'other', 'dead', 'poison');
CALL t.put('done', 'mail', 'done');
SELECT * FROM t.leases;
SELECT consumer, registered, leased, overdue, waiting, ready, dead, requests, most_attempts, t.time(oldest_overdue) AS oldest_overdue,
	t.time(oldest_ready) AS oldest_ready, t.time(oldest_dead) AS oldest_dead FROM idempotency.stat_consumers ORDER BY consumer;
SELECT id, s.status, s.claimed_at = l.since AS since, s.completed_at IS NOT NULL AS completed,
	CASE WHEN s.retry_after = '0' THEN 'at once'
		WHEN coalesce(l.lease_until, l.retry_at) - s.retry_after BETWEEN statement_timestamp() AND clock_timestamp() THEN 'as shown'
		ELSE s.retry_after::text END AS retry_after
  FROM unnest('{leased,overdue,waiting,ready,dead,done,none}'::text[]) WITH ORDINALITY AS e (id, ord) CROSS JOIN LATERAL idempotency.event_status(id, 'mail') AS s
  LEFT JOIN idempotency.leases AS l ON l.event_id = id AND l.consumer = 'mail' ORDER BY ord;
SELECT status FROM idempotency.event_status('leased'), idempotency.event_status('dead', 'other') AS o (other);
-- how long it is busy, as its lease would say a moment later; by its uuid, too
SELECT s.status, l.result, s.retry_after BETWEEN l.retry_after AND interval '1 day' AS as_long
  FROM unnest('{leased,waiting}'::text[]) AS id CROSS JOIN LATERAL idempotency.event_status(id, 'mail') AS s
  CROSS JOIN LATERAL idempotency.lease_event(CASE WHEN s.status IS NOT NULL THEN id END, 'mail') AS l;
SELECT result, status, retry_after > '6 days' AS a_week FROM (SELECT result FROM idempotency.lease_event('A0EEBC999C0B4EF8BB6D6BB9BD380A11'::uuid, 'mail', '7 days') OFFSET 0) AS l,
	LATERAL (SELECT * FROM idempotency.event_status(CASE WHEN result = 'claimed' THEN 'a0eebc999c0b4ef8bb6d6bb9bd380a11' END::uuid, 'mail')) AS s;
SELECT idempotency.release_lease('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', token, 'mail') FROM idempotency.leases WHERE event_id = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11';
-- the token is the one to act by
SELECT idempotency.extend_lease(event_id, token, consumer, '3 days', 'half way', '{"n": 1}') IS NOT NULL AS extended FROM idempotency.leases WHERE due AND state = 'leased';
SELECT state, lease_until, due, recovery_point FROM t.leases WHERE event_id = 'overdue';
SELECT idempotency.release_lease(event_id, token, consumer, error => 'late', retry_after => '0') FROM idempotency.leases WHERE event_id = 'overdue';
SELECT state, holder, lease_until, retry_at, due, recovery_point, last_error FROM t.leases WHERE event_id = 'overdue';
SELECT result, attempt FROM idempotency.lease_event('overdue', 'mail', '1 hour', 'another');
SELECT state, attempt, holder, lease_until, due, recovery_point, last_error FROM t.leases WHERE event_id = 'overdue';
SELECT most_attempts FROM idempotency.stat_consumers WHERE consumer = 'mail';
SELECT idempotency.consumer_redrive('mail', '{dead}'), idempotency.consumer_discard('other');
SELECT consumer, state, attempt, due, last_error FROM t.leases WHERE event_id = 'dead';
SELECT (idempotency.event_status('dead', 'mail')).status AS redriven, (idempotency.event_status('dead', 'other')).status AS discarded;

-- This transaction's own, in the very command, too; and what is undone
BEGIN;
SELECT result, (idempotency.event_status('own')).status FROM idempotency.lease_event('own');
SELECT state FROM idempotency.leases WHERE event_id = 'own';
SAVEPOINT s;
SELECT idempotency.release_lease('own', token, park => true) FROM idempotency.leases WHERE event_id = 'own';
SELECT state, (idempotency.event_status('own')).status FROM idempotency.leases WHERE event_id = 'own';
ROLLBACK TO s;
SELECT idempotency.complete_event('own', token => token), (idempotency.event_status('own')).status FROM idempotency.leases WHERE event_id = 'own';
SELECT count(*) FROM idempotency.leases WHERE event_id = 'own';
ROLLBACK;
SELECT count(*), (idempotency.event_status('own')).status FROM idempotency.leases WHERE event_id = 'own';
-- a claim over a lease, undecided and decided; a lease over a kept claim
CALL t.put('over', 'mail', 'overdue');
BEGIN;
SELECT idempotency.claim_event('over', 'mail'), (idempotency.event_status('over', 'mail')).status;
SELECT idempotency.complete_event('over', 'mail'), (idempotency.event_status('over', 'mail')).status;
SELECT count(*) FROM idempotency.leases WHERE event_id = 'over';
ROLLBACK;
BEGIN;
SET LOCAL idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event('kept', 'mail');
COMMIT;
SELECT (idempotency.event_status('kept', 'mail')).status;
CALL t.put('kept', 'mail', 'leased');
SELECT (idempotency.event_status('kept', 'mail')).status;

-- Requests
SELECT idempotency.consumer_create('pay', retention => '2 days', max_attempts => 1);
SELECT result FROM idempotency.claim_request('k1', 'tenant', 'hash', 'pay', '1 hour', request => '{"path": "/pay"}');
SELECT result FROM idempotency.claim_request('k1', 'another', NULL, 'pay', '1 microsecond', request => to_jsonb(repeat('long ', 10000)));
SELECT result FROM idempotency.claim_request('k2', 'tenant', NULL, 'pay', '1 hour');
SELECT idempotency.advance_request(key, scope, token, 'charged', consumer, '{"secret": 1}') IS NOT NULL AS advanced FROM idempotency.requests WHERE key = 'k1' AND scope = 'tenant';
SELECT idempotency.fail_request(key, scope, 'no answer', consumer, token) FROM idempotency.requests WHERE key = 'k2';
SELECT consumer, scope, key, state, token IS NOT NULL AS token, attempt, t.time(since) AS since, t.time(lease_until) AS lease_until, t.time(retry_at) AS retry_at,
	due, recovery_point, last_error, t.time(expires_at) AS expires, left(request::text, 20) AS request, length(request::text) FROM idempotency.requests ORDER BY scope, key;
SELECT scope, event_id, state FROM t.leases WHERE consumer = 'pay';
SELECT leased, overdue, dead, requests FROM idempotency.stat_consumers WHERE consumer = 'pay';
SELECT idempotency.complete_request(key, scope, 200, consumer => consumer, token => token) FROM idempotency.requests WHERE state = 'leased';
SELECT scope, key FROM idempotency.requests;

-- The tables take turns: whatever they have of an event, it is shown once, by its newest row
DELETE FROM idempotency_data.lease_log_0;
CREATE FUNCTION t.log(n int, number bigint, id text, kind text, state text = NULL, point text = NULL, token bigint = NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO idempotency_data.lease_log_%s (number, digest, kind, state, token, attempt, until, at, event_id, consumer, recovery_point) VALUES '
		'($1, t.digest_of($2, %L), $3, $4, $5, 1, %L, now(), CASE WHEN $3 = ''s'' AND $4 <> ''f'' THEN $2 END, CASE WHEN $3 = ''s'' AND $4 <> ''f'' THEN %L END, $6)',
		n, 'turns', CASE WHEN kind = 'e' THEN 'infinity' ELSE '-infinity' END, 'turns') USING number, id, kind::"char", state::"char", token, point;
END $$;
SELECT t.log(0, 1, 'copied', 's', 'l', 'one'), t.log(1, 1, 'copied', 's', 'l', 'one'), t.log(2, 1, 'copied', 's', 'l', 'one');
SELECT t.log(0, 2, 'newer after', 's', 'l', 'old'), t.log(1, 3, 'newer after', 's', 'w', 'new');
SELECT t.log(2, 4, 'newer before', 's', 'l', 'old'), t.log(1, 5, 'newer before', 's', 'd', 'new');
SELECT t.log(1, 6, 'same table', 's', 'l', 'old'), t.log(1, 7, 'same table', 's', 'l', 'new');
SELECT t.log(1, 8, 'free', 's', 'l', 'old'), t.log(0, 9, 'free', 's', 'f');
SELECT t.log(0, 10, 'parts', 's', 'l', 'old'), t.log(1, 11, 'parts', 'e', token => 10), t.log(2, 12, 'parts', 'p', point => 'new', token => 10),
	t.log(0, 9, 'parts', 'p', point => 'former lease', token => 9);
SELECT t.log(0, 14, 'former parts', 's', 'l', 'new'), t.log(1, 11, 'former parts', 'e', token => 10), t.log(2, 12, 'former parts', 'p', point => 'former lease', token => 10);
SELECT t.log(0, 15, 'not leased', 's', 'w', 'new'), t.log(1, 16, 'not leased', 'e', token => 15), t.log(1, 17, 'not leased', 'p', point => 'none', token => 15);
SELECT t.log(2, 18, 'parts alone', 'e', token => 1);
SELECT event_id, state, lease_until, due, recovery_point FROM idempotency.leases ORDER BY event_id;
SELECT leased, overdue, ready, dead FROM idempotency.stat_consumers WHERE consumer = 'turns';
SELECT (idempotency.event_status('parts', 'turns')).status, (idempotency.event_status('free', 'turns')).status AS free;
DELETE FROM idempotency_data.lease_log_1 WHERE number > 1;
DELETE FROM idempotency_data.lease_log_2 WHERE number > 1;

-- One row at a time; however a query ends, nothing stays locked
EXPLAIN (COSTS OFF) SELECT event_id FROM idempotency.leases WHERE due LIMIT 1;
EXPLAIN (COSTS OFF) SELECT key FROM idempotency.requests LIMIT 1;
BEGIN;
SELECT count(*) FROM idempotency.leases;
SELECT count(*) FROM (SELECT FROM idempotency.leases LIMIT 1) AS one;
SELECT count(*) FROM idempotency.stat_consumers, idempotency.stat_leases;
SELECT * FROM t.held;
ROLLBACK;
BEGIN;
DECLARE c CURSOR FOR SELECT event_id FROM idempotency.leases;
FETCH 1 c;
SELECT count(*), max(mode) FROM t.held WHERE relname ~ '^lease_log_\d$';
SAVEPOINT s;
DECLARE d CURSOR FOR SELECT 1 / (token - 2) FROM idempotency.leases WHERE token IS NOT NULL;
FETCH 9 d;
ROLLBACK TO s;
FETCH 1 c;
SELECT count(*) FROM t.held WHERE relname ~ '^lease_log_\d$';
CLOSE c;
SELECT * FROM t.held;
COMMIT;
SELECT i, (SELECT count(*) FROM idempotency.leases WHERE event_id = 'e' || i OR event_id = 'copied') FROM generate_series(0, 1) AS i;
-- No predicate locks, which would make transactions of other events fail; nothing is written
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT count(*) FROM idempotency.leases;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND relation IN (SELECT oid FROM pg_class WHERE relname LIKE 'lease\_log\_%');
COMMIT;
BEGIN READ ONLY;
SELECT count(*), (idempotency.event_status('copied', 'turns')).status FROM idempotency.leases;
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
SELECT count(*) FROM idempotency_data.leases_source() AS a JOIN idempotency.leases AS b USING (event_id, consumer);

-- As each kind of role
SELECT result FROM idempotency.claim_request('p4', 'tenant', consumer => 'pay', lease => '1 hour');
CREATE ROLE regress_lv_consumer;
CREATE ROLE regress_lv_operator;
CREATE ROLE regress_lv_monitor;
CREATE ROLE regress_lv_producer;
SELECT idempotency.grant_role(kind, ('regress_lv_' || kind)::name) FROM unnest('{consumer,operator,monitor,producer}'::text[]) AS kind;
GRANT USAGE ON SCHEMA t TO regress_lv_consumer, regress_lv_operator, regress_lv_monitor, regress_lv_producer;
CREATE FUNCTION t.try(query text, OUT answer text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT count(*) > 0 FROM ' || query INTO answer;
EXCEPTION WHEN OTHERS THEN
	answer := sqlstate;
END $$;
CREATE VIEW t.all AS
	SELECT t.try('idempotency.leases') AS leases, t.try('idempotency_data.leases_source()') AS leases_source,
		t.try('idempotency.requests') AS requests, t.try('idempotency.stat_consumers') AS stat_consumers,
		t.try('idempotency.stat_leases') AS stat_leases, t.try('idempotency.prepared_claims') AS prepared_claims;
GRANT SELECT ON t.all TO PUBLIC;
SET ROLE regress_lv_consumer;
SELECT * FROM t.all;
SET ROLE regress_lv_operator;
SELECT * FROM t.all;
SET ROLE regress_lv_monitor;
SELECT * FROM t.all;
SET ROLE regress_lv_producer;
SELECT * FROM t.all;
RESET ROLE;
DROP OWNED BY regress_lv_consumer, regress_lv_operator, regress_lv_monitor, regress_lv_producer;
DROP ROLE regress_lv_consumer, regress_lv_operator, regress_lv_monitor, regress_lv_producer;

-- A column that somebody adds is not shown
ALTER TABLE idempotency_data.lease_log_0 ADD COLUMN note text DEFAULT 'x';
SELECT count(*) FROM idempotency.leases WHERE event_id = 'copied';
DROP SCHEMA t CASCADE;
