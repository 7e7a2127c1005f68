-- Producers and their sequences: has a record been accepted already?
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE VIEW t.rows AS TABLE idempotency_data.cursor_log_0 UNION ALL TABLE idempotency_data.cursor_log_1 UNION ALL TABLE idempotency_data.cursor_log_2;
CREATE VIEW t.locks AS SELECT count(*) AS locks, string_agg(mode, ' ' ORDER BY mode) AS modes FROM pg_locks WHERE pid = pg_backend_pid() AND locktype = 'advisory';
CREATE VIEW t.cursors AS SELECT producer, topic, partition, last_sequence, c.epoch, records, p.producer_id = c.producer_id AS current
	FROM idempotency.cursors AS c LEFT JOIN idempotency.producers AS p USING (producer) WHERE producer IS NOT NULL ORDER BY producer, topic, partition;
-- The id that a producer has now, and a claim under it
CREATE FUNCTION t.id(producer text) RETURNS bigint LANGUAGE sql AS
	'SELECT producer_id FROM idempotency.producers WHERE producers.producer = id.producer';
CREATE FUNCTION t.claim(producer text, epoch int, sequence bigint, count int = 1, partition int = 0, topic text = '') RETURNS text LANGUAGE sql AS
	$$SELECT concat_ws(' ', result, 'as ' || record_number, 'next ' || expected) FROM idempotency.claim_sequence(t.id(producer), epoch, sequence, topic, partition, count)$$;
CREATE FUNCTION t.register(producer text, gapless boolean = true, OUT same boolean, OUT epoch int) LANGUAGE plpgsql AS $$
DECLARE
	former bigint := t.id(producer);
	r record := idempotency.register_producer(producer, gapless);
BEGIN
	same := r.producer_id = former;
	epoch := r.epoch;
	IF r.producer_id < former THEN RAISE 'id fell'; END IF;
	IF r.producer_id IS DISTINCT FROM t.id(producer) THEN RAISE 'not shown'; END IF;
END $$;

-- The last sequence of an id, whose digits differ from run to run
CREATE FUNCTION t.last(id bigint, OUT state text, OUT answer text) LANGUAGE plpgsql AS $$
BEGIN
	answer := idempotency.last_sequence(id);
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	state := sqlstate;
	answer := replace(sqlerrm, id::text, 'ID');
END $$;

-- A new producer begins at 0, in each partition
SELECT * FROM t.register('p');
SELECT t.claim('p', 0, 1);
SELECT t.claim('p', 0, 2147483647);
SELECT count(*) FROM t.cursors;
SELECT t.claim('p', 0, 0);
SELECT t.claim('p', 0, 0);
SELECT t.claim('p', 0, 2);
SELECT t.claim('p', 0, 1);
SELECT t.claim('p', 0, 0);
SELECT t.claim('p', 0, 0, partition => 1), t.claim('p', 0, 0, topic => 't'), t.claim('p', 0, 0, topic => 't', partition => 2147483647);
SELECT * FROM t.cursors;

-- Batches: in order, repeated, part of a former one, over several former ones, straddling
-- the end, ahead, behind what this epoch has accepted
SELECT t.claim('p', 0, 2, 10);
SELECT t.claim('p', 0, 2, 10);
SELECT t.claim('p', 0, 5, 3);
SELECT t.claim('p', 0, 0, 12);
SELECT t.claim('p', 0, 11, 1);
SELECT t.claim('p', 0, 11, 2);
SELECT t.claim('p', 0, 0, 13);
SELECT t.claim('p', 0, 13, 1);
SELECT t.claim('p', 0, 12, 1073741824);
SELECT t.claim('p', 0, 12, 1073741824);
SELECT t.claim('p', 0, 2147483647, 13);
SELECT * FROM t.cursors WHERE partition = 0 AND topic = '';

