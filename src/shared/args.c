/*-------------------------------------------------------------------------
 *
 * args.c
 *		Checks on SQL arguments: NULL, empty, over-long, not yet built; lengths of
 *		intervals; and settings.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/args.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "tcop/pquery.h"
#include "tcop/utility.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/lsyscache.h"
#include "utils/portal.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "shared/args.h"
#include "shared/guard.h"

void
idem_define_int(const char *name, const char *what, const char *more, int *variable,
				int min, int max, GucContext context, int flags)
{
	DefineCustomIntVariable(name, what, more, variable, *variable, min, max, context, flags, NULL, NULL, NULL);
}

void
idem_require_arg(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" must not be null", name)));
}

void
idem_require_array(FunctionCallInfo fcinfo, int argno, const char *name)
{
	if (PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
				 errmsg("argument \"%s\" must not be null", name),
				 errhint("Pass an empty array if there are no elements. array_agg() over no rows is null, ARRAY(SELECT ...) is empty.")));
}

void
idem_null_element(const char *name, int ord)
{
	ereport(ERROR,
			(errcode(ERRCODE_NULL_VALUE_NOT_ALLOWED),
			 errmsg("element %d of argument \"%s\" must not be null",
					ord, name)));
}

int
idem_arg_array(FunctionCallInfo fcinfo, int argno, const char *name, Oid elemtype,
			   Datum **elems, bool **nulls)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(argno);
	int			n;
	bool	   *isnull;
	int16		typlen;
	bool		typbyval;
	char		typalign;

	if (ARR_NDIM(array) > 1)
		ereport(ERROR,
				(errcode(ERRCODE_ARRAY_SUBSCRIPT_ERROR),
				 errmsg("argument \"%s\" must be a one-dimensional array", name)));
	get_typlenbyvalalign(elemtype, &typlen, &typbyval, &typalign);
	deconstruct_array(array, elemtype, typlen, typbyval, typalign,
					  elems, &isnull, &n);
	for (int i = 0; nulls == NULL && i < n; i++)
	{
		if (isnull[i])
			idem_null_element(name, i + 1);
	}
	if (nulls != NULL)
		*nulls = isnull;
	return n;
}


void
idem_check_element(const char *name, int ord, int bytes, int min, int max)
{
	if (bytes < min || bytes > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 bytes < min ?
				 errmsg("element %d of argument \"%s\" must not be empty", ord, name) :
				 errmsg("element %d of argument \"%s\" is too long", ord, name),
				 bytes < min ? 0 :
				 errdetail("It has %d bytes; at most %d are allowed.", bytes, max)));
}

void
idem_reject_arg(FunctionCallInfo fcinfo, int argno, const char *name,
				const char *hint)
{
	if (!PG_ARGISNULL(argno))
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("argument \"%s\" is not supported by this version",
						name),
				 errhint("%s", hint)));
}

int
idem_table_of_trigger(FunctionCallInfo fcinfo, IdemRelRef *tables, int ntables)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	for (int i = 0; i < ntables && CALLED_AS_TRIGGER(fcinfo); i++)
	{
		if (RelationGetRelid(trigger->tg_relation) != idem_relref_oid(&tables[i]))
			continue;
		idem_guard_table(&tables[i], trigger->tg_relation, IDEM_GUARD_READ);
		return i;
	}
	return -1;
}

int
idem_require_table(FunctionCallInfo fcinfo, const char *function_name, IdemRelRef *tables, int ntables)
{
	int			number = idem_table_of_trigger(fcinfo, tables, ntables);

	if (number < 0)
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 !CALLED_AS_TRIGGER(fcinfo) ?
				 errmsg("function \"%s\" was not called by trigger manager", function_name) :
				 errmsg("function \"%s\" cannot be the trigger of table \"%s\"", function_name,
						RelationGetRelationName(((TriggerData *) fcinfo->context)->tg_relation)),
				 !CALLED_AS_TRIGGER(fcinfo) ? 0 :
				 errhint("It is for tables of the extension, which have this trigger.")));
	return number;
}

TriggerData *
idem_require_insert_trigger(FunctionCallInfo fcinfo, const char *function_name)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired before insert for each row",
						function_name)));
	return trigger;
}

void
idem_check_length(const char *name, int bytes, int max)
{
	if (bytes == 0)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must not be empty", name)));
	if (bytes > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" is too long", name),
				 errdetail("It has %d bytes; at most %d are allowed.",
						   bytes, max)));
}

text *
idem_get_text_arg(FunctionCallInfo fcinfo, int argno, const char *name, int max)
{
	text	   *value;

	idem_require_arg(fcinfo, argno, name);
	value = PG_GETARG_TEXT_PP(argno);
	idem_check_length(name, VARSIZE_ANY_EXHDR(value), max);
	return value;
}

void
idem_prevent_read_only(const char *function_name)
{
	/* recovery first: a standby's transaction is read-only, too */
	PreventCommandDuringRecovery(function_name);
	PreventCommandIfReadOnly(function_name);
	PreventCommandIfParallelMode(function_name);
}

