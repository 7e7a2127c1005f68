-- The interface: names, order and defaults of arguments, which later versions
-- keep, and those that are there before what they are for.
\set VERBOSITY terse
\set SHOW_CONTEXT never

-- What cannot change without DROP FUNCTION, or without another order of labels
SELECT p.proname || E'\n    ' || string_agg(a, E',\n    ' ORDER BY n) || E'\n    -> '
	   || CASE WHEN p.proretset THEN 'setof ' ELSE '' END || p.prorettype::regtype AS frozen
  FROM pg_proc p, regexp_split_to_table(pg_get_function_arguments(p.oid), ', ') WITH ORDINALITY t(a, n)
 WHERE p.pronamespace = 'idempotency'::regnamespace
 GROUP BY p.oid, p.proname, p.proretset, p.prorettype
 ORDER BY p.proname, pg_get_function_arguments(p.oid);
SELECT t.typname, string_agg(e.enumlabel, ' ' ORDER BY e.enumsortorder) AS labels
  FROM pg_enum e JOIN pg_type t ON t.oid = e.enumtypid
 WHERE t.typnamespace = 'idempotency'::regnamespace AND t.typname ~ '^(claim|lease|offset|relay|request|sequence)_'
 GROUP BY t.typname ORDER BY t.typname;
SELECT c.relname, string_agg(a.attname || ' ' || format_type(a.atttypid, a.atttypmod), E'\n' ORDER BY a.attnum) AS columns
  FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
 WHERE c.relnamespace = 'idempotency'::regnamespace AND c.relkind = 'v' GROUP BY c.relname ORDER BY c.relname;

-- Functions that nobody names are in the other schema: views, triggers, wrappers and
-- bodies of functions refer to them.  Of the first schema a view refers to one only.
SELECT p.pronamespace::regnamespace AS schema, p.proname,
	   coalesce(string_agg(DISTINCT d.classid::regclass::text, ' '), 'bodies') AS referrers
  FROM pg_proc p LEFT JOIN pg_depend d ON d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid
 WHERE (p.pronamespace = 'idempotency_data'::regnamespace OR p.pronamespace = 'idempotency'::regnamespace AND d.objid IS NOT NULL)
   AND NOT EXISTS (SELECT FROM pg_foreign_data_wrapper w WHERE w.fdwvalidator = p.oid)
 GROUP BY p.oid ORDER BY 1 DESC, 3, 2;

-- Of the functions that people name, these are the extension owner's alone
CREATE ROLE regress_interface;
SELECT idempotency.grant_role(kind, 'regress_interface') FROM unnest('{producer,consumer,operator,monitor}'::text[]) AS kind;
SELECT p.oid::regprocedure AS "only the owner's" FROM pg_proc p
 WHERE p.pronamespace = 'idempotency'::regnamespace AND NOT has_function_privilege('regress_interface', p.oid, 'EXECUTE');
-- and of the others nobody calls one but through a view
SELECT p.oid::regprocedure AS "not of a view" FROM pg_proc p
 WHERE p.pronamespace = 'idempotency_data'::regnamespace AND has_function_privilege('regress_interface', p.oid, 'EXECUTE')
   AND NOT EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_rewrite'::regclass
		AND d.refclassid = 'pg_proc'::regclass AND d.refobjid = p.oid);
DROP OWNED BY regress_interface;
DROP ROLE regress_interface;

