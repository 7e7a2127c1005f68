-- lease_guard: only who has claimed an event, or asserted a lease, may write.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SCHEMA t;
CREATE FUNCTION t.try(command text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
DECLARE
	rows int;
	part text;
BEGIN
	-- One by one: after DECLARE CURSOR in the same string an assertion of the server fails.
	FOREACH part IN ARRAY string_to_array(command, '; ') LOOP
		EXECUTE part;
	END LOOP;
	GET DIAGNOSTICS rows = ROW_COUNT;
	state := rows || ' rows';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	state := sqlstate;
END $$;
CREATE TABLE t.payouts (id int PRIMARY KEY, event_id text, amount int);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON t.payouts
	FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('mailer');
CREATE TABLE t.rows (id int PRIMARY KEY, event uuid, amount int);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON t.rows
	FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('default', 'event');
CREATE TABLE t.tokens AS SELECT id, (idempotency.lease_event(id, 'mailer')).token FROM unnest('{a,b}'::text[]) AS id;

-- Without a claim, and with one of another consumer
SELECT * FROM t.try($$INSERT INTO t.payouts VALUES (1, 'a', 1)$$);
BEGIN;
SELECT idempotency.claim_event('a');
SELECT state FROM t.try($$INSERT INTO t.payouts VALUES (1, 'a', 1)$$);
ROLLBACK;
-- a lease that was taken is not asserted
BEGIN;
SELECT (idempotency.lease_event('c', 'mailer')).result;
SELECT state FROM t.try($$INSERT INTO t.payouts VALUES (1, 'c', 1)$$);
ROLLBACK;

-- Asserted, claimed, completed
BEGIN;
SELECT idempotency.assert_lease('a', token, 'mailer') FROM t.tokens WHERE id = 'a';
SELECT state FROM t.try($$INSERT INTO t.payouts VALUES (1, 'a', 1), (2, 'b', 1)$$);
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 2$$);
COMMIT;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 3$$);
BEGIN;
SELECT idempotency.claim_event('d', 'mailer'), idempotency.complete_event('d', 'mailer');
SELECT state FROM t.try($$DELETE FROM t.payouts WHERE id = 2$$);
COMMIT;
BEGIN;
SELECT idempotency.claim_event('e', 'mailer'), idempotency.release_event('e', 'mailer');
SELECT state FROM t.try($$DELETE FROM t.payouts$$);
COMMIT;

-- A savepoint takes the assertion back; an exception does, too
BEGIN;
SAVEPOINT s;
SELECT idempotency.assert_lease('b', token, 'mailer') FROM t.tokens WHERE id = 'b';
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 4$$);
ROLLBACK TO s;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 5$$);
DO $$
BEGIN
	PERFORM idempotency.assert_lease('b', token, 'mailer') FROM t.tokens WHERE id = 'b';
	RAISE division_by_zero;
EXCEPTION WHEN division_by_zero THEN
END $$;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 6$$);
SAVEPOINT s;
SELECT idempotency.assert_lease('b', token, 'mailer') FROM t.tokens WHERE id = 'b';
RELEASE s;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 7$$);
SELECT idempotency.release_lease('b', token, 'mailer') FROM t.tokens WHERE id = 'b';
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 8$$);
COMMIT;
SELECT * FROM t.payouts ORDER BY id;

