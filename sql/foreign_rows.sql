-- Rows that the extension has not written: a dump that was changed, or a role that may write
-- all data, brings them.  The tables refuse them; if they are there all the same, C does not believe them.
\set VERBOSITY terse
\set SHOW_CONTEXT never
CREATE SCHEMA t;
CREATE FUNCTION t.try(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE sql;
	RETURN 'done';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN format('%s %s%s', SQLSTATE, regexp_replace(SQLERRM, 'run \d+', 'run N'), CASE WHEN hint <> '' THEN ' / hint' END);
END $$;
-- Every table has the constraint
SELECT count(*) AS tables, count(con.oid) AS constrained FROM pg_class c
  LEFT JOIN pg_constraint con ON con.conrelid = c.oid AND con.contype = 'c' AND con.conname = 'sound' AND con.convalidated
 WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relkind = 'r' AND c.relname NOT IN ('relay_attempts', 'outbox_restored');

-- A role that may write all data
CREATE ROLE regress_writer IN ROLE pg_write_all_data;
SET ROLE regress_writer;
SELECT t.try(sql) FROM unnest(ARRAY[
	$$INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, state, at) VALUES (1, gen_random_uuid(), 's', 'l', now())$$,
	$$INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, state, at) VALUES (9223372036854775807, gen_random_uuid(), 's', 'f', now())$$,
	$$INSERT INTO idempotency_data.lease_log_1 (number, digest, kind, at) VALUES (1, gen_random_uuid(), 'x', now())$$,
	$$INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, at) VALUES (7258118400000000, gen_random_uuid(), 'm', now())$$,
	$$INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, at) VALUES (7258118400000000, gen_random_uuid(), 'm', now())$$,
	$$INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, epoch) VALUES (1, gen_random_uuid(), 's', 'o', now(), 1)$$,
	$$INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, epoch, producer_id) VALUES (1, gen_random_uuid(), 's', 'p', now(), 1, 1)$$,
	$$INSERT INTO idempotency_data.store_segment_0 (claimed_at, digest, turn, state, event_id, consumer) VALUES (now(), gen_random_uuid(), 1, 'c', 'e', 'c')$$,
	$$INSERT INTO idempotency_data.store_segment_0 (claimed_at, digest, turn, state, event_id, consumer) VALUES (now(), gen_random_uuid(), 0, 'f', 'e', 'c')$$,
	$$INSERT INTO idempotency_data.store_slot_0 (packer, run, digest, kind) VALUES ('0', 1, gen_random_uuid(), 3)$$,
	$$INSERT INTO idempotency_data.store_slot_0 (packer, run, digest, kind) VALUES ('0', 1, gen_random_uuid(), 0)$$,
	$$INSERT INTO idempotency_data.store_slot_0 (packer, run, digest, kind, body) VALUES ('0', 1, gen_random_uuid(), 0, 'x')$$,
	$$INSERT INTO idempotency_data.consumers (consumer, foreign_lockers, lease_duration) VALUES ('c', false, '-1 s')$$,
	$$INSERT INTO idempotency_data.outbox_segment_0 VALUES ('1', 1, gen_random_uuid(), now(), 'a', 'b', 'c')$$,
	$$INSERT INTO idempotency_data.outbox_segment_0 VALUES ('1', 4611686018427387904, gen_random_uuid(), now(), 'a', 'b', 'c', '1')$$,
	$$INSERT INTO idempotency_data.relay_parked (relay_id, state, attempts, xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)
		VALUES (1, 'dead', 1, '1', 4611686018427387904, gen_random_uuid(), now(), 'a', 'b', 'c', '1')$$,
	$$INSERT INTO idempotency_data.relay_blocked (relay_id, aggregate_type, aggregate_id, base, seq) VALUES (1, 't', 'k', '1:1:', 4611686018427387904)$$,
	$$INSERT INTO idempotency_data.relay_log_0 VALUES (1, 1, 1, 1, 1, 1, now(), 1, 'x', 'n', '1:1:')$$
]) sql;
RESET ROLE;
DROP ROLE regress_writer;

-- The same rows where nothing keeps them out
ALTER TABLE idempotency_data.lease_log_0 DROP CONSTRAINT sound;
SELECT (idempotency.lease_event('sound', 'c')).result, (idempotency.lease_event('bad', 'c')).result;
CREATE TABLE t.digests AS SELECT event_id, digest FROM idempotency_data.lease_log_0 WHERE event_id IN ('sound', 'bad');
INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, state, at)
	SELECT last_value + 1000, digest, 's', 'l', now() FROM t.digests, idempotency_data.lease_number WHERE event_id = 'bad';
