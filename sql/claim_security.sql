-- Roles, row security, replication role, search_path, other people's objects:
-- none may change a verdict.
\set SHOW_CONTEXT never
CREATE ROLE regress_claim_none;
CREATE ROLE regress_claim_consumer;
CREATE ROLE regress_claim_operator;
CREATE ROLE regress_claim_monitor;
CREATE ROLE regress_claim_pgmon IN ROLE pg_monitor;

-- PUBLIC has nothing
SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname IN ('idempotency', 'idempotency_data') AND has_function_privilege('regress_claim_none', p.oid, 'EXECUTE');
SELECT c.oid::regclass FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE n.nspname IN ('idempotency', 'idempotency_data') AND c.relkind IN ('r', 'v', 'S', 'm')
   AND has_any_column_privilege('regress_claim_none', c.oid, 'SELECT');
SELECT t.oid::regtype FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace
 WHERE n.nspname = 'idempotency' AND t.typtype = 'e' AND has_type_privilege('regress_claim_none', t.oid, 'USAGE');
SELECT has_schema_privilege('regress_claim_none', 'idempotency', 'USAGE');

-- grant_role
SELECT idempotency.grant_role('consumer', 'regress_claim_consumer');
SELECT idempotency.grant_role('operator', 'regress_claim_operator');
SELECT idempotency.grant_role('monitor', 'regress_claim_monitor');
SELECT idempotency.grant_role('monitor', 'regress_claim_monitor');
SELECT idempotency.grant_role('admin', 'regress_claim_monitor');
SELECT idempotency.grant_role('monitor', 'public');
SELECT idempotency.grant_role('monitor', 'regress_claim_nobody');
SELECT idempotency.grant_role(NULL, 'regress_claim_monitor');
SELECT idempotency.grant_role('monitor', NULL);

SET ROLE regress_claim_none;
SELECT idempotency.claim_event('a');
RESET ROLE;
SET ROLE regress_claim_consumer;
BEGIN;
SELECT idempotency.claim_event('a'), idempotency.claim_event('b'::text, consumer => 'billing');
SELECT idempotency.complete_event('a', result => '1');
SELECT idempotency.release_event('b', 'billing');
SELECT result = 'claimed'::idempotency.claim_result AS claimed FROM idempotency.claim_events('{c}');
SELECT idempotency.complete_events('{c}');
COMMIT;
SELECT event_id, status FROM idempotency.processed_events ORDER BY 1;
SELECT idempotency.event_result('a'), idempotency.lock_key('a') IS NOT NULL;
SELECT status = 'completed'::idempotency.claim_status AS completed FROM idempotency.event_status('a');
SELECT count(*) FROM idempotency_data.store_segment_0;
DELETE FROM idempotency_data.store_segment_0;
SELECT idempotency.consumer_create('mine');
SELECT idempotency.consumer_alter('default', retention => '1 h');
SELECT idempotency_data.consumer_check('mine', false, false, NULL, false, NULL, '30 s', 0, '1 s', '5 min');
SELECT * FROM idempotency.claim_consumers;
SELECT idempotency.claim_event('too late', valid_until => '-infinity');
SELECT idempotency.grant_role('consumer', 'regress_claim_none');
SELECT * FROM idempotency.stat_claims;
RESET ROLE;
SET ROLE regress_claim_operator;
SELECT idempotency.consumer_create('theirs', true), idempotency.consumer_drop('theirs');
SELECT idempotency.consumer_create('theirs', retention => '1 h'), idempotency.consumer_alter('theirs', retention => '1 day');
SELECT consumer, retention FROM idempotency.claim_consumers;
SELECT retention FROM idempotency_data.consumers;
SELECT idempotency.consumer_drop('theirs');
SELECT idempotency_data.consumer_check('mine', false, false, NULL, false, NULL, '30 s', 0, '1 s', '5 min');
SELECT idempotency.verify_lock_key('a');
SELECT status FROM idempotency.event_status('a');
SELECT idempotency.event_result('a');
SELECT idempotency.claim_event('a');
RESET ROLE;
SET ROLE regress_claim_monitor;
SELECT count(*) FROM idempotency.stat_claims;
SELECT count(*) FROM idempotency.claim_consumers;
SELECT idempotency.consumer_alter('theirs', retention => '1 h');
SELECT count(*) FROM idempotency.processed_events;
SELECT status FROM idempotency.event_status('a');
RESET ROLE;
SET ROLE regress_claim_pgmon;
SELECT count(*) FROM idempotency.stat_claims;
RESET ROLE;

-- The extension's own consumers are hidden
INSERT INTO idempotency_data.store_segment_0 (claimed_at, completed_at, digest, turn, state, event_id, consumer)
	SELECT now(), now(), encode(substr(sha256(convert_to(consumer, 'UTF8') || '\x00' || convert_to(id, 'UTF8')), 1, 16), 'hex')::uuid, 1, 'c', id, consumer
	FROM (VALUES ('hidden', '@outbox'), ('shown', '?'), ('shown', 'A')) AS v (id, consumer);