-- What is not built is refused by its name, with a way to do without, and changes nothing
SET client_min_messages = warning;
CREATE SERVER nul FOREIGN DATA WRAPPER idempotency_null;
SELECT idempotency.relay_create('r', 'nul');
SELECT idempotency.outbox_enqueue('a', 'first', 't', '1') IS NOT NULL AS enqueued;
CREATE FUNCTION try(call text, OUT state text, OUT message text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT idempotency.' || call;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT;
	state := sqlstate;
	message := sqlerrm;
END $$;
CREATE VIEW state AS
SELECT (SELECT count(*) FROM idempotency.outbox_events) AS events,
	   (SELECT last_seq FROM idempotency.stat_outbox) AS last_seq,
	   (SELECT string_agg(relay, ' ') FROM idempotency.stat_relay) AS relays,
	   (SELECT status FROM idempotency.event_status('x')) AS claim,
	   (SELECT string_agg(c::text, ' ') FROM idempotency.claim_consumers c) AS consumers;
SELECT idempotency.consumer_create('old', retention => '1 day');
CREATE TABLE before AS SELECT * FROM state;
CREATE TABLE later (ord serial, call text, argument text, value text);
INSERT INTO later (call, argument, value)
SELECT c, a, v FROM (VALUES
	($$outbox_enqueue('a', 'i', 't', '1', event_id => '00000000-0000-7000-8000-000000000001'$$),
	($$outbox_enqueue_bytes('a', 'i', 't', '\x00', event_id => '00000000-0000-7000-8000-000000000001'$$)) AS c (c),
	(VALUES (1, 'deliver_at', $$'infinity'$$), (2, 'expires_at', $$'-infinity'$$)) AS a (n, a, v) ORDER BY c, n;
INSERT INTO later (call, argument, value)
SELECT $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', event_ids => '{NULL,00000000-0000-7000-8000-000000000001}'$$, a, v
  FROM (VALUES ('deliver_ats', $$'{now,NULL}'$$), ('deliver_ats', $$'{NULL,NULL}'$$), ('expires_ats', $$'{now,now}'$$)) AS a (a, v);
INSERT INTO later (call, argument, value)
SELECT c, a, v FROM (VALUES (1, $$relay_create('new', 'nul'$$), (2, $$relay_alter('r', batch_events => 7$$)) AS c (m, c),
	(VALUES (1, 'event_types', $$'{t}'$$), (2, 'event_types', $$'{}'$$), (3, 'filter', $$'true'$$), (4, 'filter', $$''$$),
	 (7, 'max_rate', '0.5'), (8, 'max_key_rate', '0'),
	 (9, 'max_in_flight', '1')) AS a (n, a, v) ORDER BY m, n;
INSERT INTO later (call, argument, value)
SELECT c, a, v FROM (VALUES (1, $$relay_create('new'$$, 'server', 'NULL'), (2, $$relay_replay('r', since => now()$$, 'until', 'now()'),
	(3, $$relay_replay('r'$$, 'until', 'now()'), (4, $$relay_replay('r', since => now()$$, 'aggregate_types', $$'{a}'$$),
	(5, $$relay_replay('r'$$, 'aggregate_ids', $$'{i}'$$), (6, $$relay_replay('r', since => now()$$, 'event_types', $$'{t}'$$),
	(7, $$relay_replay('r', since => now()$$, 'preview', 'true'), (8, $$relay_redrive('r'$$, 'max_rate', '10')) AS c (m, c, a, v) ORDER BY m;
SELECT substring(call from '^\w+') || '(' || argument || ' => ' || value || ')' AS call, t.state, t.message
  FROM later, try(call || ', ' || argument || ' => ' || value || ')') t ORDER BY ord;
SELECT DISTINCT argument, t.hint
  FROM later, try(call || ', ' || argument || ' => ' || value || ')') t ORDER BY argument, t.hint;
SELECT s.*, s = b AS unchanged FROM state s, before b;
SELECT try($$consumer_drop('new')$$);

-- The defaults, given by name, are as if they were left out
BEGIN;
SELECT idempotency.claim_event('x', valid_until => NULL), idempotency.complete_event('x', token => NULL);
SELECT idempotency.outbox_enqueue('a', 'i', 't', '1', dedup_id => NULL, dedup_window => NULL, deliver_at => NULL, expires_at => NULL) IS NOT NULL AS one;
SELECT idempotency.outbox_enqueue_bytes('a', 'i', 't', '\x00', dedup_id => NULL, dedup_window => NULL, deliver_at => NULL, expires_at => NULL) IS NOT NULL AS bytes;
SELECT count(*) FROM idempotency.outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', NULL, NULL, NULL, NULL, NULL, NULL);
SELECT idempotency.relay_create('new', 'nul', event_types => NULL, filter => NULL, max_rate => NULL, max_key_rate => NULL, max_in_flight => NULL);
SELECT idempotency.relay_alter('new', server => NULL, event_types => NULL, filter => NULL, retry_for => NULL, max_rate => NULL, max_key_rate => NULL, max_in_flight => NULL);
SELECT * FROM idempotency.relay_replay('new', since => now(), until => NULL, event_id => NULL, aggregate_types => NULL, aggregate_ids => NULL, event_types => NULL, preview => false);
SELECT idempotency.relay_redrive('new', event_ids => NULL, event_types => NULL, sqlstate => NULL, since => NULL, until => NULL, max_rate => NULL);
ROLLBACK;
SELECT idempotency.claim_event('late', valid_until => '-infinity');
SELECT idempotency.consumer_create('same', retention => NULL, keep_ids => false, expire_by_id_age => false, owner => NULL,
	lease_duration => '30000 ms', max_attempts => 0, min_backoff => '1 s', max_backoff => '300 s');
SELECT idempotency.consumer_drop('same');
SELECT a, t.state, t.message
  FROM unnest('{consumer,foreign_lockers,private_locks,keep_ids,expire_by_id_age,lease_duration,max_attempts,min_backoff,max_backoff}'::text[])
		WITH ORDINALITY u(a, n),
	   try(CASE a WHEN 'consumer' THEN 'consumer_create(NULL)' ELSE format($$consumer_create('new', %s => NULL)$$, a) END) t
 ORDER BY n;

UPDATE before SET last_seq = (SELECT last_seq FROM state);

-- What will stay wrong is told before what is not built
SELECT call, t.state, t.message FROM (VALUES
	(1, $$outbox_enqueue('', 'i', 't', '1', deliver_at => now())$$),
	(2, $$outbox_enqueue('a', 'i', 't', '1', headers => '1', expires_at => now())$$),
	(3, $$outbox_enqueue_bytes('a', 'i', 't', '\x', '', dedup_id => 'd')$$),
	(4, $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{d}')$$),
	(5, $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{}')$$),
	(6, $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', deliver_ats => '{now,now,now}')$$),
	(7, $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', expires_ats => '{now}')$$),
	(8, $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,2}', dedup_ids => '{d,e}', expires_ats => '{now}')$$),
	(9, $$outbox_enqueue_many('a', '{i,j,k,l}', '{t,t,t,t}', '{1,2,3,4}', deliver_ats => '{{now,now},{now,now}}')$$),
	(10, $$outbox_enqueue_many('a', '{i,j}', '{t,t}', '{1,NULL}', dedup_window => '1 min')$$),
	(11, $$outbox_enqueue_many('a', '{}', '{}', '{}', deliver_ats => '{}')$$),
	(12, $$relay_create('new', 'nul', max_attempts => -1, filter => 'true')$$),
	(13, $$relay_create('new', 'nul', batch_size => '1', max_rate => 1)$$),
	(14, $$relay_create('new', 'nowhere', max_rate => 1)$$),
	(15, $$relay_alter('r', max_lag_size => '1kB', max_in_flight => 1)$$),
	(16, $$relay_alter('nothing', max_in_flight => 1)$$),
	(17, $$relay_create('new', NULL, batch_events => 0)$$),
	(18, $$relay_create('@new')$$),
	(19, $$relay_replay('nothing', aggregate_types => '{a}')$$),
	(20, $$relay_replay('r', since => now(), event_id => gen_random_uuid(), preview => true)$$),
	(21, $$relay_redrive('nothing', max_rate => 1)$$),
	(22, $$relay_redrive('r', sqlstate => '', max_rate => 1)$$),
	(23, $$consumer_create('', keep_ids => true)$$),
	(24, $$consumer_create('@x', keep_ids => true)$$),
	(25, $$consumer_create('new', true, true, keep_ids => true)$$)) AS c (n, call), try(call) t ORDER BY n;
SELECT s.*, s = b AS unchanged FROM state s, before b;

-- An interval has one length, whoever reads it: a year has 365.25 days, a month 30
SELECT i, idempotency_data.interval_us(i::interval) AS us
  FROM unnest('{0,1 us,1 month,12 months,1 year -365 days,1 year -366 days,-11 months,-13 months,292000 years,300000 years -2541924000 h,-300000 years 2541924000 h,178000000 years,-178000000 years}'::text[]) AS i;
SELECT idempotency_data.interval_us((sign || CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'infinity' ELSE '178000000 years' END)::interval) AS us
  FROM unnest('{+,-}'::text[]) AS sign;
SELECT count(*) AS "differs from extract(epoch)"
  FROM generate_series(1, 5000) AS n,
	   make_interval(months => n * 7919 % 24001 - 12000, days => n * 104729 % 20001 - 10000, secs => (n::bigint * 15485863 % 2000001 - 1000000) / 7.0) AS i
 WHERE idempotency_data.interval_us(i) IS DISTINCT FROM extract(epoch FROM i) * 1000000;
BEGIN;
SELECT regexp_replace(call, '%\d.', '%', 'g') AS call, (try(format(call, '1 year -365.25 days', 1))).message AS "0",
	   (try(format(call, '1 year -365.25 days 1 ms', 2))).message AS "1 ms", (try(format(call, '1 year 18 h', 3))).message AS "366 days",
	   (try(format(call, '1 year 18 h 1 us', 4))).message AS "and 1 us"
  FROM (VALUES (1, $$claim_event('i', wait => %1$L)$$), (2, $$lease_event('i%2$s', duration => %1$L)$$),
	(3, $$claim_request('i%2$s', 'i', lease => %1$L)$$), (4, $$outbox_enqueue('a', 'i', 't', '1', dedup_id => 'i', dedup_window => %1$L)$$),
	(5, $$consumer_create('r%2$s', retention => %1$L)$$), (6, $$consumer_create('l%2$s', lease_duration => %1$L)$$),
	(7, $$consumer_create('m%2$s', min_backoff => %1$L, max_backoff => '366 days')$$),
	(8, $$consumer_create('x%2$s', min_backoff => '1 us', max_backoff => %1$L)$$),
	(9, $$relay_create('m%2$s', 'nul', min_backoff => %1$L)$$),
	(10, $$relay_create('x%2$s', 'nul', min_backoff => '1 ms', max_backoff => %1$L)$$)) AS c (n, call) ORDER BY n;
ROLLBACK;
SELECT try($$consumer_create('i', min_backoff => '1 year', max_backoff => '362 days')$$);

SELECT idempotency.relay_drop('r');
SELECT idempotency.consumer_drop('old');
DROP TABLE later, before;
DROP VIEW state;
DROP FUNCTION try;
DROP SERVER nul;