-- a number beyond all others would end the sequence
INSERT INTO idempotency_data.lease_log_0 (number, digest, kind, state, at)
	SELECT 9223372036854775806, digest, 's', 'f', now() FROM t.digests WHERE event_id = 'sound';
\set VERBOSITY default
SELECT event_id, state FROM idempotency.leases WHERE consumer = 'c';
SELECT consumer, leased FROM idempotency.stat_consumers WHERE consumer = 'c';
SELECT count(*) FROM idempotency.requests WHERE consumer = 'c';
SELECT idempotency.consumer_redrive('c');
\set VERBOSITY terse
-- the one event fails, and the others do not; nobody is told "claimed"
BEGIN;
SELECT e, t.try(format('SELECT idempotency.claim_event(%L, %L)', e, 'c')) FROM unnest('{sound,bad,new}'::text[]) e;
ROLLBACK;
SELECT t.try($$SELECT idempotency.claim_events('{sound,bad,new}', 'c')$$);
DELETE FROM idempotency_data.lease_log_0 WHERE state = 'l' AND event_id IS NULL;
DELETE FROM idempotency_data.lease_log_0 WHERE number > 9e18;
SELECT idempotency.claim_event('bad', 'c');
DELETE FROM idempotency_data.lease_log_0;
-- as many attempts as a row can have: the next one is no more
SELECT result FROM idempotency.lease_event('worn', 'c');
UPDATE idempotency_data.lease_log_0 SET attempt = 999999999, until = '-infinity' WHERE event_id = 'worn';
SELECT result FROM idempotency.lease_event('worn', 'c');
SELECT attempt, state FROM idempotency.leases WHERE event_id = 'worn';
DELETE FROM idempotency_data.lease_log_0;

-- Producers and offsets
ALTER TABLE idempotency_data.cursor_log_0 DROP CONSTRAINT sound;
ALTER TABLE idempotency_data.cursor_log_0 DISABLE TRIGGER USER;
INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, "position", epoch, producer_id) VALUES
	(1, gen_random_uuid(), 's', 'o', now(), 1, 1, NULL), (2, gen_random_uuid(), 's', 'p', now(), 1, 1, 1), (3, gen_random_uuid(), 's', NULL, now(), 1, 1, 1);
SELECT * FROM idempotency.cursors;
SELECT * FROM idempotency.producers;
DELETE FROM idempotency_data.cursor_log_0;
-- as many records as a row can have
SELECT producer_id AS id FROM idempotency.register_producer('worn') \gset
SELECT result FROM idempotency.claim_sequence(:id, 0, 0);
UPDATE idempotency_data.cursor_log_0 SET accepted = 1152921504606846976, in_epoch = 1152921504606846976 WHERE what = 's';
SELECT t.try(format('SELECT idempotency.claim_sequence(%s, 0, 1)', :id)), (idempotency.claim_sequence(:id, 0, 0)).result;
DELETE FROM idempotency_data.cursor_log_0;
ALTER TABLE idempotency_data.cursor_log_0 ENABLE ALWAYS TRIGGER cursor_restored;
ALTER TABLE idempotency_data.cursor_log_0 ENABLE ALWAYS TRIGGER lease_restored;

-- The dedup store: an entry of no known state is no free event
ALTER TABLE idempotency_data.store_segment_0 DROP CONSTRAINT sound;
SELECT idempotency.claim_event('done', 'c'), idempotency.complete_event('done', 'c');
SELECT count(*) FROM idempotency_data.store_segment_0 WHERE event_id = 'done';
UPDATE idempotency_data.store_segment_0 SET state = 'x' WHERE event_id = 'done';
SELECT t.try($$SELECT idempotency.claim_event('done', 'c')$$), t.try($$SELECT idempotency.event_status('done', 'c')$$),
	t.try($$SELECT count(*) FROM idempotency.processed_events$$);
-- packed, it stays what it is
SELECT idempotency.claims_maintain();
DO $$BEGIN
	PERFORM idempotency.claim_event('filler ' || i, 'c'), idempotency.complete_event('filler ' || i, 'c') FROM generate_series(1, 10) i;
END$$;
SELECT t.try($$SELECT idempotency.claim_event('done', 'c')$$) ~ 'XX001 row .* of table "idempotency_data.store_s(egment|lot)_\d+" is not one';