-- Sequences wrap after 2^31 - 1; so do batches over the end, and what is a duplicate keeps
-- its number
SELECT * FROM t.register('wrap');
SELECT t.claim('wrap', 0, 0, 1073741824), t.claim('wrap', 0, 1073741824, 1073741823);
SELECT t.claim('wrap', 0, 2147483647, 1);
SELECT t.claim('wrap', 0, 2147483647, 1);
SELECT t.claim('wrap', 0, 0, 1);
SELECT t.claim('wrap', 0, 0, 1), t.claim('wrap', 0, 2147483647, 2), t.claim('wrap', 0, 2147483646, 2);
SELECT t.claim('wrap', 0, 2147483647, 3);
SELECT * FROM t.register('over');
SELECT t.claim('over', 0, 0, 1073741824), t.claim('over', 0, 1073741824, 1073741814);
SELECT t.claim('over', 0, 2147483638, 20);
SELECT t.claim('over', 0, 2147483638, 20), t.claim('over', 0, 2147483647, 11), t.claim('over', 0, 9, 1);
SELECT t.claim('over', 0, 9, 2), t.claim('over', 0, 11, 1), t.claim('over', 0, 10, 1073741824);
-- half a circle behind: as far as a claim is known for a duplicate
SELECT t.claim('over', 0, 1073741834, 1);
SELECT t.claim('over', 0, 11, 1), t.claim('over', 0, 10, 1), t.claim('over', 0, 9, 1);
SELECT * FROM t.cursors WHERE producer IN ('wrap', 'over');

-- A new epoch begins at 0 again; the former one is fenced, and so is what it has sent; records
-- are counted over all epochs
SELECT * FROM t.register('p');
SELECT t.claim('p', 0, 12), t.claim('p', 0, 0), t.claim('p', 0, 99);
SELECT t.claim('p', 1, 1073741836), t.claim('p', 1, 1);
SELECT t.claim('p', 1, 0, 4);
SELECT t.claim('p', 1, 0, 4), t.claim('p', 1, 3), t.claim('p', 1, 4);
SELECT t.claim('p', 1, 2147483647, 2), t.claim('p', 1, 2147483647);
-- each partition begins when it is written
SELECT t.claim('p', 1, 1, partition => 1), t.claim('p', 1, 0, partition => 1);
SELECT * FROM t.cursors WHERE producer = 'p';
-- an epoch that was never given out; an id that was never given out
\set VERBOSITY default
SELECT t.claim('p', 2, 0);
SELECT idempotency.last_sequence(7);
\set VERBOSITY terse
SELECT * FROM idempotency.claim_sequence(7, 0, 0);
SELECT * FROM idempotency.claim_sequence(0, 0, 0);
-- what a registration that is rolled back has fenced is not fenced
BEGIN;
SELECT * FROM t.register('p');
SELECT t.claim('p', 1, 5), t.claim('p', 2, 0);
ROLLBACK;
SELECT t.claim('p', 1, 5);

-- After epoch 32767 another id begins at epoch 0; the former id is fenced for good
CREATE FUNCTION t.raise_epoch(producer text, new_epoch bigint) RETURNS void LANGUAGE sql AS $$
	INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, epoch, producer_id, owner, gapless, role, history, written, kept)
	SELECT number + 1, digest, kind, what, at, new_epoch, producer_id, owner, gapless, role, history, written, kept
	FROM t.rows AS r WHERE what = 'p' AND owner = producer ORDER BY number DESC LIMIT 1;
	-- as if a registration had written the row, and not a restore
	UPDATE idempotency_data.cursor_log_0 SET history = r.history FROM t.rows AS r
	WHERE cursor_log_0.digest = r.digest AND cursor_log_0.history = 0 AND r.history <> 0 $$;
SELECT * FROM t.register('epochs');
SELECT t.claim('epochs', 0, 0, 5);
SELECT t.raise_epoch('epochs', 32766);
SELECT * FROM t.register('epochs');
SELECT t.claim('epochs', 32767, 0);
SELECT t.id('epochs') AS former \gset
SELECT * FROM t.register('epochs');
SELECT * FROM idempotency.claim_sequence(:former, 32767, 1);
SELECT * FROM idempotency.claim_sequence(:former, 0, 0);
SELECT t.claim('epochs', 0, 0);
SELECT * FROM t.cursors WHERE producer = 'epochs';
SELECT * FROM t.last(:former);

