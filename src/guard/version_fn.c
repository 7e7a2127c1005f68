/*-------------------------------------------------------------------------
 *
 * version_fn.c
 *		Trigger version_guard: an update has to raise the version of its row.
 *
 * Invariant: of the updates of a row for which the trigger fires, each has a
 * greater version than the one before.  The trigger compares with OLD, and the
 * server fires a BEFORE UPDATE trigger for a row that it has locked, in the
 * newest version: it waits for another transaction that updates the row, and
 * then either takes that transaction's row for OLD, as UPDATE, MERGE and ON
 * CONFLICT DO UPDATE do at READ COMMITTED, or raises 40001.  So the trigger needs
 * no lock of its own.
 *
 * "Greater" is what the default operator class of btree for the column's type
 * says, with the column's collation.
 *
 * A crash leaves what the transactions left; the trigger writes nothing.
 *
 * LOCKING: none beyond that of the row, which the server holds.
 *
 * MEMORY: what is known of the column is kept with the trigger's FmgrInfo, that
 * is, for one relation in one execution of a statement.  Values are detoasted in
 * the caller's context, which the server resets after each row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/guard/version_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_class.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/rel.h"
#include "utils/rls.h"
#include "utils/typcache.h"

#include "compat.h"
#include "shared/args.h"
#include "shared/error.h"

#define FUNCTION_NAME	"version_guard"
#define OPTION_IGNORE	"ignore"

/* Bytes of a version that an error shows */
#define SHOWN_BYTES		64

/* What is known of the column that a trigger guards. */
typedef struct Guard
{
	Oid			relid;			/* InvalidOid: nothing is known */
	AttrNumber	attnum;
	Oid			type;
	Oid			collation;
	FmgrInfo	compare;		/* of the type's default operator class */
} Guard;

PG_FUNCTION_INFO_V1(idem_version_guard_fn);

/* Error unless the function was called, and its trigger defined, as it must be. */
static void
check_trigger(FunctionCallInfo fcinfo)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Trigger    *trigger;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_BY_UPDATE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired before update for each row", FUNCTION_NAME),
				 errhint("Create its trigger with BEFORE UPDATE and FOR EACH ROW, for no other event.")));

	trigger = data->tg_trigger;
	if (trigger->tgnargs < 1 || trigger->tgnargs > 2 ||
		(trigger->tgnargs == 2 && strcmp(trigger->tgargs[1], OPTION_IGNORE) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("trigger \"%s\" of \"%s\" has wrong arguments", trigger->tgname,
						RelationGetRelationName(data->tg_relation)),
				 errhint("Create it with %s('column') or %s('column', '%s').",
						 FUNCTION_NAME, FUNCTION_NAME, OPTION_IGNORE)));

	/* a foreign row is not locked, and may be older than the update */
	if (data->tg_relation->rd_rel->relkind == RELKIND_FOREIGN_TABLE)
		ereport(ERROR,
				(errcode(ERRCODE_WRONG_OBJECT_TYPE),
				 errmsg("function \"%s\" cannot guard the foreign table \"%s\"", FUNCTION_NAME,
						RelationGetRelationName(data->tg_relation)),
				 errhint("Create the trigger at the table that the foreign table stands for.")));
}

/* Error unless the column has values before the update, of a type that is ordered. */
static void
check_column(Relation rel, Form_pg_attribute att, Oid compare)
{
	if (att->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("function \"%s\" cannot guard the generated column \"%s\" of \"%s\"",
						FUNCTION_NAME, NameStr(att->attname), RelationGetRelationName(rel)),
				 errdetail("A generated column has no new value yet when the trigger fires."),
				 errhint("Guard a column from which it is generated.")));
	if (!OidIsValid(compare))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_FUNCTION),
				 errmsg("type %s of column \"%s\" of \"%s\" has no order", format_type_be(att->atttypid),
						NameStr(att->attname), RelationGetRelationName(rel)),
				 errhint("Guard a column whose type has a default operator class for btree.")));
}

/* Is what is known still true of the relation? */
static bool
guard_is_valid(const Guard *guard, Relation rel, const char *column)
{
	TupleDesc	desc = RelationGetDescr(rel);
	Form_pg_attribute att;

	if (guard->relid != RelationGetRelid(rel) || guard->attnum > desc->natts)
		return false;
	att = TupleDescAttr(desc, guard->attnum - 1);
	return !att->attisdropped && namestrcmp(&att->attname, column) == 0 &&
		att->atttypid == guard->type && att->attcollation == guard->collation;
}

