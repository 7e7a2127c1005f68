-- Savepoints, exception blocks, cursors and isolation levels; with the lock
-- kept, and once more past the budget of locks.
\set SHOW_CONTEXT never
CREATE VIEW locks AS
SELECT count(*) AS locks FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();

-- ROLLBACK TO forgets the claim, and gives its lock back
BEGIN;
SELECT idempotency.claim_event('a');
SAVEPOINT s;
SELECT idempotency.claim_event('b');
SELECT * FROM locks;
ROLLBACK TO s;
SELECT * FROM locks;
SELECT idempotency.claim_event('a'), idempotency.claim_event('b');
SELECT idempotency.complete_events('{a,b}');
COMMIT;

-- It restores what was before: a completion undone leaves the claim
BEGIN;
SELECT idempotency.claim_event('c');
SAVEPOINT s;
SELECT idempotency.complete_event('c', result => '"undone"');
ROLLBACK TO s;
SELECT idempotency.event_result('c') IS NULL AS undone;
SELECT * FROM locks;
SELECT idempotency.claim_event('c');
SELECT idempotency.complete_event('c', result => '"second"');
COMMIT;
SELECT idempotency.event_result('c');

-- and without another completion COMMIT fails
BEGIN;
SELECT idempotency.claim_event('d');
SAVEPOINT s;
SELECT idempotency.complete_event('d');
ROLLBACK TO s;
COMMIT;

-- A release undone leaves the claim, with its lock
BEGIN;
SELECT idempotency.claim_event('d');
SAVEPOINT s;
SELECT idempotency.release_event('d');
SELECT * FROM locks;
ROLLBACK TO s;
SELECT * FROM locks;
SELECT idempotency.claim_event('d');
COMMIT;

-- A release inside a savepoint that is kept gives the claim up
BEGIN;
SELECT idempotency.claim_event('d');
SAVEPOINT s;
SELECT idempotency.release_event('d');
RELEASE s;
SELECT idempotency.claim_event('d');
SELECT idempotency.release_event('d');
COMMIT;
SELECT * FROM locks;

-- A release of a claim from a savepoint that was released frees the lock
BEGIN;
SAVEPOINT s;
SELECT idempotency.claim_event('d');
RELEASE s;
SELECT * FROM locks;
SELECT idempotency.release_event('d');
SELECT * FROM locks;
COMMIT;

-- Nested: claimed in the inner, which commits into one that aborts
BEGIN;
SAVEPOINT s1;
SAVEPOINT s2;
SELECT idempotency.claim_event('e'), idempotency.complete_event('e');
RELEASE s2;
SAVEPOINT s3;
SELECT idempotency.claim_event('e');
ROLLBACK TO s1;
SELECT * FROM locks;
SELECT idempotency.claim_event('e'), idempotency.complete_event('e');
COMMIT;
SELECT idempotency.claim_event('e');

