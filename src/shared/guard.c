/*-------------------------------------------------------------------------
 *
 * guard.c
 *		Refuses commands that would lock the extension's views against
 *		everybody, or make its tables what C code does not keep them.
 *
 * Locks.  The extension's tables are out of everybody's reach, in a schema on
 * which nobody has USAGE.  Its views cannot be: a role that may read one view
 * can name all.  A reader's AccessShareLock hurts nobody.  But some commands
 * of PostgreSQL take AccessExclusiveLock on a relation that they name, and
 * check its ownership afterwards.  If such a command waits for an open
 * transaction, nobody can read the view meanwhile.  For the extension's
 * relations, this file checks the ownership before the command
 * locks.  Only AccessExclusiveLock conflicts with a reader's lock, so no other
 * command matters.  test/t/703_security_locks.pl asks each command that names
 * a relation.
 *
 * Additions.  C code writes most tables without the executor.  A trigger does
 * not fire for such rows, a rule does not see them, and a tool that copies a
 * table by a trigger loses them: what was claimed meanwhile would be claimed
 * again.  Such a tool needs a unique index, or a replica identity, so these
 * tables have neither.  An unlogged table is emptied by a crash.  C code would
 * read a column of another type as what it was.  Commands that would do one of
 * these are refused, also if they name a table's parent.  guard_table.c notices
 * what got past this file, because the library was not loaded.
 * allow_system_table_mods turns both off, as for tables of the system.
 *
 * Dependencies.  A role without USAGE on a schema can name nothing in it, but
 * a parameter's type and a constant of type regclass or regtype name by OID.
 * A column of a table's row type, and whatever else depends on a table, would
 * make ALTER TABLE, ALTER EXTENSION and DROP EXTENSION fail.  So whatever such
 * a role creates is refused if it depends on the extension's tables.
 *
 * If the library is not preloaded, sessions that have not loaded it are not
 * guarded by this file.
 *
 * LOCKING: AccessShareLock on pg_depend, while dependencies are read.
 *
 * MEMORY: nothing is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/guard.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/transam.h"
#include "catalog/dependency.h"
#include "catalog/indexing.h"
#include "catalog/namespace.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_am.h"
#include "catalog/pg_attrdef.h"
#include "catalog/pg_class.h"
#include "catalog/pg_depend.h"
#include "catalog/pg_inherits.h"
#include "catalog/pg_namespace.h"
#include "catalog/pg_proc.h"
#include "catalog/pg_publication.h"
#include "catalog/pg_statistic_ext.h"
#include "catalog/pg_trigger.h"
#include "catalog/pg_type.h"
#include "commands/extension.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/guard.h"

/* The statistics that the running command has made without their dependencies. */
static Oid	made_statistics = InvalidOid;

/* The tables that only SQL writes: triggers see all of their rows. */
static const char *const written_by_sql[] = {
	"consumers", "relays", "relay_parked", "relay_blocked", "relay_attempts", "outbox_restored"
};

/* Tables that C code writes and that have no index. */
static const char *const without_index[] = {
	"relay_log_0", "relay_log_1",
	"store_segment_0", "store_segment_1", "store_segment_2", "store_segment_3",
	"store_segment_4", "store_segment_5", "store_segment_6", "store_segment_7"
};

/* What a command would make of a table. */
typedef enum Addition
{
	ADD_TRIGGER, ADD_RULE, ADD_INDEX, SET_IDENTITY, SET_UNLOGGED, SET_LOGGED, ALTER_KEYS,
	CHANGE_TYPE, SET_PARENT, SET_CATALOG, ATTACH
} Addition;

