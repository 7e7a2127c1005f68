-- Who may change which options of a server.  An option that names a program or a file is a superuser's; the server's
-- owner may change all others, and so never gets another program started than a superuser chose.
\set VERBOSITY default
\set SHOW_CONTEXT never
CREATE ROLE regress_options_owner;
CREATE SCHEMA regress_options AUTHORIZATION regress_options_owner;
GRANT USAGE ON FOREIGN DATA WRAPPER idempotency_program, idempotency_postgres TO regress_options_owner;
CREATE FUNCTION pg_temp.as_owner(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	result text := 'no error';
	detail text;
BEGIN
	PERFORM set_config('role', 'regress_options_owner', true);
	BEGIN
		EXECUTE sql;
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL;
		result := SQLSTATE || ' ' || SQLERRM || COALESCE(' / ' || NULLIF(detail, ''), '');
	END;
	PERFORM set_config('role', 'none', true);
	RETURN result;
END $$;
CREATE VIEW pg_temp.options AS SELECT srvname, srvowner::regrole AS owner, srvoptions FROM pg_foreign_server
	WHERE srvname LIKE 'regress_%' ORDER BY 1;

-- A server that a superuser made and gave away.
CREATE SERVER regress_given FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'chosen', color 'red');
ALTER SERVER regress_given OWNER TO regress_options_owner;
SELECT s, pg_temp.as_owner('ALTER SERVER regress_given ' || s) FROM (VALUES
	('OPTIONS (SET color ''blue'')'),
	('OPTIONS (ADD size ''5'')'),
	('OPTIONS (DROP size)'),
	('VERSION ''2'''),
	('OPTIONS (SET program ''other'')'),
	('OPTIONS (SET program ''chosen'')'),
	('OPTIONS (SET color ''green'', SET program ''other'')'),
	('OPTIONS (DROP program)'),
	('OPTIONS (DROP program, ADD program ''other'')'),
	('OPTIONS (DROP program, ADD program ''chosen'')'),
	('OPTIONS (ADD program ''other'')'),
	('OPTIONS (ADD "PROGRAM" ''other'')'),
	('VERSION ''3'' OPTIONS (SET program ''../other'')')) AS a (s);
TABLE pg_temp.options;
-- What a statement before in the same transaction did is what the next one starts from.
BEGIN;
ALTER SERVER regress_given OPTIONS (SET program 'second');
SELECT pg_temp.as_owner('ALTER SERVER regress_given OPTIONS (SET program ''chosen'')');
SELECT pg_temp.as_owner('ALTER SERVER regress_given OPTIONS (SET color ''black'')');
TABLE pg_temp.options;
ROLLBACK;
-- Names may change hands: the server that is altered is what counts.
CREATE SERVER regress_next FOREIGN DATA WRAPPER idempotency_program OPTIONS (program 'next');
ALTER SERVER regress_next OWNER TO regress_options_owner;
SELECT s, pg_temp.as_owner(s) FROM (VALUES
	('ALTER SERVER regress_given RENAME TO regress_was_given'),
	('ALTER SERVER regress_next RENAME TO regress_given'),
	('ALTER SERVER regress_given OPTIONS (SET program ''chosen'')'),
	('ALTER SERVER regress_given OPTIONS (ADD color ''blue'')')) AS a (s);
TABLE pg_temp.options;

-- One of his own: without a program, until a superuser gives it one.
SELECT s, pg_temp.as_owner(s) FROM (VALUES
	('CREATE SERVER regress_own FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''chosen'')'),
	('CREATE SERVER IF NOT EXISTS regress_own FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''chosen'')'),
	('CREATE SERVER regress_own FOREIGN DATA WRAPPER idempotency_program OPTIONS (color ''red'')'),
	('ALTER SERVER regress_own OPTIONS (ADD program ''chosen'')'),
	('CREATE USER MAPPING FOR CURRENT_USER SERVER regress_own OPTIONS (program ''chosen'')'),
	('IMPORT FOREIGN SCHEMA s FROM SERVER regress_own INTO regress_options OPTIONS (program ''chosen'')')) AS a (s);
