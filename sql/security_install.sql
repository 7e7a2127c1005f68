-- A schema that was there before must not lend its owner the installer's rights.
\set VERBOSITY terse
\set SHOW_CONTEXT never
CREATE ROLE regress_install_attacker;
CREATE ROLE regress_install_marker;

-- Not a schema of somebody who is no superuser, with a better match in it
CREATE SCHEMA idempotency AUTHORIZATION regress_install_attacker;
SET ROLE regress_install_attacker;
CREATE FUNCTION idempotency.grant_role(text, text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
	GRANT regress_install_marker TO regress_install_attacker;
END
$$;
RESET ROLE;
CREATE EXTENSION idempotency CASCADE;
SELECT pg_has_role('regress_install_attacker', 'regress_install_marker', 'MEMBER');

-- Nor one in which others may create
ALTER SCHEMA idempotency OWNER TO CURRENT_USER;
GRANT CREATE ON SCHEMA idempotency TO PUBLIC;
CREATE EXTENSION idempotency CASCADE;
REVOKE CREATE ON SCHEMA idempotency FROM PUBLIC;

-- Nor one that somebody left something in
CREATE EXTENSION idempotency CASCADE;
DROP FUNCTION idempotency.grant_role(text, text);

-- An operator that fits better than pg_catalog's is not looked at
SET client_min_messages = warning;
CREATE FUNCTION public.trap(oid, regclass) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
	RAISE EXCEPTION 'trapped';
END
$$;
CREATE OPERATOR idempotency.= (LEFTARG = oid, RIGHTARG = regclass, FUNCTION = public.trap);
CREATE EXTENSION idempotency CASCADE;
SELECT extname FROM pg_extension WHERE extname = 'idempotency';

DROP OPERATOR idempotency.= (oid, regclass);
DROP EXTENSION idempotency;

-- Not tables in a schema of somebody else, whatever is in it
CREATE SCHEMA idempotency_data AUTHORIZATION regress_install_attacker;
CREATE EXTENSION idempotency CASCADE;
ALTER SCHEMA idempotency_data OWNER TO CURRENT_USER;
CREATE EXTENSION idempotency CASCADE;
DROP SCHEMA idempotency_data;

-- Nor with tables in another schema's place
CREATE EXTENSION idempotency SCHEMA public;

-- Once more, in the schema that it left
CREATE EXTENSION idempotency;
ALTER SCHEMA idempotency_data RENAME TO elsewhere;
CREATE SCHEMA idempotency_data AUTHORIZATION regress_install_attacker;
SET ROLE regress_install_attacker;
CREATE TABLE idempotency_data.store_segment_0 (claimed_at timestamptz, completed_at timestamptz, digest uuid, turn smallint, state "char", event_id text, consumer text, result jsonb);
CREATE SEQUENCE idempotency_data.store_state;
RESET ROLE;
BEGIN;
SELECT idempotency.claim_event('a');
ROLLBACK;
SELECT * FROM idempotency.outbox_events;
SELECT * FROM idempotency.stat_relay;
DROP SCHEMA idempotency_data CASCADE;
ALTER SCHEMA elsewhere RENAME TO idempotency_data;
BEGIN;
SELECT idempotency.claim_event('a');
ROLLBACK;
SELECT count(*) FROM idempotency.outbox_events;
SELECT extname FROM pg_extension WHERE extname = 'idempotency';

-- What the installing role gives away by default is not given of this
DROP EXTENSION idempotency;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO regress_install_attacker;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SEQUENCES TO PUBLIC;
ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO regress_install_attacker;
ALTER DEFAULT PRIVILEGES GRANT ALL ON TYPES TO regress_install_attacker;
ALTER DEFAULT PRIVILEGES GRANT ALL ON SCHEMAS TO regress_install_attacker, PUBLIC;
CREATE EXTENSION idempotency;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TABLES FROM regress_install_attacker;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SEQUENCES FROM PUBLIC;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON FUNCTIONS FROM regress_install_attacker;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON TYPES FROM regress_install_attacker;
ALTER DEFAULT PRIVILEGES REVOKE ALL ON SCHEMAS FROM regress_install_attacker, PUBLIC;
SELECT a.grantee::regrole, count(*) FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid,
	LATERAL (SELECT relacl FROM pg_class WHERE d.classid = 'pg_class'::regclass AND oid = d.objid
		UNION ALL SELECT proacl FROM pg_proc WHERE d.classid = 'pg_proc'::regclass AND oid = d.objid
		UNION ALL SELECT nspacl FROM pg_namespace WHERE d.classid = 'pg_namespace'::regclass AND oid = d.objid
		UNION ALL SELECT typacl FROM pg_type WHERE d.classid = 'pg_type'::regclass AND oid = d.objid) AS acl (acl),
	aclexplode(acl) AS a
WHERE e.extname = 'idempotency' AND d.deptype = 'e' AND a.grantee NOT IN (e.extowner, 'pg_monitor'::regrole)
GROUP BY 1 ORDER BY 1;

DROP ROLE regress_install_attacker, regress_install_marker;
