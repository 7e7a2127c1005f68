-- Lock keys: the published values, pgcrypto's opinion, and the lock itself.

-- Golden values
SELECT id, idempotency.lock_key(id), idempotency.lock_key(id) = golden AS as_published
  FROM (VALUES ('evt-1', 8881273919641520361),
			   ('hello world', -5094371925492417016),
			   ('é', 5375421630974772051),
			   ('', -2039914840885289964)) AS t (id, golden);

-- Another consumer's: consumer, a zero byte, id
CREATE FUNCTION by_pgcrypto(id text, consumer text) RETURNS bigint LANGUAGE sql AS $$
	SELECT ('x' || encode(substr(public.digest(
		CASE WHEN consumer = 'default' THEN ''::bytea
			 ELSE convert_to(consumer, 'UTF8') || '\x00'::bytea END ||
		convert_to(id, 'UTF8'), 'sha256'), 1, 8), 'hex'))::bit(64)::bigint
$$;
SELECT count(*) AS compared,
	   count(*) FILTER (WHERE idempotency.lock_key(id, consumer) = by_pgcrypto(id, consumer)) AS equal
  FROM (SELECT repeat(chr(33 + i % 900), i) FROM generate_series(0, 300) i) AS ids (id),
	   (VALUES ('default'), ('defaul'), ('default2'), ('billing'), ('zahlung-ö')) AS consumers (consumer);
SELECT idempotency.lock_key('b', 'a') <> idempotency.lock_key('', 'ab') AS names_do_not_run_together;
SELECT idempotency.verify_lock_key('evt-1'), idempotency.verify_lock_key('é', 'zahlung-ö');

-- The uuid form
SELECT idempotency.lock_key('A0EEBC999C0B4EF8BB6D6BB9BD380A11'::uuid) =
	   idempotency.lock_key('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11') AS canonical;

-- What a claim locks is what pg_advisory_xact_lock(lock_key()) locks
BEGIN;
SELECT idempotency.claim_event('evt-1', 'billing');
SELECT count(*) AS same_lock
  FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND mode = 'ExclusiveLock'
   AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND (classid::bigint << 32) | objid::bigint = idempotency.lock_key('evt-1', 'billing')
   AND objsubid = 1;
SELECT pg_advisory_xact_lock(idempotency.lock_key('evt-1', 'billing'));
SELECT count(*) AS still_one FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
ROLLBACK;

-- A lock of the caller's own does not stand in the way, nor is it lost
SELECT pg_advisory_lock(idempotency.lock_key('mine'));
SELECT idempotency.claim_event('mine'), idempotency.complete_event('mine');
SELECT idempotency.claim_event('mine');
SELECT pg_advisory_unlock(idempotency.lock_key('mine'));

-- pgcrypto is found where it is, whatever is called digest elsewhere
CREATE SCHEMA elsewhere;
CREATE FUNCTION elsewhere.digest(bytea, text) RETURNS bytea LANGUAGE sql AS $$ SELECT ''::bytea $$;
SET search_path = elsewhere, public;
SELECT idempotency.verify_lock_key('evt-1');
RESET search_path;
CREATE SCHEMA elsewhere2;
ALTER EXTENSION pgcrypto SET SCHEMA elsewhere2;
SELECT idempotency.verify_lock_key('evt-1');