static const struct
{
	const char *what;			/* after "cannot" */
	bool		to_all;			/* refused for sequences and for tables that
								 * SQL writes, too */
	const char *detail;
}			additions[] = {
	[ADD_TRIGGER] = {"add a trigger to", false, IDEM_GUARD_TRIGGER_DETAIL},
	[ADD_RULE] = {"add a rule to", false, IDEM_GUARD_RULE_DETAIL},
	[ADD_INDEX] = {"add an index or a constraint to", false, IDEM_GUARD_INDEX_DETAIL},
	[SET_IDENTITY] = {"set a replica identity of", false, IDEM_GUARD_IDENTITY_DETAIL},
	[SET_UNLOGGED] = {"set unlogged", true, IDEM_GUARD_UNLOGGED_DETAIL},
	[SET_LOGGED] = {"set logged", true, "Its pages are not written to the WAL, so a crash has to empty them."},
	[ALTER_KEYS] = {"alter", true, "Behind the sequence stand pages that say where the rows of claims are."},
	[CHANGE_TYPE] = {"change the type of a column of", true, IDEM_GUARD_TYPE_DETAIL},
	[SET_PARENT] = {"let inherit, or be inherited from,", true,
	"ALTER TABLE of a parent also alters its children; and C code does not look for rows in children."},
	[SET_CATALOG] = {"set user_catalog_table of", true,
	"C code reads the table by snapshots that a table of catalogs does not take."},
	[ATTACH] = {"attach to a partitioned table", false, IDEM_GUARD_ATTACH_DETAIL}
};

/* The relation, if it is a member of the extension; else InvalidOid. */
static Oid
member_of_ours(const RangeVar *relation)
{
	Oid			extension = idem_extension_oid();
	Oid			relid;

	if (!OidIsValid(extension))
		return InvalidOid;
	relid = RangeVarGetRelid(relation, NoLock, true);
	if (!OidIsValid(relid) ||
		getExtensionOfObject(RelationRelationId, relid) != extension)
		return InvalidOid;
	return relid;
}

/* Is it the schema of the extension's tables? */
static bool
is_data_schema(Oid schema)
{
	char	   *name = get_namespace_name(schema);

	return name != NULL && strcmp(name, IDEM_DATA_SCHEMA_NAME) == 0 &&
		getExtensionOfObject(NamespaceRelationId, schema) == idem_extension_oid();
}

/*
 * The command locks the relation before it checks the ownership.  Error 42501
 * if the relation is the extension's and the user does not own it.
 */
static void
check_owner(const RangeVar *relation)
{
	Oid			relid = member_of_ours(relation);

	if (OidIsValid(relid) && !idem_relation_ownercheck(relid, GetUserId()))
		aclcheck_error(ACLCHECK_NOT_OWNER, get_relkind_objtype(get_rel_relkind(relid)),
					   relation->relname);
}

/* Is the relation's name one of n names? */
static bool
is_one_of(Oid relid, const char *const *names, int n)
{
	char	   *name = get_rel_name(relid);
	bool		found = false;

	for (int i = 0; i < n && name != NULL && !found; i++)
		found = strcmp(name, names[i]) == 0;
	return found;
}

bool
idem_guard_written_by_c(Oid relid)
{
	return get_rel_relkind(relid) == RELKIND_RELATION &&
		!is_one_of(relid, written_by_sql, lengthof(written_by_sql));
}

/* Error 0A000 if the relation is a table of ours that may not be given this. */
static void
refuse_for(Oid relid, Addition addition)
{
	if (!OidIsValid(relid) || !is_data_schema(get_rel_namespace(relid)) ||
		!(additions[addition].to_all || idem_guard_written_by_c(relid)))
		return;
	/* the extension's own script alters its tables */
	if (creating_extension && CurrentExtensionObject == idem_extension_oid())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
			 errmsg("cannot %s \"%s.%s\"", additions[addition].what, IDEM_DATA_SCHEMA_NAME, get_rel_name(relid)),
			 errdetail("%s", additions[addition].detail),
			 errhint("Leave the extension's tables as they are. VACUUM FULL, CLUSTER and REINDEX rewrite them safely.")));
}

/*
 * Error 0A000 if a child of the relation is one of ours.  Children get what
 * their parent gets, at any depth.
 */
