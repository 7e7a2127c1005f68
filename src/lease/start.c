/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starts the process that shortens the log of leases.
 *
 * Who appends to a table of the log that has grown starts the maintainer, at
 * each new page.  It is a background worker that lives as long as there is work,
 * with or without preload.
 *
 * LOCKING: none; the maintainer's lock on lease_number is tried and given back.
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
#include "storage/lmgr.h"

#include "compat.h"
#include "lease/start.h"
#include "lease/table.h"
#include "shared/clock.h"

/* A process starts one maintainer at most in this time. */
#define PAUSE_MS	100

static IdemClock next_start = 0;

/* Is a maintainer at work just now? */
static bool
is_at_work(void)
{
	Oid			oid = idem_relref_oid(&idem_lease_number);

	if (!ConditionalLockRelationOid(oid, ShareUpdateExclusiveLock))
		return true;
	UnlockRelationOid(oid, ShareUpdateExclusiveLock);
	return false;
}

void
idem_lease_maintainer_start(void)
{
	BackgroundWorker worker;
	IdemClock	now = idem_clock();

	if (now < next_start || is_at_work())
		return;
	next_start = idem_clock_plus_ms(now, PAUSE_MS);
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "idempotency", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "idem_lease_worker_main", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "idempotency leases of database %u", MyDatabaseId);
	strlcpy(worker.bgw_type, "idempotency leases", BGW_MAXLEN);
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	(void) RegisterDynamicBackgroundWorker(&worker, NULL);
}