-- Sequences that rise, over all epochs
SELECT * FROM t.register('r', false);
SELECT t.claim('r', 0, 5);
SELECT t.claim('r', 0, 5), t.claim('r', 0, 4), t.claim('r', 0, 0, 6);
SELECT t.claim('r', 0, 100, 10);
SELECT t.claim('r', 0, 100, 10), t.claim('r', 0, 109), t.claim('r', 0, 6, 90);
SELECT t.claim('r', 0, 109, 2);
SELECT t.claim('r', 0, 0, 111);
SELECT t.claim('r', 0, 110);
SELECT * FROM t.register('r', false);
SELECT t.claim('r', 0, 111), t.claim('r', 1, 110), t.claim('r', 1, 3000000000), t.claim('r', 1, 5);
SELECT t.claim('r', 1, 9223372036854775805);
SELECT t.claim('r', 1, 9223372036854775806);
SELECT t.claim('r', 1, 9223372036854775807);
SELECT t.claim('r', 1, 9223372036854775805, 3);
SELECT t.claim('r', 1, 9223372036854775805, 2);
SELECT * FROM t.cursors WHERE producer = 'r';
-- its epochs go on after 32767, and end at 2^31 - 1
SELECT t.raise_epoch('r', 32767);
SELECT * FROM t.register('r', false);
SELECT t.raise_epoch('r', 2147483646);
SELECT * FROM t.register('r', false);
\set VERBOSITY default
SELECT * FROM t.register('r', false);
-- the other rule is another producer
SELECT * FROM t.register('r', true);
SELECT * FROM t.register('p', false);
SELECT t.claim('p', 1, 2147483648);
\set VERBOSITY terse
SELECT t.claim('p', 1, 6);

-- A row of a dump, perhaps of this database: a gapless producer gets another id, since an epoch may
-- have been given out that the row does not know of; the epoch of another one leaps
CREATE FUNCTION t.restore(producer text) RETURNS void LANGUAGE sql AS $$
	INSERT INTO idempotency_data.cursor_log_0 (number, digest, kind, what, at, epoch, producer_id, owner, gapless, role, history, written, kept)
	SELECT number + 1, digest, kind, what, at, epoch, producer_id, owner, gapless, role, history, written, kept
	FROM t.rows AS r WHERE what = 'p' AND owner = producer ORDER BY number DESC LIMIT 1 $$;
SELECT a.*, b.* FROM t.register('elsewhere') a, t.register('elsewhere, rising', false) b;
SELECT t.claim('elsewhere', 0, 0), t.claim('elsewhere, rising', 0, 0);
SELECT t.restore('elsewhere'), t.restore('elsewhere, rising');
SELECT t.claim('elsewhere', 0, 1), t.claim('elsewhere, rising', 0, 1);
SELECT t.id('elsewhere') AS former \gset
SELECT * FROM t.register('elsewhere');
SELECT * FROM idempotency.claim_sequence(:former, 0, 2);
SELECT same, epoch AS leapt, epoch > 100000000 AS by_clock FROM t.register('elsewhere, rising', false) \gset
\echo :same :by_clock
SELECT t.claim('elsewhere', 0, 0), t.claim('elsewhere, rising', 0, 2), t.claim('elsewhere, rising', :leapt, 1), t.claim('elsewhere, rising', :leapt, 2);
SELECT a.*, b.same, b.epoch - :leapt AS higher FROM t.register('elsewhere') a, t.register('elsewhere, rising', false) b;
-- restored again, as it was before the leap: the epochs that were lost are not given out again
SELECT t.raise_epoch('elsewhere, rising', 0), t.restore('elsewhere, rising');
SELECT epoch - :leapt > 1 AS higher FROM t.register('elsewhere, rising', false);
-- a clock that is behind the epoch
SELECT t.raise_epoch('elsewhere, rising', 2000000000), t.restore('elsewhere, rising');
SELECT epoch FROM t.register('elsewhere, rising', false);

