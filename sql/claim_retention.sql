-- Retention of a consumer, and events that are too old to be claimed.
\set VERBOSITY terse
\set SHOW_CONTEXT never
SET TIME ZONE 'UTC';
SET client_min_messages = warning;
CREATE FUNCTION try(call text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE 'SELECT idempotency.' || call;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS hint = PG_EXCEPTION_HINT, detail = PG_EXCEPTION_DETAIL;
	state := sqlstate;
	message := sqlerrm;
END $$;
-- A UUID of version 7 made at a time
CREATE FUNCTION uuid7_at(at timestamptz, random text = '7000-8000-000000000000') RETURNS text LANGUAGE sql AS $$
	SELECT substr(t, 1, 8) || '-' || substr(t, 9, 4) || '-' || random
	  FROM lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') t
$$;
CREATE FUNCTION uuid7_of_age(age interval, random text = '7000-8000-000000000000') RETURNS text LANGUAGE sql AS $$
	SELECT uuid7_at(clock_timestamp() - age, random)
$$;
-- Advisory locks of this session, and rows of a consumer
CREATE FUNCTION left_of(name text, OUT locks bigint, OUT rows bigint) LANGUAGE sql VOLATILE AS $$
	SELECT (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()),
		   (SELECT count(*) FROM idempotency_data.store_segment_0 s WHERE s.consumer = name)
$$;

-- Which retentions there are
CREATE TEMPORARY TABLE tried AS
SELECT n, v AS retention, t.*
  FROM unnest('{1 us,1 second,1 hour,3600.000001 s,24 hours,1 day 1 us,1 month,31 days,31 days 1 us,12 months,100 years,1200 months,10000000 years,1 month -29 days,0,-1 s,1 day -24 hours,-1 month,1 year -366 days}'::text[])
		WITH ORDINALITY u(v, n),
	   try(format($$consumer_create('r%s', retention => %L)$$, n, v)) t;
SELECT t.retention, t.state, c.class, t.message, t.detail
  FROM tried t LEFT JOIN idempotency.claim_consumers c ON c.consumer = 'r' || n ORDER BY n;
SELECT t.hint FROM try($$consumer_create('new', retention => '0')$$) t;
SELECT count(idempotency.consumer_drop(consumer)) FROM idempotency.claim_consumers;
-- Infinity is an interval since PostgreSQL 17: for ever, and not positive
SELECT idempotency.consumer_create('infinite', retention => CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'infinity' ELSE '1000 years' END::text::interval);
SELECT class FROM idempotency.claim_consumers;
SELECT idempotency.consumer_drop('infinite');
SELECT t.state, t.message
  FROM try(format($$consumer_create('new', retention => %L)$$,
		   CASE WHEN current_setting('server_version_num')::int >= 170000 THEN '-infinity' ELSE '-1 s' END)) t;
-- Without one, the setting
SELECT idempotency.consumer_create('plain');
SELECT retention, class FROM idempotency.claim_consumers;
SET idempotency.claim_retention = '2h';
SELECT retention, class FROM idempotency.claim_consumers;
RESET idempotency.claim_retention;
SELECT idempotency.consumer_drop('plain');

-- The age of ids needs a retention of the consumer itself that ends
SELECT t.state, t.message, t.hint FROM try($$consumer_create('new', expire_by_id_age => true)$$) t;
SET idempotency.claim_retention = '1 h';
SELECT t.state, t.detail FROM try($$consumer_create('new', expire_by_id_age => true)$$) t;
RESET idempotency.claim_retention;
SELECT t.state FROM try($$consumer_create('new', retention => '100 years', expire_by_id_age => true)$$) t;
SELECT t.state FROM try($$consumer_create('new', retention => '99 years', expire_by_id_age => true)$$) t;

-- consumer_alter: what is not given stays
SELECT idempotency.consumer_alter('new', retention => '1 min');
SELECT * FROM idempotency.claim_consumers;
SELECT idempotency.consumer_alter('new', keep_ids => true, private_locks => true);
SELECT * FROM idempotency.claim_consumers;
SELECT idempotency.consumer_alter('new', foreign_lockers => true, private_locks => false, expire_by_id_age => false);
SELECT idempotency.consumer_alter('new', retention => '100 years');
SELECT idempotency.consumer_alter('new');
SELECT * FROM idempotency.claim_consumers;
-- The value that unsets what is not built is accepted, and those in force
SELECT idempotency.consumer_alter('new', owner => '-', max_attempts => 0, lease_duration => '30 s', min_backoff => '1000 ms', max_backoff => '5 min');
SELECT a, t.state, t.message
  FROM unnest(ARRAY[$$NULL$$, $$'nobody'$$, $$'@relay'$$, $$''$$, $$'new', retention => '-1 s'$$, $$'new', expire_by_id_age => true$$,
		$$'new', private_locks => true$$, $$'new', owner => current_user::regrole$$,
		$$'new', retention => '0', max_attempts => 1$$]) WITH ORDINALITY u(a, n),
	   try('consumer_alter(' || a || ')') t ORDER BY n;
SELECT t.hint FROM try($$consumer_alter('nobody')$$) t;
SELECT idempotency.consumer_create('default');
SELECT t.state, t.message FROM try($$consumer_alter('default', private_locks => true)$$) t;
SELECT idempotency.consumer_drop('default'), idempotency.consumer_drop('new');

-- What claims have to know is theirs from the COMMIT on, or the next statement of
-- the same transaction; what was completed keeps its class
SELECT idempotency.consumer_create('classes', retention => '1 h');
SELECT idempotency.claim_event('1', 'classes'), idempotency.complete_event('1', 'classes');
SELECT idempotency.consumer_alter('classes', retention => '1 day', keep_ids => true);
SELECT idempotency.claim_event('2', 'classes'), idempotency.complete_event('2', 'classes');
BEGIN;
SELECT idempotency.consumer_alter('classes', retention => '31 days');
SELECT idempotency.claim_event('3', 'classes'), idempotency.complete_event('3', 'classes');
SAVEPOINT s;
SELECT idempotency.consumer_alter('classes', retention => '1 year', keep_ids => false);
SELECT idempotency.claim_event('4', 'classes'), idempotency.complete_event('4', 'classes');
ROLLBACK TO s;
SELECT idempotency.claim_event('5', 'classes'), idempotency.complete_event('5', 'classes');
SELECT event_id, class, keep_id FROM idempotency_data.store_segment_0 WHERE consumer = 'classes' ORDER BY 1;
-- The locks of a consumer are another matter: no claim may be open
SAVEPOINT s;
SELECT idempotency.consumer_alter('classes', private_locks => true);
ROLLBACK TO s;
SELECT idempotency.consumer_alter('classes', foreign_lockers => true);
ROLLBACK TO s;
SELECT idempotency.consumer_alter('classes', private_locks => false, foreign_lockers => false);
ROLLBACK;
SELECT idempotency.consumer_alter('classes', foreign_lockers => true);
BEGIN;
SELECT idempotency.claim_event('6', 'classes'), idempotency.complete_event('6', 'classes');
SELECT idempotency.consumer_alter('classes', foreign_lockers => true, retention => '1 h');
SELECT idempotency.consumer_alter('classes', foreign_lockers => false);
SAVEPOINT s;
SELECT idempotency.consumer_alter('classes', foreign_lockers => true);
ROLLBACK TO s;
COMMIT;
SELECT idempotency.claim_event('7', 'classes'), idempotency.complete_event('7', 'classes');
-- A consumer without a row, or without a retention, has the setting's
SET idempotency.claim_retention = '25 h';
SELECT idempotency.claim_event('1', 'unregistered'), idempotency.complete_event('1', 'unregistered');
RESET idempotency.claim_retention;
SELECT idempotency.claim_event('2', 'unregistered'), idempotency.complete_event('2', 'unregistered');
SELECT consumer, event_id, class, keep_id FROM idempotency_data.store_segment_0
 WHERE consumer IN ('classes', 'unregistered') ORDER BY 1, 2;
SELECT idempotency.consumer_drop('classes');
-- The row was renamed by hand: the locks of both names count
SELECT idempotency.consumer_create('one', private_locks => true), idempotency.consumer_create('two');
BEGIN;
SELECT idempotency.claim_event('1', 'any'), idempotency.release_event('1', 'any');
SAVEPOINT s;
UPDATE idempotency_data.consumers SET consumer = 'three' WHERE consumer = 'one';
ROLLBACK TO s;
UPDATE idempotency_data.consumers SET consumer = 'three' WHERE consumer = 'two';
UPDATE idempotency_data.consumers SET retention = '1 h' WHERE consumer = 'one';
ROLLBACK;
SELECT count(idempotency.consumer_drop(consumer)) FROM idempotency.claim_consumers;

-- valid_until
BEGIN;
SELECT v, idempotency.claim_event('v' || v, 'valid', valid_until => v::timestamptz)
  FROM unnest('{-infinity,2000-01-01,now,9999-12-31,infinity}'::text[]) v;
SELECT idempotency.claim_event('null', 'valid', valid_until => NULL);
ROLLBACK;
SELECT v, (SELECT idempotency.claim_event('v' || v, 'valid', valid_until => v::timestamptz) = 'claimed') AS claimed,
	   (SELECT idempotency.complete_event('v' || v, 'valid')) AS completed
  FROM unnest('{infinity,9999-12-31}'::text[]) v;
SELECT v, idempotency.claim_event('v' || v, 'valid', valid_until => '-infinity')
  FROM unnest('{infinity,9999-12-31,new}'::text[]) v;
SELECT idempotency.claim_event('00000000-0000-4000-8000-000000000001'::uuid, 'valid', valid_until => clock_timestamp() - interval '1 ms');
SELECT idempotency.claim_event('vnew', 'valid', '1 h', clock_timestamp() - interval '1 ms');
SELECT * FROM left_of('valid');

-- Nothing is written or held, and COMMIT asks for nothing
BEGIN;
SELECT idempotency.claim_event('old', 'valid', valid_until => '-infinity');
SELECT idempotency.claim_event('old', 'valid', valid_until => '-infinity');
SELECT * FROM left_of('valid');
SELECT status FROM idempotency.event_status('old', 'valid');
SAVEPOINT s;
SELECT idempotency.complete_event('old', 'valid');
ROLLBACK TO s;
SELECT idempotency.release_event('old', 'valid');
ROLLBACK TO s;
-- What this transaction has claimed, or completed, is its own; what it released is not
SELECT idempotency.claim_event('own', 'valid');
SELECT idempotency.claim_event('own', 'valid', valid_until => '-infinity');
SELECT idempotency.release_event('own', 'valid');
SELECT idempotency.claim_event('own', 'valid', valid_until => '-infinity');
SELECT * FROM left_of('valid');
SELECT idempotency.claim_event('own', 'valid', valid_until => 'infinity'), idempotency.complete_event('own', 'valid');
SELECT idempotency.claim_event('own', 'valid', valid_until => '-infinity');
-- Released where the lock has to stay
SELECT idempotency.claim_event('outer', 'valid');
SAVEPOINT s2;
SELECT idempotency.release_event('outer', 'valid');
SELECT idempotency.claim_event('outer', 'valid', valid_until => '-infinity');
SELECT * FROM left_of('valid');
ROLLBACK TO s2;
SELECT idempotency.complete_event('outer', 'valid');
COMMIT;
SELECT * FROM left_of('valid');
SELECT event_id, status FROM idempotency.processed_events WHERE consumer = 'valid' ORDER BY 1;

-- Past the budget of locks
SET idempotency.max_claim_locks = 0;
BEGIN;
SELECT idempotency.claim_event('budget', 'valid', valid_until => '-infinity');
SELECT idempotency.claim_event('outer', 'valid', valid_until => '-infinity');
SELECT * FROM left_of('valid');
COMMIT;
SELECT idempotency.consumer_create('foreign', foreign_lockers => true);
BEGIN;
SELECT idempotency.claim_event('budget', 'foreign', valid_until => '-infinity');
COMMIT;
RESET idempotency.max_claim_locks;
SELECT idempotency.claim_event('budget', 'foreign', valid_until => '-infinity');
SELECT idempotency.consumer_drop('foreign');

-- At every isolation level
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT idempotency.claim_event('level', 'valid', valid_until => '-infinity'), idempotency.claim_event('outer', 'valid', valid_until => '-infinity');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT idempotency.claim_event('level', 'valid', valid_until => '-infinity'), idempotency.claim_event('outer', 'valid', valid_until => '-infinity');
COMMIT;
BEGIN READ ONLY;
SELECT idempotency.claim_event('level', 'valid', valid_until => '-infinity');
ROLLBACK;

-- The age of an id
SELECT idempotency.consumer_create('aged', retention => '1 min', expire_by_id_age => true);
SELECT idempotency.consumer_create('young', retention => '1 min');
-- The exact retention counts, not the hour that it is rounded up to
SELECT class FROM idempotency.claim_consumers WHERE consumer = 'aged';
SELECT age, idempotency.claim_event(uuid7_of_age(age::interval), 'aged') FROM unnest('{2 min,1 year,50 years}'::text[]) age;
SELECT idempotency.claim_event(uuid7_of_age('2 min')::uuid, 'aged');
SELECT idempotency.claim_event('00000000-0000-7000-8000-000000000000', 'aged');
SELECT result FROM idempotency.claim_events(ARRAY[uuid7_of_age('2 min'), 'x' || uuid7_of_age('2 min')], 'aged'), idempotency.release_event(event_id, 'aged') r
 WHERE result = 'claimed';
SELECT * FROM left_of('aged');
BEGIN;
-- What has no age, or is not too old
SELECT what, idempotency.claim_event(id, 'aged') FROM (VALUES
	(1, 'young', uuid7_of_age('0', '7000-8000-000000000001')),
	(2, 'from the future', uuid7_of_age('-1 day', '7000-8000-000000000002')),
	(3, 'last of all', 'ffffffff-ffff-7fff-bfff-ffffffffffff'),
	(4, 'version 4', uuid7_of_age('1 day', '4000-8000-000000000004')),
	(5, 'version 1', uuid7_of_age('1 day', '1000-8000-000000000005')),
	(6, 'another variant', uuid7_of_age('1 day', '7000-c000-000000000006')),
	(7, 'the variant of long ago', uuid7_of_age('1 day', '7000-0000-000000000007')),
	(8, 'upper case', upper(uuid7_at('2000-01-01', '7000-8000-000000000008'))),
	(9, 'longer', uuid7_of_age('1 day', '7000-8000-0000000000090')),
	(10, 'shorter', uuid7_of_age('1 day', '7000-8000-00000000010')),
	(11, 'no digit', uuid7_of_age('1 day', '7000-8000-00000000001g')),
	(12, 'another hyphen', replace(uuid7_of_age('1 day', '7000-8000-000000000012'), '-', '_')),
	(13, 'no hyphens', replace(uuid7_of_age('1 day', '7000-8000-000000000013'), '-', '')),
	(14, 'text', 'evt-1')) AS v (n, what, id) ORDER BY n;
-- Variants of the RFC
SELECT v, idempotency.claim_event(uuid7_of_age('1 day', '7000-' || v || '000-000000000000'), 'aged') FROM unnest('{8,9,a,b}'::text[]) v;
-- Other consumers do not look at ids
SELECT c, idempotency.claim_event(uuid7_of_age('1 day'), c) FROM unnest('{young,unregistered,default}'::text[]) c;
-- What the caller says counts instead
SELECT idempotency.claim_event(uuid7_of_age('1 day', '7000-8000-000000000021'), 'aged', valid_until => 'infinity');
SELECT idempotency.claim_event(uuid7_of_age('1 day', '7000-8000-000000000022'), 'aged', valid_until => clock_timestamp() + interval '1 h');
SELECT idempotency.claim_event(uuid7_of_age('1 s', '7000-8000-000000000023'), 'aged', valid_until => clock_timestamp() - interval '1 ms');
ROLLBACK;

-- A completion counts, whatever the age
SELECT uuid7_of_age('1 day', '7000-8000-000000000031') AS old, uuid7_of_age('1 day', '7000-8000-000000000032') AS older \gset
SELECT idempotency.claim_event(:'old', 'aged', valid_until => 'infinity'), idempotency.complete_event(:'old', 'aged', result => '1');
SELECT idempotency.claim_event(:'old', 'aged');
SELECT idempotency.claim_event(:'old'::uuid, 'aged', valid_until => '-infinity');
SELECT ord, result FROM idempotency.claim_events(ARRAY[:'older', :'old', :'older', :'old'], 'aged');
-- a claim that was kept does not, nor does what was forgotten
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event(:'older', 'aged', valid_until => 'infinity');
RESET idempotency.uncompleted_claims;
SELECT status FROM idempotency.event_status(:'older', 'aged');
SELECT idempotency.claim_event(:'older', 'aged');
SELECT status FROM idempotency.event_status(:'older', 'aged');
SELECT idempotency.forget_event(:'old', 'aged');
SELECT idempotency.claim_event(:'old', 'aged');
BEGIN;
SELECT idempotency.claim_event(:'old', 'aged', valid_until => 'infinity'), idempotency.claim_event(:'older', 'aged', valid_until => 'infinity');
SELECT idempotency.complete_events(ARRAY[:'old', :'older'], 'aged');
COMMIT;
SELECT idempotency.claim_event(:'old', 'aged'), idempotency.claim_event(:'older', 'aged');

-- The retention changes: an id is judged by what it is now
SELECT uuid7_of_age('1 day', '7000-8000-000000000041') AS id \gset
SELECT idempotency.claim_event(:'id', 'aged');
BEGIN;
SELECT idempotency.consumer_alter('aged', retention => '25 h');
SELECT idempotency.claim_event(:'id', 'aged');
ROLLBACK;
SELECT idempotency.claim_event(:'id', 'aged');
BEGIN;
SELECT idempotency.consumer_alter('aged', retention => '100 years', expire_by_id_age => false);
SELECT idempotency.claim_event(:'id', 'aged');
ROLLBACK;
-- Longer than the longest class that ends, the id's age still counts
SELECT idempotency.consumer_alter('aged', retention => '1 year');
BEGIN;
SELECT age, idempotency.claim_event(uuid7_of_age(age::interval), 'aged') FROM unnest('{32 days,364 days,367 days}'::text[]) age;
ROLLBACK;
-- A year is 365.25 days, as extract(epoch) has it
SELECT idempotency.consumer_alter('aged', retention => '50 years');
BEGIN;
SELECT age, idempotency.claim_event(uuid7_of_age(age::interval), 'aged') FROM unnest('{18262 days,18263 days}'::text[]) age;
ROLLBACK;
-- A row that no function would write is for ever, the safe side
UPDATE idempotency_data.consumers SET retention = '-1 s' WHERE consumer = 'aged';
SELECT class FROM idempotency.claim_consumers WHERE consumer = 'aged';
BEGIN;
SELECT idempotency.claim_event(:'id', 'aged');
ROLLBACK;

SELECT count(idempotency.consumer_drop(consumer)) FROM idempotency.claim_consumers;
DROP TABLE tried;
DROP FUNCTION try, uuid7_at, uuid7_of_age, left_of;
