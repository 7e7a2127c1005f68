-- Who may claim for a consumer that has an owner.
\set SHOW_CONTEXT never
SET client_min_messages = warning;
CREATE ROLE regress_owner_role;
CREATE ROLE regress_owner_member IN ROLE regress_owner_role;
CREATE ROLE regress_owner_switch NOINHERIT IN ROLE regress_owner_role;
CREATE ROLE regress_owner_other;
CREATE ROLE regress_owner_operator;
SELECT idempotency.grant_role('consumer', r)
  FROM unnest('{regress_owner_role,regress_owner_member,regress_owner_switch,regress_owner_other}'::name[]) r;
SELECT idempotency.grant_role('operator', 'regress_owner_operator');
CREATE TABLE source (id text);
INSERT INTO source VALUES ('from a table');
GRANT SELECT ON source TO PUBLIC;
CREATE FUNCTION try(call text, OUT state text, OUT message text, OUT detail text, OUT hint text) LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE call;
	state := 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS message = MESSAGE_TEXT, detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
	state := sqlstate;
END $$;

-- Every function that names a consumer and an event, or a topic
CREATE TABLE calls (ord serial, call text);
INSERT INTO calls (call) VALUES
	($$SELECT claim_event('%s', 'owned')$$),
	($$SELECT claim_event('%s', 'owned', wait => '1 h')$$),
	($$SELECT claim_event('%s'::uuid, 'owned')$$),
	($$SELECT claim_events('{%s}', 'owned')$$),
	($$SELECT claim_events('{}', 'owned')$$),
	($$SELECT complete_event('%s', 'owned')$$),
	($$SELECT complete_event('%s'::uuid, 'owned')$$),
	($$SELECT complete_event('%s', 'owned', token => 1)$$),
	($$SELECT complete_events('{%s}', 'owned')$$),
	($$SELECT complete_events('{}', 'owned')$$),
	($$SELECT claims_renew('{%s}', 'owned')$$),
	($$SELECT release_event('%s', 'owned')$$),
	($$SELECT release_event('%s'::uuid, 'owned')$$),
	($$SELECT event_result('%s', 'owned')$$),
	($$SELECT event_result('%s'::uuid, 'owned')$$),
	($$SELECT event_status('%s', 'owned')$$),
	($$SELECT event_status('%s'::uuid, 'owned')$$),
	($$SELECT lease_event('%s', 'owned')$$),
	($$SELECT lease_event('%s'::uuid, 'owned', wait => '1 h')$$),
	($$SELECT lease_events('{%s}', 'owned')$$),
	($$SELECT lease_events('{}', 'owned')$$),
	($$SELECT extend_lease('%s', 1, 'owned')$$),
	($$SELECT extend_lease('%s'::uuid, 1, 'owned')$$),
	($$SELECT assert_lease('%s', 1, 'owned')$$),
	($$SELECT assert_lease('%s'::uuid, 1, 'owned')$$),
	($$SELECT release_lease('%s', 1, 'owned')$$),
	($$SELECT release_lease('%s'::uuid, 1, 'owned')$$),
	($$SELECT claim_request('%s', 'scope', consumer => 'owned')$$),
	($$SELECT claim_request('%s', 'scope', 'fingerprint', 'owned', lease => '1 min', wait => '1 h')$$),
	($$SELECT advance_request('%s', 'scope', 1, 'point', 'owned')$$),
	($$SELECT complete_request('%s', 'scope', 200, consumer => 'owned')$$),
	($$SELECT complete_request('%s', 'scope', 200, consumer => 'owned', token => 1)$$),
	($$SELECT fail_request('%s', 'scope', 'error', 'owned')$$),
	($$SELECT release_request('%s', 'scope', 'owned')$$),
	($$SELECT resume_offset('owned', '%s', 0)$$),
	($$SELECT resume_offset('owned', '%s', 0, 1, wait => '1 h')$$),
	($$SELECT claim_offset('owned', '%s', 0, 0)$$),
	($$SELECT claim_offset('owned', '%s', 0, 0, 1, 1, wait => '1 h')$$),
	($$CALL claims_backfill('public.source', 'id', 'owned')$$);
