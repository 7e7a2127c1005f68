/*-------------------------------------------------------------------------
 *
 * arg.h
 *		The arguments that functions of offsets and sequences share.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/arg.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CURSOR_ARG_H
#define IDEM_CURSOR_ARG_H

#include "postgres.h"

#include "fmgr.h"

/* Get a bigint from 0 to max; errors 22004 and 22023, which name it. */
extern int64 idem_cursor_arg_number(FunctionCallInfo fcinfo, int argno, const char *name, int64 max);

/* The same of any size into *value; NULL if the argument is. */
extern const int64 *idem_cursor_arg_optional(FunctionCallInfo fcinfo, int argno, const char *name,
											 int64 *value);

/* Get an int of at least min. */
extern int32 idem_cursor_arg_int(FunctionCallInfo fcinfo, int argno, const char *name, int32 min,
								 int32 max);

extern int32 idem_cursor_arg_partition(FunctionCallInfo fcinfo, int argno);

#endif							/* IDEM_CURSOR_ARG_H */
