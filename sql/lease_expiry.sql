-- What is open and expires: nothing is dropped before its time, and nothing older comes to
-- light when it is.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
-- A lease of a moment or of an hour, and the state after it
CREATE PROCEDURE t.put(id text, consumer text, state text) LANGUAGE plpgsql AS $$
DECLARE
	token bigint := (idempotency.lease_event(id, consumer, CASE state WHEN 'overdue' THEN '1 microsecond' ELSE '1 hour' END::interval)).token;
BEGIN
	CASE state
		WHEN 'waiting' THEN PERFORM idempotency.release_lease(id, token, consumer, 'x', '0');
		WHEN 'paused' THEN PERFORM idempotency.release_lease(id, token, consumer, 'x', '1 hour');
		WHEN 'dead' THEN PERFORM idempotency.release_lease(id, token, consumer, 'x', park => true);
		ELSE NULL;
	END CASE;
	COMMIT;
END $$;
-- What is kept, and for how many hours at least
CREATE VIEW t.kept AS
	SELECT consumer, event_id, state, round(extract(epoch FROM expires_at - now()) / 3600) AS hours, due, recovery_point
	FROM idempotency.leases WHERE event_id <> 'turn' ORDER BY consumer, event_id;
-- Which table is current, and since which number
CREATE VIEW t.current AS
	SELECT "table", number FROM (SELECT 0 AS "table", number, kind FROM idempotency_data.lease_log_0
		UNION ALL SELECT 1, number, kind FROM idempotency_data.lease_log_1 UNION ALL SELECT 2, number, kind FROM idempotency_data.lease_log_2) AS r
	WHERE kind = 'm' UNION ALL VALUES (0, 0) ORDER BY number DESC LIMIT 1;
-- The current table is filled with rows that nobody needs, until it loses its turn and is
-- emptied; held: until it loses its turn
CREATE PROCEDURE t.turn(held boolean = false) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := clock_timestamp();
	former record;
	token bigint;
	there boolean;
