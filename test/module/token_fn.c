/*-------------------------------------------------------------------------
 *
 * token_fn.c
 *		A SQL function by which tests draw tokens.
 *
 * The module has a copy of the library's variables, and thus of the list of logs.
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
#include "utils/lsyscache.h"

#include "compat.h"
#include "cursor/table.h"
#include "lease/table.h"
#include "lease/token.h"
#include "shared/keyed_worker.h"

PG_FUNCTION_INFO_V1(idem_test_token_draw_fn);

/* The logs that have numbers of tokens, as far as draws read them. */
static IdemKeyedLog logs[] = {
	{.tables = idem_lease_tables, .ntables = IDEM_LEASE_TABLES},
	{.tables = idem_cursor_tables, .ntables = IDEM_CURSOR_TABLES}
};

static void
add_logs(void)
{
	const IdemKeyedLog *const *added;

	if (idem_keyed_worker_logs(&added) > 0)
		return;
	for (int i = 0; i < lengthof(logs); i++)
	{
		logs[i].at = get_attnum(idem_relref_oid(&logs[i].tables[0]), "at");
		idem_keyed_worker_add(&logs[i]);
	}
}

/* test_token_draw(given_out bool) -> bigint: draw a token, or only a number for a row */
Datum
idem_test_token_draw_fn(PG_FUNCTION_ARGS)
{
	add_logs();
	PG_RETURN_INT64(PG_GETARG_BOOL(0) ? idem_token_draw() : idem_token_draw_unflushed());
}