UPDATE calls SET call = regexp_replace(call, '^(SELECT|CALL) ', '\1 idempotency.');
GRANT SELECT ON calls TO PUBLIC;

SELECT DISTINCT p.proname AS "no call"
  FROM pg_proc p
 WHERE p.pronamespace = 'idempotency'::regnamespace AND 'consumer' = ANY (p.proargnames[:p.pronargs])
   AND has_function_privilege('regress_owner_other', p.oid, 'EXECUTE')
   AND NOT EXISTS (SELECT FROM calls WHERE call ~ ('idempotency\.' || p.proname || '\('));

-- One of each state that an event can have, and one that was never seen
CREATE TABLE events (name text, id text);
INSERT INTO events SELECT name, '00000000-0000-4000-8000-00000000000' || n
  FROM unnest('{completed,leased,dead,kept,unknown}'::text[]) WITH ORDINALITY AS e (name, n);
GRANT SELECT ON events TO PUBLIC;
SELECT idempotency.consumer_create('owned', owner => 'regress_owner_role');
SELECT consumer, owner, owner_missing FROM idempotency.claim_consumers;
SET ROLE regress_owner_member;
SELECT idempotency.claim_event(id, 'owned'), idempotency.complete_event(id, 'owned', '{"secret": 1}')
  FROM events WHERE name = 'completed';
SELECT r.result, idempotency.complete_request(id, 'scope', 200, body => 'secret', consumer => 'owned')
  FROM events, idempotency.claim_request(id, 'scope', consumer => 'owned') r WHERE name = 'completed';
SELECT result FROM events, idempotency.lease_event(id, 'owned', '1 h') WHERE name = 'leased';
SELECT result FROM events, idempotency.claim_request(id, 'scope', consumer => 'owned', lease => '1 h') WHERE name = 'leased';
SELECT l.result, idempotency.release_lease(id, l.token, 'owned', error => 'secret', park => true)
  FROM events, idempotency.lease_event(id, 'owned') l WHERE name = 'dead';
SET idempotency.uncompleted_claims = keep;
SELECT idempotency.claim_event(id, 'owned') FROM events WHERE name = 'kept';
RESET idempotency.uncompleted_claims;
RESET ROLE;

-- Another role: one answer, whatever became of the event
SET ROLE regress_owner_other;
SELECT calls.call, count(*), min(t.state) AS state, count(DISTINCT (t.state, t.message, t.detail, t.hint)) AS answers
  FROM calls, events, try(format(call, id)) t GROUP BY ord, calls.call ORDER BY ord;
SELECT DISTINCT t.message, t.detail, t.hint FROM calls, events, try(format(call, id)) t;
SELECT idempotency.lock_key('any', 'owned') IS NOT NULL AS "of arguments only";
SELECT idempotency.claim_event('e', 'not owned'), idempotency.complete_event('e', 'not owned');
RESET ROLE;

-- The owner, members, and superusers: the function answers, or fails for another reason
CREATE FUNCTION refused(OUT refused bigint, OUT calls bigint) LANGUAGE sql AS $$
	SELECT count(*) FILTER (WHERE t.state = '42501'), count(*)
	  FROM calls, events, try(replace(format(call, id), '1 h', '0')) t $$;
SET ROLE regress_owner_role;
BEGIN; SELECT * FROM refused(); ROLLBACK;
SET ROLE regress_owner_member;
BEGIN; SELECT * FROM refused(); ROLLBACK;
RESET ROLE;
BEGIN; SELECT * FROM refused(); ROLLBACK;

-- A member that does not inherit has to become the owner
SET ROLE regress_owner_switch;
SELECT idempotency.event_status('e', 'owned');
SET SESSION AUTHORIZATION regress_owner_switch;
SET ROLE regress_owner_role;
SELECT status FROM idempotency.event_status('e', 'owned');
RESET SESSION AUTHORIZATION;