-- The last sequence, after which a producer that is not gapless goes on
SELECT idempotency.last_sequence(t.id('p')), idempotency.last_sequence(t.id('p'), 't'), idempotency.last_sequence(t.id('p'), 'u'), idempotency.last_sequence(t.id('r'), '', 1);

-- To drop a producer: its claims are fenced, the name begins anew with another id
SELECT * FROM t.register('dropped');
SELECT t.claim('dropped', 0, 0, 5);
SELECT t.id('dropped') AS former \gset
SELECT idempotency.producer_drop('dropped');
SELECT * FROM idempotency.claim_sequence(:former, 0, 5);
SELECT * FROM t.last(:former);
SELECT count(*) FROM idempotency.cursors WHERE producer = 'dropped';
SELECT count(*) FROM idempotency.producers WHERE producer = 'dropped';
SELECT idempotency.producer_drop('dropped');
SELECT idempotency.producer_drop('never seen');
SELECT epoch, producer_id > :former AS higher FROM idempotency.register_producer('dropped', false);
SELECT t.claim('dropped', 0, 3);
SELECT * FROM t.cursors WHERE producer = 'dropped';
BEGIN;
SELECT idempotency.producer_drop('dropped');
SELECT * FROM t.locks;
SELECT t.id('dropped');
ROLLBACK;
SELECT t.claim('dropped', 0, 4);

-- In one transaction: two locks are kept, one of them in share mode; what is refused keeps none
SELECT t.id('p') AS p \gset
BEGIN;
SELECT result FROM idempotency.claim_sequence(:p, 1, 7);
SELECT result FROM idempotency.claim_sequence(:p, 1, 8);
SELECT result FROM idempotency.claim_sequence(:p, 1, 8);
SELECT result FROM idempotency.claim_sequence(:p, 1, 99);
SELECT result FROM idempotency.claim_sequence(:p, 0, 0);
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 0, 'another');
SELECT * FROM t.locks;
COMMIT;
BEGIN;
SELECT result FROM idempotency.claim_sequence(:p, 1, 8);
SELECT result FROM idempotency.claim_sequence(:p, 1, 99);
SELECT result FROM idempotency.claim_sequence(:p, 0, 0);
SELECT result FROM idempotency.claim_sequence(7, 0, 0);
SELECT idempotency.last_sequence(:p);
SELECT * FROM t.locks;
SELECT pg_current_xact_id_if_assigned() IS NULL AS no_xid;
COMMIT;
-- registering after a claim fences the transaction's own former epoch
BEGIN;
SELECT result FROM idempotency.claim_sequence(:p, 1, 9);
SELECT * FROM t.register('p');
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 10);
SELECT result, record_number FROM idempotency.claim_sequence(:p, 2, 0);
SELECT * FROM t.locks;
ROLLBACK;

-- Rolled back is never accepted, with a savepoint as well
BEGIN;
SELECT result FROM idempotency.claim_sequence(:p, 1, 9);
SAVEPOINT a;
SELECT result FROM idempotency.claim_sequence(:p, 1, 10, count => 5);
SAVEPOINT b;
SELECT result FROM idempotency.claim_sequence(:p, 1, 0, 'b');
SELECT * FROM t.locks;
ROLLBACK TO b;
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 0, 'b');
RELEASE b;
ROLLBACK TO a;
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 10);
COMMIT;
BEGIN;
SAVEPOINT a;
SELECT result FROM idempotency.claim_sequence(:p, 1, 11);
ROLLBACK TO a;
SELECT * FROM t.locks;
SAVEPOINT b;
SELECT epoch FROM idempotency.register_producer('p');
ROLLBACK TO b;
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 11);
COMMIT;
SELECT * FROM t.cursors WHERE producer = 'p';
-- a share lock that became exclusive in a savepoint is a share lock again
BEGIN;
SELECT result FROM idempotency.claim_sequence(:p, 1, 12);
SAVEPOINT a;
SELECT epoch FROM idempotency.register_producer('p');
SELECT result FROM idempotency.claim_sequence(:p, 2, 0);
ROLLBACK TO a;
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 13);
COMMIT;

