-- version_guard: an update has to raise the version of its row.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET client_min_messages = warning;

CREATE FUNCTION try(command text, OUT state text, OUT message text, OUT detail text, OUT hint text, OUT place text) LANGUAGE plpgsql AS $$
DECLARE
	col text; tab text; rows int;
BEGIN
	EXECUTE command;
	GET DIAGNOSTICS rows = ROW_COUNT;
	state := rows || ' rows';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT,
		col = COLUMN_NAME, tab = TABLE_NAME;
	state := sqlstate;
	place := nullif(tab || '.' || col, '.');
END $$;

CREATE TABLE customers (id int PRIMARY KEY, name text, version bigint);
CREATE TRIGGER fresh BEFORE UPDATE ON customers
	FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
INSERT INTO customers VALUES (1, 'a', 1), (2, 'b', 5), (3, 'c', NULL);

-- Greater passes; equal, smaller and untouched do not
SELECT state FROM try('UPDATE customers SET name = name || 2, version = 2 WHERE id = 1');
SELECT state, message, detail, hint, place FROM try('UPDATE customers SET name = ''old'', version = 1 WHERE id = 1') \gx
SELECT state, detail FROM try('UPDATE customers SET name = ''same'', version = 2 WHERE id = 1');
SELECT state, detail FROM try('UPDATE customers SET name = ''none'' WHERE id = 1');
-- one stale row fails the statement
SELECT state, detail FROM try('UPDATE customers SET version = 3 WHERE id < 3');
-- a version that was not known may become known, and never unknown
SELECT state, message, hint, place FROM try('UPDATE customers SET name = ''none'' WHERE id = 3') \gx
SELECT state FROM try('UPDATE customers SET version = -7 WHERE id = 3');
SELECT state, place FROM try('UPDATE customers SET version = NULL WHERE id = 3');
SELECT state FROM try('UPDATE customers SET version = NULL WHERE id = 9');
SELECT * FROM customers ORDER BY id;
-- a transaction sees its own
BEGIN;
UPDATE customers SET version = 10 WHERE id = 1;
SELECT state FROM try('UPDATE customers SET version = 10 WHERE id = 1');
SELECT state FROM try('UPDATE customers SET version = 11 WHERE id = 1');
ROLLBACK;
SELECT state FROM try('UPDATE customers SET version = 10 WHERE id = 1');

-- ON CONFLICT and MERGE
SELECT v, state FROM unnest(ARRAY[9, 10, 11]) v,
	try(format('INSERT INTO customers VALUES (1, ''upsert'', %s) ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version', v));
SELECT v, state FROM unnest(ARRAY[10, 11, 12]) v,
	try(format('MERGE INTO customers c USING (VALUES (1, %s)) s (id, version) ON c.id = s.id WHEN MATCHED THEN UPDATE SET name = ''merge'', version = s.version', v));
SELECT * FROM customers ORDER BY id;

-- 'ignore': the row stays, and the command reports that it updated none
CREATE TABLE feed (id int PRIMARY KEY, name text, version bigint);
CREATE TRIGGER fresh BEFORE UPDATE ON feed
	FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version', 'ignore');
INSERT INTO feed VALUES (1, 'a', 5), (2, 'b', 5);
\set QUIET off
UPDATE feed SET name = 'new', version = 6 WHERE id = 1;
UPDATE feed SET name = 'old', version = 6 WHERE id = 1;
UPDATE feed SET name = 'one of two', version = 6;
UPDATE feed SET name = 'old', version = 4 RETURNING *;
INSERT INTO feed VALUES (1, 'old', 6) ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version;
INSERT INTO feed VALUES (1, 'newer', 7) ON CONFLICT (id) DO UPDATE SET name = excluded.name, version = excluded.version;
\set QUIET on
MERGE INTO feed f USING (VALUES (1, 'old', 7), (2, 'merged', 7), (3, 'inserted', 1)) s (id, name, version) ON f.id = s.id
	WHEN MATCHED THEN UPDATE SET name = s.name, version = s.version WHEN NOT MATCHED THEN INSERT VALUES (s.id, s.name, s.version);
SELECT * FROM feed ORDER BY id;
SELECT state, place FROM try('UPDATE feed SET version = NULL');

-- Types: by the default order of btree, with the column's collation
CREATE DOMAIN positive AS int CHECK (value > 0);
CREATE DOMAIN small AS positive CHECK (value < 1000);
CREATE TYPE major_minor AS (major int, minor text);
CREATE DOMAIN tagged AS major_minor;
CREATE TYPE stage AS ENUM ('new', 'done', 'archived');
CREATE COLLATION ignore_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
CREATE FUNCTION versions(type text, versions text[], OUT results text) LANGUAGE plpgsql AS $$
DECLARE
	v text;