static void
refuse_for_children(const RangeVar *relation, Addition addition)
{
	Oid			relid = RangeVarGetRelid(relation, NoLock, true);
	Oid			extension = idem_extension_oid();
	ListCell   *lc;

	if (!OidIsValid(relid) || !OidIsValid(extension) || !has_subclass(relid))
		return;
	foreach(lc, find_all_inheritors(relid, NoLock, NULL))
	{
		if (lfirst_oid(lc) != relid &&
			getExtensionOfObject(RelationRelationId, lfirst_oid(lc)) == extension)
			refuse_for(lfirst_oid(lc), addition);
	}
}

/* Error 0A000 if the command would add to one of the extension's tables. */
static void
refuse(const RangeVar *relation, Addition addition)
{
	if (allowSystemTableMods || IsBinaryUpgrade)
		return;
	refuse_for(member_of_ours(relation), addition);
	refuse_for_children(relation, addition);
}

/* Commands, by their kind */

/* An index that is missing may be made again; others tell which kind it is. */
static void
check_index(const IndexStmt *index)
{
	Oid			relid = member_of_ours(index->relation);
	Relation	heap;
	List	   *indexes;

	if (!OidIsValid(relid) || !idem_relation_ownercheck(relid, GetUserId()))
		return;
	heap = relation_open(relid, AccessShareLock);
	indexes = RelationGetIndexList(heap);
	relation_close(heap, AccessShareLock);
	if (indexes != NIL || index->unique ||
		is_one_of(relid, without_index, lengthof(without_index)))
		refuse(index->relation, ADD_INDEX);
}

/* CREATE TABLE ... PARTITION OF; CREATE FOREIGN TABLE begins with the same. */
static void
check_create(const CreateStmt *create)
{
	ListCell   *lc;

	foreach(lc, create->inhRelations)
	{
		if (create->partbound != NULL)
			check_owner(lfirst(lc));
		refuse(lfirst(lc), SET_PARENT);
	}
}

/* Options of a table, by which logical decoding would take it for a catalog. */
static void
check_options(const RangeVar *relation, List *options)
{
	ListCell   *lc;

	foreach(lc, options)
	{
		const DefElem *option = lfirst(lc);

		if (option->defnamespace == NULL && pg_strcasecmp(option->defname, "user_catalog_table") == 0)
			refuse(relation, SET_CATALOG);
	}
}

/* Constraints that come with an index or with triggers. */
static void
refuse_constraint(const RangeVar *relation, const Constraint *constraint)
{
	switch (constraint->contype)
	{
		case CONSTR_PRIMARY:
		case CONSTR_UNIQUE:
		case CONSTR_EXCLUSION:
		case CONSTR_FOREIGN:
			refuse(relation, ADD_INDEX);
			break;
		default:
			break;
	}
}

/* Is it a sequence that the install script makes unlogged (store/keys.c)? */
static bool
is_of_keys(const RangeVar *relation)
{
	return strncmp(relation->relname, "store_keys_", strlen("store_keys_")) == 0;
}

/* ALTER SEQUENCE, which gives a sequence another file. */
static void
check_sequence(const RangeVar *sequence)
{
	if (!is_of_keys(sequence))
		return;
	check_owner(sequence);
	refuse(sequence, ALTER_KEYS);
}