-- Exception blocks
CREATE FUNCTION handle(id text, fail text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	verdict idempotency.claim_result;
BEGIN
	BEGIN
		verdict := idempotency.claim_event(id);
		IF fail = 'after claim' THEN
			RAISE 'failed';
		END IF;
		PERFORM idempotency.complete_event(id);
		IF fail = 'after completion' THEN
			RAISE 'failed';
		END IF;
		RETURN verdict;
	EXCEPTION WHEN raise_exception THEN
		RETURN verdict || ', then failed ' || fail;
	END;
END
$$;
SELECT handle('x1', 'after claim'), handle('x1', 'after completion'), handle('x1', 'never');
SELECT handle('x2', 'after claim');
SELECT event_id, status FROM idempotency.processed_events WHERE event_id LIKE 'x%';

-- Thousands of them in one transaction
SELECT count(*) FILTER (WHERE r = 'claimed') AS claimed, count(*)
  FROM (SELECT handle('loop-' || i % 500, CASE WHEN i < 500 THEN 'after completion' ELSE 'never' END) AS r
		  FROM generate_series(0, 999) i) t;
SELECT count(*) FROM idempotency.processed_events WHERE event_id LIKE 'loop-%';

-- A cursor of the outer transaction, fetched inside a savepoint: the claim and
-- its lock go with the savepoint
BEGIN;
DECLARE c CURSOR FOR SELECT id, idempotency.claim_event(id) FROM unnest('{k1,k2,k3}'::text[]) id;
FETCH 1 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
SELECT * FROM locks;
ROLLBACK TO s;
SELECT * FROM locks;
SELECT idempotency.claim_event('k1'), idempotency.claim_event('k2');
FETCH ALL FROM c;
CLOSE c;
SELECT * FROM locks;
SELECT idempotency.complete_events('{k1,k2,k3}');
COMMIT;
SELECT result, count(*) FROM idempotency.claim_events('{k1,k2,k3}') GROUP BY 1 ORDER BY 1;

-- One that fails inside a savepoint gives up its locks: what it claimed before
-- keeps those of the store
BEGIN;
DECLARE c CURSOR FOR SELECT id, idempotency.claim_event(id), idempotency.complete_event(id), 1 / (id <> 'k5')::int
  FROM unnest('{k4,k5}'::text[]) id;
FETCH 1 FROM c;
SAVEPOINT s;
FETCH 1 FROM c;
ROLLBACK TO s;
SELECT relation::regclass, mode FROM pg_locks WHERE pid = pg_backend_pid()
	AND relation IN ('idempotency_data.store_state'::regclass, 'idempotency_data.store_segment_0'::regclass) ORDER BY 1;
COMMIT;

-- A holdable cursor claims at COMMIT at the latest, and cannot complete there: no effect was made
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT idempotency.claim_event('h1');
COMMIT;
CLOSE h;
BEGIN;
DECLARE h CURSOR WITH HOLD FOR SELECT idempotency.claim_event('h1'), idempotency.complete_event('h1');
COMMIT;
SELECT status FROM idempotency.event_status('h1');

-- A deferred trigger claims and completes inside of COMMIT
CREATE TABLE orders (id text);
CREATE FUNCTION on_order() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	IF idempotency.claim_event(NEW.id) = 'claimed' AND NEW.id <> 'o2' THEN
		PERFORM idempotency.complete_event(NEW.id);
	END IF;
	RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER on_order AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
	FOR EACH ROW EXECUTE FUNCTION on_order();
INSERT INTO orders VALUES ('o1');
INSERT INTO orders VALUES ('o2');
TABLE orders;

-- Procedures that commit
CREATE PROCEDURE work() LANGUAGE plpgsql AS $$
BEGIN
	FOR i IN 1 .. 3 LOOP
		IF idempotency.claim_event('w' || i % 2) = 'claimed' THEN
			PERFORM idempotency.complete_event('w' || i % 2);
		END IF;
		COMMIT;
	END LOOP;
	PERFORM idempotency.claim_event('w-left');
	COMMIT;
END
$$;
CALL work();
SELECT event_id FROM idempotency.processed_events WHERE event_id LIKE 'w%' ORDER BY 1;

-- Isolation levels, alone
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idempotency.claim_event('a');
SELECT idempotency.claim_event('rr'), idempotency.complete_event('rr', result => '1');
SELECT idempotency.claim_event('rr'), idempotency.event_result('rr');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idempotency.claim_event('rr');
SELECT idempotency.claim_event('ser'), idempotency.complete_event('ser', result => '1');
COMMIT;
SELECT result FROM idempotency.claim_events('{rr,ser}');

-- Past the budget
SET idempotency.max_claim_locks = 0;
BEGIN;
SELECT idempotency.claim_event('pa');
SAVEPOINT s;
SELECT idempotency.claim_event('pb'), idempotency.complete_event('pa');
SELECT * FROM locks;
ROLLBACK TO s;
SELECT idempotency.claim_event('pa'), idempotency.claim_event('pb');
COMMIT;
BEGIN;
SELECT idempotency.claim_event('pa');
SAVEPOINT s;
SELECT idempotency.complete_event('pa', result => '"undone"');
ROLLBACK TO s;
SELECT idempotency.complete_event('pa', result => '"second"');
SAVEPOINT s;
SELECT idempotency.claim_event('pb');
SAVEPOINT t;
SELECT idempotency.release_event('pb');
ROLLBACK TO t;
SELECT idempotency.complete_event('pb');
COMMIT;
SELECT idempotency.claim_event('pa'), idempotency.event_result('pa');
SELECT idempotency.claim_event('pb');
SELECT handle('px1', 'after claim'), handle('px1', 'after completion'), handle('px1', 'never');
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idempotency.claim_event('pser'), idempotency.complete_event('pser');
SELECT idempotency.claim_event('pser');
COMMIT;
SELECT idempotency.claim_event('pser');
RESET idempotency.max_claim_locks;

-- A subtransaction's budget comes back with it
SET idempotency.max_claim_locks = 2;
BEGIN;
SAVEPOINT s;
SELECT result FROM idempotency.claim_events('{b1,b2,b3}');
SELECT * FROM locks;
ROLLBACK TO s;
SELECT result FROM idempotency.claim_events('{b4,b5,b6}');
SELECT * FROM locks;
ROLLBACK;

-- Claimed again in a savepoint without a lock of its own, released once more
BEGIN;
SELECT idempotency.claim_event('again');
SAVEPOINT s;
SELECT idempotency.release_event('again');
SET LOCAL idempotency.max_claim_locks = 0;
SELECT idempotency.claim_event('again');
SELECT idempotency.release_event('again');
COMMIT;
SELECT count(*) FROM idempotency_data.store_segment_0 WHERE event_id = 'again';

-- Released past the budget, a claim that was kept before stays kept, since the
-- same time
SET idempotency.uncompleted_claims = keep;
BEGIN;
SELECT idempotency.claim_event('kept');
COMMIT;
RESET idempotency.uncompleted_claims;
CREATE TABLE kept AS SELECT claimed_at FROM idempotency.processed_events WHERE event_id = 'kept';
SET idempotency.max_claim_locks = 0;
BEGIN;
SELECT idempotency.claim_event('kept');
SELECT idempotency.release_event('kept');
COMMIT;
SELECT status, claimed_at = (SELECT k.claimed_at FROM kept k) AS same_time
FROM idempotency.processed_events WHERE event_id = 'kept';
-- also claimed and released again, and undone
BEGIN;
SELECT idempotency.claim_event('kept');
SAVEPOINT s;
SELECT idempotency.release_event('kept');
SELECT idempotency.claim_event('kept');
ROLLBACK TO s;
SELECT idempotency.claim_event('kept');
SELECT idempotency.release_event('kept');
SELECT idempotency.claim_event('kept');
SELECT idempotency.release_event('kept');
COMMIT;
SELECT status, claimed_at = (SELECT k.claimed_at FROM kept k) AS same_time
FROM idempotency.processed_events WHERE event_id = 'kept';
-- and the next claim takes it over
BEGIN;
SELECT idempotency.claim_event('kept');
SELECT idempotency.release_event('kept');
SELECT idempotency.claim_event('kept'), idempotency.complete_event('kept', result => '"done"');
COMMIT;
SELECT status, result FROM idempotency.processed_events WHERE event_id = 'kept';
-- beside the row of the kept claim, which is not touched
SELECT turn, state, claimed_at = (SELECT k.claimed_at FROM kept k) AS same_time
FROM idempotency_data.store_segment_0 WHERE event_id = 'kept' ORDER BY turn;

-- A lock that a release inside a savepoint has left is counted once, and goes
-- on guarding the event when it is claimed again
SET idempotency.max_claim_locks = 1;
SELECT idempotency.consumer_create('counted', foreign_lockers => true);
BEGIN;
SELECT idempotency.claim_event('c1', 'counted');
SAVEPOINT s;
SELECT idempotency.release_event('c1', 'counted');
SELECT idempotency.claim_event('c1', 'counted');
SELECT idempotency.claim_event('c2', 'counted');
SELECT idempotency.release_event('c1', 'counted');
SELECT idempotency.claim_event('c2', 'counted');
SELECT * FROM locks;
ROLLBACK TO s;
SELECT idempotency.complete_event('c1', 'counted');
COMMIT;
SELECT event_id, status FROM idempotency.processed_events WHERE consumer = 'counted';
SELECT idempotency.consumer_drop('counted');
RESET idempotency.max_claim_locks;

-- Many consumers of one event are as cheap as many events of one consumer.  A table
-- whose entries fall into one bucket is made larger again and again, to no avail: it
-- shows in memory, whatever the speed of the machine.
CREATE FUNCTION claim_memory() RETURNS bigint LANGUAGE sql AS $$
SELECT used_bytes FROM pg_backend_memory_contexts WHERE name = 'idempotency claims' $$;
BEGIN;
SELECT count(*) FROM generate_series(1000, 3999) AS i
WHERE idempotency.claim_event('event' || i, 'consumer') = 'claimed';
SELECT claim_memory() AS events \gset
ROLLBACK;
BEGIN;
SELECT count(*) FROM generate_series(1000, 3999) AS i
WHERE idempotency.claim_event('event', 'consumer' || i) = 'claimed';
SELECT claim_memory() AS consumers, claim_memory() < 1.5 * :events AS as_cheap \gset
\echo :as_cheap
ROLLBACK;

-- A claim that is kept again and again, past the budget of locks, has a row for each time
SET idempotency.uncompleted_claims = keep;
SET idempotency.max_claim_locks = 0;
SELECT idempotency.claim_event('kept again');
SELECT idempotency.claim_event('kept again');
SELECT idempotency.claim_event('kept again');
SELECT turn, state FROM idempotency_data.store_segment_0 WHERE event_id = 'kept again' ORDER BY turn;
SELECT idempotency.claim_event('kept again'), idempotency.complete_event('kept again');
SELECT turn, state FROM idempotency_data.store_segment_0 WHERE event_id = 'kept again' ORDER BY turn;
RESET idempotency.max_claim_locks;
RESET idempotency.uncompleted_claims;

-- What a sink's program has claimed for the function that it calls (idempotency.claimed_consumer) is the
-- program's alone; what the function claims under other ids or consumers is its own
BEGIN;
SELECT result FROM idempotency.claim_events('{sink-1,sink-1,sink-2}', 'billing');
SELECT idempotency.claim_event('sink-1', 'shipping');
SET LOCAL idempotency.claimed_consumer = 'billing';
\set VERBOSITY default
SAVEPOINT call;
SELECT idempotency.claim_event('sink-1', 'billing');
\echo :LAST_ERROR_SQLSTATE
\set VERBOSITY terse
ROLLBACK TO call;
SELECT * FROM idempotency.claim_events('{sink-0,sink-1}', 'billing');
ROLLBACK TO call;
SELECT result FROM idempotency.lease_event('sink-1', 'billing');
ROLLBACK TO call;
SELECT result FROM idempotency.lease_events('{sink-1}', 'billing');
ROLLBACK TO call;
SELECT idempotency.complete_event('sink-1', 'billing');
ROLLBACK TO call;
SELECT idempotency.complete_events('{sink-1}', 'billing');
ROLLBACK TO call;
SELECT idempotency.release_event('sink-1', 'billing');
ROLLBACK TO call;
SELECT idempotency.claim_event('sink-1', 'shipping'), idempotency.claim_event('sink-1', 'own'),
       idempotency.claim_event('sink-3', 'billing'), idempotency.claim_event('sink-3', 'billing');
SELECT idempotency.complete_event('sink-1', 'shipping'), idempotency.complete_event('sink-1', 'own'),
       idempotency.complete_event('sink-3', 'billing');
SET LOCAL idempotency.claimed_consumer = '';
SELECT idempotency.claim_event('sink-1', 'billing');
SELECT idempotency.complete_event('sink-1', 'billing'), idempotency.release_event('sink-2', 'billing');
COMMIT;
SELECT event_id, consumer, status FROM idempotency.processed_events WHERE event_id LIKE 'sink-%' ORDER BY 1, 2;
SELECT count(*) FROM pg_settings WHERE name = 'idempotency.claimed_consumer';