SELECT consumer, event_id FROM idempotency.processed_events WHERE event_id IN ('hidden', 'shown') ORDER BY 1;

-- Row security, even where it is forced
ALTER TABLE idempotency_data.store_segment_0 ENABLE ROW LEVEL SECURITY;
ALTER TABLE idempotency_data.store_segment_0 FORCE ROW LEVEL SECURITY;
CREATE POLICY nothing ON idempotency_data.store_segment_0 USING (false) WITH CHECK (false);
SET ROLE regress_claim_consumer;
SELECT idempotency.claim_event('a');
SELECT idempotency.claim_event('rls'), idempotency.complete_event('rls');
SELECT idempotency.claim_event('rls');
RESET ROLE;
DROP POLICY nothing ON idempotency_data.store_segment_0;
ALTER TABLE idempotency_data.store_segment_0 NO FORCE ROW LEVEL SECURITY;
ALTER TABLE idempotency_data.store_segment_0 DISABLE ROW LEVEL SECURITY;

-- Rules and triggers
SET allow_system_table_mods = on;
CREATE RULE nothing AS ON INSERT TO idempotency_data.store_segment_0 DO INSTEAD NOTHING;
SELECT idempotency.claim_event('rule'), idempotency.complete_event('rule');
SELECT idempotency.claim_event('rule');
DROP RULE nothing ON idempotency_data.store_segment_0;
RESET allow_system_table_mods;

-- session_replication_role
SET session_replication_role = replica;
SELECT idempotency.claim_event('a');
SELECT idempotency.claim_event('replica'), idempotency.complete_event('replica');
SELECT idempotency.claim_event('replica');
RESET session_replication_role;

-- A hostile search_path, with operators, functions, types and tables of our names
CREATE SCHEMA hostile AUTHORIZATION regress_claim_none;
CREATE TABLE hostile.store_segment_0 (LIKE idempotency_data.store_segment_0);
CREATE SEQUENCE hostile.store_state;
CREATE TABLE hostile.consumers (LIKE idempotency_data.consumers);
CREATE TABLE hostile.pg_class (oid oid, reltuples real);
CREATE FUNCTION hostile.starts_with(text, text) RETURNS boolean LANGUAGE sql AS 'SELECT true';
CREATE FUNCTION hostile.never(text, text) RETURNS boolean LANGUAGE plpgsql AS 'BEGIN RAISE ''used''; END';
CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, PROCEDURE = hostile.never);
CREATE TYPE hostile.claim_result AS ENUM ('busy', 'duplicate', 'claimed');
CREATE TEMPORARY TABLE store_segment_0 (LIKE idempotency_data.store_segment_0);
CREATE TEMPORARY SEQUENCE store_state;
CREATE TEMPORARY TABLE consumers (LIKE idempotency_data.consumers);
SET search_path = hostile, pg_temp, pg_catalog, idempotency;
SELECT idempotency.claim_event('a');
SELECT idempotency.claim_event('path'), idempotency.complete_event('path', result => '1');
SELECT idempotency.claim_event('path'), idempotency.event_result('path');
SET idempotency.max_claim_locks = 0;
SELECT idempotency.claim_event('path2'), idempotency.complete_event('path2', result => '1');
RESET idempotency.max_claim_locks;
SELECT idempotency.consumer_create('path', true);
SELECT idempotency.consumer_alter('path', retention => '1 h'), idempotency.claim_event('late', 'path', valid_until => '-infinity');
SELECT pg_catalog.count(*) FROM idempotency.claim_consumers;
SELECT pg_catalog.count(*) FROM idempotency_data.consumers;
SELECT idempotency.consumer_drop('path');
SELECT idempotency.grant_role('monitor', 'regress_claim_monitor');
SELECT pg_catalog.count(*) FROM idempotency.processed_events WHERE consumer OPERATOR(pg_catalog.=) 'default';
SELECT pg_catalog.count(*) FROM idempotency.stat_claims;
SELECT idempotency.verify_lock_key('a');
RESET search_path;
SELECT count(*) FROM hostile.store_segment_0;
SELECT count(*) FROM pg_temp.store_segment_0;
DROP TABLE pg_temp.store_segment_0, pg_temp.consumers;
DROP SEQUENCE pg_temp.store_state;
SET client_min_messages = warning;
DROP SCHEMA hostile CASCADE;
RESET client_min_messages;

-- Not in a parallel worker
SELECT DISTINCT proparallel FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname = 'idempotency' AND proname ~ '^(claim|complete|release|event_(result|status))';

-- Nothing is STRICT, everything has a comment
SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
 WHERE n.nspname IN ('idempotency', 'idempotency_data') AND (proisstrict OR obj_description(p.oid, 'pg_proc') IS NULL);

DROP OWNED BY regress_claim_none, regress_claim_consumer, regress_claim_operator, regress_claim_monitor;
DROP ROLE regress_claim_none, regress_claim_consumer, regress_claim_operator, regress_claim_monitor, regress_claim_pgmon;