/* One action of ALTER TABLE, or of ALTER INDEX or SEQUENCE. */
static void
check_action(const RangeVar *relation, const AlterTableCmd *cmd)
{
	ListCell   *lc;

	switch (cmd->subtype)
	{
		case AT_SetUnLogged:
			if (!is_of_keys(relation))
				refuse(relation, SET_UNLOGGED);
			break;
		case AT_SetLogged:
			if (is_of_keys(relation))
				refuse(relation, SET_LOGGED);
			break;
		case AT_AlterColumnType:
			refuse(relation, CHANGE_TYPE);
			break;
		case AT_AddInherit:
			refuse(relation, SET_PARENT);
			refuse((RangeVar *) cmd->def, SET_PARENT);
			break;
		case AT_AddOf:
			refuse(relation, CHANGE_TYPE);
			break;
		case AT_SetRelOptions:
			check_options(relation, (List *) cmd->def);
			break;
		case AT_ReplicaIdentity:
			if (((ReplicaIdentityStmt *) cmd->def)->identity_type == REPLICA_IDENTITY_INDEX ||
				((ReplicaIdentityStmt *) cmd->def)->identity_type == REPLICA_IDENTITY_FULL)
				refuse(relation, SET_IDENTITY);
			break;
		case AT_AddConstraint:
			refuse_constraint(relation, (Constraint *) cmd->def);
			break;
		case AT_AddColumn:
			foreach(lc, ((ColumnDef *) cmd->def)->constraints)
				refuse_constraint(relation, lfirst(lc));
			break;
		default:
			if (cmd->def == NULL || !IsA(cmd->def, PartitionCmd))
				break;
			check_owner(((PartitionCmd *) cmd->def)->name);
			if (cmd->subtype == AT_AttachPartition)
				refuse(((PartitionCmd *) cmd->def)->name, ATTACH);
			break;
	}
}

/* The checks of a statement's kind come before its locks. */
void
idem_guard_read(Node *stmt, IdemStatement *s)
{
	ListCell   *lc;

	made_statistics = InvalidOid;
	switch (nodeTag(stmt))
	{
		case T_RuleStmt:
			check_owner(((RuleStmt *) stmt)->relation);
			refuse(((RuleStmt *) stmt)->relation, ADD_RULE);
			break;
		case T_AlterObjectDependsStmt:
			if (((AlterObjectDependsStmt *) stmt)->relation != NULL)
				check_owner(((AlterObjectDependsStmt *) stmt)->relation);
			break;
		case T_CreateTrigStmt:
			refuse(((CreateTrigStmt *) stmt)->relation, ADD_TRIGGER);
			break;
		case T_IndexStmt:
			check_index((IndexStmt *) stmt);
			break;
		case T_CreateStmt:
		case T_CreateForeignTableStmt:
			check_create((CreateStmt *) stmt);
			if (((CreateStmt *) stmt)->partspec != NULL)
				s->partitioned = copyObject(((CreateStmt *) stmt)->relation);
			break;
		case T_AlterTableStmt:
			foreach(lc, ((AlterTableStmt *) stmt)->cmds)
				check_action(((AlterTableStmt *) stmt)->relation, lfirst(lc));
			break;
		case T_AlterSeqStmt:
			check_sequence(((AlterSeqStmt *) stmt)->sequence);
			break;
		default:
			break;
	}
}

/* Dependencies */

/* The schema of a relation or a type; InvalidOid for objects of other kinds. */
static Oid
schema_of(Oid classid, Oid objid)
{
	HeapTuple	tup;
	Oid			schema;

	if (classid == RelationRelationId)
		return get_rel_namespace(objid);
	if (classid != TypeRelationId)
		return InvalidOid;
	tup = SearchSysCache1(TYPEOID, ObjectIdGetDatum(objid));
	if (!HeapTupleIsValid(tup))
		return InvalidOid;
	schema = ((Form_pg_type) GETSTRUCT(tup))->typnamespace;
	ReleaseSysCache(tup);
	return schema;
}

/*
 * Visit the rows of a catalog, as the running command has left it, of which an index has
 * these two values in its first columns.
 */
static void
visit_rows(Oid catalog, Oid index, AttrNumber first, Oid oid, AttrNumber second, RegProcedure equal,
		   Datum value, void (*visit) (HeapTuple tup, void *arg), void *arg)
{
	Relation	rel = table_open(catalog, AccessShareLock);
	ScanKeyData keys[2];
	SysScanDesc scan;
	HeapTuple	tup;

	ScanKeyInit(&keys[0], first, BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(oid));
	ScanKeyInit(&keys[1], second, BTEqualStrategyNumber, equal, value);
	scan = systable_beginscan(rel, index, true, SnapshotSelf, 2, keys);
	while (HeapTupleIsValid(tup = systable_getnext(scan)))
		visit(tup, arg);
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
}