-- Through a cursor that fails in a savepoint: what it claimed before stays claimed and locked
BEGIN;
DECLARE c CURSOR FOR SELECT (idempotency.claim_sequence(:p, 1, 0, 'portal', g)).result, 1 / (3 - g) FROM generate_series(1, 3) AS g;
FETCH c;
SAVEPOINT s;
FETCH c;
FETCH c;
ROLLBACK TO s;
SELECT * FROM t.locks;
SELECT result FROM idempotency.claim_sequence(:p, 1, 0, 'portal', 1);
SELECT result FROM idempotency.claim_sequence(:p, 1, 0, 'portal', 2);
COMMIT;

-- The budget of locks: a claim needs one of the producer, and one of its partition
BEGIN;
SET LOCAL idempotency.max_claim_locks = 3;
SELECT idempotency.claim_sequence(:p, 1, 0, 'budget', g) FROM generate_series(1, 2) AS g;
SELECT idempotency.claim_sequence(:p, 1, 1, 'budget', g) FROM generate_series(1, 2) AS g;
SAVEPOINT s;
\set VERBOSITY default
SELECT idempotency.claim_sequence(:p, 1, 0, 'budget', 3);
ROLLBACK TO s;
SELECT idempotency.register_producer('new');
\set VERBOSITY terse
ROLLBACK TO s;
SELECT idempotency.producer_drop('r');
ROLLBACK TO s;
SELECT * FROM t.locks;
COMMIT;
BEGIN;
SET LOCAL idempotency.max_claim_locks = 1;
SELECT idempotency.claim_sequence(:p, 1, 2, 'budget', 1);
ROLLBACK;
BEGIN;
SET LOCAL idempotency.max_claim_locks = 2;
SELECT idempotency.claim_offset('c', 't', 0, 0);
SELECT idempotency.claim_sequence(:p, 1, 2, 'budget', 1);
ROLLBACK;
BEGIN;
SET LOCAL idempotency.max_claim_locks = 2;
SELECT result FROM idempotency.claim_sequence(:p, 1, 2, 'budget', 1);
SELECT * FROM t.locks;
COMMIT;

-- Several partitions at once
SELECT v.partition, s.* FROM unnest('{0,1,2}'::int[], '{0,0,7}'::bigint[], '{3,1,1}'::int[]) AS v (partition, first, count),
	LATERAL idempotency.claim_sequence(:p, 1, v.first, 'many', v.partition, v.count) AS s;
SELECT v.partition, s.* FROM unnest('{0,1,2}'::int[], '{1,1,0}'::bigint[], '{2,1,1}'::int[]) AS v (partition, first, count),
	LATERAL idempotency.claim_sequence(:p, 1, v.first, 'many', v.partition, v.count) AS s;
SELECT s.result, count(*), sum(record_number) FROM generate_series(0, 199) AS i, LATERAL idempotency.claim_sequence(:p, 1, i % 150, 'one by one') AS s GROUP BY 1 ORDER BY 1;

-- Older snapshots see what their transaction wrote
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idempotency.claim_sequence(:p, 1, 0, 'rr');
SELECT idempotency.claim_sequence(:p, 1, 1, 'rr');
SELECT idempotency.claim_sequence(:p, 1, 1, 'rr');
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
SELECT t.add('register_producer producer_drop', 'producer', 'NULL', $$''$$, $$repeat('x', 256)$$, $$repeat('é', 128)$$),
	t.add('register_producer', 'gapless', 'NULL'),
	t.add('claim_sequence last_sequence', 'producer_id', 'NULL', '-1', '-9223372036854775808'),
	t.add('claim_sequence', 'epoch', 'NULL', '-1', '-2147483648', '2147483647'),
	t.add('claim_sequence', 'sequence', 'NULL', '-1', '-9223372036854775808', '2147483648', '9223372036854775807'),
	t.add('claim_sequence last_sequence', 'topic', 'NULL', $$repeat('x', 256)$$, $$repeat('é', 128)$$),
	t.add('claim_sequence last_sequence', 'partition', 'NULL', '-1', '-2147483648'),
	t.add('claim_sequence', 'count', 'NULL', '0', '-1', '1073741825', '2147483647', '-2147483648'),
	t.add('claim_sequence', 'wait', 'NULL', $$'-1 us'$$, $$'-1 month'$$, $$'1 hour -61 min'$$);
