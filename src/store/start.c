/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starts the packer of this database, and tells whether one is at work.
 *
 * There is no shared memory of ours where the library is not preloaded.  So a
 * packer that stays holds a lock of its session, whose key no SQL function can
 * take, and who wants a packer looks whether somebody holds that lock.
 *
 * A crash leaves nothing; the next claim that notices starts a packer.
 *
 * LOCKING: the lock just named, never waited for.
 *
 * MEMORY: the handle of a registered packer, in the current context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/start.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lock.h"

#include "compat.h"
#include "store/start.h"

/*
 * SET_LOCKTAG_ADVISORY's fourth field.  SQL functions use 1 and 2, private
 * locks of claims 0x4944 (claim/lock.c).
 */
#define PACKER_KEY	0x4950

#define TRIES		5
#define PAUSE_US	1000L

static void
set_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, 0, PACKER_KEY);
}

/*
 * A process between two transactions cannot be seen among the holders of a
 * lock, so the lock is tried.  If the lock table is full, this is no time to
 * start a packer.
 */
bool
idem_packer_is_at_work(void)
{
	LOCKTAG		tag;

	set_tag(&tag);
	if (idem_compat_try_lock(&tag, ShareLock) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(&tag, ShareLock, false);
	return false;
}

/* Who looks for a packer has the lock for a moment, so it is tried again. */
bool
idem_packer_go_to_work(void)
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

bool
idem_packer_register(bool once, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;
	IdemPackerOrder order;

	memset(&order, 0, sizeof(order));
	order.database = MyDatabaseId;
	order.once = once;
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "idempotency", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "idem_store_worker_main", sizeof(worker.bgw_function_name));
	snprintf(worker.bgw_name, BGW_MAXLEN, "idempotency packer for database %u", MyDatabaseId);
	strlcpy(worker.bgw_type, "idempotency packer", BGW_MAXLEN);
	memcpy(worker.bgw_extra, &order, sizeof(order));
	worker.bgw_notify_pid = handle == NULL ? 0 : MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
}