ALTER SERVER regress_own OPTIONS (ADD program 'given');
SELECT pg_temp.as_owner('ALTER SERVER regress_own OPTIONS (SET color ''blue'')');
ALTER SERVER regress_own OPTIONS (DROP program);
SELECT pg_temp.as_owner('ALTER SERVER regress_own OPTIONS (ADD program ''given'')');
TABLE pg_temp.options;
-- Without the validator, too.
ALTER FOREIGN DATA WRAPPER idempotency_program NO VALIDATOR;
SELECT s, pg_temp.as_owner(s) FROM (VALUES
	('CREATE SERVER regress_free FOREIGN DATA WRAPPER idempotency_program OPTIONS (program ''chosen'')'),
	('ALTER SERVER regress_own OPTIONS (ADD program ''given'')'),
	('CREATE USER MAPPING FOR CURRENT_USER SERVER regress_own OPTIONS (program ''null'')')) AS a (s);
ALTER FOREIGN DATA WRAPPER idempotency_program VALIDATOR idempotency_data.sink_program_validator;
-- A program that a user mapping names is none of the server's.
SELECT idempotency.grant_role('operator', 'regress_options_owner');
SELECT pg_temp.as_owner('SELECT idempotency.relay_create(''regress_own'', ''regress_own'')');
ALTER SERVER regress_own OPTIONS (ADD program 'given');
BEGIN;
SELECT pg_temp.as_owner('SELECT idempotency.relay_create(''regress_own'', ''regress_own'')');
ALTER SERVER regress_own OPTIONS (DROP program);
COMMIT;
DO $$ BEGIN
	FOR i IN 1 .. 1000 LOOP
		EXIT WHEN (SELECT state = 'misconfigured' FROM idempotency.stat_relay WHERE relay = 'regress_own');
		PERFORM pg_sleep(0.1);
		PERFORM pg_stat_clear_snapshot();
	END LOOP;
END $$;
SELECT state, last_error, sink_pid FROM idempotency.stat_relay WHERE relay = 'regress_own';
SELECT idempotency.relay_drop('regress_own');

-- Files that the server's user reads are treated alike.
CREATE SERVER regress_pg FOREIGN DATA WRAPPER idempotency_postgres OPTIONS (host 'a', dbname 'd', sslrootcert '/ca');
ALTER SERVER regress_pg OWNER TO regress_options_owner;
SELECT s, pg_temp.as_owner('ALTER SERVER regress_pg OPTIONS (' || s || ')') FROM (VALUES
	('SET host ''b'''), ('SET sslrootcert ''/etc/shadow'''), ('ADD sslcrl ''/etc/shadow'''), ('DROP sslrootcert')) AS a (s);
SELECT pg_temp.as_owner($$CREATE USER MAPPING FOR CURRENT_USER SERVER regress_pg OPTIONS (secret_file '/etc/shadow')$$);
TABLE pg_temp.options;

SET client_min_messages = warning;
DROP SERVER regress_own, regress_pg, regress_given, regress_was_given CASCADE;
DROP OWNED BY regress_options_owner;
DROP ROLE regress_options_owner;

