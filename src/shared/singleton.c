/*-------------------------------------------------------------------------
 *
 * singleton.c
 *		Background workers of which a database has one at a time.
 *
 * There is no shared memory of ours where the library is not preloaded.  So such a
 * worker holds a lock of its session, whose key no SQL function can take, and who wants
 * a worker looks whether somebody holds that lock.
 *
 * A crash leaves nothing; whoever notices next that there is work starts a worker.
 *
 * LOCKING: the lock just named, never waited for.  DROP EXTENSION does not wait for it
 * either.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/singleton.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "compat.h"
#include "shared/singleton.h"

#define TRIES		5
#define PAUSE_US	1000L

static void
set_tag(LOCKTAG *tag, IdemSingleton kind)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, 0, kind);
}

/*
 * A process between two transactions cannot be seen among the holders of a
 * lock, so the lock is tried.  If the lock table is full, this is no time to
 * start a worker.
 */
bool
idem_singleton_is_at_work(IdemSingleton kind)
{
	LOCKTAG		tag;

	set_tag(&tag, kind);
	if (idem_compat_try_lock(&tag, ShareLock) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

/* Who looks for a worker has the lock for a moment, so it is tried again. */
bool
idem_singleton_become(IdemSingleton kind)
{
	LOCKTAG		tag;

	set_tag(&tag, kind);
	for (int i = 0; i < TRIES; i++)
	{
		if (LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
			return true;
		pg_usleep(PAUSE_US);
	}
	return false;
}

void
idem_singleton_describe(BackgroundWorker *worker, const char *function, const char *type)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "idempotency", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
	snprintf(worker->bgw_name, BGW_MAXLEN, "%s for database %u", type, MyDatabaseId);
}
