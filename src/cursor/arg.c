/*-------------------------------------------------------------------------
 *
 * arg.c
 *		The arguments that functions of offsets and sequences share.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/arg.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "cursor/arg.h"
#include "shared/args.h"

static void
check_range(const char *name, int64 value, int64 min, int64 max)
{
	if (value < min)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at least " INT64_FORMAT, name, min)));
	if (value > max)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" must be at most " INT64_FORMAT, name, max)));
}

int64
idem_cursor_arg_number(FunctionCallInfo fcinfo, int argno, const char *name, int64 max)
{
	idem_require_arg(fcinfo, argno, name);
	check_range(name, PG_GETARG_INT64(argno), 0, max);
	return PG_GETARG_INT64(argno);
}

const int64 *
idem_cursor_arg_optional(FunctionCallInfo fcinfo, int argno, const char *name, int64 *value)
{
	if (PG_ARGISNULL(argno))
		return NULL;
	*value = idem_cursor_arg_number(fcinfo, argno, name, PG_INT64_MAX);
	return value;
}

int32
idem_cursor_arg_int(FunctionCallInfo fcinfo, int argno, const char *name, int32 min, int32 max)
{
	idem_require_arg(fcinfo, argno, name);
	check_range(name, PG_GETARG_INT32(argno), min, max);
	return PG_GETARG_INT32(argno);
}

int32
idem_cursor_arg_partition(FunctionCallInfo fcinfo, int argno)
{
	return idem_cursor_arg_int(fcinfo, argno, "partition", 0, PG_INT32_MAX);
}