-- The event of the row: a uuid is its canonical text
BEGIN;
SELECT idempotency.claim_event('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid);
SELECT state FROM t.try($$INSERT INTO t.rows VALUES (1, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 1)$$);
SELECT * FROM t.try($$INSERT INTO t.rows VALUES (2, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12', 1)$$);
SELECT state FROM t.try($$INSERT INTO t.rows VALUES (3, NULL, 1)$$);
SELECT state FROM t.try($$UPDATE t.rows SET event = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A12'$$);
SELECT state FROM t.try($$INSERT INTO t.rows VALUES (1, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 2) ON CONFLICT (id) DO UPDATE SET amount = 2$$);
SELECT state FROM t.try($$MERGE INTO t.rows r USING (VALUES (1)) s (id) ON r.id = s.id WHEN MATCHED THEN UPDATE SET amount = 3$$);
SELECT idempotency.complete_event('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'::uuid);
COMMIT;
SELECT state FROM t.try($$DELETE FROM t.rows$$);
SELECT state FROM t.try($$COPY t.rows FROM PROGRAM 'echo 9,,1' (FORMAT csv)$$);

-- The row of another event is not overwritten, and not taken over; both may be claimed
BEGIN;
SELECT idempotency.claim_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b01'::uuid);
INSERT INTO t.rows VALUES (4, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b01', 1);
SELECT idempotency.complete_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b01'::uuid);
COMMIT;
ALTER TABLE t.rows DISABLE TRIGGER fence;
INSERT INTO t.rows VALUES (5, NULL, 1);
ALTER TABLE t.rows ENABLE TRIGGER fence;
BEGIN;
SELECT idempotency.claim_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02'::uuid);
SELECT * FROM t.try($$UPDATE t.rows SET event = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02', amount = 9 WHERE id = 4$$);
SELECT * FROM t.try($$UPDATE t.rows SET event = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02', amount = 9 WHERE id = 5$$);
SELECT state FROM t.try($$INSERT INTO t.rows VALUES (4, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02', 9) ON CONFLICT (id) DO UPDATE SET event = excluded.event, amount = 9$$);
SELECT state FROM t.try($$MERGE INTO t.rows r USING (VALUES (4)) s (id) ON r.id = s.id WHEN MATCHED THEN UPDATE SET event = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02'$$);
SELECT * FROM t.try($$DELETE FROM t.rows WHERE id = 4$$);
ROLLBACK;
SELECT idempotency.forget_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b01'::uuid);
BEGIN;
SELECT result FROM idempotency.claim_events('{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b01,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02}');
SELECT state FROM t.try($$UPDATE t.rows SET event = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02' WHERE id = 4$$);
SELECT idempotency.complete_events('{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b01,a0eebc99-9c0b-4ef8-bb6d-6bb9bd380b02}');
COMMIT;
SELECT * FROM t.rows ORDER BY id;

-- What a claim has allowed does not outlive it: it cannot be released after the write,
-- but to a savepoint before the write
BEGIN;
SELECT idempotency.claim_event('w', 'mailer'), idempotency.claim_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380c01'::uuid);
SELECT state FROM t.try($$INSERT INTO t.rows VALUES (6, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380c01', 1)$$);
SELECT * FROM t.try($$SELECT idempotency.release_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380c01'::uuid)$$);
SAVEPOINT s;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 10$$);
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 11$$);
SELECT state FROM t.try($$SELECT idempotency.release_event('w', 'mailer')$$);
ROLLBACK TO s;
SELECT state FROM t.try($$SELECT idempotency.release_event('w', 'mailer')$$);
SELECT idempotency.complete_event('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380c01'::uuid);
COMMIT;
-- another event of the consumer may stand for the write where no column says which one it is
BEGIN;
SELECT result FROM idempotency.claim_events('{w,v}', 'mailer');
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 12$$);
SELECT state FROM t.try($$SELECT idempotency.release_event('w', 'mailer')$$);
SELECT state FROM t.try($$SELECT idempotency.release_event('v', 'mailer')$$);
SELECT idempotency.complete_event('v', 'mailer');
COMMIT;
-- the holder of a lease that was asserted has it beyond this transaction
INSERT INTO t.tokens SELECT 'x', (idempotency.lease_event('x', 'mailer')).token;
BEGIN;
SELECT idempotency.assert_lease('x', token, 'mailer') FROM t.tokens WHERE id = 'x';
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 13$$);
SELECT idempotency.release_lease('x', token, 'mailer', error => 'later') FROM t.tokens WHERE id = 'x';
COMMIT;

-- Requests: without a column, one of the consumer that this transaction executes or advances
BEGIN;
SELECT (idempotency.claim_request('k', 's', consumer => 'mailer')).result;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 14$$);
SELECT * FROM t.try($$SELECT idempotency.release_request('k', 's', 'mailer')$$);
SELECT state FROM t.try($$SELECT idempotency.fail_request('k', 's', 'no', 'mailer')$$);
SELECT idempotency.complete_request('k', 's', 200, consumer => 'mailer');
COMMIT;
BEGIN;
SELECT token FROM idempotency.claim_request('k2', 's', consumer => 'mailer', lease => '1 h') \gset
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 15$$);
SELECT idempotency.advance_request('k2', 's', :token, 'p', 'mailer') > now() AS advanced;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 16$$);
SELECT idempotency.fail_request('k2', 's', 'no', 'mailer', :token);
COMMIT;
-- with one, an event has to have the key for its id
BEGIN;
SELECT (idempotency.claim_request('a0eebc99-9c0b-4ef8-bb6d-6bb9bd380d01', 's')).result;
SELECT state FROM t.try($$INSERT INTO t.rows VALUES (7, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380d01', 1)$$);
ROLLBACK;

-- A row that moves to another partition; a cascade; TRUNCATE is no write of rows
CREATE TABLE t.parts (id int, event text) PARTITION BY LIST (id);
CREATE TABLE t.part1 PARTITION OF t.parts FOR VALUES IN (1);
CREATE TABLE t.part2 PARTITION OF t.parts FOR VALUES IN (2);
INSERT INTO t.parts VALUES (1, 'p');
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON t.parts
	FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('default', 'event');
SELECT state FROM t.try($$UPDATE t.parts SET id = 2$$);
BEGIN;
SELECT idempotency.claim_event('p');
SELECT state FROM t.try($$UPDATE t.parts SET id = 2$$);
SELECT idempotency.complete_event('p');
COMMIT;
CREATE TABLE t.child (id int REFERENCES t.payouts ON DELETE CASCADE);
INSERT INTO t.child VALUES (1);
CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON t.child
	FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard('other');
BEGIN;
SELECT idempotency.claim_event('f', 'mailer'), idempotency.complete_event('f', 'mailer');
SELECT state FROM t.try($$DELETE FROM t.payouts WHERE id = 1$$);
COMMIT;

-- Every kind of write, without an assertion, with one that was undone, and with one
INSERT INTO t.tokens SELECT id, (idempotency.lease_event(id, 'mailer')).token FROM unnest('{g,h}'::text[]) AS id;
CREATE TABLE t.kept (id int PRIMARY KEY, amount int);
CREATE TABLE t.parent (id int PRIMARY KEY);
CREATE TABLE t.cascading (id int REFERENCES t.parent ON DELETE CASCADE ON UPDATE CASCADE);
CREATE TABLE t.nulled (id int REFERENCES t.parent ON DELETE SET NULL);
CREATE TABLE t.moved (id int) PARTITION BY LIST (id);
CREATE TABLE t.moved1 PARTITION OF t.moved FOR VALUES IN (1);
CREATE TABLE t.moved2 PARTITION OF t.moved FOR VALUES IN (2);
CREATE VIEW t.shown AS SELECT * FROM t.kept;
CREATE TABLE t.copied (LIKE t.kept);
INSERT INTO t.kept VALUES (1, 1), (2, 2);
INSERT INTO t.parent VALUES (1), (2);
INSERT INTO t.cascading VALUES (1);
INSERT INTO t.nulled VALUES (2);
INSERT INTO t.moved VALUES (1);
CREATE FUNCTION t.write(n int) RETURNS int LANGUAGE sql AS 'UPDATE t.kept SET amount = n WHERE id = 1 RETURNING amount';
DO $$
DECLARE
	name text;
BEGIN
	FOREACH name IN ARRAY '{kept,cascading,nulled,moved,copied}'::text[] LOOP
		EXECUTE format('CREATE TRIGGER fence BEFORE INSERT OR UPDATE OR DELETE ON t.%I FOR EACH ROW EXECUTE FUNCTION idempotency.lease_guard(''mailer'')', name);
	END LOOP;
END $$;
CREATE TABLE t.writes (ord serial, name text, command text);
INSERT INTO t.writes (name, command) VALUES
	('INSERT', 'INSERT INTO t.kept VALUES (3, 3)'),
	('UPDATE', 'UPDATE t.kept SET amount = 0'),
	('DELETE', 'DELETE FROM t.kept'),
	('COPY', 'COPY t.copied FROM PROGRAM ''echo 9,9'' (FORMAT csv)'),
	('ON CONFLICT DO NOTHING, new', 'INSERT INTO t.kept VALUES (3, 3) ON CONFLICT DO NOTHING'),
	('ON CONFLICT DO UPDATE, new', 'INSERT INTO t.kept VALUES (3, 3) ON CONFLICT (id) DO UPDATE SET amount = 0'),
	('ON CONFLICT DO UPDATE, old', 'INSERT INTO t.kept VALUES (1, 3) ON CONFLICT (id) DO UPDATE SET amount = 0'),
	('MERGE, insert', 'MERGE INTO t.kept k USING (VALUES (3)) s (id) ON k.id = s.id WHEN NOT MATCHED THEN INSERT VALUES (3, 3)'),
	('MERGE, update', 'MERGE INTO t.kept k USING (VALUES (1)) s (id) ON k.id = s.id WHEN MATCHED THEN UPDATE SET amount = 0'),
	('MERGE, delete', 'MERGE INTO t.kept k USING (VALUES (1)) s (id) ON k.id = s.id WHEN MATCHED THEN DELETE'),
	('ON DELETE CASCADE', 'DELETE FROM t.parent WHERE id = 1'),
	('ON UPDATE CASCADE', 'UPDATE t.parent SET id = 3 WHERE id = 1'),
	('ON DELETE SET NULL', 'DELETE FROM t.parent WHERE id = 2'),
	('partition move', 'UPDATE t.moved SET id = 2'),
	('a partition itself', 'DELETE FROM t.moved1'),
	('WITH', 'WITH w AS (DELETE FROM t.kept RETURNING 1) SELECT count(*) FROM w'),
	('a view', 'UPDATE t.shown SET amount = 0'),
	('a function', 'SELECT t.write(0)'),
	('cursor, WHERE CURRENT OF', 'DECLARE c CURSOR FOR SELECT * FROM t.kept ORDER BY id FOR UPDATE; MOVE c; UPDATE t.kept SET amount = 0 WHERE CURRENT OF c'),
	('cursor, of a function that writes', 'DECLARE c CURSOR FOR SELECT t.write(n) FROM generate_series(1, 2) n; MOVE ALL c');
CREATE FUNCTION t.write_while(state text, command text, OUT result text) LANGUAGE plpgsql AS $$
DECLARE
	token bigint := token FROM t.tokens WHERE id = 'g';
BEGIN
	IF state = 'undone' THEN
		BEGIN
			PERFORM idempotency.assert_lease('g', token, 'mailer');
			RAISE division_by_zero;
		EXCEPTION WHEN division_by_zero THEN
		END;
	ELSIF state = 'asserted' THEN
		PERFORM idempotency.assert_lease('g', token, 'mailer');
	END IF;
	result := (t.try(command)).state;
	IF result LIKE '% rows' THEN result := 'made'; END IF;
	RAISE EXCEPTION 'undo';
EXCEPTION WHEN raise_exception THEN
END $$;
SELECT name, t.write_while('none', command) AS "without", t.write_while('undone', command) AS undone, t.write_while('asserted', command) AS asserted
  FROM t.writes ORDER BY ord;

-- What a cursor asserts counts from its FETCH on, as long as the subtransaction of the
-- FETCH, and not as long as the cursor
BEGIN;
DECLARE c CURSOR FOR SELECT idempotency.assert_lease(id, token, 'mailer') FROM (SELECT * FROM t.tokens WHERE id IN ('g', 'h') ORDER BY id OFFSET 0) AS s;
SELECT state FROM t.try('UPDATE t.kept SET amount = 1');
SAVEPOINT s;
FETCH c;
SELECT state FROM t.try('UPDATE t.kept SET amount = 2');
ROLLBACK TO s;
SELECT state FROM t.try('UPDATE t.kept SET amount = 3');
FETCH c;
CLOSE c;
SELECT state FROM t.try('UPDATE t.kept SET amount = 4');
COMMIT;
-- a FETCH that fails takes nothing back of what was fetched before, the lock neither
BEGIN;
DECLARE c CURSOR FOR SELECT idempotency.assert_lease('g', token + n, 'mailer') FROM t.tokens, generate_series(0, 1) n WHERE id = 'g';
FETCH c;
SAVEPOINT s;
\set VERBOSITY sqlstate
FETCH c;
\set VERBOSITY terse
ROLLBACK TO s;
SELECT state FROM t.try('UPDATE t.kept SET amount = 5');
SELECT mode FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();
COMMIT;
SELECT * FROM t.kept ORDER BY id;

-- Many consumers in one transaction
BEGIN;
SELECT count(idempotency.claim_event('many', 'consumer ' || i)) FROM generate_series(1, 50) AS i;
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 9$$);
SELECT idempotency.claim_event('many', 'mailer');
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 9$$);
ROLLBACK;

-- An operator who discards an event does not make its effect
SELECT result FROM idempotency.lease_event('discarded', 'mailer') \gset
SELECT token FROM idempotency.leases WHERE consumer = 'mailer' AND event_id = 'discarded' \gset
SELECT idempotency.release_lease('discarded', :token, 'mailer', park => true);
BEGIN;
SELECT idempotency.consumer_discard('mailer', '{discarded}');
SELECT state FROM t.try($$UPDATE t.payouts SET amount = 9$$);
ROLLBACK;

-- Triggers that are wrong
CREATE TABLE t.wrong (id int, g int GENERATED ALWAYS AS (id + 1) STORED);
CREATE FUNCTION t.wrong(timing text, args text) RETURNS SETOF record LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('CREATE TRIGGER w %s EXECUTE FUNCTION idempotency.lease_guard(%s)', timing, args);
	RETURN QUERY SELECT args, t.state, t.message FROM t.try('INSERT INTO t.wrong VALUES (1)') AS t;
	DROP TRIGGER w ON t.wrong;
END $$;
SELECT left(w.args, 20) AS args, w.state, left(w.message, 90) AS message FROM (VALUES
	('AFTER INSERT ON t.wrong FOR EACH ROW', '''c'''), ('BEFORE INSERT ON t.wrong', '''c'''),
	('BEFORE INSERT ON t.wrong FOR EACH ROW', ''), ('BEFORE INSERT ON t.wrong FOR EACH ROW', ''''''),
	('BEFORE INSERT ON t.wrong FOR EACH ROW', '''@relay'''), ('BEFORE INSERT ON t.wrong FOR EACH ROW', '''c'', ''id'', ''x'''),
	('BEFORE INSERT ON t.wrong FOR EACH ROW', '''c'', ''none'''), ('BEFORE INSERT ON t.wrong FOR EACH ROW', '''c'', ''ctid'''),
	('BEFORE INSERT ON t.wrong FOR EACH ROW', '''c'', ''g'''), ('BEFORE INSERT ON t.wrong FOR EACH ROW', '''' || repeat('x', 256) || ''''))
	AS v (timing, args), t.wrong(timing, args) AS w (args text, state text, message text);
SELECT idempotency.lease_guard();
DROP SCHEMA t CASCADE;
