/*-------------------------------------------------------------------------
 *
 * args.h
 *		Checks on SQL arguments: NULL, empty, over-long, not yet built.
 *
 * No function of the extension is STRICT, so that a NULL is an error that
 * names its argument instead of a silent NULL result.
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

#include "fmgr.h"

#include "compat.h"

/* Limits in bytes of the server encoding. */
#define IDEM_MAX_ID_BYTES		1024	/* event ids */
#define IDEM_MAX_NAME_BYTES		255 /* consumers, types, aggregate ids */

/* 22004 unless the argument is there. */
extern void idem_require_arg(FunctionCallInfo fcinfo, int argno, const char *name);

/* 22004 for a NULL inside an array argument; ord counts from 1. */
pg_noreturn extern void idem_null_element(const char *name, int ord);

/*
 * 0A000 if an argument of a later feature was given; the hint, a sentence, says
 * how to get along without.  Call it after the checks that will stay, so that a
 * call which is wrong for good is told that first, and before anything changes.
 */
extern void idem_reject_arg(FunctionCallInfo fcinfo, int argno, const char *name,
							const char *hint);

/* 22023 unless 1 <= bytes <= max; the message names the argument. */
extern void idem_check_length(const char *name, int bytes, int max);

/* The text argument, detoasted, not copied if it need not be; checked as above. */
extern text *idem_get_text_arg(FunctionCallInfo fcinfo, int argno,
							   const char *name, int max);

/* 25006 on a standby or in a read-only transaction; call before any lock. */
extern void idem_prevent_read_only(const char *function_name);

#endif							/* IDEM_ARGS_H */