-- An end mark that cannot be read: the row and the way out
ALTER TABLE idempotency_data.store_slot_9 DROP CONSTRAINT sound;
ALTER TABLE idempotency_data.store_slot_9 DISABLE TRIGGER USER;
BEGIN;
INSERT INTO idempotency_data.store_slot_9 (packer, run, digest, kind, body) VALUES ('0', 4711, '00000000-0000-0000-0000-000000000000', 0, 'nonsense');
SELECT t.try($$SELECT * FROM idempotency.stat_claim_segments$$);
ROLLBACK;
-- One that says more than its table can have, 2^39 ids, for which a merge would make filters of more than a terabyte: other rows may be to come
BEGIN;
INSERT INTO idempotency_data.store_slot_9 (packer, run, digest, kind, body) VALUES ('0', 4711, '00000000-0000-0000-0000-000000000000', 0,
	decode('0001' || '0000' || '0000' || 'ffff' || '000000007fffffff' || 'ffffffff' || '0000008000000000' || repeat('00', 48), 'hex') || '\x0000');
SELECT state, held_by FROM idempotency.stat_claim_segments WHERE slot = 9;
SELECT idempotency.claim_event('beside it', 'c');
ROLLBACK;
ALTER TABLE idempotency_data.store_slot_9 ENABLE ALWAYS TRIGGER store_restamp;
ALTER TABLE idempotency_data.store_slot_9 ENABLE ALWAYS TRIGGER store_restored;

-- Consumers: one row stops its consumer only
ALTER TABLE idempotency_data.consumers DROP CONSTRAINT sound;
ALTER TABLE idempotency_data.consumers ALTER lease_duration DROP NOT NULL;
INSERT INTO idempotency_data.consumers (consumer, foreign_lockers, lease_duration) VALUES ('hurt', false, NULL);
BEGIN;
SELECT c, t.try(format('SELECT idempotency.claim_event(%L, %L)', 'e', c)) FROM unnest('{hurt,other}'::text[]) c;
ROLLBACK;
SELECT consumer FROM idempotency.claim_consumers;
DELETE FROM idempotency_data.consumers WHERE consumer = 'hurt';

-- Relays: one row is a problem of its relay
CREATE SERVER sink FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('hurt', 'sink'), idempotency.relay_create('other', 'sink');
SELECT t.try($$UPDATE idempotency_data.relays SET relay_id = 2147483647 WHERE relay = 'hurt'$$);
SELECT t.try(format('UPDATE idempotency_data.relays SET %s WHERE relay = ''hurt''', changed))
  FROM unnest('{replay_events = 1000000000000001,replay_seq = 4611686018427387904,replay_at = ''infinity'',epoch = 1152921504606846977,server_epoch = 1152921504606846977}'::text[]) changed;
ALTER TABLE idempotency_data.relays DROP CONSTRAINT sound;
UPDATE idempotency_data.relays SET min_backoff = '178000000 years', aggregate_types = '{NULL}', batch_events = -1 WHERE relay = 'hurt';
ALTER TABLE idempotency_data.relay_blocked ALTER relay_id DROP NOT NULL;
INSERT INTO idempotency_data.relay_blocked (relay_id, aggregate_type, aggregate_id, base, seq) VALUES (NULL, 't', 'k', '1:1:', 1);
SELECT relay FROM idempotency.stat_relay ORDER BY 1;
SELECT t.try($$SELECT idempotency.relay_pause('other')$$);
ALTER TABLE idempotency_data.relays ALTER relay DROP NOT NULL;
UPDATE idempotency_data.relays SET relay = NULL, replay_at = now(), replay_events = 1, replay_seq = 0 WHERE relay = 'hurt';
SELECT count(*) FROM idempotency.stat_progress;
UPDATE idempotency_data.relays SET relay = 'hurt', replay_at = NULL, replay_events = NULL, replay_seq = NULL WHERE relay IS NULL;
ALTER TABLE idempotency_data.relays ALTER relay SET NOT NULL;
DELETE FROM idempotency_data.relay_blocked;
ALTER TABLE idempotency_data.relay_blocked ALTER relay_id SET NOT NULL;
SELECT idempotency.relay_drop('hurt'), idempotency.relay_drop('other');
DROP SERVER sink;