/* Look the trigger's column up, unless it was looked up for an earlier row. */
static Guard *
get_guard(FunctionCallInfo fcinfo, Relation rel, const char *column)
{
	FmgrInfo   *flinfo = fcinfo->flinfo;
	Guard	   *guard = flinfo->fn_extra;
	Form_pg_attribute att;
	TypeCacheEntry *type;

	if (guard == NULL)
		guard = flinfo->fn_extra = MemoryContextAllocZero(flinfo->fn_mcxt, sizeof(Guard));
	if (guard_is_valid(guard, rel, column))
		return guard;

	guard->relid = InvalidOid;	/* until all is known */
	guard->attnum = idem_trigger_column(rel, column, FUNCTION_NAME, "the version");
	att = TupleDescAttr(RelationGetDescr(rel), guard->attnum - 1);
	type = lookup_type_cache(att->atttypid, TYPECACHE_CMP_PROC_FINFO);
	check_column(rel, att, type->cmp_proc_finfo.fn_oid);
	guard->type = att->atttypid;
	guard->collation = att->attcollation;
	fmgr_info_copy(&guard->compare, &type->cmp_proc_finfo, flinfo->fn_mcxt);
	guard->relid = RelationGetRelid(rel);
	return guard;
}

/* May the caller see the old version?  As for the server's errors about constraints. */
static bool
may_see(Relation rel, AttrNumber attnum)
{
	Oid			relid = RelationGetRelid(rel);

	if (check_enable_rls(relid, InvalidOid, true) == RLS_ENABLED)
		return false;
	return pg_class_aclcheck(relid, GetUserId(), ACL_SELECT) == ACLCHECK_OK ||
		pg_attribute_aclcheck(relid, attnum, GetUserId(), ACL_SELECT) == ACLCHECK_OK;
}

/* A version as text, cut off if it is long. */
static char *
show_version(Oid type, Datum version)
{
	Oid			output;
	bool		isvarlena;
	char	   *text;

	getTypeOutputInfo(type, &output, &isvarlena);
	text = OidOutputFunctionCall(output, version);

	if (strlen(text) > SHOWN_BYTES)
		memcpy(text +pg_mbcliplen(text, strlen(text), SHOWN_BYTES - 3), "...", 4);
	return text;
}

/* Error 22004: the update sets the version to null. */
pg_noreturn static void
report_null(Relation rel, const Guard *guard, const char *column)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("column \"%s\" of relation \"%s\" must not be set to null", column,
					RelationGetRelationName(rel)),
			 errhint("Give the version of the update."),
			 errtablecol(rel, guard->attnum)));
}

/* Error ID008: the update does not raise the version. */
pg_noreturn static void
report_stale(Relation rel, const Guard *guard, const char *column, Datum old, Datum new)
{
	bool		seen = may_see(rel, guard->attnum);

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_STALE_VERSION),
			 errmsg("stale version: an update of \"%s\" must raise column \"%s\"",
					RelationGetRelationName(rel), column),
			 seen ? errdetail("The row has version %s, the update has version %s.",
							  show_version(guard->type, old),
							  show_version(guard->type, new)) : 0,
			 errhint("An update with this or a newer version came first. Read the row again and decide anew, or let the trigger skip such updates with its argument '%s'.",
					 OPTION_IGNORE),
			 errtablecol(rel, guard->attnum)));
}

Datum
idem_version_guard_fn(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Relation	rel;
	const char *column;
	Guard	   *guard;
	Datum		old,
				new;
	bool		old_isnull,
				new_isnull;

	check_trigger(fcinfo);
	rel = data->tg_relation;
	column = data->tg_trigger->tgargs[0];
	guard = get_guard(fcinfo, rel, column);
	old = heap_getattr(data->tg_trigtuple, guard->attnum, RelationGetDescr(rel), &old_isnull);
	new = heap_getattr(data->tg_newtuple, guard->attnum, RelationGetDescr(rel), &new_isnull);

	if (new_isnull)
		report_null(rel, guard, column);
	if (old_isnull ||
		DatumGetInt32(FunctionCall2Coll(&guard->compare, guard->collation,
										new, old)) > 0)
		return PointerGetDatum(data->tg_newtuple);

	if (data->tg_trigger->tgnargs < 2)
		report_stale(rel, guard, column, old, new);
	/* the server does not update the row */
	return PointerGetDatum(NULL);
}
