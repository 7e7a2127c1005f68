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

#include "fmgr.h"

#include "compat.h"
#include "shared/args.h"
#include "store/ring.h"
#include "store/slot.h"
#include "store/state.h"

PG_FUNCTION_INFO_V1(idem_store_restored_fn);

/* Table n of those that have the trigger: segments, then slots. */
static IdemRelRef *
table(int number)
{
	return number < IDEM_STORE_SEGMENTS ? idem_store_segment_ref(number) :
		idem_slot_ref(number - IDEM_STORE_SEGMENTS);
}

/*
 * Trigger of segments and slots, for each statement that inserts rows: only a
 * restore does.  Sessions may know the segment as one that needs no probe, or the
 * runs without those that come, so they must rely on nothing until the restore
 * has committed.
 */
Datum
idem_store_restored_fn(PG_FUNCTION_ARGS)
{
	idem_require_table(fcinfo, "store_restored", table, IDEM_STORE_SEGMENTS + IDEM_STORE_SLOTS);
	idem_store_unseal();
	return PointerGetDatum(NULL);
}
