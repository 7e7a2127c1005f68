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

-- The hint lists the extension's wrappers, which have the validators of their names.
SELECT fdwname, fdwvalidator::regproc FROM pg_foreign_data_wrapper WHERE fdwname ~ '^idempotency_'
	AND fdwvalidator::regproc::text <> 'idempotency_data.sink_' || substr(fdwname, 13) || '_validator';
SELECT replace(pg_temp.try(format('SELECT idempotency.relay_create(%s)', args)),
	(SELECT string_agg(fdwname, ', ' ORDER BY oid) FROM pg_foreign_data_wrapper WHERE fdwname ~ '^idempotency_'), '<ours>') AS try FROM (VALUES
	('NULL, ''nul'''), ('''r'', NULL'), ('''r'', ''nowhere'''), ('''r'', ''other'''), ('''@r'', ''nul'''),
	(''''', ''nul'''), ('repeat(''r'', 256), ''nul'''),
	('''r'', ''nul'', start_at => NULL'), ('''r'', ''nul'', ordering => NULL'), ('''r'', ''nul'', on_dead => NULL'),
	('''r'', ''nul'', max_attempts => NULL'), ('''r'', ''nul'', max_attempts => -1'),
	('''r'', ''nul'', retry_for => NULL'), ('''r'', ''nul'', retry_for => ''-1 s'''), ('''r'', ''nul'', retry_for => ''101 years'''),
	('''r'', ''nul'', min_backoff => ''0'''), ('''r'', ''nul'', max_backoff => ''2 days'''),
	('''r'', ''nul'', min_backoff => ''-1 year 361 days'''), ('''r'', ''nul'', max_backoff => ''1 month -28 days'''),
	('''r'', ''nul'', batch_events => 0'), ('''r'', ''nul'', batch_events => 10001'),
	('''r'', ''nul'', batch_size => ''1'''), ('''r'', ''nul'', batch_size => ''1TB'''), ('''r'', ''nul'', batch_size => ''x'''),
	('''r'', ''nul'', max_lag_size => ''1kB'''), ('''r'', ''nul'', max_lag_size => '''''),
	('''r'', ''nul'', aggregate_types => ''{a,NULL}'''), ('''r'', ''nul'', event_types => ''{a,""}'''),
	('''r'', ''nul'', aggregate_types => array_fill(''a''::text, ''{10001}'')'))
	AS a (args);

SELECT idempotency.relay_create('r', 'nul');
SELECT pg_temp.try($$SELECT idempotency.relay_create('r', 'nul')$$);
SELECT pg_temp.try(format('SELECT idempotency.%s(%L)', f, r)) FROM
	unnest('{relay_alter,relay_drop,relay_pause,relay_resume,relay_adopt,relay_redrive,relay_discard}'::text[]) f,
	unnest('{nothing,NULL}'::text[]) r;
SELECT pg_temp.try(s) FROM (VALUES
	('SELECT idempotency.relay_alter(''r'', max_attempts => 1000001)'),
	('SELECT idempotency.relay_alter(''r'', retry_for => ''1 us'')'),
	('SELECT idempotency.relay_alter(''r'', min_backoff => ''1 us'')'),
	('SELECT idempotency.relay_alter(''r'', max_backoff => ''1 month -31 days'')'),
	('SELECT idempotency.relay_alter(''r'', batch_events => 0)'),
	('SELECT idempotency.relay_alter(''r'', batch_size => ''0'')'),
	('SELECT idempotency.relay_alter(''r'', aggregate_types => array_fill(''a''::text, ''{10001}''))'),
	('SELECT idempotency.relay_alter(''r'', server => ''nowhere'')'),
	('SELECT idempotency.relay_alter(''r'', server => '''')'),
	('SELECT idempotency.relay_replay(''r'')'),
	('SELECT idempotency.relay_replay(''r'', since => now(), event_id => gen_random_uuid())'),
	('SELECT idempotency.relay_replay(''nothing'', since => now())'),
	('SELECT idempotency.relay_replay(''r'', event_id => ''00000000-0000-0000-0000-000000000000'')'),
	('SELECT idempotency.relay_replay(''r'', since => ''2026-01-02'', until => ''2026-01-01'')'),
	('SELECT idempotency.relay_replay(''r'', since => now(), aggregate_ids => ''{a,NULL}'')'),
	('SELECT idempotency.relay_replay(''r'', since => now(), preview => NULL)'),
	('SELECT idempotency.relay_redrive(''r'', event_types => ''{a,NULL}'')'),
	('SELECT idempotency.relay_redrive(''r'', sqlstate => ''22'')'),
	('SELECT idempotency.relay_discard(''r'', sqlstate => ''22p02'')'),
	('SELECT idempotency.relay_discard(''r'', since => ''2026-01-02'', until => ''2026-01-01'')'),
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
SELECT aggregate_types, max_lag_size, max_attempts FROM idempotency_data.relays;
SELECT idempotency.relay_alter('r', aggregate_types => '{}', max_lag_size => 'None');
SELECT aggregate_types, max_lag_size FROM idempotency_data.relays;
-- As many types as there may be; a relay of a dump may have more, and can be altered.
BEGIN;
SELECT idempotency.relay_alter('r', aggregate_types => array_fill('a'::text, '{10000}'));
UPDATE idempotency_data.relays SET aggregate_types = aggregate_types || '{b}'::text[];
SELECT idempotency.relay_alter('r', max_attempts => 12);
SELECT cardinality(aggregate_types), max_attempts FROM idempotency_data.relays;
ROLLBACK;
SELECT idempotency.relay_alter('r', max_lag_size => '2MB', min_backoff => '1 s', max_backoff => '1 h');
SELECT max_lag_size, min_backoff, max_backoff FROM idempotency_data.relays;
SELECT idempotency.relay_alter('r', max_lag_size => '0 kB', max_attempts => 0, min_backoff => '0', max_backoff => '1 day -24 hours');
SELECT max_lag_size, max_attempts, min_backoff, max_backoff FROM idempotency_data.relays;
SELECT retry_for, idempotency.relay_alter('r', retry_for => '1 month -30 days'), idempotency.relay_alter('r', batch_events => 2000) FROM idempotency_data.relays;
SELECT retry_for, max_attempts, min_backoff, max_backoff FROM idempotency_data.relays;
SELECT idempotency.relay_create('unlimited', 'nul', max_lag_size => 'none', aggregate_types => '{}'),
	idempotency.relay_create('unlimited too', 'nul', max_lag_size => '0', max_attempts => 0, min_backoff => NULL, max_backoff => NULL);
SELECT max_lag_size, max_attempts, min_backoff, max_backoff FROM idempotency_data.relays WHERE relay ~ 'unlimited' ORDER BY relay;
SELECT idempotency.relay_drop('unlimited'), idempotency.relay_drop('unlimited too');

-- Dead letters are chosen by id, type, SQLSTATE and time of the last failure;
-- all that is given has to fit.  The relay is paused: what is parked here stays.
SELECT idempotency.relay_pause('r'), idempotency.relay_alter('r', start_at => 'latest');
CREATE TEMP TABLE made AS SELECT n, idempotency.outbox_enqueue('a', n::text, 't' || n % 3, to_jsonb(n)) AS event_id FROM generate_series(1, 6) n;
INSERT INTO made SELECT 7, idempotency.outbox_enqueue('a', '7', 't1', '7');
SELECT count(idempotency.relay_replay('r', event_id => event_id)) FROM made;
UPDATE idempotency_data.relay_parked p SET state = CASE WHEN n < 7 THEN 'dead' ELSE 'waiting' END::idempotency.parked_state,
	sqlstate = CASE WHEN n % 2 = 0 THEN '22P02' ELSE '23505' END, last_failed_at = '2026-01-01'::timestamptz + (n - 1) * interval '1 hour'
  FROM made WHERE made.event_id = p.event_id;
CREATE VIEW pg_temp.waiting AS SELECT lag_events, retrying, dead,
	(SELECT min(n) FROM made JOIN idempotency.outbox_events e USING (event_id) WHERE e.enqueued_at = s.oldest_waiting) AS oldest
  FROM idempotency.stat_relay s;
SELECT * FROM pg_temp.waiting;
SELECT idempotency.relay_alter('r', start_at => 'latest');
SELECT * FROM pg_temp.waiting;
SELECT filtered, expired FROM idempotency.stat_relay;
CREATE FUNCTION pg_temp.chosen(args text) RETURNS TABLE (redriven bigint, discarded bigint, which text) LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		EXECUTE 'SELECT idempotency.relay_redrive(''r''' || args || ')' INTO redriven;
		which := (SELECT string_agg(n::text, ' ' ORDER BY n) FROM idempotency_data.relay_parked JOIN made USING (event_id) WHERE state = 'retry');
		RAISE SQLSTATE 'ROLL1';
	EXCEPTION WHEN SQLSTATE 'ROLL1' THEN NULL;
	END;
	BEGIN
		EXECUTE 'SELECT idempotency.relay_discard(''r''' || args || ')' INTO discarded;
		IF which IS DISTINCT FROM (SELECT string_agg(n::text, ' ' ORDER BY n) FROM made
				WHERE event_id NOT IN (SELECT event_id FROM idempotency_data.relay_parked)) THEN
			which := which || ', but others were discarded';
		END IF;
		RAISE SQLSTATE 'ROLL1';
	EXCEPTION WHEN SQLSTATE 'ROLL1' THEN NULL;
	END;
	RETURN NEXT;
END $$;
SELECT args, c.* FROM (VALUES (1, ''), (2, ', event_ids => NULL, event_types => NULL, sqlstate => NULL, since => NULL, until => NULL'),
	(3, ', event_types => ''{t1}'''), (4, ', event_types => ''{t0,t2,t9}'''), (5, ', event_types => ''{}'''), (6, ', event_ids => ''{}'''),
	(7, ', sqlstate => ''22P02'''), (8, ', sqlstate => ''22000'''),
	(9, ', since => ''2026-01-01 03:00'''), (10, ', until => ''2026-01-01 03:00'''),
	(11, ', since => ''2026-01-01 01:00'', until => ''2026-01-01 03:00'''), (12, ', since => ''2026-01-01 01:00'', until => ''2026-01-01 01:00'''),
	(13, ', since => ''-infinity'', until => ''infinity'''),
	(14, ', event_types => ''{t1,t2}'', sqlstate => ''23505'', since => ''2026-01-01 01:00'''),
	(15, ', event_ids => ARRAY(SELECT event_id FROM made WHERE n IN (2, 3, 7)), sqlstate => ''23505''')) a (n, args), pg_temp.chosen(args) c ORDER BY a.n;
SELECT idempotency.relay_discard('r');
SELECT * FROM pg_temp.waiting;
DELETE FROM idempotency_data.relay_parked;
SELECT *, (SELECT oldest_waiting FROM idempotency.stat_relay) FROM pg_temp.waiting;

-- Is it set up right?  The worker may be on its way.
SELECT * FROM idempotency.relay_check('r') WHERE what <> 'worker';
SELECT idempotency.relay_resume('r');
SELECT what, ok, problem FROM idempotency.relay_check('r') WHERE what = 'relay';
BEGIN;
CREATE FUNCTION public.known(event_id uuid) RETURNS void LANGUAGE sql AS '';
CREATE SERVER known FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'public.known');
SELECT idempotency.relay_create('known', 'known');
SELECT what, ok, problem, remedy FROM idempotency.relay_check('known') WHERE what <> 'worker';
DROP FUNCTION public.known;
SELECT what, ok, problem, remedy FROM idempotency.relay_check('known') WHERE NOT ok AND what <> 'worker';
ALTER SERVER known OPTIONS (DROP function);
SELECT what, ok, problem, remedy FROM idempotency.relay_check('known') WHERE NOT ok AND what <> 'worker';
ROLLBACK;
SELECT pg_temp.try(format('SELECT * FROM idempotency.relay_check(%L)', r)) FROM unnest('{nothing,NULL}'::text[]) r;
BEGIN TRANSACTION READ ONLY;
SELECT what, ok FROM idempotency.relay_check('r') WHERE what = 'options';
COMMIT;

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
	('http', 'url ''https://u'', service ''smtp'''), ('http', 'token ''secret'''),
	('nats', 'servers ''a'', tls ''perhaps'''), ('nats', 'token ''secret'''),
	('redis', 'servers ''h'', delivery ''twice'''), ('redis', 'password ''secret'''),
	('rabbitmq', 'servers ''h'', queue ''q'''), ('rabbitmq', 'password ''secret'''),
	('mqtt', 'servers ''h'', qos ''0'''), ('mqtt', 'password ''secret'''),
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
CREATE SERVER redis FOREIGN DATA WRAPPER idempotency_redis OPTIONS (stream 's.{aggregate_type}*');
CREATE USER MAPPING FOR CURRENT_USER SERVER redis;
SELECT pg_temp.try($$SELECT idempotency.sink_setup('redis')$$);
ALTER SERVER redis OPTIONS (ADD servers '[::1]:7000,h:1');
SELECT idempotency.sink_setup('redis');
ALTER USER MAPPING FOR CURRENT_USER SERVER redis OPTIONS (ADD user 'it''s', ADD password 'secret');
SELECT idempotency.sink_setup('redis', 'the ''relay''');
ALTER SERVER redis OPTIONS (DROP stream, ADD delivery 'at_least_once', SET servers 'h');
SELECT idempotency.sink_setup('redis');
DROP SERVER redis CASCADE;
CREATE SERVER rabbitmq FOREIGN DATA WRAPPER idempotency_rabbitmq OPTIONS (servers 'h');
CREATE USER MAPPING FOR CURRENT_USER SERVER rabbitmq;
SELECT idempotency.sink_setup('rabbitmq', 'the ''relay''');
ALTER USER MAPPING FOR CURRENT_USER SERVER rabbitmq OPTIONS (ADD user 'it''s', ADD password 'secret');
ALTER SERVER rabbitmq OPTIONS (ADD vhost 'a "b"', ADD exchange 's.{relay}.{aggregate_type}');
SELECT idempotency.sink_setup('rabbitmq', 'r+1');
ALTER SERVER rabbitmq OPTIONS (DROP exchange, ADD stream 's.{relay}');
SELECT idempotency.sink_setup('rabbitmq', 'r+1');
ALTER SERVER rabbitmq OPTIONS (ADD delivery 'at_least_once', DROP vhost);
SELECT idempotency.sink_setup('rabbitmq', 'r+1');
DROP SERVER rabbitmq CASCADE;
CREATE SERVER kafka FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (topic 'a');
SELECT left(pg_temp.try($$SELECT idempotency.sink_setup('kafka')$$), 28);
ALTER SERVER kafka OPTIONS (ADD brokers '$(id);''x''');
CREATE USER MAPPING FOR CURRENT_USER SERVER kafka OPTIONS (user 'it''s');
SELECT idempotency.sink_setup('kafka', 'the relay');
ALTER SERVER kafka OPTIONS (SET topic '{event_type}', ADD position_topic 'p', ADD delivery 'at_least_once');
SELECT idempotency.sink_setup('kafka');
SELECT pg_temp.try(format($$SELECT idempotency.sink_setup('kafka', %L)$$, r)) FROM (VALUES (''), (repeat('x', 64))) AS a (r);
DROP SERVER kafka CASCADE;
CREATE SERVER nats FOREIGN DATA WRAPPER idempotency_nats OPTIONS (servers 'a:4222,b:4222', stream 'x''y', subject E'o.{event_type}.\n"');
SELECT idempotency.sink_setup('nats', 'the relay');
ALTER SERVER nats OPTIONS (SET subject 'o.all', ADD delivery 'at_least_once');
SELECT idempotency.sink_setup('nats');
DROP SERVER nats CASCADE;
CREATE SERVER mqtt FOREIGN DATA WRAPPER idempotency_mqtt OPTIONS (servers 'a', topic E'o/p-{event_type}/x\n');
CREATE USER MAPPING FOR CURRENT_USER SERVER mqtt;
SELECT idempotency.sink_setup('mqtt');
ALTER SERVER mqtt OPTIONS (SET topic 'o/all', ADD in_flight '7');
ALTER USER MAPPING FOR CURRENT_USER SERVER mqtt OPTIONS (ADD user E'it''s\ntopic #', ADD password 'secret');
SELECT idempotency.sink_setup('mqtt', 'the relay');
ALTER SERVER mqtt OPTIONS (SET topic E'o/p-{event_type}/x\n');
SELECT idempotency.sink_setup('mqtt');
DROP SERVER mqtt CASCADE;
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
	('b', 'SELECT * FROM idempotency.relay_check(''mine'')'),
	('c', 'SELECT * FROM idempotency.relay_check(''mine'')'),
	('c', 'SELECT * FROM idempotency.stat_relay'),
	('c', 'SELECT idempotency.relay_pause(''mine'')'),
	('a', 'CREATE SERVER x FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''x'')'),
	('a', 'SELECT idempotency.relay_drop(''mine'')')) AS a (r, s);
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_program TO regress_relay_a;
SELECT pg_temp.as_role('regress_relay_a', 'CREATE SERVER x FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''x'')');

-- No event trigger sees a command of relays; the log has it where log_statement asks for DDL.
CREATE TABLE seen (event text, tag text);
CREATE FUNCTION note() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO public.seen VALUES (TG_EVENT, TG_TAG); END $$;
CREATE EVENT TRIGGER regress_relay_start ON ddl_command_start EXECUTE FUNCTION note();
CREATE EVENT TRIGGER regress_relay_end ON ddl_command_end EXECUTE FUNCTION note();
CREATE EVENT TRIGGER regress_relay_drop ON sql_drop EXECUTE FUNCTION note();
SET client_min_messages = log;
SELECT pg_temp.as_role('regress_relay_a', 'SELECT idempotency.relay_create(''unheard'', ''nul'')');
SET log_statement = 'ddl';
SELECT s, pg_temp.as_role('regress_relay_a', s) FROM (VALUES
	('SELECT idempotency.relay_create(''heard'', ''nul'')'),
	('SELECT idempotency.relay_alter(''heard'', batch_events => 10)'),
	('SELECT idempotency.relay_pause(''heard'')'),
	('SELECT idempotency.relay_resume(''heard'')'),
	('SELECT idempotency.relay_adopt(''heard'')'),
	('SELECT idempotency.relay_replay(''heard'', since => now())'),
	('SELECT idempotency.relay_redrive(''heard'')'),
	('SELECT idempotency.relay_discard(''heard'')'),
	('SELECT idempotency.relay_pause(''nothing'')'),
	('SELECT idempotency.relay_drop(''heard'')')) AS a (s);
RESET log_statement;
SELECT pg_temp.as_role('regress_relay_a', 'SELECT idempotency.relay_drop(''unheard'')');
RESET client_min_messages;
DROP EVENT TRIGGER regress_relay_start;
DROP EVENT TRIGGER regress_relay_end;
DROP EVENT TRIGGER regress_relay_drop;
SELECT * FROM seen WHERE tag NOT LIKE '%EVENT TRIGGER';

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
SELECT attrelid::regclass, attname FROM pg_attribute
 WHERE attrelid IN ('idempotency.stat_relay'::regclass, 'idempotency.dead_letters'::regclass)
   AND attnum > 0 AND col_description(attrelid, attnum) IS NULL;

DROP SERVER nul CASCADE;
DROP OWNED BY regress_relay_a, regress_relay_b, regress_relay_c;
DROP ROLE regress_relay_a, regress_relay_b, regress_relay_c;
