/* idempotency 1.0: exactly-once effects for PostgreSQL */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idempotency CASCADE" to load this file. \quit

-- All names below are qualified.  Operators and casts are not: the search_path
-- makes sure that they are found in pg_catalog, not in another schema.
SET LOCAL search_path = pg_catalog, pg_temp;

-- C code reads pages as those of heap tables.
SET LOCAL default_table_access_method = heap;

-- A role that owns the schema, or may create in it, could put a function of its
-- own beside the extension's.  This script, or users of the extension, could
-- then call that function.
DO $$
DECLARE
	nsp pg_namespace;
BEGIN
	SELECT * INTO STRICT nsp FROM pg_namespace n WHERE n.oid = '@extschema@'::regnamespace;
	IF NOT (SELECT r.rolsuper FROM pg_roles r WHERE r.oid = nsp.nspowner) THEN
		RAISE EXCEPTION 'schema "%" exists and belongs to role "%"', nsp.nspname, pg_get_userbyid(nsp.nspowner)
			USING ERRCODE = 'insufficient_privilege',
				DETAIL = 'Its owner could replace what the extension trusts.',
				HINT = 'Drop the schema, or give it to a superuser after a look at what is in it.';
	ELSIF EXISTS (SELECT FROM aclexplode(nsp.nspacl) a
				   WHERE a.privilege_type = 'CREATE' AND a.grantee <> nsp.nspowner) THEN
		RAISE EXCEPTION 'schema "%" exists and others than its owner may create in it', nsp.nspname
			USING ERRCODE = 'insufficient_privilege',
				HINT = 'Revoke CREATE on the schema, after a look at what is in it. If it did not exist, ALTER DEFAULT PRIVILEGES has granted that: revoke it there.';
	ELSIF EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = nsp.oid) THEN
		RAISE EXCEPTION 'schema "%" exists and has functions in it', nsp.nspname
			USING ERRCODE = 'object_not_in_prerequisite_state',
				DETAIL = 'One could be taken for a function of the extension.',
				HINT = 'Move or drop them.';
	END IF;
END
$$;

REVOKE ALL ON SCHEMA @extschema@ FROM PUBLIC;

-- Tables and sequences are in a schema of their own, on which nobody but roles of kind backup has USAGE:
-- PostgreSQL locks a table that a statement names before it checks privileges
-- on the table.  So are the functions that nobody names: views, triggers and
-- wrappers refer to them by OID, for which EXECUTE is enough.  If a schema of this
-- name exists already, the script fails here.
CREATE SCHEMA idempotency_data;
COMMENT ON SCHEMA idempotency_data IS
'tables and internal functions of the extension idempotency; nobody but who dumps needs rights on this schema: use the views and functions of @extschema@';

-- A view that may be large calls its source in the select list, where the
-- executor takes one row at a time.  In FROM it would collect all rows first.
