-- Relays in SQL: arguments, servers and what becomes of relays with them.
\set VERBOSITY default
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
CREATE FOREIGN DATA WRAPPER other;
CREATE SERVER other FOREIGN DATA WRAPPER other;
CREATE FUNCTION pg_temp.try(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	state text;
	message text;
	hint text;
BEGIN
	EXECUTE sql;
	RETURN 'no error';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS state = RETURNED_SQLSTATE, message = MESSAGE_TEXT, hint = PG_EXCEPTION_HINT;
	RETURN state || ' ' || message || COALESCE(NULLIF(' / ' || hint, ' / '), '');
END $$;

SELECT pg_temp.try(format('SELECT idempotency.relay_create(%s)', args)) FROM (VALUES
	('NULL, ''nul'''), ('''r'', NULL'), ('''r'', ''nowhere'''), ('''r'', ''other'''), ('''@r'', ''nul'''),
	(''''', ''nul'''), ('repeat(''r'', 256), ''nul'''),
	('''r'', ''nul'', start_at => NULL'), ('''r'', ''nul'', ordering => NULL'), ('''r'', ''nul'', on_dead => NULL'),
	('''r'', ''nul'', max_attempts => NULL'), ('''r'', ''nul'', max_attempts => 0'),
	('''r'', ''nul'', min_backoff => ''0'''), ('''r'', ''nul'', max_backoff => ''2 days'''),
	('''r'', ''nul'', min_backoff => ''-1 year 361 days'''), ('''r'', ''nul'', max_backoff => ''1 month -29 days'''),
	('''r'', ''nul'', batch_events => 0'), ('''r'', ''nul'', batch_events => 10001'),
	('''r'', ''nul'', batch_size => ''1'''), ('''r'', ''nul'', batch_size => ''1TB'''), ('''r'', ''nul'', batch_size => ''x'''),
	('''r'', ''nul'', max_lag_size => ''1kB'''), ('''r'', ''nul'', aggregate_types => ''{a,NULL}'''))
	AS a (args);

SELECT idempotency.relay_create('r', 'nul');
SELECT pg_temp.try($$SELECT idempotency.relay_create('r', 'nul')$$);
SELECT pg_temp.try(format('SELECT idempotency.%s(%L)', f, r)) FROM
	unnest('{relay_alter,relay_drop,relay_pause,relay_resume,relay_adopt,relay_redrive,relay_discard}'::text[]) f,
	unnest('{nothing,NULL}'::text[]) r;
SELECT pg_temp.try(s) FROM (VALUES
	('SELECT idempotency.relay_alter(''r'', max_attempts => 0)'),
	('SELECT idempotency.relay_alter(''r'', server => ''nowhere'')'),
	('SELECT idempotency.relay_replay(''r'')'),
	('SELECT idempotency.relay_replay(''r'', since => now(), event_id => gen_random_uuid())'),
	('SELECT idempotency.relay_replay(''nothing'', since => now())'),
	('SELECT idempotency.relay_replay(''r'', event_id => ''00000000-0000-0000-0000-000000000000'')'),
	('SET TRANSACTION READ ONLY; SELECT idempotency.relay_pause(''r'')')) AS a (s);
SELECT idempotency.relay_redrive('r'), idempotency.relay_discard('r');

-- All of it is transactional.
BEGIN;
SELECT idempotency.relay_alter('r', batch_events => 7, on_dead => 'stop', aggregate_types => '{a}');
SELECT idempotency.relay_pause('r');
SELECT batch_events, on_dead, aggregate_types, paused, ordering, max_attempts FROM idempotency_data.relays;
ROLLBACK;
SELECT batch_events, on_dead, aggregate_types, paused FROM idempotency_data.relays;

-- What NULL keeps can be taken away.
SELECT idempotency.relay_alter('r', aggregate_types => '{a}', max_lag_size => '2MB');
SELECT idempotency.relay_alter('r', max_attempts => 11);
SELECT aggregate_types, max_lag_bytes, max_attempts FROM idempotency_data.relays;
SELECT idempotency.relay_alter('r', aggregate_types => '{}', max_lag_size => 'None');
SELECT aggregate_types, max_lag_bytes FROM idempotency_data.relays;
SELECT idempotency.relay_create('unlimited', 'nul', max_lag_size => 'none');
SELECT max_lag_bytes FROM idempotency_data.relays WHERE relay = 'unlimited';
SELECT idempotency.relay_drop('unlimited');

-- A server goes with its relays, or not at all.
DROP SERVER nul;
ALTER SERVER nul RENAME TO zero;
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT relay, server FROM idempotency.stat_relay;
SELECT idempotency.relay_alter('r', server => 'nul');
DROP SERVER zero;
DROP SERVER nul;
DROP SERVER IF EXISTS nowhere, nul;
BEGIN;
DROP SERVER nul CASCADE;
SELECT count(*) FROM idempotency_data.relays;
ROLLBACK;
SELECT relay, server FROM idempotency.stat_relay;
DROP SERVER nul CASCADE;
SELECT count(*) FROM idempotency_data.relays;

-- So does an owner: a relay is one of the objects of a role.
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
CREATE ROLE regress_relay_owner;
CREATE ROLE regress_relay_heir;
SELECT idempotency.grant_role('operator', 'regress_relay_owner');
GRANT USAGE ON FOREIGN SERVER nul TO regress_relay_owner;
SET ROLE regress_relay_owner;
SELECT idempotency.relay_create('owned', 'nul');
RESET ROLE;
SELECT owner, owner_oid::regrole FROM idempotency_data.relays;
REASSIGN OWNED BY regress_relay_owner TO regress_relay_heir;
SELECT owner, owner_oid::regrole FROM idempotency_data.relays;
DROP OWNED BY regress_relay_owner;
DROP ROLE regress_relay_owner;
SELECT relay FROM idempotency.stat_relay;
\set VERBOSITY terse
DROP ROLE regress_relay_heir;
\set VERBOSITY default
DROP OWNED BY regress_relay_heir;
DROP ROLE regress_relay_heir;
SELECT count(*) FROM idempotency.stat_relay;
DROP SERVER nul;

-- Options are checked by wrapper; the hint lists the good ones.
SELECT pg_temp.try(format('CREATE SERVER s FOREIGN DATA WRAPPER idempotency_%s OPTIONS (%s)', w, o)) FROM (VALUES
	('function', 'functio ''a.b'''), ('function', 'function ''a'', timeout ''x'''), ('function', 'timeout ''0'''),
	('kafka', 'brokers ''b'', delivery ''twice'''), ('kafka', 'password ''secret'''),
	('http', 'url ''u'', service ''smtp'''), ('http', 'token ''secret'''),
	('null', 'x ''1'''), ('null', 'stats_interval ''-1'''),
	('program', 'program ''../x'''), ('program', 'program ''X'''),
	('postgres', 'password ''secret'''), ('postgres', 'nothing ''x''')) AS a (w, o);
CREATE SERVER pg FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host 'h', dbname 'd');
SELECT pg_temp.try($$CREATE USER MAPPING FOR CURRENT_USER SERVER pg OPTIONS (passwort 'secret')$$);
CREATE USER MAPPING FOR CURRENT_USER SERVER pg OPTIONS (user 'remote user', password 'secret');
SELECT idempotency.sink_setup_sql('pg');
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.sink_setup_sql('nul');
-- What any kind of sink needs.  Names stand as quoted words of a shell.
SELECT idempotency.sink_setup('pg') = idempotency.sink_setup_sql('pg') AS same, idempotency.sink_setup('nul');
CREATE SERVER kafka FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (topic 'a');
SELECT left(pg_temp.try($$SELECT idempotency.sink_setup('kafka')$$), 28);
ALTER SERVER kafka OPTIONS (ADD brokers '$(id);''x''');
CREATE USER MAPPING FOR CURRENT_USER SERVER kafka OPTIONS (user 'it''s');
SELECT idempotency.sink_setup('kafka', 'the relay');
ALTER SERVER kafka OPTIONS (SET topic '{event_type}', ADD position_topic 'p', ADD delivery 'at_least_once');
SELECT idempotency.sink_setup('kafka');
SELECT pg_temp.try(format($$SELECT idempotency.sink_setup('kafka', %L)$$, r)) FROM (VALUES (''), (repeat('x', 64))) AS a (r);
DROP SERVER kafka CASCADE;
SELECT pg_temp.try($$SELECT idempotency.sink_setup_sql('nowhere')$$);
-- The text holds no SQL of a server's owner, and runs again for a second relay.
CREATE SERVER U&"a\000aSELECT 1/0; --" FOREIGN DATA WRAPPER idempotency_null;
CREATE SERVER U&"b\000aSELECT 1/0; --" FOREIGN DATA WRAPPER idempotency_postgres
	OPTIONS (table U&'"the\000ainbox".b', omit_columns 'headers , seq', position_table U&'"the\000ainbox"."p;--"');
CREATE USER MAPPING FOR CURRENT_USER SERVER U&"b\000aSELECT 1/0; --";
CREATE SCHEMA U&"the\000ainbox";
SET client_min_messages = warning;
DO $$ BEGIN
	FOR i IN 1 .. 2 LOOP
		EXECUTE idempotency.sink_setup_sql(E'a\nSELECT 1/0; --');
		EXECUTE idempotency.sink_setup_sql(E'b\nSELECT 1/0; --');
	END LOOP;
END $$;
SELECT relname, relnatts FROM pg_class WHERE relnamespace = quote_ident(E'the\ninbox')::regnamespace AND relkind = 'r'
	ORDER BY relname;
DROP SCHEMA U&"the\000ainbox" CASCADE;
DROP SERVER U&"a\000aSELECT 1/0; --", U&"b\000aSELECT 1/0; --" CASCADE;
RESET client_min_messages;

-- Privileges: an operator makes relays to servers it may use, and changes its own.
CREATE ROLE regress_relay_a;
CREATE ROLE regress_relay_b;
CREATE ROLE regress_relay_c;
SELECT idempotency.grant_role('operator', 'regress_relay_a'), idempotency.grant_role('operator', 'regress_relay_b'),
	idempotency.grant_role('monitor', 'regress_relay_c');
GRANT USAGE ON FOREIGN SERVER nul TO regress_relay_a;
CREATE FUNCTION pg_temp.as_role(role text, sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text;
BEGIN
	PERFORM set_config('role', role, true);
	result := pg_temp.try(sql);
	PERFORM set_config('role', 'none', true);
	RETURN result;
END $$;
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA pg_temp TO PUBLIC;
SELECT r, s, pg_temp.as_role('regress_relay_' || r, s) FROM (VALUES
	('a', 'SELECT idempotency.relay_create(''mine'', ''nul'')'),
	('b', 'SELECT idempotency.relay_create(''other'', ''nul'')'),
	('b', 'SELECT idempotency.relay_alter(''mine'', batch_events => 1)'),
	('b', 'SELECT idempotency.relay_drop(''mine'')'),
	('b', 'SELECT idempotency.relay_adopt(''mine'')'),
	('b', 'SELECT idempotency.relay_pause(''mine'')'),
	('b', 'SELECT * FROM idempotency.stat_relay'),
	('b', 'SELECT * FROM idempotency.dead_letters'),
	('b', 'SELECT * FROM idempotency_data.relays'),
	('b', 'SELECT * FROM idempotency_data.relay_parked'),
	('b', 'SELECT idempotency.sink_setup_sql(''nul'')'),
	('c', 'SELECT * FROM idempotency.stat_relay'),
	('c', 'SELECT idempotency.relay_pause(''mine'')'),
	('a', 'CREATE SERVER x FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''x'')'),
	('a', 'SELECT idempotency.relay_drop(''mine'')')) AS a (r, s);
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_program TO regress_relay_a;
SELECT pg_temp.as_role('regress_relay_a', 'CREATE SERVER x FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''x'')');

-- Nothing is PUBLIC's, and everything has a comment.
SELECT pg_describe_object(d.classid, d.objid, 0) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	LEFT JOIN pg_proc p ON d.classid = 'pg_proc'::regclass AND p.oid = d.objid
	LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
	LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
	LEFT JOIN pg_namespace n ON d.classid = 'pg_namespace'::regclass AND n.oid = d.objid
	LEFT JOIN pg_foreign_data_wrapper w ON d.classid = 'pg_foreign_data_wrapper'::regclass AND w.oid = d.objid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'idempotency'
	AND EXISTS (SELECT FROM aclexplode(COALESCE(p.proacl, c.relacl, t.typacl, n.nspacl, w.fdwacl,
		CASE WHEN p.oid IS NOT NULL THEN acldefault('f', p.proowner) WHEN t.typtype = 'e' THEN acldefault('T', t.typowner) END)) a
		WHERE a.grantee = 0)
	ORDER BY 1;
SELECT pg_describe_object(d.classid, d.objid, 0) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
	LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
	WHERE d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e' AND e.extname = 'idempotency'
	AND (t.oid IS NULL OR (t.typtype IN ('e', 'd')))
	AND obj_description(d.objid, d.classid::regclass::name) IS NULL
	ORDER BY 1;

DROP SERVER nul CASCADE;
DROP OWNED BY regress_relay_a, regress_relay_b, regress_relay_c;
DROP ROLE regress_relay_a, regress_relay_b, regress_relay_c;