-- A function of the owner lets others in, and lends nothing to the caller's own calls
CREATE FUNCTION for_all(id text) RETURNS idempotency.claim_result LANGUAGE sql SECURITY DEFINER
	AS $$ SELECT idempotency.claim_event(id, 'owned') $$;
ALTER FUNCTION for_all OWNER TO regress_owner_role;
SET ROLE regress_owner_other;
BEGIN;
SELECT for_all('through a function');
SELECT idempotency.complete_event('through a function', 'owned');
ROLLBACK;
RESET ROLE;

-- Claimed before, and refused since: the call counts, and not the beginning of the transaction
BEGIN ISOLATION LEVEL REPEATABLE READ;
SET ROLE regress_owner_other;
SELECT idempotency.claim_event('taken away', 'later');
RESET ROLE;
SELECT idempotency.consumer_create('later', owner => 'regress_owner_role');
SET ROLE regress_owner_other;
SAVEPOINT s;
SELECT idempotency.complete_event('taken away', 'later');
ROLLBACK TO s;
COMMIT;
RESET ROLE;

-- An operator manages a consumer without being a member of its owner, and claims nothing for it
SET ROLE regress_owner_operator;
SELECT idempotency.claims_import('owned', '{imported}'), idempotency.forget_event('imported', 'owned');
SELECT idempotency.consumer_redrive('owned');
SELECT idempotency.consumer_discard('owned');
SELECT idempotency.event_status('imported', 'owned');
SELECT idempotency.verify_lock_key('imported', 'owned');
SELECT idempotency.consumer_alter('owned', max_attempts => 3);
SELECT owner, owner_missing, max_attempts FROM idempotency.claim_consumers;
SELECT idempotency.consumer_alter('owned', owner => 'regress_owner_other', max_attempts => 0);
SELECT owner, owner_missing, max_attempts FROM idempotency.claim_consumers;
RESET ROLE;
SET ROLE regress_owner_member;
SELECT idempotency.event_status('e', 'owned');
RESET ROLE;
SET ROLE regress_owner_other;
SELECT status FROM idempotency.event_status('e', 'owned');
RESET ROLE;
SELECT idempotency.consumer_alter('owned', owner => '-');
SELECT owner, owner_missing FROM idempotency.claim_consumers;
SELECT owner, owner_oid, owner_cluster FROM idempotency_data.consumers;
SET ROLE regress_owner_member;
SELECT status FROM idempotency.event_status('e', 'owned');
RESET ROLE;
SELECT idempotency.consumer_drop('owned');

-- What is no role
SELECT idempotency.consumer_create('owned', owner => 'regress_owner_nobody');
SELECT idempotency.consumer_create('owned', owner => '4294967295');
SELECT idempotency.consumer_create('owned', owner => '-');
SELECT owner, owner_missing FROM idempotency.claim_consumers;
SELECT idempotency.consumer_alter('owned', owner => '4294967295', keep_ids => true);
SELECT owner, owner_missing, keep_ids FROM idempotency.claim_consumers;

-- The consumer that is called "default" can be owned, too
BEGIN;
SELECT idempotency.consumer_create('default', owner => 'regress_owner_role');
SET LOCAL ROLE regress_owner_other;
SELECT idempotency.claim_event('e');
ROLLBACK;

-- An owner that was renamed is the owner; the next change of the consumer notes the name
SELECT idempotency.consumer_alter('owned', owner => 'regress_owner_role');
ALTER ROLE regress_owner_role RENAME TO regress_owner_renamed;
SET ROLE regress_owner_member;
SELECT status FROM idempotency.event_status('e', 'owned');
RESET ROLE;
SELECT owner, owner_missing FROM idempotency.claim_consumers;
SELECT owner FROM idempotency_data.consumers;
CREATE ROLE regress_owner_role ROLE regress_owner_other;
SET ROLE regress_owner_other;
SELECT status FROM idempotency.event_status('e', 'owned');
RESET ROLE;
SELECT idempotency.consumer_alter('owned');
SELECT owner FROM idempotency_data.consumers;

