/*-------------------------------------------------------------------------
 *
 * catalog.c
 *		Finds the extension's own objects by pg_extension, never by search_path.
 *
 * A hostile search_path, temporary objects of the same name, or a role that
 * may create objects in some schema must not put another object in the place
 * of ours.  So names are looked up in two schemas only: the schema in the
 * extension's row of pg_extension, and the schema of the extension's tables,
 * which must be a member of the extension.
 *
 * LOCKING: AccessShareLock on pg_extension while its row is read.  The objects
 * found are not locked: the caller opens an object with the lock that the
 * caller needs, and gets an error if the object was dropped meanwhile.
 * idem_table_open_nowait does that for callers that must not wait.
 *
 * MEMORY: refs are static variables of the files that use them.  No memory
 * outlives the call.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/catalog.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/pg_class.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "commands/extension.h"
#include "common/string.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "compat.h"
#include "shared/catalog.h"

/* The end of the name of a log's index, behind the name of its table. */
#define KEYED_INDEX "_key"

/* Every ref that holds an OID; walked by the invalidation callback. */
static IdemRelRef *registered_refs = NULL;

/* InvalidOid: to be looked up */
static Oid	data_schema = InvalidOid;

/*
 * Invalidation callback: forget the OID of one relation, or of all, and that it
 * has been checked.
 */
static void
forget_relation(Datum arg, Oid relid)
{
	for (IdemRelRef *ref = registered_refs; ref != NULL; ref = ref->next)
	{
		if (relid == InvalidOid || relid == ref->oid)
		{
			ref->oid = InvalidOid;
			ref->checked = 0;
			ref->changes++;
		}
	}
}

/*
 * Invalidation callback: forget the data schema when any schema changes.
 * Dropping the extension drops its data schema, too.
 */
static void
forget_schema(Datum arg, int cacheid, uint32 hashvalue)
{
	data_schema = InvalidOid;
}

void
idem_catalog_init(void)
{
	CacheRegisterRelcacheCallback(forget_relation, (Datum) 0);
	CacheRegisterSyscacheCallback(NAMESPACEOID, forget_schema, (Datum) 0);
}

Oid
idem_extension_oid(void)
{
	return get_extension_oid(IDEM_EXTENSION_NAME, true);
}

int			idem_script_commands = 0;

void
idem_check_no_script(const char *what)
{
	if (!creating_extension || idem_script_commands > 0 || CurrentExtensionObject == idem_extension_oid())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("the script of an extension cannot create %s", what),
			 errdetail("A dump has it as a row, and a restore runs the script before it brings the row."),
			 errhint("Create it by a call of its own, after CREATE EXTENSION.")));
}

/*
 * Read owner and schema of an extension; false if the extension is not
 * installed.  pg_extension has no syscache by name before version 18, so this
 * is an index scan.
 */
static bool
extension_row(const char *extname, Oid *owner, Oid *schema)
{
	Relation	rel = table_open(ExtensionRelationId, AccessShareLock);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	bool		found;

	ScanKeyInit(&key, Anum_pg_extension_extname,
				BTEqualStrategyNumber, F_NAMEEQ, CStringGetDatum(extname));
	scan = systable_beginscan(rel, ExtensionNameIndexId, true, NULL, 1, &key);
	tup = systable_getnext(scan);
	found = HeapTupleIsValid(tup);
	if (found)
	{
		Form_pg_extension ext = (Form_pg_extension) GETSTRUCT(tup);

		*owner = ext->extowner;
		*schema = ext->extnamespace;
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return found;
}

/* Error 55000: an extension is not installed. */
pg_noreturn static void
report_missing(const char *extname)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("extension \"%s\" is not installed in this database",
					extname),
			 errhint("Connect to the database that has it, since a new one remembers nothing; or run CREATE EXTENSION idempotency CASCADE.")));
}

Oid
idem_extension_owner(void)
{
	Oid			owner,
				schema;

	if (!extension_row(IDEM_EXTENSION_NAME, &owner, &schema))
		report_missing(IDEM_EXTENSION_NAME);
	return owner;
}

Oid
idem_schema_of_extension(const char *extname)
{
	Oid			owner,
				schema;

	if (!extension_row(extname, &owner, &schema))
		report_missing(extname);
	return schema;
}

