-- Offsets: how far a consumer has come in a partition, committed with the effect.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE VIEW t.rows AS TABLE idempotency_data.cursor_log_0 UNION ALL TABLE idempotency_data.cursor_log_1 UNION ALL TABLE idempotency_data.cursor_log_2;
CREATE VIEW t.cursors AS SELECT consumer, topic, partition, next_offset, generation FROM idempotency.cursors ORDER BY consumer, topic, partition;
-- Locks that this transaction keeps
CREATE VIEW t.locks AS SELECT count(*) AS locks, min(mode) AS mode FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';

-- Nothing is known: a reader begins where it likes, which writes nothing
SELECT * FROM idempotency.resume_offset('c', 't', 0);
SELECT * FROM t.cursors;
SELECT count(*) FROM t.rows;

-- One record: any offset that is not behind; what was passed over is a duplicate afterwards
SELECT * FROM idempotency.claim_offset('c', 't', 0, 5);
SELECT * FROM idempotency.claim_offset('c', 't', 0, 5);
SELECT * FROM idempotency.claim_offset('c', 't', 0, 8);
SELECT * FROM idempotency.claim_offset('c', 't', 0, 7);
SELECT * FROM idempotency.claim_offset('c', 't', 0, 0);
SELECT * FROM idempotency.claim_offset('c', 't', 0, 9);
SELECT * FROM idempotency.resume_offset('c', 't', 0);

-- A range, from one position of the reader to the next: in order; overlapping; behind;
-- ahead; empty
SELECT * FROM idempotency.claim_offset('c', 't', 1, 0, 10);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 10, 20);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 15, 25);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 15, 25);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 0, 24);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 0, 26);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 27, 30);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 26, 26);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 27, 27);
SELECT * FROM idempotency.resume_offset('c', 't', 1);
-- a range of one record is no single record
SELECT * FROM idempotency.claim_offset('c', 't', 1, 27, 28);
SELECT * FROM idempotency.claim_offset('c', 't', 1, 27);
-- the first range begins anywhere; an empty one sets the position
SELECT * FROM idempotency.claim_offset('c', 't', 2, 1000, 1000);
SELECT * FROM idempotency.claim_offset('c', 't', 2, 1000, 1010);

-- Consumers, topics and partitions are apart, also those that concatenate alike
SELECT c, t, p, o.*
  FROM (VALUES ('c', 'tu', 1), ('ct', 'u', 1), ('c', 't', 2147483647), ('d', 't', 1), ('ü', 't/:@', 0), ('t', 'c', 0)) AS v (c, t, p), idempotency.claim_offset(c, t, p, 3) AS o;
SELECT * FROM t.cursors;

-- The ends of the range of numbers
SELECT * FROM idempotency.claim_offset('ends', 't', 0, 9223372036854775806);
SELECT * FROM idempotency.claim_offset('ends', 't', 0, 9223372036854775806);
SELECT * FROM idempotency.claim_offset('ends', 't', 0, 0, 9223372036854775807);
SELECT * FROM idempotency.resume_offset('ends', 't', 0, 9223372036854775807);
SELECT * FROM idempotency.claim_offset('ends', 't', 1, 9223372036854775806, 9223372036854775807, 9223372036854775807);
SELECT * FROM idempotency.claim_offset('ends', 't', 1, 0, NULL, 9223372036854775806);

-- Generations: none given never fences; a lower one is fenced; an equal or a higher one goes on
SELECT * FROM idempotency.resume_offset('g', 't', 0, 3);
SELECT * FROM t.cursors WHERE consumer = 'g';
SELECT * FROM idempotency.resume_offset('g', 't', 0, 2);
SELECT * FROM idempotency.resume_offset('g', 't', 0, 3);
SELECT * FROM idempotency.resume_offset('g', 't', 0);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 0, NULL, 2);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 0, NULL, 3);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 1);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 2, 4, 7);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 4, 6, 3);
SELECT * FROM t.cursors WHERE consumer = 'g';
-- fenced is told before anything about the offset
SELECT * FROM idempotency.claim_offset('g', 't', 0, 0, NULL, 6);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 90, 91, 6);
-- only what was claimed or resumed raises the generation
SELECT * FROM idempotency.claim_offset('g', 't', 0, 0, NULL, 8);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 90, 91, 8);
SELECT * FROM t.cursors WHERE consumer = 'g';
SELECT * FROM idempotency.resume_offset('g', 't', 0, 8);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 4, NULL, 7);
-- a first generation beside an offset, and generation 0
SELECT * FROM idempotency.claim_offset('g', 't', 1, 0);
SELECT * FROM idempotency.resume_offset('g', 't', 1, 0);
SELECT * FROM t.cursors WHERE consumer = 'g';

