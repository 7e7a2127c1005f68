/*-------------------------------------------------------------------------
 *
 * store_fn.c
 *		SQL functions of the dedup store.
 *
 * LOCKING, MEMORY: as state.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/store_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"

#include "compat.h"
#include "store/state.h"

PG_FUNCTION_INFO_V1(idem_store_restored_fn);

/*
 * Trigger of segments and slots, for each statement that inserts rows: only a
 * restore does.  Sessions may know the segment as one that needs no probe, or the
 * runs without those that come, so they must rely on nothing until the restore
 * has committed.
 */
Datum
idem_store_restored_fn(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager", "store_restored")));
	idem_store_unseal();
	return PointerGetDatum(NULL);
}
