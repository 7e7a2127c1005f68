-- What an operator looks at: counters of verdicts, progress, watch and doctor.
\set VERBOSITY terse
\set SHOW_CONTEXT never

-- Each verdict counts when it is given, whatever becomes of the transaction
CREATE VIEW verdicts AS
SELECT consumer, registered, verdicts_claimed AS claimed, verdicts_duplicate AS duplicate, verdicts_busy AS busy,
	   verdicts_expired AS expired, verdicts_dead AS dead
  FROM idempotency.stat_consumers;
SELECT * FROM verdicts;
BEGIN;
SELECT idempotency.claim_event('a', 'one'), idempotency.complete_event('a', 'one');
SELECT idempotency.claim_event('a', 'one');
COMMIT;
BEGIN;
SELECT idempotency.claim_event('b', 'one');
SAVEPOINT s;
SELECT idempotency.claim_event('c', 'one');
ROLLBACK TO s;
ROLLBACK;
SELECT idempotency.claim_event('late', 'one', valid_until => '-infinity');
SELECT * FROM verdicts;
-- of a batch, of leases, and of uuids; a NULL or an error is no verdict
BEGIN;
SELECT result FROM idempotency.claim_events('{a,d,d,e}', 'one');
SELECT idempotency.complete_events('{d,e}', 'one');
COMMIT;
SELECT idempotency.claim_event(NULL::text, 'one');
SELECT idempotency.consumer_create('two', max_attempts => 1);
SELECT result FROM idempotency.lease_event('f', 'two');
SELECT result FROM idempotency.lease_event('f', 'two');
SELECT result FROM idempotency.lease_events('{f,g}', 'two');
SELECT idempotency.release_lease('f', (SELECT token FROM idempotency.leases WHERE event_id = 'f'), 'two', error => 'no', park => true);
SELECT result FROM idempotency.lease_event('f', 'two');
BEGIN;
SELECT idempotency.claim_event('00000000-0000-7000-8000-000000000001'::uuid, 'three'),
	   idempotency.complete_event('00000000-0000-7000-8000-000000000001'::uuid, 'three');
COMMIT;
SELECT * FROM verdicts ORDER BY consumer COLLATE "C";
-- names that begin alike, or hash to one place of what a session remembers
SELECT sum(length(idempotency.claim_event('x', 'n' || i)::text)) FROM generate_series(1, 300) i, generate_series(1, 2);
SELECT claimed, duplicate, count(*) FROM verdicts WHERE consumer ~ '^n\d+$' GROUP BY 1, 2;
SELECT idempotency.release_event('x', 'n1');

-- Progress of an import: begins, goes on, ends; an error ends it, a commit does not
CREATE VIEW progress AS SELECT job, object, done, total, unit, remaining IS NULL AS unknown, pid = pg_backend_pid() AS mine FROM idempotency.stat_progress;
SELECT * FROM progress;
SELECT idempotency.claims_progress(0, 10);
SELECT * FROM progress;
SELECT idempotency.claims_progress(4, 12);
SELECT * FROM progress;
SELECT 1 / (SELECT count(*) FROM idempotency.stat_progress WHERE job = 'none');
SELECT * FROM progress;
SELECT idempotency.claims_progress(5, 12);
SELECT * FROM progress;
SELECT idempotency.claims_progress(12, 12);
SELECT * FROM progress;
-- whatever it counts
SELECT idempotency.claims_progress(9000000000000000000, 9223372036854775807);
SELECT state LIKE '97 \% done%' AS rounded FROM idempotency.watch WHERE kind = 'import';
SELECT idempotency.claims_progress(1, 9223372036854775807);
SELECT * FROM progress;
SELECT idempotency.claims_progress(1, 1);
SELECT idempotency.claims_progress(NULL, 1);
SELECT idempotency.claims_progress(1, NULL);
SELECT idempotency.claims_progress(-1, 1);
SELECT idempotency.claims_progress(1, -1);
CREATE TABLE old (id text);
INSERT INTO old SELECT 'old' || i FROM generate_series(1, 2000) i;
CALL idempotency.claims_backfill('old', 'id', 'one');
SELECT * FROM progress;
SET track_activities = off;
SELECT idempotency.claims_progress(1, 10);
RESET track_activities;

