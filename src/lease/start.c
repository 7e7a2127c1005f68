/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starts the process that shortens the log of leases.
 *
 * Who appends to a table of the log that has grown starts the maintainer, at
 * each new page.  It is a background worker that lives as long as there is work,
 * with or without preload.
 *
 * LOCKING: the maintainer's lock, tried and given back; the maintainer keeps it.
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
#include "storage/lock.h"

#include "compat.h"
#include "lease/start.h"
#include "shared/clock.h"

/* A process starts one maintainer at most in this time. */
#define PAUSE_MS	100

/*
 * SET_LOCKTAG_ADVISORY's fourth field.  SQL functions use 1 and 2, private locks of
 * claims 0x4944 (claim/lock.c), packers 0x4950 (store/start.c).
 */
#define MAINTAINER_KEY	0x494c

#define TRIES		5
#define PAUSE_US	1000L

static IdemClock next_start = 0;

/* The lock that a maintainer has to its end; DROP EXTENSION does not wait for it. */
static void
set_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, 0, MAINTAINER_KEY);
}

/*
 * A process between two transactions cannot be seen
 * among the holders of a lock, so the lock is tried.  If the lock table is full, this is
 * no time to start a maintainer.
 */
bool
idem_lease_maintainer_is_at_work(void)
{
	LOCKTAG		tag;

	set_tag(&tag);
	if (idem_compat_try_lock(&tag, ShareLock) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

/* Who looks for a maintainer has the lock for a moment, so it is tried again. */
bool
idem_lease_maintainer_become(void)
{
	LOCKTAG		tag;

	set_tag(&tag);
	for (int i = 0; i < TRIES; i++)
	{
		if (LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
			return true;
		pg_usleep(PAUSE_US);
	}
	return false;
}

void
idem_lease_maintainer_start(void)
{
	BackgroundWorker worker;
	IdemClock	now = idem_clock();

	if (now < next_start || idem_lease_maintainer_is_at_work())
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
