/*-------------------------------------------------------------------------
 *
 * args.h
 *		Checks on SQL arguments: NULL, empty, over-long, not yet built; lengths of
 *		intervals; and settings.
 *
 * No function of the extension is STRICT.  So a NULL raises an error that
 * names its argument, instead of a silent NULL result.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/args.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ARGS_H
#define IDEM_ARGS_H

#include "postgres.h"

#include "access/tupdesc.h"
#include "datatype/timestamp.h"
#include "fmgr.h"
#include "utils/guc.h"

#include "compat.h"
#include "shared/catalog.h"

/* Define a setting whose default is the value that the variable has. */
extern void idem_define_int(const char *name, const char *what, const char *more, int *variable,
							int min, int max, GucContext context, int flags);

/* Limits in bytes of the server encoding. */
#define IDEM_MAX_ID_BYTES		1024	/* event ids */
#define IDEM_MAX_NAME_BYTES		255 /* consumers, types, aggregate ids */

/* Error 22004 if the argument is NULL. */
extern void idem_require_arg(FunctionCallInfo fcinfo, int argno, const char *name);

/*
 * Error 22004 if the array argument is NULL.  The hint says to pass an empty
 * array: some drivers and array_agg() give a NULL where no element is meant.
 */
extern void idem_require_array(FunctionCallInfo fcinfo, int argno, const char *name);

/*
 * Raise error 22004: an element of an array argument is NULL.  ord counts from
 * 1.
 */
pg_noreturn extern void idem_null_element(const char *name, int ord);

/*
 * Get the elements of a one-dimensional array, or of an empty array, and
 * return their number.  With nulls = NULL, an element that is null is an
 * error.
 */
extern int	idem_arg_array(FunctionCallInfo fcinfo, int argno, const char *name, Oid elemtype,
						   Datum **elems, bool **nulls);


/* Error 22023 unless min <= bytes <= max, where min is 0 or 1. */
extern void idem_check_element(const char *name, int ord, int bytes, int min, int max);

/*
 * Error 0A000 if the caller gave an argument of a later feature.  The hint, a
 * sentence, says how to do without the argument.  Call this after the checks
 * that will stay, and before anything changes: a call that is wrong in any
 * version then gets the lasting error.
 */
extern void idem_reject_arg(FunctionCallInfo fcinfo, int argno, const char *name,
							const char *hint);

/*
 * Which of the tables is it whose trigger has called the function?  The table is checked by
 * idem_guard_table.  If it is none of them, the first function returns -1, and the second
 * one raises error 39P01.
 */
extern int	idem_table_of_trigger(FunctionCallInfo fcinfo, IdemRelRef *tables, int ntables);
extern int	idem_require_table(FunctionCallInfo fcinfo, const char *function_name,
							   IdemRelRef *tables, int ntables);

/*
 * The data of a trigger that fires before insert for each row.  Error 39P01 if
 * the function was called in any other way.
 */
extern struct TriggerData *idem_require_insert_trigger(FunctionCallInfo fcinfo,
													   const char *function_name);

/* Error 22023 unless 1 <= bytes <= max; the message names the argument. */
extern void idem_check_length(const char *name, int bytes, int max);

/*
 * Get a text argument, detoasted, and copied only if necessary.  Errors as
 * above if it is NULL or of a wrong length.
 */
extern text *idem_get_text_arg(FunctionCallInfo fcinfo, int argno,
							   const char *name, int max);

/*
 * Error 25006 on a standby or in a read-only transaction; also an error in a
 * parallel worker.  Call this before any lock is taken.
 */
extern void idem_prevent_read_only(const char *function_name);

/*
 * Error 24000 if a COMMIT or ROLLBACK that keeps a cursor makes the call: it runs the
 * cursor's query to its end first, and that of a scrollable cursor from the beginning.
 * The call would be committed before the row's effect is made, or rolled back before it.
 * called_by_other: also if the query calls another function, and that one makes the
 * call.  Without it such a call passes, because the other function may make the effect.
 */
extern void idem_prevent_running_ahead(const char *function_name, bool called_by_other);

/*
 * The length of an interval in microseconds: a year has 365.25 days, a month 30, and a
 * day 24 hours, as extract(epoch) has it.  An interval of 290,000 years or more, and an
 * infinite one, gives PG_INT64_MAX or PG_INT64_MIN.  No other code converts an interval
 * that a user gave.
 */
extern int64 idem_interval_us(const Interval *interval);

/* As long as this, or longer, is for ever where a time may be: 100 years. */
#define IDEM_FOR_EVER_US	(INT64CONST(36525) * USECS_PER_DAY)

/*
 * The blessed row type of a function's result, with so many columns.  For a function in
 * FROM the executor has made it; to make it anew costs a tenth of lease_event.
 */
extern TupleDesc idem_row_type(FunctionCallInfo fcinfo, int ncolumns);

/* Set a column of a result that is NULL otherwise; the same of a pointer, unless it is NULL. */
static inline void
idem_set_column(Datum *values, bool *nulls, int column, Datum value)
{
	values[column] = value;
	nulls[column] = false;
}

static inline void
idem_set_pointer(Datum *values, bool *nulls, int column, const void *value)
{
	if (value != NULL)
		idem_set_column(values, nulls, column, PointerGetDatum(value));
}

/* Microseconds as an interval without days. */
extern Datum idem_interval_datum(int64 us);

/* Error 22023 unless two array arguments have the same number of elements. */
extern void idem_check_same_length(const char *a, int na, const char *b, int nb);

/*
 * The number of the column that the trigger of a table of the application names.  Error
 * 42703 if there is none; what: "the version", or whatever the column has.
 */
extern AttrNumber idem_trigger_column(Relation rel, const char *name, const char *function_name,
									  const char *what);

#endif							/* IDEM_ARGS_H */
