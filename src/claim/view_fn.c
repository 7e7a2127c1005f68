/*-------------------------------------------------------------------------
 *
 * view_fn.c
 *		SQL function behind the view processed_events.
 *
 * LOCKING, MEMORY: shared/rows.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/view_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "claim/store.h"
#include "compat.h"

PG_FUNCTION_INFO_V1(idem_processed_events_source_fn);

Datum
idem_processed_events_source_fn(PG_FUNCTION_ARGS)
{
	return idem_store_next_row(fcinfo);
}