\o
CREATE FUNCTION t.call(name text, argument text, value text) RETURNS text LANGUAGE sql AS $$
	SELECT name || '(' || string_agg(k || ' => ' || v, ', ') || ')' FROM jsonb_each_text(
		CASE name WHEN 'claim_sequence' THEN jsonb_build_object('producer_id', t.id('p'), 'epoch', 1, 'sequence', 99)
			WHEN 'last_sequence' THEN jsonb_build_object('producer_id', t.id('p'))
			ELSE '{"producer": "''p''"}' END || jsonb_build_object(argument, value)) AS a (k, v) $$;
CREATE TABLE t.before AS TABLE t.rows;
BEGIN;
SELECT name, argument, value, e.* FROM t.calls, t.try(t.call(name, argument, value)) AS e ORDER BY n;
SELECT * FROM t.locks;
COMMIT;
SELECT count(*) FROM (TABLE t.rows EXCEPT TABLE t.before) AS changed;
SELECT * FROM t.register(repeat('x', 255));
SELECT * FROM t.register(repeat('é', 127));
SELECT t.claim(repeat('é', 127), 0, 0, topic => repeat('é', 127));
-- names that are another producer's; one that is a number of a producer
SELECT * FROM t.register('P');
SELECT * FROM t.register('p ');
SELECT * FROM t.register('@p/:');

-- Transactions that must not write
BEGIN READ ONLY;
SELECT idempotency.register_producer('p');
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.claim_sequence(:p, 1, 0);
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.last_sequence(:p);
ROLLBACK;
BEGIN READ ONLY;
SELECT idempotency.producer_drop('p');
ROLLBACK;

-- Access: the role that registered first, its members, and nobody else; operators drop
CREATE ROLE regress_sequence_owner;
CREATE ROLE regress_sequence_member IN ROLE regress_sequence_owner;
CREATE ROLE regress_sequence_other;
CREATE ROLE regress_sequence_consumer;
CREATE ROLE regress_sequence_operator;
CREATE ROLE regress_sequence_monitor;
SELECT idempotency.grant_role(kind, ('regress_sequence_' || r)::name)
  FROM (VALUES ('producer', 'owner'), ('producer', 'member'), ('producer', 'other'), ('consumer', 'consumer'), ('operator', 'operator'), ('monitor', 'monitor')) AS v (kind, r);
GRANT USAGE ON SCHEMA t TO PUBLIC;
CREATE FUNCTION t.all(id bigint, OUT register text, OUT claim text, OUT last text, OUT drop text) LANGUAGE sql AS $$
	SELECT max(state) FILTER (WHERE n = 1), max(state) FILTER (WHERE n = 2), max(state) FILTER (WHERE n = 3), max(state) FILTER (WHERE n = 4)
	FROM (VALUES (1, 'register_producer(''owned'')'), (2, 'claim_sequence(%s, 0, 9)'), (3, 'last_sequence(%s)'), (4, 'producer_drop(''never seen'')')) AS c (n, call),
		LATERAL t.try(format(call, id)) $$;