-- A replay is shown until the relay has come to where it was
SET client_min_messages = warning;
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('again', 'nul', start_at => 'latest');
SELECT idempotency.relay_pause('again');
SELECT count(idempotency.outbox_enqueue('t', 'k', 'E', '{}')) FROM generate_series(1, 20);
SELECT * FROM progress;
SELECT idempotency.relay_replay('again', since => now() - interval '1 day');
SELECT * FROM progress;
SELECT count(idempotency.outbox_enqueue('t', 'k', 'E', '{}')) FROM generate_series(1, 5);
SELECT * FROM progress;
-- another move is no replay
SELECT idempotency.relay_alter('again', start_at => 'earliest');
SELECT * FROM progress;

-- The screen, for a role that may only monitor: what a row says, and how wide it is
CREATE ROLE regress_watch;
SELECT idempotency.grant_role('monitor', 'regress_watch');
GRANT SELECT ON progress TO regress_watch;
SET ROLE regress_watch;
SELECT kind, name, waiting, CASE kind WHEN 'relay' THEN state <> '' ELSE state = 'for relay again' END AS state FROM idempotency.watch WHERE kind NOT IN ('consumer', 'store', 'leases', 'cursors');
SELECT kind, name, state FROM idempotency.watch WHERE kind = 'consumer' LIMIT 3;
SELECT string_agg(DISTINCT kind, ' ' ORDER BY kind) FROM idempotency.watch;
SELECT sum(greatest(width, length(attname)) + 3) - 1 <= 100 AS "fits 100 columns"
  FROM (SELECT attname, CASE attname WHEN 'kind' THEN 8 WHEN 'name' THEN 16 WHEN 'per_s' THEN 6 WHEN 'waiting' THEN 6 WHEN 'oldest' THEN 6 WHEN 'size' THEN 8 WHEN 'state' THEN 28 END
		  FROM pg_attribute WHERE attrelid = 'idempotency.watch'::regclass AND attnum > 0) AS columns (attname, width);
SELECT max(length(kind)) <= 8 AND max(length(name)) <= 16 AND max(length(state)) <= 28 AS "no wider" FROM idempotency.watch;
SELECT string_agg(DISTINCT area, ' ' ORDER BY area) AS areas, count(*) FILTER (WHERE remedy IS NULL) = count(*) FILTER (WHERE ok) AS "each fault has a remedy" FROM idempotency.doctor();
RESET ROLE;
SELECT n, idempotency_data.short_number(n) AS short
  FROM unnest('{0,0.04,0.25,9.96,10,99999,99999.4,99999.5,123456,99999499,99999500,99999499999,99999500000}'::numeric[]) AS n;
SELECT t, idempotency_data.short_time(t) AS short
  FROM unnest('{-1 s,0 s,99 s,100 s,99 min 59 s,100 min,99 h,100 h,400 d}'::interval[]) AS t;
SELECT b, idempotency_data.short_size(b) AS short FROM unnest('{0,10239,10240,1073741824,109951162777600}'::bigint[]) AS b;

-- Sums of parked events, a long name, and what holds the outbox
SELECT idempotency.relay_create('a name that is longer than the column', 'nul');
SELECT name FROM idempotency.watch WHERE kind = 'relay' AND name ~ '^a name';
SELECT idempotency.relay_drop('a name that is longer than the column');
SELECT idempotency.relay_drop('again');
SELECT state FROM idempotency.watch WHERE kind = 'outbox';
DROP SERVER nul;
DROP VIEW progress, verdicts;
DROP OWNED BY regress_watch;
DROP ROLE regress_watch;
DROP TABLE old;

-- in a session whose search_path has another type of the name
CREATE SCHEMA odd;
CREATE DOMAIN odd.text AS int;
SET search_path = odd, pg_catalog;
SELECT count(*) > 0 AS seen FROM idempotency.watch;