BEGIN
	SELECT * INTO former FROM t.current;
	EXECUTE format('INSERT INTO idempotency_data.lease_log_%s (number, digest, kind, token, until, at, error) SELECT $1 + n, md5(''garbage'')::uuid, ''e'', 0, now(), now(),
		(SELECT string_agg(md5((n + i / 60.0)::text), '''') FROM generate_series(1, 58) AS i) FROM generate_series(1, 1200) AS n', former."table") USING former.number;
	COMMIT;
	token := coalesce((SELECT l.token FROM idempotency.leases AS l WHERE event_id = 'turn'), (idempotency.lease_event('turn', 'turn', '1 day')).token);
	COMMIT;
	LOOP
		-- it may be empty for a moment only
		EXECUTE format('SELECT EXISTS (SELECT FROM idempotency_data.lease_log_%s WHERE digest = md5(''garbage'')::uuid)', former."table") INTO there;
		EXIT WHEN CASE WHEN held THEN (SELECT c."table" <> former."table" FROM t.current AS c) ELSE NOT there END;
		IF clock_timestamp() > started + '3 min' THEN
			RAISE EXCEPTION 'table % has its turn for ever: %', former, (SELECT json_agg(s) FROM (SELECT *, (SELECT json_agg(pg_relation_size(oid)) FROM pg_class WHERE relname ~ '^lease_log_\d$') AS sizes FROM idempotency.stat_leases, t.current) AS s);
		END IF;
		-- new pages start the worker; it must be able to keep up
		PERFORM idempotency.extend_lease('turn', token, 'turn', '1 day', state => (SELECT to_jsonb(string_agg(md5(random()::text), '')) FROM generate_series(1, 58))) FROM generate_series(1, 5);
		COMMIT;
		PERFORM pg_sleep(0.02);
	END LOOP;
END $$;
-- Wait until a table that has lost its turn is emptied
CREATE PROCEDURE t.emptied(former int) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	WHILE pg_relation_size('idempotency_data.lease_log_' || former) > 0 LOOP
		IF clock_timestamp() > started + '3 min' THEN
			RAISE EXCEPTION 'table % is not emptied: %', former, (SELECT json_agg(s) FROM idempotency.stat_leases AS s);
		END IF;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END $$;

-- For how long: a consumer's retention, and dead_retention where that is longer
SHOW idempotency.dead_retention;
SELECT idempotency.consumer_create('hour', retention => '1 hour'), idempotency.consumer_create('months', retention => '60 days');
CALL t.put('dead', 'hour', 'dead');
CALL t.put('overdue', 'hour', 'overdue');
CALL t.put('waiting', 'hour', 'waiting');
CALL t.put('paused', 'hour', 'paused');
CALL t.put('leased', 'hour', 'leased');
CALL t.put('extended', 'hour', 'overdue');
SELECT idempotency.extend_lease('extended', token, 'hour', '4 hours', 'point') - now() > '3 hours' AS extended FROM idempotency.leases WHERE event_id = 'extended';
CALL t.put('dead', 'months', 'dead');
CALL t.put('overdue', 'months', 'overdue');
CALL t.put('dead', 'for ever', 'dead');
CALL t.put('overdue', 'for ever', 'overdue');
SET idempotency.dead_retention = 0;
CALL t.put('dead, kept', 'hour', 'dead');
SET idempotency.dead_retention = '1 s';
CALL t.put('dead, brief', 'hour', 'dead');
RESET idempotency.dead_retention;
SELECT result FROM idempotency.claim_request('abandoned', 'tenant', consumer => 'hour', lease => '1 microsecond');
SELECT idempotency.advance_request('abandoned', 'tenant', token, 'charged', 'hour', lease => '1 microsecond') IS NOT NULL AS advanced FROM idempotency.requests;
SELECT * FROM t.kept;
-- a redrive and a change of the consumer count from then on
SELECT idempotency.consumer_redrive('months', '{dead}');
SELECT idempotency.consumer_alter('months', retention => '1 day');
SELECT idempotency.extend_lease(event_id, token, consumer, '1 microsecond') IS NOT NULL AS extended FROM idempotency.leases WHERE consumer = 'months' AND state = 'leased';
SELECT * FROM t.kept WHERE consumer = 'months';

-- Before its time everything stays
CALL t.turn();
SELECT count(*), sum(hours) FROM t.kept;
-- When it is over, what has expired goes at the next turn, and answers until then.  What
-- lasts by the clock stays.
SELECT t.store_add_time(3 * 3600);
SELECT event_id, state, hours FROM t.kept WHERE hours <= 0;
SELECT (idempotency.lease_event('dead, brief', 'hour')).result, (idempotency.event_status('overdue', 'hour')).status, idempotency.claim_event('dead', 'hour');
CALL t.turn();
SELECT * FROM t.kept;
SELECT (idempotency.event_status('dead, brief', 'hour')).status, (idempotency.event_status('dead', 'hour')).status, idempotency.claim_event('dead', 'for ever');
SELECT result, attempt, last_error FROM idempotency.lease_event('dead, brief', 'hour');
SELECT result, attempt, recovery_point FROM idempotency.claim_request('abandoned', 'tenant', consumer => 'hour', lease => '1 hour');
SELECT t.store_add_time(31 * 86400);
CALL t.turn();
SELECT * FROM t.kept;

-- An older row in a table that somebody holds must not come to light: what has expired
-- stays as a whole until that table is emptied
SELECT idempotency.lease_event('older', 'hour', '1 microsecond') IS NOT NULL AS old;
BEGIN;
SELECT count(*) FROM idempotency.lease_events('{held}', 'turn');
PREPARE TRANSACTION 'holder';
CALL t.turn(held => true);
-- its state of today is in the table after that
SELECT idempotency.release_lease('older', token, 'hour', 'x', '0') FROM idempotency.leases WHERE event_id = 'older';
SELECT result FROM idempotency.lease_event('older', 'hour', '1 microsecond');
SELECT idempotency.extend_lease('older', token, 'hour', '2 microseconds', 'point of today') IS NOT NULL AS extended FROM idempotency.leases WHERE event_id = 'older';
SELECT state, attempt, recovery_point FROM idempotency.leases WHERE event_id = 'older';
DO $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	WHILE (SELECT held_by IS DISTINCT FROM 'prepared transaction' FROM idempotency.stat_leases) LOOP
		IF clock_timestamp() > started + '3 min' THEN RAISE EXCEPTION 'nothing holds the log'; END IF;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END $$;
SELECT t.store_add_time(3 * 3600);
CALL t.turn();
SELECT state, attempt, recovery_point FROM idempotency.leases WHERE event_id = 'older';
ROLLBACK PREPARED 'holder';
CALL t.turn();
CALL t.turn();
SELECT state, attempt, recovery_point FROM idempotency.leases WHERE event_id = 'older';

-- Whoever is too late to extend a lease is told so, whether the row is still there or not
CALL t.put('too late', 'hour', 'overdue');
SELECT result FROM idempotency.claim_request('too late', 'tenant', consumer => 'hour', lease => '1 microsecond');
SELECT t.store_add_time(3 * 3600);
SELECT state, expires_at < now() AS expired FROM idempotency.leases WHERE event_id = 'too late' ORDER BY scope;
\set VERBOSITY default
SELECT idempotency.extend_lease('too late', token, 'hour') FROM idempotency.leases WHERE event_id = 'too late' AND scope IS NULL;
SELECT idempotency.advance_request('too late', 'tenant', token, 'charged', 'hour') FROM idempotency.requests WHERE key = 'too late';
\set VERBOSITY terse
SELECT idempotency.assert_lease('too late', token, 'hour') FROM idempotency.leases WHERE event_id = 'too late' AND scope IS NULL;
SELECT count(*) FILTER (WHERE idempotency.release_lease(event_id, token, 'hour') IS NOT NULL) AS released FROM idempotency.leases WHERE event_id = 'too late' AND scope IS NULL;

-- An extension that is not committed yet as the time ends: the row of the lease is in the
-- table before, which is emptied meanwhile
CALL t.put('in time', 'hour', 'overdue');
CALL t.put('rolled back', 'hour', 'overdue');
BEGIN;
SELECT count(*) FROM idempotency.lease_events('{held}', 'turn');
PREPARE TRANSACTION 'holder';
SELECT "table" AS former FROM t.current \gset
CALL t.turn(held => true);
BEGIN;
SELECT event_id, idempotency.extend_lease(event_id, token, 'hour', '4 hours', 'noted') > now() AS extended FROM idempotency.leases WHERE event_id = 'in time';
PREPARE TRANSACTION 'extension';
BEGIN;
SELECT event_id, idempotency.extend_lease(event_id, token, 'hour', '1 hour', 'noted') > now() AS extended FROM idempotency.leases WHERE event_id = 'rolled back';
PREPARE TRANSACTION 'extension, rolled back';
SELECT t.store_add_time(3 * 3600);
ROLLBACK PREPARED 'holder';
CALL t.emptied(:former);
SELECT event_id, state, recovery_point, expires_at < now() AS expired FROM idempotency.leases WHERE event_id IN ('in time', 'rolled back') ORDER BY event_id;
ROLLBACK PREPARED 'extension, rolled back';
COMMIT PREPARED 'extension';
SELECT event_id, state, recovery_point, expires_at < now() AS expired FROM idempotency.leases WHERE event_id IN ('in time', 'rolled back') ORDER BY event_id;
SELECT idempotency.extend_lease(event_id, token, 'hour', '1 hour') > now() AS extended FROM idempotency.leases WHERE event_id = 'in time';
CALL t.turn();
SELECT event_id, state, recovery_point FROM idempotency.leases WHERE event_id IN ('in time', 'rolled back') ORDER BY event_id;

-- Rows that are restored are kept from then on for as long as they were to be
INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, state, attempt, until, at, event_id, consumer, written, kept)
	VALUES (1, md5('restored')::uuid, 's', 'd', 1, now(), now(), 'restored', 'hour', 1000000000, 7200), (2, md5('for ever')::uuid, 's', 'd', 1, now(), now(), 'for ever', 'hour', NULL, NULL);
SELECT event_id, hours FROM t.kept WHERE event_id IN ('restored', 'for ever');
SELECT idempotency.consumer_drop('hour'), idempotency.consumer_drop('months');
DROP SCHEMA t CASCADE;