-- A reset: to an offset, which keeps the generation; to nothing, which does not
SELECT idempotency.reset_offset('g', 't', 0, 100);
SELECT * FROM t.cursors WHERE consumer = 'g';
SELECT * FROM idempotency.claim_offset('g', 't', 0, 99, NULL, 8);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 100, 101, 7);
SELECT idempotency.reset_offset('g', 't', 0, 0);
SELECT * FROM idempotency.claim_offset('g', 't', 0, 0, NULL, 8);
SELECT idempotency.reset_offset('g', 't', 0);
SELECT idempotency.reset_offset('g', 't', 0);
SELECT * FROM t.cursors WHERE consumer = 'g';
SELECT * FROM idempotency.claim_offset('g', 't', 0, 40, 41, 1);
SELECT idempotency.reset_offset('g', 'never seen', 0);
SELECT idempotency.reset_offset('g', 'never seen', 0, 12);
SELECT * FROM idempotency.resume_offset('g', 'never seen', 0);
BEGIN;
SELECT idempotency.reset_offset('g', 't', 0, 1);
SELECT * FROM t.locks;
ROLLBACK;
SELECT * FROM idempotency.resume_offset('g', 't', 0);

-- Several partitions at once
SELECT v.partition, o.* FROM unnest('{0,1,2}'::int[], '{10,20,30}'::bigint[], '{15,20,35}'::bigint[]) AS v (partition, first, next),
	LATERAL idempotency.claim_offset('many', 't', v.partition, v.first, v.next, 1) AS o;
SELECT v.partition, o.* FROM unnest('{0,1,2}'::int[]) AS v (partition), LATERAL idempotency.resume_offset('many', 't', v.partition, 2) AS o;
SELECT v.partition, o.* FROM unnest('{0,1,2}'::int[], '{12,20,36}'::bigint[], '{18,22,37}'::bigint[]) AS v (partition, first, next),
	LATERAL idempotency.claim_offset('many', 't', v.partition, v.first, v.next, 2) AS o;
SELECT o.result, count(*), sum(o.new_from) FROM generate_series(1, 200) AS i, LATERAL idempotency.claim_offset('one by one', 't', 0, i % 150) AS o GROUP BY 1 ORDER BY 1;

-- In one transaction: the partition's lock is kept once, whatever follows; what is refused
-- keeps none
BEGIN;
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 0);
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 0);
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 1, 5);
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 6, 7);
SELECT * FROM idempotency.resume_offset('txn', 't', 0, 4);
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 5, NULL, 3);
SELECT * FROM t.locks;
COMMIT;
BEGIN;
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 0);
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 90, 91);
SELECT * FROM idempotency.claim_offset('txn', 't', 0, 90, 91, 3);
SELECT * FROM idempotency.resume_offset('txn', 't', 0, 3);
SELECT * FROM idempotency.resume_offset('txn', 't', 0, 4);
SELECT * FROM idempotency.resume_offset('txn', 't', 0);
SELECT * FROM t.locks;
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;

-- What is rolled back was never claimed, with a savepoint as well
BEGIN;
SELECT * FROM idempotency.claim_offset('back', 't', 0, 5);
ROLLBACK;
SELECT * FROM idempotency.resume_offset('back', 't', 0);
BEGIN;
SELECT * FROM idempotency.claim_offset('back', 't', 0, 0);
SAVEPOINT a;
SELECT * FROM idempotency.claim_offset('back', 't', 0, 1, 10, 3);
SAVEPOINT b;
SELECT * FROM idempotency.claim_offset('back', 't', 1, 7);
SELECT * FROM t.locks;
ROLLBACK TO b;
SELECT * FROM t.locks;
SELECT * FROM idempotency.claim_offset('back', 't', 1, 3);
RELEASE b;
ROLLBACK TO a;
SELECT * FROM t.locks;
SELECT * FROM idempotency.claim_offset('back', 't', 0, 1, 3, 2);
SAVEPOINT c;
SELECT * FROM idempotency.claim_offset('back', 't', 1, 3);
RELEASE c;
COMMIT;
SELECT * FROM t.cursors WHERE consumer = 'back';
-- what the session has seen last is rolled back, what was committed before is not
BEGIN;
SAVEPOINT d;
SELECT * FROM idempotency.claim_offset('back', 't', 1, 4);
SELECT * FROM idempotency.claim_offset('back', 't', 1, 5);
ROLLBACK TO d;
SELECT * FROM idempotency.claim_offset('back', 't', 1, 3);
SELECT * FROM idempotency.claim_offset('back', 't', 1, 4);
ROLLBACK;
-- a block with an exception
DO $$
BEGIN
	PERFORM idempotency.claim_offset('back', 't', 0, 3);
	BEGIN
		PERFORM idempotency.claim_offset('back', 't', 0, 4, 9);
		PERFORM 1 / 0;
	EXCEPTION WHEN division_by_zero THEN
	END;
	IF (idempotency.claim_offset('back', 't', 0, 4)).result <> 'claimed' THEN RAISE 'not rolled back'; END IF;