SET ROLE regress_sequence_member;
SELECT epoch FROM idempotency.register_producer('owned');
SELECT producer, gapless, owner, epoch FROM idempotency.producers;
RESET ROLE;
-- whoever registers is the owner, not the role through which it got the right
SELECT producer, owner FROM idempotency.producers WHERE producer = 'owned';
SELECT idempotency.producer_drop('owned');
SET ROLE regress_sequence_owner;
SELECT producer_id AS owned FROM idempotency.register_producer('owned') \gset
SELECT result FROM idempotency.claim_sequence(:owned, 0, 0);
SET ROLE regress_sequence_member;
SELECT * FROM t.all(:owned);
SELECT producer, owner, epoch FROM idempotency.producers;
SET ROLE regress_sequence_other;
\set VERBOSITY default
SELECT * FROM idempotency.claim_sequence(:owned, 1, 0);
SELECT idempotency.register_producer('owned');
SELECT idempotency.last_sequence(:owned);
\set VERBOSITY terse
-- in the same words with any epoch and rule, and where it was registered
SELECT DISTINCT e.* FROM unnest('{0,1,2}'::int[]) AS epoch, t.try(format('claim_sequence(%s, %s, 0, partition => %2$s)', :owned, epoch)) AS e;
SELECT DISTINCT e.* FROM unnest('{t,f}'::boolean[]) AS gapless, t.try(format('register_producer(''owned'', %L)', gapless)) AS e;
SELECT * FROM t.all(:owned);
SELECT count(*) FROM idempotency.producers;
SELECT count(*) FROM idempotency.cursors;
SELECT count(*) FROM idempotency.stat_cursors;
SET ROLE regress_sequence_consumer;
SELECT * FROM t.all(:owned);
SELECT count(*) FROM idempotency.producers;
SELECT count(*) FROM idempotency.cursors;
SET ROLE regress_sequence_monitor;
SELECT * FROM t.all(:owned);
SELECT count(*) FROM idempotency.producers;
SET ROLE regress_sequence_operator;
SELECT * FROM t.all(:owned);
SELECT producer, owner, epoch FROM idempotency.producers WHERE producer = 'owned';
SELECT producer, last_sequence FROM idempotency.cursors WHERE producer = 'owned';
RESET ROLE;
-- members of a kind of cursors see what they may claim under
SELECT idempotency.grant_role('consumer', 'regress_sequence_member');
SET ROLE regress_sequence_member;
SELECT producer, last_sequence FROM idempotency.cursors;
RESET ROLE;
-- whoever's registration gives another id: the producer stays its owner's
SELECT t.raise_epoch('owned', 32767);
SET ROLE regress_sequence_member;
SELECT producer_id <> :owned AS another, epoch FROM idempotency.register_producer('owned');
SET ROLE regress_sequence_owner;
SELECT epoch FROM idempotency.register_producer('owned');
SELECT owner, producer_id AS owned FROM idempotency.producers \gset
\echo :owner
RESET ROLE;
-- a dropped role is nobody; a role of the same name that is made later is another one
DROP OWNED BY regress_sequence_owner;
DROP ROLE regress_sequence_owner;
SET ROLE regress_sequence_member;
SELECT * FROM t.all(:owned);
SELECT count(*) FROM idempotency.producers;
RESET ROLE;
CREATE ROLE regress_sequence_owner;
SELECT idempotency.grant_role('producer', 'regress_sequence_owner');
SET ROLE regress_sequence_owner;
SELECT * FROM t.all(:owned);
RESET ROLE;
SELECT producer, owner FROM idempotency.producers WHERE producer = 'owned';
SET ROLE regress_sequence_operator;
SELECT idempotency.producer_drop('owned');
SET ROLE regress_sequence_owner;
SELECT epoch FROM idempotency.register_producer('owned');
RESET ROLE;
DROP OWNED BY regress_sequence_owner, regress_sequence_member, regress_sequence_other, regress_sequence_consumer, regress_sequence_operator, regress_sequence_monitor;
DROP ROLE regress_sequence_owner, regress_sequence_member, regress_sequence_other, regress_sequence_consumer, regress_sequence_operator, regress_sequence_monitor;

-- What the view of producers says
SELECT producer, epoch, gapless, owner = current_user AS owner, since > now() - '10 min'::interval AS since, round(extract(epoch FROM expires_at - now()) / 86400) AS days
  FROM idempotency.producers WHERE producer IN ('p', 'r') ORDER BY 1;
SET idempotency.producer_retention = 0;
SELECT epoch FROM idempotency.register_producer('for ever');
SELECT expires_at FROM idempotency.producers WHERE producer = 'for ever';
RESET idempotency.producer_retention;
-- its next claim takes on the retention of today
SELECT t.claim('for ever', 0, 0);
SELECT round(extract(epoch FROM expires_at - now()) / 86400) AS days FROM idempotency.producers WHERE producer = 'for ever';
DROP SCHEMA t CASCADE;