-- A number that leaves none for later rows: whoever needs one is told, until the row is gone.
-- A sequence that was set so is of no account
INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, at) VALUES (4611686018427387903, '00000000-0000-0000-0000-000000000000', 'm', now());
SELECT t.try($$SELECT idempotency.claim_offset('c', 't', 0, 5)$$), t.try($$SELECT idempotency.lease_event('numbered', 'c')$$);
TRUNCATE idempotency_data.cursor_log_0, idempotency_data.lease_log_0;
SELECT setval('idempotency_data.lease_number', 1);
SELECT (idempotency.claim_offset('c', 't', 0, 5)).result;
SELECT (idempotency.claim_offset('c', 't', 0, 5)).result;
-- The last number that a row may have leaves none either: what is drawn behind it no dump could bring back
INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, at) VALUES (7258118399999999, '00000000-0000-0000-0000-000000000000', 'm', now());
SELECT setval('idempotency_data.lease_number', 1);
SELECT t.try($$SELECT idempotency.claim_offset('c', 't', 0, 7)$$);
DELETE FROM idempotency_data.cursor_log_0 WHERE number > 7258118400000000 - (1::bigint << 40);
VACUUM idempotency_data.cursor_log_0;
SELECT setval('idempotency_data.lease_number', 7258118400000001);
SELECT (idempotency.claim_offset('c', 't', 0, 6)).result;
SELECT (idempotency.claim_offset('c', 't', 0, 6)).result;


-- A number that no row of a relay may have is none of the sequence's
SELECT t.try($$SELECT setval('idempotency_data.relay_log_id', 1152921504606846976)$$);
-- The same for events and for relays; the hint done to the letter lets both go on
INSERT INTO idempotency_data.relay_parked (relay_id, state, attempts, xid, seq, event_id, enqueued_at, aggregate_type, aggregate_id, event_type, payload)
	VALUES (1999999999, 'dead', 1, '1', 4611686018427387902, gen_random_uuid(), now(), 'a', 'b', 'c', '1');
SELECT t.try($$SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')$$);
SELECT seq FROM idempotency.outbox_events;
SELECT t.try($$SELECT FROM idempotency.outbox_enqueue_many('t', '{k,k}', '{E,E}', '{1,2}')$$);
CREATE SERVER sink FOREIGN DATA WRAPPER idempotency_null;
\set VERBOSITY default
SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}');
SELECT idempotency.relay_create('next', 'sink');
\set VERBOSITY terse
DELETE FROM idempotency_data.relay_parked;
TRUNCATE idempotency_data.outbox_segment_0;
SELECT pg_catalog.setval('idempotency_data.outbox_seq', 1);
SELECT idempotency.outbox_mend_seq();
SELECT t.try($$SELECT idempotency.outbox_enqueue('t', 'k', 'E', '{}')$$);
SELECT seq FROM idempotency.outbox_events;
SELECT pg_catalog.setval('idempotency_data.relay_id_seq', COALESCE(pg_catalog.max(relay_id), 1)) FROM idempotency_data.relays;
SELECT idempotency.relay_create('next', 'sink');
SELECT idempotency.relay_drop('next');
DROP SERVER sink;

-- The functions of the tables' triggers are for these tables
CREATE TABLE t.other (a int, b text);
INSERT INTO t.other VALUES (1, 'x');
CREATE FUNCTION t.fire(function text, fires text, each text, sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	told text;
BEGIN
	EXECUTE format('CREATE TRIGGER other %s ON t.other FOR EACH %s EXECUTE FUNCTION idempotency_data.%I()', fires, each, function);
	told := t.try(sql);
	DROP TRIGGER other ON t.other;
	RETURN regexp_replace(told, '^39P01 .*', '39P01');
END $$;
SELECT proname, string_agg(DISTINCT t.fire(proname, fires, each, sql), ', ') AS told FROM pg_proc,
	(VALUES ('BEFORE INSERT', 'ROW', 'INSERT INTO t.other VALUES (1)'), ('AFTER INSERT', 'ROW', 'INSERT INTO t.other VALUES (1)'),
		('BEFORE UPDATE', 'ROW', 'UPDATE t.other SET a = 2'), ('BEFORE DELETE', 'ROW', 'DELETE FROM t.other'),
		('AFTER DELETE', 'STATEMENT', 'DELETE FROM t.other'), ('BEFORE INSERT', 'STATEMENT', 'INSERT INTO t.other VALUES (1)'),
		('BEFORE TRUNCATE', 'STATEMENT', 'TRUNCATE t.other')) AS f (fires, each, sql)
 WHERE pronamespace = 'idempotency_data'::regnamespace AND prorettype = 'trigger'::regtype GROUP BY 1 ORDER BY 1;
DROP SCHEMA t CASCADE;
