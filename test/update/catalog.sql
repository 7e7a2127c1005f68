-- What the catalogs say of the extension, a line for each fact, without OIDs.  Two databases
-- of one cluster have the same lines if their extension is the same.
\pset format unaligned
\pset tuples_only on
SET search_path = pg_catalog;
SET quote_all_identifiers = off;
WITH ext AS (
	SELECT * FROM pg_extension WHERE extname = 'idempotency'),
member AS (
	SELECT classid, objid FROM pg_depend
	WHERE refclassid = 'pg_extension'::regclass AND refobjid = (SELECT oid FROM ext) AND deptype = 'e'),
-- members, and the indexes of tables
rel AS (
	SELECT c.* FROM pg_class c
	WHERE c.oid IN (SELECT objid FROM member WHERE classid = 'pg_class'::regclass)
		OR c.oid IN (SELECT indexrelid FROM pg_index WHERE indrelid IN (SELECT objid FROM member WHERE classid = 'pg_class'::regclass))),
con AS (
	SELECT * FROM pg_constraint WHERE conrelid IN (SELECT oid FROM rel)),
trg AS (
	SELECT * FROM pg_trigger WHERE NOT tgisinternal AND tgrelid IN (SELECT oid FROM rel)),
part (classid, objid) AS (
	SELECT 'pg_extension'::regclass::oid, oid FROM ext
	UNION SELECT * FROM member
	UNION SELECT 'pg_class'::regclass, oid FROM rel
	UNION SELECT 'pg_constraint'::regclass, oid FROM con
	UNION SELECT 'pg_trigger'::regclass, oid FROM trg
	UNION SELECT 'pg_attrdef'::regclass, oid FROM pg_attrdef WHERE adrelid IN (SELECT oid FROM rel)
	UNION SELECT 'pg_rewrite'::regclass, oid FROM pg_rewrite WHERE ev_class IN (SELECT oid FROM rel)
	UNION SELECT 'pg_type'::regclass, reltype FROM rel WHERE reltype <> 0
	UNION SELECT 'pg_type'::regclass, typarray FROM pg_type
		WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_type'::regclass UNION SELECT reltype FROM rel) AND typarray <> 0),
-- a row of a catalog, less what is an OID or a number of this database
fact (of, what) AS (
	SELECT 'extension', concat_ws(' ', extversion, extowner::regrole, extnamespace::regnamespace, extrelocatable) FROM ext
	UNION ALL
	SELECT 'dumped', concat_ws(' ', t.oid::regclass, quote_nullable(extcondition[i]))
	FROM ext, generate_subscripts(extconfig, 1) i, LATERAL (SELECT extconfig[i] AS oid) t
	UNION ALL
	SELECT 'member', pg_describe_object(classid, objid, 0) FROM member
	UNION ALL
	SELECT 'comment', concat_ws(' ', pg_describe_object(classoid, objoid, objsubid), quote_literal(description))
	FROM pg_description WHERE (classoid, objoid) IN (SELECT * FROM part)
	UNION ALL
	SELECT 'initial privileges', concat_ws(' ', pg_describe_object(classoid, objoid, objsubid), privtype, ARRAY(SELECT a::text FROM unnest(initprivs) a ORDER BY 1))
	FROM pg_init_privs WHERE (classoid, objoid) IN (SELECT * FROM part)
	UNION ALL
	SELECT 'dependency', concat_ws(' ', deptype, pg_describe_object(classid, objid, objsubid), '->', pg_describe_object(refclassid, refobjid, refobjsubid))
	FROM pg_depend WHERE (classid, objid) IN (SELECT * FROM part) OR (refclassid, refobjid) IN (SELECT * FROM part)
	UNION ALL
	SELECT 'owner', concat_ws(' ', pg_describe_object(classid, objid, objsubid), deptype, pg_describe_object(refclassid, refobjid, 0))
	FROM pg_shdepend WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database()) AND (classid, objid) IN (SELECT * FROM part)
	UNION ALL
	SELECT 'schema', concat_ws(' ', nspname, nspowner::regrole, ARRAY(SELECT a::text FROM unnest(nspacl) a ORDER BY 1))
	FROM pg_namespace WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_namespace'::regclass UNION SELECT extnamespace FROM ext)
	UNION ALL
	SELECT 'relation', concat_ws(' ', r.oid::regclass, r.relkind, r.relpersistence, r.relowner::regrole, m.amname, r.reltablespace,
		ARRAY(SELECT o FROM unnest(r.reloptions) o ORDER BY 1), ARRAY(SELECT o FROM unnest(t.reloptions) o ORDER BY 1),
		r.relreplident, r.relrowsecurity, r.relforcerowsecurity, r.relhasindex, r.relhasrules, r.relhastriggers, r.relnatts, r.relchecks,
		ARRAY(SELECT a::text FROM unnest(r.relacl) a ORDER BY 1))
	FROM rel r LEFT JOIN pg_class t ON t.oid = r.reltoastrelid LEFT JOIN pg_am m ON m.oid = r.relam
	UNION ALL
	SELECT 'column', concat_ws(' ', attrelid::regclass, attnum, attname, format_type(atttypid, atttypmod), attcollation::regcollation,
		attnotnull, attidentity, attgenerated, attstorage, attcompression, attislocal, attinhcount, attisdropped,
		ARRAY(SELECT o FROM unnest(attoptions) o WHERE o !~ '^pg_attver=' ORDER BY 1),
		ARRAY(SELECT a::text FROM unnest(attacl) a ORDER BY 1), pg_get_expr(adbin, adrelid))
	FROM pg_attribute LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
	WHERE attrelid IN (SELECT oid FROM rel) AND attnum > 0
	UNION ALL
	SELECT 'constraint', concat_ws(' ', conrelid::regclass, conname, contype, convalidated, condeferrable, conislocal, connoinherit,
		conindid::regclass, pg_get_constraintdef(oid))
	FROM con
	UNION ALL
	SELECT 'index', concat_ws(' ', pg_get_indexdef(indexrelid), indisunique, indisprimary, indisvalid, indisready, indisclustered, indisreplident)
	FROM pg_index WHERE indexrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'trigger', concat_ws(' ', tgenabled, pg_get_triggerdef(oid)) FROM trg
	UNION ALL
	SELECT 'view', concat_ws(' ', oid::regclass, pg_get_viewdef(oid)) FROM rel WHERE relkind = 'v'
	UNION ALL
	SELECT 'sequence', concat_ws(' ', seqrelid::regclass, seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle)
	FROM pg_sequence WHERE seqrelid IN (SELECT oid FROM rel)
	UNION ALL
	SELECT 'function', concat_ws(' ', pg_get_functiondef(oid), proowner::regrole, provolatile, proparallel, procost, prorows, prosupport,
		ARRAY(SELECT a::text FROM unnest(proacl) a ORDER BY 1))
	FROM pg_proc WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_proc'::regclass)
	UNION ALL
	SELECT 'type', concat_ws(' ', oid::regtype, typtype, typowner::regrole, typcategory, typnotnull, typdefault,
		ARRAY(SELECT enumlabel FROM pg_enum WHERE enumtypid = t.oid ORDER BY enumsortorder), ARRAY(SELECT a::text FROM unnest(typacl) a ORDER BY 1))
	FROM pg_type t WHERE oid IN (SELECT objid FROM part WHERE classid = 'pg_type'::regclass)
	UNION ALL
	SELECT 'wrapper', concat_ws(' ', fdwname, fdwowner::regrole, fdwhandler::regproc, fdwvalidator::regproc, fdwoptions,
		ARRAY(SELECT a::text FROM unnest(fdwacl) a ORDER BY 1))
	FROM pg_foreign_data_wrapper WHERE oid IN (SELECT objid FROM member WHERE classid = 'pg_foreign_data_wrapper'::regclass))
SELECT of || ': ' || regexp_replace(what, 'pg_toast_\d+', 'pg_toast_N', 'g') FROM fact ORDER BY 1;