/*
 * Error 42501 if the user may not name the object that is depended on.  An
 * object of the user's own can be a part of it, as the row type of a relay's
 * foreign table is; then the dependency is not a normal one.
 */
static void
check_dependency(HeapTuple tup, void *arg)
{
	Form_pg_depend depend = (Form_pg_depend) GETSTRUCT(tup);
	Oid			schema;

	if (depend->deptype != DEPENDENCY_NORMAL || depend->refobjid < FirstNormalObjectId)
		return;
	schema = schema_of(depend->refclassid, depend->refobjid);
	if (OidIsValid(schema) && is_data_schema(schema) &&
		idem_schema_usage_check(schema, GetUserId()) != ACLCHECK_OK)
		aclcheck_error(ACLCHECK_NO_PRIV, OBJECT_SCHEMA, IDEM_DATA_SCHEMA_NAME);
}

/* Check what an object depends on that the running command has written. */
static void
check_dependencies(Oid classid, Oid objid)
{
	visit_rows(DependRelationId, DependDependerIndexId, Anum_pg_depend_classid, classid,
			   Anum_pg_depend_objid, F_OIDEQ, ObjectIdGetDatum(objid), check_dependency, NULL);
}

/* Check a table of a publication, whose conditions may depend on anything. */
static void
check_part(HeapTuple tup, void *arg)
{
	check_dependencies(((Form_pg_depend) GETSTRUCT(tup))->classid, ((Form_pg_depend) GETSTRUCT(tup))->objid);
}

/* Take the OID of a column's default. */
static void
take_default(HeapTuple tup, void *arg)
{
	*(Oid *) arg = ((Form_pg_attrdef) GETSTRUCT(tup))->oid;
}

/*
 * Superusers may name everything, so that is asked first.  The hook is told the column
 * instead of the default that the running command has given it, and the publication
 * instead of its tables.
 */
void
idem_guard_check_object(Oid classid, Oid objid, int subid)
{
	Oid			relid = objid;

	if (superuser())
		return;
	if (classid == AttrDefaultRelationId)
	{
		objid = InvalidOid;
		visit_rows(AttrDefaultRelationId, AttrDefaultIndexId, Anum_pg_attrdef_adrelid, relid,
				   Anum_pg_attrdef_adnum, F_INT2EQ, Int16GetDatum(subid), take_default, &objid);
	}
	if (classid == StatisticExtRelationId)
		made_statistics = objid;
	if (classid == PublicationRelationId)
		visit_rows(DependRelationId, DependReferenceIndexId, Anum_pg_depend_refclassid, classid,
				   Anum_pg_depend_refobjid, F_OIDEQ, ObjectIdGetDatum(objid), check_part, NULL);
	check_dependencies(classid, objid);
}

/* Check the table, which a new trigger depends on. */
static void
check_trigger(HeapTuple tup, void *arg)
{
	Form_pg_depend depend = (Form_pg_depend) GETSTRUCT(tup);

	if (depend->refclassid == RelationRelationId)
		refuse_for(depend->refobjid, ADD_TRIGGER);
}

/* Other extensions make triggers in C, by no command: for replication, for example. */
void
idem_guard_check_trigger(Oid trigger)
{
	if (!allowSystemTableMods && !IsBinaryUpgrade)
		visit_rows(DependRelationId, DependDependerIndexId, Anum_pg_depend_classid, TriggerRelationId,
				   Anum_pg_depend_objid, F_OIDEQ, ObjectIdGetDatum(trigger), check_trigger, NULL);
}

/*
 * Dependencies of extended statistics' expressions, and of a partitioned table's key,
 * come after the object access hook.
 */
void
idem_guard_check_made(const RangeVar *partitioned)
{
	if (OidIsValid(made_statistics))
		check_dependencies(StatisticExtRelationId, made_statistics);
	if (partitioned != NULL && !superuser())
		check_dependencies(RelationRelationId,
						   get_relname_relid(partitioned->relname, RangeVarGetCreationNamespace(partitioned)));
}