/* The look-ups may process invalidations, so data_schema is set after them. */
Oid
idem_data_schema_oid(void)
{
	Oid			extension;
	Oid			schema;

	if (OidIsValid(data_schema))
		return data_schema;
	extension = idem_extension_oid();
	if (!OidIsValid(extension))
		report_missing(IDEM_EXTENSION_NAME);
	schema = get_namespace_oid(IDEM_DATA_SCHEMA_NAME, true);
	if (!OidIsValid(schema) ||
		getExtensionOfObject(NamespaceRelationId, schema) != extension)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("extension \"%s\" has no schema \"%s\"",
						IDEM_EXTENSION_NAME, IDEM_DATA_SCHEMA_NAME),
				 errhint("Rename the schema back if it was renamed. If it was dropped, restore the database from a backup: a new extension remembers no claim and has no event.")));
	data_schema = schema;
	return schema;
}

/*
 * An OID comes from an earlier look-up, without a lock, and reading the name may
 * process invalidations.  DROP EXTENSION may have committed in between.
 */
char *
idem_schema_name(Oid schema, const char *extname)
{
	char	   *name = get_namespace_name(schema);

	if (name == NULL)
		report_missing(extname);
	return name;
}

/* A table that is gone took what it knew with it; the index of a log (shared/keyed_log.c) is made again. */
static void
report_missing_relation(const IdemRelRef *ref)
{
	const char *schema = ref->is_view ? IDEM_API_SCHEMA_NAME : IDEM_DATA_SCHEMA_NAME;
	bool		is_index = pg_str_endswith(ref->name, KEYED_INDEX);

	ereport(ERROR,
			(errcode(ERRCODE_UNDEFINED_TABLE),
			 errmsg("relation \"%s.%s\" does not exist", schema, ref->name),
			 is_index ?
			 errhint("Rename it back if it was renamed. If it was dropped: CREATE INDEX %s ON %s.%.*s (digest, kind, number DESC) WITH (deduplicate_items = off)",
					 ref->name, schema, (int) (strlen(ref->name) - strlen(KEYED_INDEX)), ref->name) :
			 errhint("Rename it back if it was renamed. If it was dropped, restore the database from a backup: a new extension remembers no claim and has no event.")));
}

Oid
idem_relref_oid(IdemRelRef *ref)
{
	Oid			oid = ref->oid;

	if (OidIsValid(oid))
		return oid;

	oid = get_relname_relid(ref->name, ref->is_view ? idem_schema_of_extension(IDEM_EXTENSION_NAME) :
							idem_data_schema_oid());
	if (!OidIsValid(oid))
		report_missing_relation(ref);
	if (!ref->registered)
	{
		ref->next = registered_refs;
		registered_refs = ref;
		ref->registered = true;
	}
	ref->oid = oid;
	return oid;
}

void
idem_report_row(int elevel, Oid relid, const ItemPointerData *tid, const char *hint)
{
	ereport(elevel,
			(errcode(ERRCODE_DATA_CORRUPTED),
			 errmsg("row (%u,%u) of table \"%s.%s\" is not one that the extension has written",
					ItemPointerGetBlockNumber(tid), ItemPointerGetOffsetNumber(tid),
					IDEM_DATA_SCHEMA_NAME, get_rel_name(relid)),
			 errdetail("A dump that was changed, or a role that may write all data, has brought it."),
			 errhint("%s", hint)));
}

Relation
idem_table_open_nowait(Oid oid, LOCKMODE mode)
{
	if (!ConditionalLockRelationOid(oid, mode))
		return NULL;
	return table_open(oid, NoLock);
}

TransactionId
idem_relation_changer(Oid relid)
{
	Relation	catalog = table_open(RelationRelationId, AccessShareLock);
	TransactionId xid = InvalidTransactionId;
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tuple;

	ScanKeyInit(&key, Anum_pg_class_oid, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(relid));
	scan = systable_beginscan(catalog, ClassOidIndexId, true, NULL, 1, &key);
	tuple = systable_getnext(scan);
	if (HeapTupleIsValid(tuple) && (tuple->t_data->t_infomask & HEAP_XMAX_INVALID) == 0 &&
		!HEAP_XMAX_IS_LOCKED_ONLY(tuple->t_data->t_infomask))
		xid = HeapTupleHeaderGetUpdateXid(tuple->t_data);
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	if (TransactionIdIsCurrentTransactionId(xid) || !TransactionIdIsInProgress(xid))
		return InvalidTransactionId;
	return xid;
}
