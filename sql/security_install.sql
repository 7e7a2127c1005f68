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

-- Once more, in the schema that it left
DROP OPERATOR idempotency.= (oid, regclass);
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
SELECT extname FROM pg_extension WHERE extname = 'idempotency';

DROP ROLE regress_install_attacker, regress_install_marker;