END $$;
SELECT * FROM t.cursors WHERE consumer = 'back';

-- Through a cursor that fails in a savepoint: what it claimed before stays claimed and locked
BEGIN;
DECLARE c CURSOR FOR SELECT (idempotency.claim_offset('portal', 't', g, 0)).result, 1 / (3 - g) FROM generate_series(1, 3) AS g;
FETCH c;
SAVEPOINT s;
FETCH c;
FETCH c;
ROLLBACK TO s;
SELECT * FROM t.locks;
SELECT * FROM idempotency.claim_offset('portal', 't', 1, 0);
SELECT * FROM idempotency.claim_offset('portal', 't', 2, 0);
COMMIT;
SELECT * FROM t.cursors WHERE consumer = 'portal';

-- The budget of locks
BEGIN;
SET LOCAL idempotency.max_claim_locks = 2;
SELECT idempotency.claim_offset('budget', 't', i, 0) FROM generate_series(1, 2) AS i;
SELECT idempotency.claim_offset('budget', 't', i, 1) FROM generate_series(1, 2) AS i;
SELECT idempotency.resume_offset('budget', 't', 1, 1);
SAVEPOINT s;
\set VERBOSITY default
SELECT idempotency.claim_offset('budget', 't', 3, 0);
\set VERBOSITY terse
ROLLBACK TO s;
SELECT idempotency.resume_offset('budget', 't', 3);
ROLLBACK TO s;
SELECT idempotency.reset_offset('budget', 't', 3);
ROLLBACK TO s;
SELECT * FROM t.locks;
-- savepoints give locks back to it
COMMIT;
BEGIN;
SET LOCAL idempotency.max_claim_locks = 1;
SAVEPOINT s;
SELECT idempotency.claim_offset('budget', 't', 1, 2);
ROLLBACK TO s;
SELECT idempotency.claim_offset('budget', 't', 2, 2);
COMMIT;
SELECT * FROM t.cursors WHERE consumer = 'budget';

-- Claims of events in the same transaction know nothing of it
BEGIN;
SELECT idempotency.claim_offset('default', 'e', 0, 0), idempotency.claim_event('e'), idempotency.complete_event('e');
SELECT * FROM t.locks;
COMMIT;
CREATE TABLE t.guarded (n int);
CREATE TRIGGER fence BEFORE INSERT ON t.guarded FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('default');
BEGIN;
SELECT idempotency.claim_offset('default', 'e', 0, 1);
INSERT INTO t.guarded VALUES (1);
ROLLBACK;

-- Older snapshots: what this transaction wrote itself is seen
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idempotency.claim_offset('rr', 't', 0, 0);
SELECT idempotency.claim_offset('rr', 't', 0, 1);
SELECT idempotency.claim_offset('rr', 't', 0, 1);
COMMIT;