-- An owner that was dropped is missing; nobody inherits from it, by name or by OID
DROP OWNED BY regress_owner_renamed;
DROP ROLE regress_owner_renamed;
SELECT owner, owner_missing FROM idempotency.claim_consumers;
SELECT status FROM idempotency.event_status('e', 'owned');
SET ROLE regress_owner_member;
SELECT idempotency.event_status('e', 'owned');
RESET ROLE;
CREATE ROLE regress_owner_renamed ROLE regress_owner_member;
SET ROLE regress_owner_member;
SELECT idempotency.event_status('e', 'owned');
RESET ROLE;
SELECT idempotency.consumer_alter('owned', keep_ids => true);
SELECT owner, owner_oid FROM idempotency_data.consumers;
SELECT idempotency.consumer_alter('owned', owner => 'regress_owner_renamed');
SET ROLE regress_owner_member;
SELECT status FROM idempotency.event_status('e', 'owned');
RESET ROLE;
SELECT owner, owner_missing FROM idempotency.claim_consumers;

-- A row from another cluster: its name counts when it arrives, its OID never
DELETE FROM idempotency_data.consumers;
INSERT INTO idempotency_data.consumers (consumer, foreign_lockers, owner, owner_oid, owner_cluster) VALUES
	('known', false, 'regress_owner_renamed', 'regress_owner_other'::regrole::oid, 1),
	('unknown', false, 'regress_owner_nobody', 'regress_owner_other'::regrole::oid, 1);
SELECT consumer, owner, owner_missing FROM idempotency.claim_consumers ORDER BY 1;
CREATE ROLE regress_owner_nobody ROLE regress_owner_other;
SET ROLE regress_owner_other;
SELECT idempotency.event_status('e', 'known');
SELECT idempotency.event_status('e', 'unknown');
RESET ROLE;
SET ROLE regress_owner_member;
SELECT status FROM idempotency.event_status('e', 'known');
RESET ROLE;

-- Without the trigger, name and OID have to agree
ALTER TABLE idempotency_data.consumers DISABLE TRIGGER ALL;
TRUNCATE idempotency_data.consumers;
INSERT INTO idempotency_data.consumers (consumer, foreign_lockers, owner, owner_oid, owner_cluster) VALUES
	('both', false, 'regress_owner_renamed', 'regress_owner_renamed'::regrole::oid, 1),
	('name only', false, 'regress_owner_renamed', 'regress_owner_other'::regrole::oid, 1),
	('neither', false, 'regress_owner_renamed', 4294967295, 1);
ALTER TABLE idempotency_data.consumers ENABLE ALWAYS TRIGGER consumer_changes;
ALTER TABLE idempotency_data.consumers ENABLE ALWAYS TRIGGER consumer_truncate;
SELECT consumer, owner, owner_missing FROM idempotency.claim_consumers ORDER BY 1;
SET ROLE regress_owner_other;
SELECT idempotency.event_status('e', 'name only');
RESET ROLE;
SET ROLE regress_owner_member;
SELECT status FROM idempotency.event_status('e', 'both');
RESET ROLE;
SELECT idempotency.consumer_alter(consumer) FROM idempotency.claim_consumers;
SELECT consumer, owner, owner_oid = 'regress_owner_renamed'::regrole AS "OID", owner_oid = 0 AS none, owner_cluster = s.system_identifier AS here
  FROM idempotency_data.consumers, pg_control_system() s ORDER BY 1;

DROP OWNED BY regress_owner_member, regress_owner_switch, regress_owner_other, regress_owner_operator,
	regress_owner_role, regress_owner_renamed, regress_owner_nobody;
DROP ROLE regress_owner_member, regress_owner_switch, regress_owner_other, regress_owner_operator,
	regress_owner_role, regress_owner_renamed, regress_owner_nobody;
