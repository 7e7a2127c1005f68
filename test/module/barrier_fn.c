/*-------------------------------------------------------------------------
 *
 * barrier_fn.c
 *		A SQL function that returns with a timeout and a barrier pending at once.
 *
 * The server raises the timeout and forgets the barrier until the next interrupt.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/barrier_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "miscadmin.h"
#include "storage/procsignal.h"

#include "compat.h"

PG_FUNCTION_INFO_V1(idem_test_await_barrier_fn);

/* await_barrier(): serves no interrupt until both are there */
Datum
idem_test_await_barrier_fn(PG_FUNCTION_ARGS)
{
	while (!(ProcSignalBarrierPending && QueryCancelPending))
		pg_usleep(1000L);
	PG_RETURN_VOID();
}
