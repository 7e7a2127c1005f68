/*-------------------------------------------------------------------------
 *
 * durable.c
 *		Waits until the commits that a snapshot saw can no longer be
 *		un-committed; makes the transaction's own commit wait so.
 *
 * The commit log keeps the LSNs of asynchronous commits only.  Take a commit
 * whose wait for a synchronous standby was cancelled: it is visible and
 * locally flushed, but nothing tells it from a replicated commit.  So the
 * position to wait for is the local flush position as of now.  It is not
 * before any commit record that is visible and flushed.
 *
 * This file does not join the queue of waiting commits.  SyncRepWaitForLSN()
 * waits only as far as the session's synchronous_commit says, and turns a
 * cancel into a warning; but the caller must not go on as if the standby had
 * answered.  Walsenders publish the confirmed positions in shared memory
 * whether anybody waits or not, so it is enough to look there now and then.
 *
 * LOCKING: SyncRepLock, shared, for a moment.
 *
 * MEMORY: none; one flag for the transaction.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/durable.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "replication/syncrep.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/lwlock.h"
#include "utils/guc.h"

#include "compat.h"
#include "shared/durable.h"
#include "shared/fault.h"
#include "shared/worker.h"

/*
 * The first pause is about a local round trip; the longest pause gives ten
 * looks a second.
 */
#define MIN_PAUSE_MS	1
#define MAX_PAUSE_MS	100

/*
 * Lock the commit log, which keeps it from being truncated between the check of the
 * oldest xid and the look-up.  False if it does not have the transaction any more.
 */
static bool
lock_commit_log(FullTransactionId fxid)
{
	uint64		next = U64FromFullTransactionId(ReadNextFullTransactionId());

	/*
	 * More than half the circle of xids away, the comparison below means
	 * nothing.
	 */
	if (next - U64FromFullTransactionId(fxid) > MaxTransactionId / 2)
		return false;
	LWLockAcquire(XactTruncationLock, LW_SHARED);
	if (!TransactionIdPrecedes(XidFromFullTransactionId(fxid), IDEM_OLDEST_CLOG_XID))
		return true;
	LWLockRelease(XactTruncationLock);
	return false;
}

XLogRecPtr
idem_durable_commit_lsn(FullTransactionId fxid)
{
	XLogRecPtr	lsn = InvalidXLogRecPtr;

	if (lock_commit_log(fxid))
	{
		lsn = TransactionIdGetCommitLSN(XidFromFullTransactionId(fxid));
		LWLockRelease(XactTruncationLock);
	}
	return lsn;
}

/* The transaction has ended, so "not committed" means "aborted". */
bool
idem_durable_did_abort(FullTransactionId fxid)
{
	bool		aborted = false;

	if (lock_commit_log(fxid))
	{
		aborted = !TransactionIdDidCommit(XidFromFullTransactionId(fxid));
		LWLockRelease(XactTruncationLock);
	}
	return aborted;
}

XLogRecPtr
idem_durable_target(XLogRecPtr commit_lsn)
{
	if (!XLogRecPtrIsInvalid(commit_lsn))
	{
		IDEM_FAULT_POINT("durable-flush");
		XLogFlush(commit_lsn);
	}
	return GetFlushRecPtr(NULL);
}

bool
idem_durable_awaits_standby(void)
{
	return max_wal_senders > 0 && IDEM_SYNC_STANDBYS_DEFINED();
}

bool
idem_durable_reached(XLogRecPtr target)
{
	XLogRecPtr	confirmed;

	if (!idem_durable_awaits_standby())
		return true;
	LWLockAcquire(SyncRepLock, LW_SHARED);
	confirmed = WalSndCtl->lsn[SYNC_REP_WAIT_FLUSH];
	LWLockRelease(SyncRepLock);
	return confirmed >= target;
}

void
idem_durable_wait(XLogRecPtr target)
{
	long		pause = MIN_PAUSE_MS;

	while (!idem_durable_reached(target))
	{
		IDEM_FAULT_POINT("durable-wait");
		idem_pause(pause);
		pause = Min(pause * 2, MAX_PAUSE_MS);
	}
}

/*
 * Is the transaction's commit to be durable?  A request that was rolled back with its
 * savepoint stays: the commit then waits for nothing's sake.
 */
static bool commit_is_forced = false;

void
idem_durable_force_commit(void)
{
	commit_is_forced = true;
}

/*
 * ForceSyncCommit forces the local flush without touching settings.  Whether a commit
 * waits for synchronous standbys is up to synchronous_commit alone, which is raised for
 * the rest of the transaction: not sooner, since a client may set it at any time.
 */
void
idem_durable_commits(void)
{
	if (!commit_is_forced)
		return;
	ForceSyncCommit();
	if (idem_durable_awaits_standby() &&
		synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		(void) set_config_option("synchronous_commit", "on",
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

void
idem_durable_ended(void)
{
	commit_is_forced = false;
}
