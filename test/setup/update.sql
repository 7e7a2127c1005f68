-- An update of the extension for tests.  The same script updates from a version, as 1.0,
-- to 1.0.test and back.  idem_stage_updates puts it into the tests' stage; nothing installs it.
--
-- To running sessions the script does what a real update does: it locks every table
-- against all access, and replaces every function and every view by itself.
\echo Use "ALTER EXTENSION idempotency UPDATE" to load this file. \quit

DO $$
DECLARE
    extension oid := (SELECT oid FROM pg_catalog.pg_extension WHERE extname = 'idempotency');
    member regclass;
    definition text;
BEGIN
    -- Lock relays, then claims, then segments: most sessions lock in this order.  No
    -- order avoids all deadlocks, so an update may end with 40P01.
    FOR member IN
        SELECT c.oid FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refobjid = extension AND d.deptype = 'e'
            AND c.relkind = 'r'
        ORDER BY c.relname NOT LIKE 'relay%', c.relname LIKE 'outbox_segment%', c.relname DESC
    LOOP
        EXECUTE pg_catalog.format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', member);
    END LOOP;
    FOR definition IN
        SELECT pg_catalog.pg_get_functiondef(p.oid)
        FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_proc p ON p.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_proc'::regclass AND d.refobjid = extension AND d.deptype = 'e'
        UNION ALL
        SELECT pg_catalog.format('CREATE OR REPLACE VIEW %s %s AS %s', c.oid::regclass,
            'WITH (' || pg_catalog.array_to_string(c.reloptions, ', ') || ')', pg_catalog.pg_get_viewdef(c.oid))
        FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid = d.objid
        WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.refobjid = extension AND d.deptype = 'e'
            AND c.relkind = 'v'
    LOOP
        EXECUTE definition;
    END LOOP;
END
$$;
