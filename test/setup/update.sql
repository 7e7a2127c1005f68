-- An update of the extension for tests, the same from 1.0 to 1.0.test and back;
-- idem_stage_updates puts it into the tests' stage, and nothing installs it.
--
-- It does what an update does to those at work: every table is locked against
-- everybody, and every function and view is replaced, by itself.
\echo Use "ALTER EXTENSION idempotency UPDATE" to load this file. \quit

DO $$
DECLARE
    extension oid := (SELECT oid FROM pg_catalog.pg_extension WHERE extname = 'idempotency');
    member regclass;
    definition text;
BEGIN
    -- Relays, claims, then segments, as most of those at work do; there is no
    -- order in which nobody is met, so an update may be ended by 40P01.
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