BEGIN
	EXECUTE format('CREATE TABLE typed (other text, version %s, last int)', type);
	CREATE TRIGGER fresh BEFORE UPDATE ON typed FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
	EXECUTE format('INSERT INTO typed VALUES (''x'', %L)', versions[1]);
	FOREACH v IN ARRAY versions[2:] LOOP
		results := concat_ws(', ', results, format('%s: %s', left(v, 40), (SELECT state FROM try(format('UPDATE typed SET version = %L', v)))));
	END LOOP;
	DROP TABLE typed;
END $$;
SELECT type, results FROM (VALUES
	('bigint', '{9,10,9,9223372036854775807,-9223372036854775808}'::text[]),
	('smallint', '{-1,0,1}'),
	('numeric', '{9,9.0,9.00000000000000000001,10,9.9,1e400,NaN,NaN,Infinity}'),
	('float8', '{-0,0,1e-300,NaN,1}'),
	('timestamptz', '{2026-01-01 12:00+00,2026-01-01 13:00+01,2026-01-01 12:00:00.000001+00,infinity,2030-01-01}'),
	('date', '{2026-01-01,2025-12-31,2026-01-02}'),
	('text COLLATE "C"', '{B,a,A,b,b}'),
	('text COLLATE "en-x-icu"', '{B,a,A,C,b}'),
	('text COLLATE ignore_case', '{b,B,a,C,c}'),
	('varchar(5) COLLATE "C"', '{v9,v10,v91}'),
	('name', '{a,B,b}'),
	('xid8', '{9,10,18446744073709551615,11}'),
	('pg_lsn', '{0/FF,0/100,1/0,0/FFFFFFFF}'),
	('uuid', '{00000000-0000-7000-8000-0000000000ff,00000000-0000-7000-8000-000000000100,00000000-0000-7000-8000-0000000000aa}'),
	('bytea', '{"\\x0102","\\x0103","\\x01","\\x010300"}'),
	('small', '{9,10,999,998,1000}'),
	('major_minor', '{"(1,b)","(1,c)","(1,a)","(2,a)","(2,)","(2,)"}'),
	('tagged', '{"(1,b)","(1,b)","(1,c)"}'),
	('stage', '{new,done,new,archived}'),
	('int[]', '{"{1,2}","{1,10}","{1,2,9}","{1,10,0}"}'),
	('inet', '{10.0.0.9,10.0.0.10,10.0.0.9}')) AS v (type, versions), versions(v.type, v.versions::text[]);
-- long ones, out of line
CREATE TABLE long (version text COLLATE "C");
ALTER TABLE long ALTER version SET STORAGE EXTERNAL;
CREATE TRIGGER fresh BEFORE UPDATE ON long FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
INSERT INTO long VALUES (repeat('é', 5000) || 'b');
SELECT state, detail FROM try($$UPDATE long SET version = repeat('é', 5000) || 'a'$$) \gx
SELECT state FROM try($$UPDATE long SET version = repeat('é', 5000) || 'c'$$);

-- The relation may change between statements, prepared ones as well
PREPARE raise(text) AS UPDATE customers SET version = version WHERE id = $1::int;
SELECT state FROM try('EXECUTE raise(1)');
ALTER TABLE customers ALTER version TYPE text COLLATE "C";
SELECT version FROM customers WHERE id = 1;
SELECT state FROM try($$UPDATE customers SET version = '9' WHERE id = 1$$);
SELECT state FROM try($$UPDATE customers SET version = '10' WHERE id = 1$$);
ALTER TABLE customers DROP version, ADD first int, ADD version int DEFAULT 7;
SELECT state, detail FROM try('EXECUTE raise(1)');
SELECT state, detail FROM try('UPDATE customers SET version = 7 WHERE id = 1');
SELECT state FROM try('UPDATE customers SET version = 8, first = 0 WHERE id = 1');
CREATE FUNCTION raise_to(n int) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	UPDATE customers SET version = n WHERE id = 1;
	RETURN 'passed';
EXCEPTION WHEN SQLSTATE 'ID008' THEN
	RETURN 'stale';
END $$;
BEGIN;
SELECT raise_to(20), raise_to(20);
ALTER TABLE customers RENAME version TO former;
ALTER TABLE customers RENAME first TO version;
SELECT raise_to(20), raise_to(20);
ROLLBACK;
ALTER TABLE customers RENAME version TO revision;
SELECT state, message, hint FROM try('UPDATE customers SET revision = 20 WHERE id = 1') \gx
ALTER TABLE customers RENAME revision TO version;

