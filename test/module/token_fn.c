/*-------------------------------------------------------------------------
 *
 * token_fn.c
 *		A SQL function by which tests draw tokens.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/token_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "compat.h"
#include "lease/token.h"

PG_FUNCTION_INFO_V1(idem_test_token_draw_fn);

/* test_token_draw(given_out bool) -> bigint: draw a token, or only a number for a row */
Datum
idem_test_token_draw_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_INT64(PG_GETARG_BOOL(0) ? idem_token_draw() : idem_token_draw_unflushed());
}