/*
 * ActivePortal has strategy PORTAL_ONE_SELECT and a store of rows only while
 * PersistHoldablePortal runs it: the other strategies collect their rows in a store, too,
 * and a cursor that is kept already has no query any more.  A function that the query
 * calls runs its own statements under snapshots of their own.  A call of a function that
 * fetches from a cursor of its own is not noticed, since that cursor is ActivePortal then.
 */
void
idem_prevent_running_ahead(const char *function_name, bool called_by_other)
{
	Portal		portal = ActivePortal;

	if (likely(portal == NULL || portal->holdStore == NULL ||
			   portal->strategy != PORTAL_ONE_SELECT || portal->queryDesc == NULL))
		return;
	if (!called_by_other && ActiveSnapshotSet() &&
		GetActiveSnapshot() != portal->queryDesc->snapshot)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_INVALID_CURSOR_STATE),
			 errmsg("%s cannot be called by a cursor that is kept after the end of its transaction",
					function_name),
			 errdetail("COMMIT and ROLLBACK run the cursor's query for all rows that were not fetched yet, before anything is done about these rows."),
			 errhint("Read the rows first, and call %s for each one by a statement of its own, for example inside of the loop.",
					 function_name)));
}

int64
idem_interval_us(const Interval *interval)
{
	int64		quarters = (int64) (interval->month / MONTHS_PER_YEAR) * (4 * 365 + 1) +
	(interval->month % MONTHS_PER_YEAR) * (4 * DAYS_PER_MONTH) + 4 * (int64) interval->day;
	double		us = (double) quarters * (USECS_PER_DAY / 4) + (double) interval->time;

	/* floating point shows whether the sum fits; then it is exact modulo 2^64 */
	if (us >= 9.15e18)
		return PG_INT64_MAX;
	if (us <= -9.15e18)
		return PG_INT64_MIN;
	return (int64) ((uint64) quarters * (uint64) (USECS_PER_DAY / 4) + (uint64) interval->time);
}

TupleDesc
idem_row_type(FunctionCallInfo fcinfo, int ncolumns)
{
	ReturnSetInfo *info = (ReturnSetInfo *) fcinfo->resultinfo;
	TupleDesc	desc = info != NULL && IsA(info, ReturnSetInfo) ? info->expectedDesc : NULL;

	if (desc == NULL && get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type is not a row type");
	if (desc->natts != ncolumns)
		elog(ERROR, "row type has %d columns instead of %d", desc->natts, ncolumns);
	return BlessTupleDesc(desc);
}

Datum
idem_interval_datum(int64 us)
{
	Interval   *interval = palloc0(sizeof(Interval));

	interval->time = us;
	return IntervalPGetDatum(interval);
}

void
idem_check_same_length(const char *a, int na, const char *b, int nb)
{
	if (na != nb)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("arguments \"%s\" and \"%s\" must have the same number of elements", a, b),
				 errdetail("They have %d and %d.", na, nb)));
}

AttrNumber
idem_trigger_column(Relation rel, const char *name, const char *function_name, const char *what)
{
	int			attnum = SPI_fnumber(RelationGetDescr(rel), name);

	if (attnum <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", name,
						RelationGetRelationName(rel)),
				 errhint("Create the trigger of \"%s\" with the name of the column that has %s.",
						 function_name, what)));
	return attnum;
}