-- Partitions: columns in other places, and rows that move
CREATE TABLE parted (region text, id int, version int) PARTITION BY LIST (region);
CREATE TABLE north (gone int, version int, id int, region text);
ALTER TABLE north DROP gone;
CREATE TABLE south PARTITION OF parted FOR VALUES IN ('south');
ALTER TABLE parted ATTACH PARTITION north FOR VALUES IN ('north');
CREATE TRIGGER fresh BEFORE UPDATE ON parted FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
INSERT INTO parted VALUES ('north', 1, 1), ('south', 2, 1);
SELECT state FROM try('UPDATE parted SET version = 2');
SELECT state, message FROM try('UPDATE parted SET version = 2, region = ''south'' WHERE id = 1');
SELECT state FROM try('UPDATE parted SET version = 3, region = ''south'' WHERE id = 1');
SELECT state, message FROM try('UPDATE parted SET version = 2, region = ''north'' WHERE id = 1');
SELECT state, message FROM try('UPDATE south SET version = 2');
SELECT tableoid::regclass, * FROM parted ORDER BY id;
-- a table that inherits has no trigger of its parent's
CREATE TABLE vips () INHERITS (customers);
INSERT INTO vips (id, version) VALUES (8, 5);
SELECT state FROM try('UPDATE customers SET version = 1 WHERE id = 8');
CREATE TRIGGER fresh BEFORE UPDATE ON vips FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
SELECT state, message FROM try('UPDATE customers SET version = 1 WHERE id = 8');
SELECT state FROM try('UPDATE customers SET version = 9 WHERE id IN (1, 8)');

-- Only updates that name the column; references that cascade then pass
CREATE TABLE orders (id int PRIMARY KEY, customer int REFERENCES customers ON UPDATE CASCADE, version int);
CREATE TRIGGER fresh BEFORE UPDATE OF version ON orders
	FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version', 'ignore');
INSERT INTO orders VALUES (1, 2, 1);
SELECT state FROM try('UPDATE customers SET id = 22, version = 70 WHERE id = 2');
SELECT state FROM try('UPDATE orders SET version = 1');
SELECT * FROM orders;
-- triggers fire in the order of their names: one that sets the version comes first
CREATE FUNCTION bump() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.version := OLD.version + 1; RETURN NEW; END';
CREATE TRIGGER bump BEFORE UPDATE ON customers FOR EACH ROW EXECUTE FUNCTION bump();
SELECT state FROM try('UPDATE customers SET name = ''bumped'' WHERE id = 1');
DROP TRIGGER bump ON customers;

-- Switched off, and as a replica
CREATE TABLE switched (version int);
CREATE TRIGGER fresh BEFORE UPDATE ON switched FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
INSERT INTO switched VALUES (5);
SELECT state FROM try('UPDATE switched SET version = 4');
ALTER TABLE switched DISABLE TRIGGER fresh;
SELECT state FROM try('UPDATE switched SET version = 4');
ALTER TABLE switched ENABLE TRIGGER fresh;
SELECT state FROM try('UPDATE switched SET version = 3');
SET session_replication_role = replica;
SELECT state FROM try('UPDATE switched SET version = 3');
ALTER TABLE switched ENABLE ALWAYS TRIGGER fresh;
SELECT state FROM try('UPDATE switched SET version = 2');
RESET session_replication_role;
SELECT state FROM try('UPDATE switched SET version = 2');
-- a row that was deleted has no version
DELETE FROM switched;
INSERT INTO switched VALUES (1);
SELECT * FROM switched;