-- Bad arguments are named, before anything is locked
CREATE FUNCTION t.try(call text, OUT state text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT idempotency.' || call INTO message;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
	state := sqlstate;
END $$;
CREATE TABLE t.calls (n serial, name text, argument text, value text);
CREATE FUNCTION t.add(names text, argument text, VARIADIC bad text[]) RETURNS void LANGUAGE sql AS
	$$INSERT INTO t.calls (name, argument, value) SELECT n, argument, b FROM unnest(string_to_array(names, ' ')) n, unnest(bad) b$$;
\o /dev/null
SELECT t.add(n, 'consumer', 'NULL', $$''$$, $$repeat('x', 256)$$, $$repeat('é', 128)$$, $$'@x'$$),
	t.add(n, 'topic', 'NULL', $$''$$, $$repeat('x', 256)$$, $$repeat('é', 128)$$),
	t.add(n, 'partition', 'NULL', '-1', '-2147483648')
  FROM unnest('{resume_offset,claim_offset,reset_offset}'::text[]) n;
SELECT t.add('resume_offset claim_offset', 'generation', '-1', '-9223372036854775808'),
	t.add('resume_offset claim_offset', 'wait', 'NULL', $$'-1 us'$$, $$'-1 month'$$, $$'1 hour -61 min'$$),
	t.add('claim_offset', 'first_offset', 'NULL', '-1', '-9223372036854775808', '9223372036854775807'),
	t.add('claim_offset reset_offset', 'next_offset', '-1', '-9223372036854775808'),
	t.add('claim_offset', 'next_offset', '2', '0');
\o
CREATE FUNCTION t.call(name text, argument text, value text) RETURNS text LANGUAGE sql AS $$
	SELECT name || '(' || string_agg(k || ' => ' || v, ', ') || ')' FROM jsonb_each_text(
		'{"consumer": "''bad''", "topic": "''t''", "partition": "0"}'::jsonb ||
		CASE name WHEN 'claim_offset' THEN '{"first_offset": "3"}' ELSE '{}' END::jsonb || jsonb_build_object(argument, value)) AS a (k, v) $$;
CREATE TABLE t.before AS TABLE t.rows;
BEGIN;
SELECT name, argument, value, e.* FROM t.calls, t.try(t.call(name, argument, value)) AS e ORDER BY n;
SELECT * FROM t.locks;
COMMIT;
SELECT count(*) FROM (TABLE t.rows EXCEPT TABLE t.before) AS changed;
-- the longest names, and the same with characters of several bytes
SELECT (idempotency.claim_offset(repeat('x', 255), repeat('y', 255), 0, 0)).result, (idempotency.claim_offset(repeat('é', 127), repeat('é', 127), 2147483647, 0)).result;
SELECT (idempotency.claim_offset('bad', 't', 0, 3, 3)).result;

-- Transactions that must not write
BEGIN READ ONLY;
SELECT idempotency.resume_offset('c', 't', 0);
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.claim_offset('c', 't', 0, 0);
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.reset_offset('c', 't', 0);
ROLLBACK;

-- Access: a consumer's owner, its members, and nobody else; operators reset
CREATE ROLE regress_offset_owner;
CREATE ROLE regress_offset_member IN ROLE regress_offset_owner;
CREATE ROLE regress_offset_other;
CREATE ROLE regress_offset_operator;
CREATE ROLE regress_offset_monitor;
CREATE ROLE regress_offset_producer;
SELECT idempotency.grant_role(kind, ('regress_offset_' || r)::name)
  FROM (VALUES ('consumer', 'owner'), ('consumer', 'member'), ('consumer', 'other'), ('operator', 'operator'), ('monitor', 'monitor'), ('producer', 'producer')) AS v (kind, r);
GRANT USAGE ON SCHEMA t TO PUBLIC;
SELECT idempotency.consumer_create('owned', owner => 'regress_offset_owner');
CREATE FUNCTION t.all(consumer text, OUT resume_offset text, OUT claim_offset text, OUT reset_offset text) LANGUAGE sql AS $$
	SELECT max(state) FILTER (WHERE n = 1), max(state) FILTER (WHERE n = 2), max(state) FILTER (WHERE n = 3)
	FROM (VALUES (1, 'resume_offset(%L, ''t'', 0, 1)'), (2, 'claim_offset(%L, ''t'', 0, 0, NULL, 1)'), (3, 'reset_offset(%L, ''t'', 0)')) AS c (n, call),
		LATERAL t.try(format(call, consumer)) $$;
SELECT idempotency.claim_offset(c, 't', i, 0) FROM unnest('{owned,free}'::text[]) AS c, generate_series(0, 1) AS i;
SET ROLE regress_offset_member;
SELECT c, a.* FROM unnest('{owned,free}'::text[]) c, t.all(c) a;
SELECT consumer, count(*) FROM idempotency.cursors WHERE consumer IN ('owned', 'free') GROUP BY 1 ORDER BY 1;
SET ROLE regress_offset_other;
SELECT c, a.* FROM unnest('{owned,free}'::text[]) c, t.all(c) a;
-- in the same words whether the partition is known or not
SELECT DISTINCT e.* FROM unnest('{t,never}'::text[]) AS topic, t.try(format('claim_offset(''owned'', %L, 0, 0)', topic)) AS e;
SELECT DISTINCT e.* FROM unnest('{t,never}'::text[]) AS topic, t.try(format('resume_offset(''owned'', %L, 0, wait => ''1 h'')', topic)) AS e;
SELECT consumer, count(*) FROM idempotency.cursors WHERE consumer IN ('owned', 'free') GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM idempotency.producers;
SELECT count(*) FROM idempotency.stat_cursors;
SET ROLE regress_offset_operator;
SELECT c, a.* FROM unnest('{owned,free}'::text[]) c, t.all(c) a;
SELECT consumer, count(*) FROM idempotency.cursors WHERE consumer IN ('owned', 'free') GROUP BY 1 ORDER BY 1;
SELECT count(*) FROM idempotency.producers, idempotency.stat_cursors;
SET ROLE regress_offset_monitor;
SELECT c, a.* FROM unnest('{owned,free}'::text[]) c, t.all(c) a;
SELECT count(*) FROM idempotency.cursors;
SELECT table_bytes > 0 AS table_bytes, index_bytes > 0 AS index_bytes FROM idempotency.stat_cursors;
SET ROLE regress_offset_producer;
SELECT c, a.* FROM unnest('{owned,free}'::text[]) c, t.all(c) a;
SELECT count(*) FROM idempotency.cursors;
RESET ROLE;
-- a dropped owner is nobody; its consumer is not everybody's
SELECT idempotency.consumer_create('orphan', owner => 'regress_offset_owner');
DROP OWNED BY regress_offset_owner, regress_offset_member, regress_offset_other, regress_offset_operator, regress_offset_monitor, regress_offset_producer;
DROP ROLE regress_offset_owner;
SELECT idempotency.grant_role('consumer', 'regress_offset_other');
GRANT USAGE ON SCHEMA t TO PUBLIC;
SET ROLE regress_offset_other;
SELECT * FROM t.all('orphan');
RESET ROLE;
SELECT idempotency.consumer_drop('orphan'), idempotency.consumer_drop('owned');
DROP OWNED BY regress_offset_other;
DROP ROLE regress_offset_member, regress_offset_other, regress_offset_operator, regress_offset_monitor, regress_offset_producer;

-- The view of cursors: one row at a time, nothing stays locked, no predicate locks, nothing written
CREATE VIEW t.held AS SELECT c.relname, l.mode FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
	WHERE l.pid = pg_backend_pid() AND c.relnamespace = 'idempotency_data'::regnamespace;
BEGIN;
SELECT count(*) > 0 AS some FROM idempotency.cursors;
SELECT count(*) FROM (SELECT FROM idempotency.cursors LIMIT 1) AS one;
SELECT count(*) FROM idempotency.producers, idempotency.stat_cursors;
SELECT * FROM t.held;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY;
SELECT count(*) > 0 AS some FROM idempotency.cursors;
SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid() AND mode = 'SIReadLock' AND relation IN (SELECT oid FROM pg_class WHERE relname LIKE 'cursor\_log\_%');
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
-- what a transaction has claimed is shown in it, and rolled back with it
BEGIN;
SELECT idempotency.claim_offset('shown', 't', 0, 4, NULL, 2);
SELECT consumer, topic, partition, next_offset, generation, since > now() - '1 min'::interval AS recent, producer, producer_id, last_sequence, epoch, records
  FROM idempotency.cursors WHERE consumer = 'shown';
ROLLBACK;
SELECT count(*) FROM idempotency.cursors WHERE consumer = 'shown';
-- A reader that has resumed fences former generations in its own transaction, before COMMIT
BEGIN;
SELECT idempotency.claim_offset('own', 't', 0, 0, 10, 2), idempotency.resume_offset('own', 't', 0, 3), idempotency.claim_offset('own', 't', 0, 10, 11, 2);
ROLLBACK;
SELECT idempotency.claim_offset('own', 't', 0, 10, 11, 2);
-- Partitions are apart, however many a session claims in
SELECT o.result, count(*) FROM generate_series(1, 40) AS p CROSS JOIN LATERAL idempotency.claim_offset('apart', 't', p, p) AS o GROUP BY o.result;
SELECT count(*) FROM t.cursors WHERE consumer = 'apart' AND next_offset = partition + 1;
-- a column that somebody adds is not shown
ALTER TABLE idempotency_data.cursor_log_0 ADD COLUMN note text DEFAULT 'x';
SELECT * FROM t.cursors WHERE consumer = 'c';
SELECT idempotency.claim_offset('c', 't', 0, 10);
DROP SCHEMA t CASCADE;
