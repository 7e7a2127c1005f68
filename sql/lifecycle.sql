-- The extension itself: created, complete in privileges and comments, dropped.
CREATE EXTENSION idempotency CASCADE;

-- Nothing is open to everybody.
SELECT p.oid::regprocedure AS executable_by_public
FROM pg_proc p
WHERE p.pronamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
  AND has_function_privilege('public', p.oid, 'EXECUTE')
ORDER BY 1;
SELECT c.oid::regclass AS readable_by_public
FROM pg_class c
WHERE c.relnamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace)
  AND c.relkind IN ('r', 'v', 'm', 'f', 'p')
  AND has_table_privilege('public', c.oid, 'SELECT')
ORDER BY 1;

-- Every object says what it is for.
SELECT pg_describe_object(d.classid, d.objid, 0) AS without_comment
FROM pg_depend d
JOIN pg_extension e ON e.oid = d.refobjid AND d.refclassid = 'pg_extension'::regclass
LEFT JOIN pg_class c ON d.classid = 'pg_class'::regclass AND c.oid = d.objid
LEFT JOIN pg_type t ON d.classid = 'pg_type'::regclass AND t.oid = d.objid
WHERE e.extname = 'idempotency'
  AND d.deptype = 'e'
  AND (d.classid IN ('pg_proc'::regclass, 'pg_foreign_data_wrapper'::regclass, 'pg_namespace'::regclass)
       OR c.relkind IN ('r', 'v', 'm', 'f', 'p', 'S')
       OR t.typtype IN ('d', 'e', 'c') AND t.typrelid = 0)
  AND obj_description(d.objid, d.classid::regclass::name) IS NULL
ORDER BY 1;

SELECT pg_describe_object(o.classid, o.objid, 0) AS without_comment
FROM (SELECT 'pg_trigger'::regclass, t.oid, t.tgrelid FROM pg_trigger t WHERE NOT t.tgisinternal
	  UNION ALL
	  SELECT 'pg_class'::regclass, i.indexrelid, i.indrelid FROM pg_index i
	  WHERE NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)) AS o (classid, objid, relid)
JOIN pg_class c ON c.oid = o.relid
WHERE c.relnamespace = 'idempotency_data'::regnamespace
  AND obj_description(o.objid, o.classid::regclass::name) IS NULL
ORDER BY 1;

SELECT c.oid::regclass || '.' || a.attname AS column_without_comment
FROM pg_class c
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
WHERE c.relnamespace = 'idempotency'::regnamespace
  AND col_description(c.oid, a.attnum) IS NULL
ORDER BY c.relname, a.attnum;

-- The segments of the outbox differ in their number only, and so do those of the
-- dedup store.
SELECT s.of, count(*) AS segments, count(DISTINCT (s.definition)) AS definitions
FROM (SELECT split_part(c.relname, '_', 1), regexp_replace(concat_ws(' ', c.reloptions, t.reloptions, c.relacl, c.relpersistence, obj_description(c.oid, 'pg_class'),
		(SELECT string_agg(concat_ws(' ', pg_get_indexdef(i.indexrelid), obj_description(i.indexrelid, 'pg_class')), ' ')
		 FROM pg_index i WHERE i.indrelid = c.oid),
		(SELECT string_agg(concat_ws(' ', pg_get_triggerdef(g.oid), g.tgenabled, obj_description(g.oid, 'pg_trigger')), ' ')
		 FROM pg_trigger g WHERE g.tgrelid = c.oid),
		(SELECT string_agg(concat_ws(' ', a.attname, format_type(a.atttypid, a.atttypmod), a.attcollation, a.attnotnull, a.attstorage,
			col_description(c.oid, a.attnum)), ', ' ORDER BY a.attnum)
		 FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0)),
	'segment([_ ])' || substr(c.relname, length(c.relname)), 'segment\1N', 'g')
	FROM pg_class c JOIN pg_class t ON t.oid = c.reltoastrelid
	WHERE c.relnamespace = 'idempotency_data'::regnamespace AND c.relname ~ '^(outbox|store)_segment_[0-9]+$') AS s (of, definition)
GROUP BY 1 ORDER BY 1;

-- No function is STRICT, so that a NULL is answered with the argument's name;
-- none may run in a parallel worker unless it says so.
SELECT p.oid::regprocedure AS strict
FROM pg_proc p
WHERE p.pronamespace IN ('idempotency'::regnamespace, 'idempotency_data'::regnamespace) AND p.proisstrict
ORDER BY 1;

-- Every table whose rows are state is dumped with the database.  The position
-- log is not: its snapshots mean nothing in another cluster.
SELECT c.oid::regclass AS not_dumped
FROM pg_class c
JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'
JOIN pg_extension e ON e.oid = d.refobjid
WHERE e.extname = 'idempotency'
  AND c.relkind IN ('r', 'S')
  AND c.oid <> ALL (COALESCE(e.extconfig, '{}'))
ORDER BY 1;

DROP EXTENSION idempotency;
SELECT count(*) AS objects_left
FROM pg_class
WHERE relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = 'idempotency');
SELECT count(*) AS data_schemas_left FROM pg_namespace WHERE nspname = 'idempotency_data';
CREATE EXTENSION idempotency;