-- A value that the program would refuse is refused when it is set, and no login stands in pg_foreign_server.
CREATE FUNCTION pg_temp.attempt(sql text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	hint text;
BEGIN
	EXECUTE sql;
	RAISE EXCEPTION 'accepted' USING ERRCODE = 'XX999';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	RETURN SQLSTATE || ' ' || SQLERRM || COALESCE(' / ' || NULLIF(hint, ''), '');
END $$;
\pset format unaligned
SELECT o, pg_temp.attempt('CREATE SERVER regress_http FOREIGN DATA WRAPPER idempotency_http OPTIONS (' || o || ')') FROM (VALUES
	($$url 'file:///etc/passwd'$$), ($$url 'https:///x'$$), ($$url 'https://user:word@example.com/'$$), ($$url 'https://example.com/{no}'$$),
	($$url 'https://{id}.example.com/'$$), ($$url 'https://example.com/{id'$$), ($$token_url 'ftp://example.com/'$$),
	($$token_url 'https://example.com/{id}'$$), ($$headers 'X-A: {no}'$$), ($$source '{id}'$$),
	($$url 'HTTPS://example.com/{aggregate_type}/{header:x}?a=@', headers 'X-A: {token}', source '/{relay}'$$)) AS a (o);
SELECT o, pg_temp.attempt('CREATE SERVER regress_kafka FOREIGN DATA WRAPPER idempotency_kafka OPTIONS (' || o || ')') FROM (VALUES
	($$topic '{id}'$$), ($$position_topic '{aggregate_type}'$$), ($$token_url 'x'$$), ($$transaction_time '30000'$$),
	($$transaction_time '2000', transaction_timeout '1000'$$), ($$transaction_time '2000', transaction_timeout '2001'$$),
	($$delivery 'exactly_once', transaction_time '30000'$$), ($$delivery 'at_least_once', transaction_time '30000'$$)) AS a (o);
SELECT o, pg_temp.attempt('CREATE SERVER regress_nats FOREIGN DATA WRAPPER idempotency_nats OPTIONS (' || o || ')') FROM (VALUES
	($$subject '{id}'$$), ($$position_subject '{aggregate_type}'$$), ($$format 'debezium'$$), ($$timeout '999'$$),
	($$servers 'a', stream 's', subject 'x.{aggregate_id}.{header:x}', source '/{relay}', tls 'on'$$)) AS a (o);
SELECT o, pg_temp.attempt('CREATE SERVER regress_redis FOREIGN DATA WRAPPER idempotency_redis OPTIONS (' || o || ')') FROM (VALUES
	($$stream '{id}'$$), ($$stream '{relay'$$), ($$position_key '{aggregate_type}'$$), ($$source '{event_type}'$$), ($$maxlen '-1'$$),
	($$wait_aof 'always'$$), ($$stream '{relay}.{aggregate_type}.{event_type}.{header:x}', position_key '{relay}', maxlen '0', wait_aof 'auto'$$)) AS a (o);
SELECT o, pg_temp.attempt('CREATE SERVER regress_rabbitmq FOREIGN DATA WRAPPER idempotency_rabbitmq OPTIONS (' || o || ')') FROM (VALUES
	($$exchange '{aggregate_id}'$$), ($$routing_key '{id}'$$), ($$stream '{aggregate_type}'$$), ($$delivery 'once'$$), ($$max_event_bytes '-1'$$), ($$stream 's.{relay}', delivery 'at_least_once', max_event_bytes '1000'$$), ($$source '{event_type}'$$), ($$heartbeat '0'$$), ($$format 'fields'$$), ($$user 'u'$$),
	($$servers 'a', vhost 'v', exchange '{relay}.{aggregate_type}.{event_type}.{header:x}', routing_key '{aggregate_id}', heartbeat '1', tls 'on'$$)) AS a (o);
SELECT o, pg_temp.attempt('CREATE SERVER regress_mqtt FOREIGN DATA WRAPPER idempotency_mqtt OPTIONS (' || o || ')') FROM (VALUES
	($$topic '{id}'$$), ($$topic 'a/{relay'$$), ($$client_id '{aggregate_type}'$$), ($$qos '0'$$), ($$retain 'yes'$$), ($$keepalive '4'$$),
	($$in_flight '0'$$), ($$message_expiry '-1'$$), ($$source '{event_type}'$$), ($$websockets 'on'$$),
	($$servers 'a', topic '{relay}/{aggregate_type}/{aggregate_id}/{event_type}/{header:x}', qos '2', retain 'on', client_id 'c-{relay}', tls 'on'$$)) AS a (o);
CREATE SERVER regress_http FOREIGN DATA WRAPPER idempotency_http OPTIONS (url 'https://example.com/');
SELECT o, pg_temp.attempt(format('CREATE USER MAPPING FOR CURRENT_USER SERVER regress_http OPTIONS (signing_secrets %L)', o)) FROM (VALUES
	('secret'), (' '), ('whsec_' || repeat('A', 28)), ('whsec_' || repeat('A', 33)), ('whsec_' || repeat('A', 31) || '-'), ('whsec_' || repeat('A', 88)),
	('whsec_' || repeat('A', 32)), ('whsec_' || repeat('A', 86) || '== whsec_' || repeat('A', 32) || ' ')) AS a (o);
SELECT a, pg_temp.attempt('SELECT idempotency.relay_create(''r'', ''regress_http'', ' || a || ')') FROM (VALUES
	($$min_backoff => '2 s', max_backoff => '1 s'$$), ($$min_backoff => '61 min'$$), ($$max_backoff => '50 ms'$$)) AS b (a);
BEGIN;
SELECT idempotency.relay_create('r', 'regress_http', min_backoff => '1 s', max_backoff => '1 s');
SELECT a, pg_temp.attempt('SELECT idempotency.relay_alter(''r'', ' || a || ')') FROM (VALUES
	($$min_backoff => '2 s'$$), ($$max_backoff => '900 ms'$$), ($$max_backoff => '0', min_backoff => '61 min'$$), ($$min_backoff => '0'$$)) AS b (a);
ROLLBACK;
-- What is known of a target at once is said at once: what cannot work is refused, and nothing is left of the call.
CREATE SCHEMA regress_known;
CREATE FUNCTION regress_known.good(event_id uuid, payload jsonb, headers jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION regress_known.bytes(payload bytea) RETURNS int LANGUAGE sql AS 'SELECT 1';
CREATE FUNCTION regress_known.other(event_id uuid, color text) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION regress_known.typed(event_id int) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION regress_known.strict(event_id uuid) RETURNS void LANGUAGE sql STRICT AS '';
CREATE FUNCTION regress_known.immutable(event_id uuid) RETURNS void LANGUAGE sql IMMUTABLE AS '';
CREATE PROCEDURE regress_known.procedure(event_id uuid) LANGUAGE sql AS '';
CREATE FUNCTION regress_known.twice(event_id uuid) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION regress_known.twice(payload jsonb) RETURNS void LANGUAGE sql AS '';
CREATE FUNCTION regress_known.private(event_id uuid) RETURNS void LANGUAGE sql AS '';
CREATE TABLE regress_known.case (n int, kind text, options text);
INSERT INTO regress_known.case VALUES (1, 'function', NULL), (2, 'function', $$function 'regress_known.good', timeout '5'$$),
	(3, 'function', $$function 'regress_known.bytes'$$), (4, 'function', $$function 'regress_known.absent'$$),
	(5, 'function', $$function 'regress_absent.absent'$$), (6, 'function', $$function 'regress_known.other'$$),
	(7, 'function', $$function 'regress_known.typed'$$), (8, 'function', $$function 'regress_known.strict'$$),
	(9, 'function', $$function 'regress_known.immutable'$$), (10, 'function', $$function 'regress_known.procedure'$$),
	(11, 'function', $$function 'regress_known.twice'$$), (12, 'program', $$url 'x'$$), (13, 'http', NULL), (14, 'kafka', NULL),
	(15, 'postgres', $$host 'h'$$), (16, 'postgres', $$dbname 'd'$$), (17, 'postgres', $$dbname 'd', function 'a.b', "table" 'a.b'$$),
	(18, 'http', $$url 'https://example.com/{no}'$$), (19, 'http', $$url 'https://example.com/', colour 'red'$$),
	(20, 'kafka', $$brokers 'b', topic '{id}'$$), (21, 'null', NULL);
-- servers that no validator has seen
ALTER FOREIGN DATA WRAPPER idempotency_http NO VALIDATOR;
ALTER FOREIGN DATA WRAPPER idempotency_kafka NO VALIDATOR;
DO $$
DECLARE
	command text;
BEGIN
	FOR command IN SELECT format('CREATE SERVER regress_%s FOREIGN DATA WRAPPER idempotency_%s', n, kind)
			|| COALESCE(' OPTIONS (' || options || ')', '') FROM regress_known.case LOOP
		EXECUTE command;
	END LOOP;
END $$;
CREATE SERVER regress_secret FOREIGN DATA WRAPPER idempotency_http OPTIONS (url 'https://example.com/');
CREATE USER MAPPING FOR CURRENT_USER SERVER regress_secret OPTIONS (signing_secrets 'none of the kind');
ALTER FOREIGN DATA WRAPPER idempotency_http VALIDATOR idempotency_data.sink_http_validator;
ALTER FOREIGN DATA WRAPPER idempotency_kafka VALIDATOR idempotency_data.sink_kafka_validator;
SELECT n, kind, options, pg_temp.attempt(format('SELECT idempotency.relay_create(''r'', ''regress_%s'')', n)) FROM regress_known.case ORDER BY n;
SELECT regexp_replace(pg_temp.attempt($$SELECT idempotency.relay_create('r', 'regress_secret')$$), 'FOR \S+', 'FOR <role>');
SELECT count(*) FROM idempotency_data.relays;
-- so is another server for a relay; a change of something else is not
SET client_min_messages = warning;
SELECT idempotency.relay_create('r', 'regress_21');
SELECT n, pg_temp.attempt(format('SELECT idempotency.relay_alter(''r'', ''regress_%s'', batch_events => 7, start_at => ''latest'')', n))
	FROM regress_known.case WHERE n IN (4, 13, 16) ORDER BY n;
SELECT batch_events, server FROM idempotency_data.relays JOIN idempotency.stat_relay USING (relay);
SELECT idempotency.relay_alter('r', 'regress_2');
DROP FUNCTION regress_known.good;
SELECT idempotency.relay_alter('r', batch_events => 8);
SELECT left(pg_temp.attempt($$SELECT idempotency.relay_alter('r', 'regress_2')$$), 5);
SELECT idempotency.relay_drop('r');
-- the owner's rights count
CREATE ROLE regress_known;
SELECT idempotency.grant_role('operator', 'regress_known');
CREATE SERVER regress_private FOREIGN DATA WRAPPER idempotency_function OPTIONS (function 'regress_known.private');
ALTER SERVER regress_private OWNER TO regress_known;
REVOKE EXECUTE ON FUNCTION regress_known.private FROM PUBLIC;
SET ROLE regress_known;
SELECT pg_temp.attempt($$SELECT idempotency.relay_create('r', 'regress_private')$$);
RESET ROLE;
GRANT USAGE ON SCHEMA regress_known TO regress_known;
SET ROLE regress_known;
SELECT pg_temp.attempt($$SELECT idempotency.relay_create('r', 'regress_private')$$);
RESET ROLE;
GRANT EXECUTE ON FUNCTION regress_known.private TO regress_known;
SET ROLE regress_known;
SELECT idempotency.relay_create('r', 'regress_private');
SELECT idempotency.relay_drop('r');
RESET ROLE;
RESET client_min_messages;
-- what only the target knows is a warning
ALTER SERVER regress_16 OPTIONS (ADD "table" 'a.inbox');
ALTER SERVER regress_http OPTIONS (ADD auth 'basic');
CREATE ROLE regress_warned SUPERUSER;
SET ROLE regress_warned;
BEGIN;
SELECT idempotency.relay_create('r', 'regress_16');
SELECT idempotency.relay_alter('r', batch_events => 7);
SELECT idempotency.relay_alter('r', 'regress_http');
CREATE USER MAPPING FOR CURRENT_USER SERVER regress_http OPTIONS (user 'u', password 'p');
SELECT idempotency.relay_alter('r', 'regress_http');
ROLLBACK;
RESET ROLE;
-- a type that no event has is noted, if there are events
SELECT idempotency.relay_create('r', 'regress_21', aggregate_types => '{order}');
SELECT idempotency.outbox_enqueue(t, 'k', 'T', '1') IS NOT NULL AS enqueued FROM unnest('{order,card}'::text[]) AS t;
SELECT idempotency.relay_alter('r', aggregate_types => '{order,Order,"or der",order}');
SELECT idempotency.relay_alter('r', aggregate_types => '{card,order}');
SELECT idempotency.relay_alter('r', aggregate_types => '{}');
SELECT idempotency.relay_alter('r', aggregate_types => ARRAY(SELECT 'type ' || n FROM generate_series(10, 99) AS n));
SELECT idempotency.relay_drop('r');
SELECT idempotency.relay_create('r', 'regress_21', aggregate_types => '{cards}');
SELECT idempotency.relay_drop('r');
SET client_min_messages = warning;
DO $$
BEGIN
	FOR i IN 1 .. 21 LOOP
		EXECUTE 'DROP SERVER regress_' || i;
	END LOOP;
END $$;
DROP SERVER regress_secret, regress_private CASCADE;
DROP SCHEMA regress_known CASCADE;
DROP OWNED BY regress_known;
DROP ROLE regress_known, regress_warned;
\pset format aligned
DROP SERVER regress_http CASCADE;