-- Wrong use
CREATE TABLE wrong (version int, place point, generated int GENERATED ALWAYS AS (version * 2) STORED);
CREATE FUNCTION wrong(definition text, command text, OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	TRUNCATE wrong;
	INSERT INTO wrong VALUES (1);
	EXECUTE format('CREATE TRIGGER t %s EXECUTE FUNCTION idempotency.version_guard(%s)', split_part(definition, ': ', 1), split_part(definition, ': ', 2));
	SELECT t.state, t.message, t.hint INTO state, message, hint FROM try(command) t;
	DROP TRIGGER t ON wrong;
END $$;
SELECT w.state, w.message, w.hint FROM (VALUES
	(1, 'AFTER UPDATE ON wrong FOR EACH ROW: ''version''', 'UPDATE wrong SET version = 2'),
	(2, 'BEFORE UPDATE ON wrong: ''version''', 'UPDATE wrong SET version = 2'),
	(3, 'BEFORE INSERT OR UPDATE ON wrong FOR EACH ROW: ''version''', 'INSERT INTO wrong VALUES (2)'),
	(4, 'BEFORE DELETE ON wrong FOR EACH ROW: ''version''', 'DELETE FROM wrong'),
	(5, 'BEFORE TRUNCATE ON wrong: ''version''', 'TRUNCATE wrong'),
	(6, 'BEFORE UPDATE ON wrong FOR EACH ROW: ', 'UPDATE wrong SET version = 2'),
	(7, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''version'', ''skip''', 'UPDATE wrong SET version = 2'),
	(8, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''version'', ''ignore'', ''ignore''', 'UPDATE wrong SET version = 2'),
	(9, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''revision''', 'UPDATE wrong SET version = 2'),
	(10, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''Version''', 'UPDATE wrong SET version = 2'),
	(11, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''ctid''', 'UPDATE wrong SET version = 2'),
	(12, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''place''', 'UPDATE wrong SET version = 2'),
	(13, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''generated''', 'UPDATE wrong SET version = 2'),
	(14, 'BEFORE UPDATE ON wrong FOR EACH ROW: ''version''', 'UPDATE wrong SET version = 2')
	) AS v (n, definition, command), wrong(v.definition, v.command) w ORDER BY n;
SELECT * FROM wrong;
SELECT state, message FROM try('SELECT idempotency.version_guard()');

-- Privileges: who creates the trigger needs EXECUTE; who updates needs nothing of ours,
-- and is not told of versions that it may not read
CREATE ROLE regress_guard_owner;
CREATE ROLE regress_guard_writer;
CREATE TABLE secret (id int, version int);
ALTER TABLE secret OWNER TO regress_guard_owner;
INSERT INTO secret VALUES (1, 41);
CREATE FUNCTION try_as(role name, command text, OUT state text, OUT message text, OUT detail text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('SET LOCAL ROLE %I', role);
	BEGIN
		EXECUTE command;
		state := 'none';
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL;
		state := sqlstate;
	END;
	RESET ROLE;
END $$;
SELECT state FROM try_as('regress_guard_owner', 'CREATE TRIGGER fresh BEFORE UPDATE ON secret FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard(''version'')');
SELECT idempotency.grant_role('consumer', 'regress_guard_owner');
SELECT state FROM try_as('regress_guard_owner', 'CREATE TRIGGER fresh BEFORE UPDATE ON secret FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard(''version'')');
GRANT UPDATE ON secret TO regress_guard_writer;
SELECT * FROM try_as('regress_guard_writer', 'UPDATE secret SET version = 40');
SELECT * FROM try_as('regress_guard_owner', 'UPDATE secret SET version = 40');
GRANT SELECT (version) ON secret TO regress_guard_writer;
SELECT state, detail FROM try_as('regress_guard_writer', 'UPDATE secret SET version = 40');
REVOKE SELECT (version) ON secret FROM regress_guard_writer;
GRANT SELECT (id) ON secret TO regress_guard_writer;
SELECT state, detail FROM try_as('regress_guard_writer', 'UPDATE secret SET version = 40 WHERE id = 1');
GRANT SELECT ON secret TO regress_guard_writer;
SELECT state, detail FROM try_as('regress_guard_writer', 'UPDATE secret SET version = 40');
ALTER TABLE secret ENABLE ROW LEVEL SECURITY;
CREATE POLICY all_rows ON secret USING (true);
SELECT state, detail FROM try_as('regress_guard_writer', 'UPDATE secret SET version = 40');
SELECT state FROM try_as('regress_guard_writer', 'UPDATE secret SET version = 42');
DROP OWNED BY regress_guard_owner, regress_guard_writer;
DROP ROLE regress_guard_owner, regress_guard_writer;

-- The extension stays as long as it is needed
SELECT state FROM try('DROP EXTENSION idempotency');

-- Hostile settings, and objects of others: the operators are those of the type
CREATE SCHEMA hostile;
CREATE FUNCTION hostile.gt(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE OPERATOR hostile.> (leftarg = int, rightarg = int, function = hostile.gt);
SET search_path = hostile, public;
SELECT state FROM try('UPDATE switched SET version = 0');
RESET search_path;

-- Foreign tables: nobody locks their rows between the reading and the update.  A server lets
-- the role that initdb made in from its own account.
CREATE EXTENSION postgres_fdw;
SELECT format('CREATE SERVER here FOREIGN DATA WRAPPER postgres_fdw OPTIONS (host %L, port %L, dbname %L)',
			  (string_to_array(current_setting('unix_socket_directories'), ','))[1], current_setting('port'), current_database()) AS create_server,
	   (SELECT rolname FROM pg_roles WHERE oid = 10) AS owner \gset
:create_server;
CREATE USER MAPPING FOR CURRENT_USER SERVER here OPTIONS (user :'owner');
CREATE FOREIGN TABLE far (version int) SERVER here OPTIONS (table_name 'switched', schema_name 'public');
CREATE TRIGGER fresh BEFORE UPDATE ON far FOR EACH ROW EXECUTE FUNCTION idempotency.version_guard('version');
SELECT state, message, hint FROM try('UPDATE far SET version = 2') \gx
