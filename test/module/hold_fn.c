/*-------------------------------------------------------------------------
 *
 * hold_fn.c
 *		SQL functions by which tests hold what others have for a moment only: a
 *		transaction that others already see, and the lock by which the server
 *		extends a table.
 *
 * The callbacks of a commit run when the transaction has become visible, and
 * before it has released its locks.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/hold_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/table.h"
#include "access/xact.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"

#include "compat.h"

#define LOOK_AGAIN_US	2000

PG_FUNCTION_INFO_V1(idem_test_hold_commit_fn);
PG_FUNCTION_INFO_V1(idem_test_hold_extension_fn);

static char hold_file[MAXPGPATH];	/* empty: hold no transaction */

/* Commit callback: wait while the file exists. */
static void
hold(XactEvent event, void *arg)
{
	while (event == XACT_EVENT_COMMIT && hold_file[0] != '\0' && access(hold_file, F_OK) == 0)
		pg_usleep(LOOK_AGAIN_US);
	if (event == XACT_EVENT_COMMIT || event == XACT_EVENT_ABORT)
		hold_file[0] = '\0';
}

/*
 * test_hold_commit(file text) -> void: hold this transaction's commit while
 * the file exists
 */
Datum
idem_test_hold_commit_fn(PG_FUNCTION_ARGS)
{
	static bool registered = false;

	if (!registered)
		RegisterXactCallback(hold, NULL);
	registered = true;
	text_to_cstring_buffer(PG_GETARG_TEXT_PP(0), hold_file, sizeof(hold_file));
	PG_RETURN_VOID();
}

/*
 * test_hold_extension(table_oid oid, file text) -> void: while the file exists,
 * hold the lock by which the server extends the table
 */
Datum
idem_test_hold_extension_fn(PG_FUNCTION_ARGS)
{
	Relation	rel = table_open(PG_GETARG_OID(0), AccessShareLock);
	char	   *file = text_to_cstring(PG_GETARG_TEXT_PP(1));

	LockRelationForExtension(rel, ExclusiveLock);
	while (access(file, F_OK) == 0)
	{
		CHECK_FOR_INTERRUPTS();
		pg_usleep(LOOK_AGAIN_US);
	}
	UnlockRelationForExtension(rel, ExclusiveLock);
	table_close(rel, AccessShareLock);
	PG_RETURN_VOID();
}
