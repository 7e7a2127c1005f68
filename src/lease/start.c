/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starts the process that shortens the log of leases.
 *
 * Who appends to a table of the log that has grown starts the maintainer, at
 * each new page.  It is a background worker that lives as long as there is work,
 * with or without preload.
 *
 * LOCKING: singleton.c.
 *
 * MEMORY: the time of the last start.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/start.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"

#include "lease/start.h"
#include "shared/clock.h"
#include "shared/singleton.h"

/* A process starts one maintainer at most in this time. */
#define PAUSE_MS	100

static IdemClock next_start = 0;

void
idem_lease_maintainer_start(void)
{
	BackgroundWorker worker;
	IdemClock	now = idem_clock();

	if (now < next_start || idem_singleton_is_at_work(IDEM_SINGLETON_LEASES))
		return;
	next_start = idem_clock_plus_ms(now, PAUSE_MS);
	idem_singleton_describe(&worker, "idem_lease_worker_main", "idempotency leases");
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	(void) RegisterDynamicBackgroundWorker(&worker, NULL);
}
