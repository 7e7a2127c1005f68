-- The log of cursors takes turns: nothing that is needed is lost, nothing older comes to light,
-- and what nobody needs any more vanishes: rows of producers that were dropped or forgotten.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.store_add_time(seconds int) RETURNS void
	LANGUAGE c AS 'idempotency_test', 'idem_test_store_add_time_fn';
CREATE VIEW t.rows AS SELECT 0 AS "table", * FROM idempotency_data.cursor_log_0
	UNION ALL SELECT 1, * FROM idempotency_data.cursor_log_1 UNION ALL SELECT 2, * FROM idempotency_data.cursor_log_2;
-- Which table is current, and since which number
CREATE VIEW t.current AS SELECT "table", number FROM t.rows WHERE kind = 'm' UNION ALL VALUES (0, 0) ORDER BY number DESC LIMIT 1;
-- The current table is filled with rows that nobody needs, until it loses its turn and is
-- emptied; held: until it loses its turn
CREATE PROCEDURE t.turn(held boolean = false) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := clock_timestamp();
	former record;
	there boolean;
BEGIN
	SELECT * INTO former FROM t.current;
	EXECUTE format('INSERT INTO idempotency_data.cursor_log_%s (number, digest, kind, what, at, owner, role) SELECT $1 + n, md5(''garbage'')::uuid, ''s'', ''n'', now(), ''garbage'',
		(SELECT string_agg(md5((n + i / 60.0)::text), '''') FROM generate_series(1, 58) AS i) FROM generate_series(1, 1200) AS n', former."table") USING former.number;
	COMMIT;
	LOOP
		-- it may be empty for a moment only
		EXECUTE format('SELECT EXISTS (SELECT FROM idempotency_data.cursor_log_%s WHERE digest = md5(''garbage'')::uuid)', former."table") INTO there;
		EXIT WHEN CASE WHEN held THEN (SELECT c."table" <> former."table" FROM t.current AS c) ELSE NOT there END;
		IF clock_timestamp() > started + '3 min' THEN
			RAISE EXCEPTION 'table % has its turn for ever: %', former, (SELECT json_agg(s) FROM (SELECT *, (SELECT json_agg(pg_relation_size(oid)) FROM pg_class WHERE relname ~ '^cursor_log_\d$') AS sizes FROM idempotency.stat_cursors, t.current) AS s);
		END IF;
		-- new pages start the worker; it must be able to keep up
		PERFORM idempotency.claim_offset('turn', repeat('t', 255), 0, coalesce((SELECT next_offset FROM idempotency.cursors WHERE consumer = 'turn'), 0) + i) FROM generate_series(1, 60) AS i;
		COMMIT;
		PERFORM pg_sleep(0.02);
	END LOOP;
END $$;
CREATE PROCEDURE t.emptied(former int) LANGUAGE plpgsql AS $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	WHILE pg_relation_size('idempotency_data.cursor_log_' || former) > 0 LOOP
		IF clock_timestamp() > started + '3 min' THEN
			RAISE EXCEPTION 'table % is not emptied: %', former, (SELECT json_agg(s) FROM idempotency.stat_cursors AS s);
		END IF;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END $$;
CREATE TABLE t.ids (producer text, n int, id bigint);
CREATE FUNCTION t.register(producer text, gapless boolean = true) RETURNS int LANGUAGE sql AS $$
	WITH r AS (SELECT * FROM idempotency.register_producer(producer, gapless)),
		i AS (INSERT INTO t.ids VALUES (register.producer, (SELECT count(*) + 1 FROM t.ids WHERE ids.producer = register.producer), (SELECT producer_id FROM r)))
	SELECT epoch FROM r $$;
-- A claim under the n-th id that a producer was given
CREATE FUNCTION t.claim(producer text, n int, epoch int, sequence bigint, partition int = 0) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(' ', result, 'as ' || record_number, 'next ' || expected)
	FROM t.ids, idempotency.claim_sequence(id, claim.epoch, sequence, partition => partition) WHERE ids.producer = claim.producer AND ids.n = claim.n $$;
-- What the log has of a producer, without repeats
CREATE VIEW t.has AS SELECT ids.producer, n, string_agg(DISTINCT what::text, '' ORDER BY what::text) AS rows
	FROM t.ids LEFT JOIN t.rows ON producer_id = id GROUP BY 1, 2 ORDER BY 1, 2;
CREATE VIEW t.cursors AS SELECT consumer, producer, topic, partition, next_offset, generation, last_sequence, epoch, records
	FROM idempotency.cursors WHERE consumer IS DISTINCT FROM 'turn' ORDER BY consumer, producer, topic, partition;
CREATE VIEW t.expiry AS SELECT producer, epoch, round(extract(epoch FROM expires_at - now()) / 3600) AS hours FROM idempotency.producers ORDER BY producer;

-- Everything stays at a turn: offsets for ever, registrations, sequences
SELECT idempotency.claim_offset('c', 't', 0, 0, 7, 3), idempotency.claim_offset('c', 't', 1, 5), idempotency.resume_offset('c', 't', 2, 4);
SELECT idempotency.claim_offset('gone', 't', 0, 7), idempotency.reset_offset('gone', 't', 0);
SET idempotency.producer_retention = '80 h';
SELECT t.register('idle'), t.register('used'), t.register('dropped'), t.register('again'), t.register('again'), t.register('rising', false);
SET idempotency.producer_retention = 0;
SELECT t.register('lasting');
SET idempotency.producer_retention = '80 h';
SELECT p, t.claim(p, 1, CASE p WHEN 'again' THEN 1 ELSE 0 END, 0) FROM unnest('{idle,used,dropped,again,rising}'::text[]) AS p;
SELECT t.claim('used', 1, 0, 0, 1), t.claim('dropped', 1, 0, 0, 1);
SET idempotency.producer_retention = 0;
SELECT t.claim('lasting', 1, 0, 0);
SET idempotency.producer_retention = '80 h';
CREATE TABLE t.before AS SELECT * FROM t.cursors;
SELECT * FROM t.before;
SELECT * FROM t.expiry;
CALL t.turn();
SELECT count(*) FROM (TABLE t.before EXCEPT SELECT * FROM t.cursors) AS lost;
SELECT count(*) FROM (SELECT * FROM t.cursors EXCEPT TABLE t.before) AS found;
SELECT * FROM t.expiry;
SELECT t.claim('used', 1, 0, 0), t.claim('used', 1, 0, 1), t.claim('used', 1, 0, 3);
SELECT idempotency.claim_offset('c', 't', 0, 6), idempotency.claim_offset('c', 't', 0, 0, 9, 2), idempotency.claim_offset('c', 't', 0, 7, 9, 3);
-- what says that a partition was forgotten goes
SELECT count(*) FROM t.rows WHERE owner = 'gone';

-- Sequences vanish with their producer
SELECT idempotency.producer_drop('dropped');
SELECT t.claim('dropped', 1, 0, 1);
CALL t.turn();
SELECT * FROM t.has;
SELECT t.claim('dropped', 1, 0, 0);
SELECT t.register('dropped');
SELECT t.claim('dropped', 1, 0, 0), t.claim('dropped', 2, 0, 0);

-- Use is noted when an eighth of the retention is over, not before, and only what is
-- accepted is use
SELECT count(*) AS before FROM t.rows WHERE what IN ('p', 'n') \gset
SELECT t.claim('used', 1, 0, 2);
SELECT count(*) - :before AS noted FROM t.rows WHERE what IN ('p', 'n');
SELECT t.store_add_time(11 * 3600);
SELECT t.claim('used', 1, 0, 2), t.claim('used', 1, 0, 99), t.claim('idle', 1, 0, 0);
SELECT count(*) - :before AS noted FROM t.rows WHERE what IN ('p', 'n');
SELECT t.claim('used', 1, 0, 3), t.claim('used', 1, 0, 4);
SELECT count(*) - :before AS noted FROM t.rows WHERE what IN ('p', 'n');
SELECT * FROM t.expiry;
-- so it is kept on, also in a partition that it does not use
SELECT t.store_add_time(68 * 3600);
SELECT producer, hours FROM t.expiry;
SELECT t.claim('used', 1, 0, 5), t.claim('idle', 1, 0, 0), t.claim('rising', 1, 0, 9);
SELECT t.store_add_time(2 * 3600);
-- What is over is fenced, and not shown, before the turn and after it
SELECT producer FROM t.expiry;
SELECT t.claim('idle', 1, 0, 0), t.claim('idle', 1, 0, 1), t.claim('again', 2, 1, 1), t.claim('used', 1, 0, 0, 1), t.claim('lasting', 1, 0, 0);
SELECT * FROM t.cursors WHERE producer IS NOT NULL;
SELECT t.store_add_time(10 * 3600);
CALL t.turn();
CALL t.turn();
SELECT * FROM t.has;
SELECT * FROM t.cursors;
SELECT t.claim('idle', 1, 0, 0), t.claim('used', 1, 0, 0, 1);
-- who is forgotten begins anew, with another id, by another rule if it likes
SELECT t.register('idle', false);
SELECT t.claim('idle', 2, 0, 5), t.claim('idle', 1, 0, 1);

-- Forgotten is for good: a crash may take the time back to before that
SELECT t.register('back');
SELECT t.claim('back', 1, 0, 0);
SELECT t.store_add_time(90 * 3600);
SELECT t.claim('back', 1, 0, 1);
SELECT t.register('back');
SELECT t.claim('back', 2, 0, 0);
SELECT t.store_add_time(-85 * 3600);
SELECT t.claim('back', 1, 0, 1), t.claim('back', 2, 0, 1);
SELECT t.register('back');
SELECT t.claim('back', 1, 0, 1), t.claim('back', 2, 0, 2), t.claim('back', 2, 1, 0), producer_id = id AS second FROM idempotency.producers JOIN t.ids USING (producer) WHERE producer = 'back' AND n = 2;
SELECT t.store_add_time(85 * 3600);

-- An older row in a table that somebody holds must not come to light
SELECT idempotency.claim_offset('older', 't', 0, 0, 10, 1);
SELECT t.register('older');
SELECT t.claim('older', 1, 0, 0);
BEGIN;
SELECT result FROM idempotency.claim_offset('holder', 't', 0, 0);
PREPARE TRANSACTION 'holder';
SELECT "table" AS former FROM t.current \gset
CALL t.turn(held => true);
SELECT idempotency.claim_offset('older', 't', 0, 10, 20, 2), idempotency.reset_offset('older', 't', 0);
SELECT idempotency.producer_drop('older');
DO $$
DECLARE
	started timestamptz := clock_timestamp();
BEGIN
	WHILE (SELECT held_by IS DISTINCT FROM 'prepared transaction' FROM idempotency.stat_cursors) LOOP
		IF clock_timestamp() > started + '3 min' THEN RAISE EXCEPTION 'nothing holds the log'; END IF;
		PERFORM pg_sleep(0.02);
		COMMIT;
	END LOOP;
END $$;
CALL t.turn();
SELECT count(*) FROM t.cursors WHERE consumer = 'older' OR producer = 'older';
SELECT t.claim('older', 1, 0, 1);
SELECT idempotency.resume_offset('older', 't', 0, 1);
COMMIT PREPARED 'holder';
CALL t.emptied(:former);
CALL t.turn();
CALL t.turn();
SELECT count(*) FROM t.cursors WHERE producer = 'older';
SELECT t.claim('older', 1, 0, 1);
SELECT consumer, next_offset, generation FROM t.cursors WHERE consumer IN ('older', 'holder');

-- Whatever the tables have of a key, its newest row counts, and is shown once
CREATE FUNCTION t.log(n int, number bigint, key text, pos bigint, generation bigint = NULL) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO idempotency_data.cursor_log_%s (number, digest, kind, what, at, "position", epoch, owner, topic, partition)
		VALUES ($1, md5($2)::uuid, ''s'', ''o'', now(), $3, $4, ''turns'', $2, 0)', n) USING number, key, pos, generation;
END $$;
SELECT t.log(0, 1, 'copied', 1), t.log(1, 1, 'copied', 1), t.log(2, 1, 'copied', 1);
SELECT t.log(0, 2, 'newer after', 1), t.log(1, 3, 'newer after', 2);
SELECT t.log(2, 4, 'newer before', 1), t.log(1, 5, 'newer before', 2);
SELECT t.log(1, 6, 'same table', 1), t.log(1, 7, 'same table', 2);
SELECT t.log(1, 8, 'forgotten', 1), t.log(0, 9, 'forgotten', NULL);
SELECT t.log(2, 10, 'generation alone', NULL, 5);
SELECT topic, next_offset, generation FROM t.cursors WHERE consumer = 'turns';

-- Rows that are restored are kept from then on for as long as they were to be, and their
-- role is that of its name
INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, epoch, producer_id, owner, gapless, role, role_oid, role_cluster, history, written, kept)
	VALUES (1, md5('restored')::uuid, 's', 'p', now(), 4, 1, 'restored', true, current_user, 1, 1, 1, 1000000000, 216000),
		(1, md5('nobody''s')::uuid, 's', 'p', now(), 4, 2, 'nobody''s', true, 'regress_never_made', 10, 1, 1, 1000000000, 216000);
SELECT producer, hours FROM t.expiry WHERE producer ~ 'restored|nobody';
SELECT owner, CASE role WHEN current_user THEN 'the user' ELSE role END AS role, role_oid = coalesce(to_regrole(role)::oid, 0) AS role_oid, role_cluster = system_identifier AS cluster
  FROM t.rows, pg_control_system() WHERE owner ~ 'restored|nobody';
DROP SCHEMA t CASCADE;

-- an index that is gone: the hint makes it again
DROP INDEX idempotency_data.cursor_log_0_key, idempotency_data.cursor_log_1_key, idempotency_data.cursor_log_2_key;
\set VERBOSITY default
SELECT epoch FROM idempotency.register_producer('lost');
SELECT format('CREATE INDEX cursor_log_%s_key ON idempotency_data.cursor_log_%1$s (digest, kind, number DESC) WITH (deduplicate_items = off)', n)
  FROM generate_series(0, 2) n \gexec
SELECT epoch FROM idempotency.register_producer('lost');
