/*-------------------------------------------------------------------------
 *
 * dump.c
 *		Does a dump of the database run?
 *
 * A dump copies the tables of an extension one by one, as of one snapshot, and locks
 * each of them only when it comes to it.  So nothing tells beforehand which tables it
 * is going to read.  But pg_dump has to read pg_extension, which names the tables,
 * right after it has taken its snapshot, and keeps the lock of that query to its end.
 * Applications do not read pg_extension in transactions that they leave open; the
 * server's own reads of it give their lock back at once.
 *
 * Before that a pg_dump with patterns (-t, -T, -n, -N) finds what they match, which takes long if there
 * are many.  It has a lock on pg_namespace then, which it keeps to its end, too.  So a session
 * that has an old snapshot, and has read pg_namespace, is taken for a dump as well.
 *
 * pg_dump --serializable-deferrable waits between the two, with its snapshot, until the
 * open serializable transactions have ended.  So a session that waits for a safe
 * snapshot is taken for a dump, and for a while after its wait any session may be it.
 *
 * Snapshots of a standby's sessions are not seen here.
 *
 * LOCKING: the lock manager's and the process array's own, for a moment.
 *
 * MEMORY: a list of the database's sessions, freed at once.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/dump.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "catalog/pg_extension.h"
#include "catalog/pg_namespace.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "storage/sinvaladt.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "shared/dump.h"

/*
 * For how long a transaction with an older snapshot may not have shown yet whether it
 * is a dump
 */
#ifdef IDEMPOTENCY_FAULT_POINTS
#define UNKNOWN_MS	100			/* the tests empty often */
#else
#define UNKNOWN_MS	5000
#endif

void
idem_dump_mark(IdemDumpMark *mark)
{
	mark->at = idem_clock();
	mark->last = ReadNextTransactionId();
	TransactionIdRetreat(mark->last);
}

/* The sessions of this database that have an older snapshot; *n: how many. */
static VirtualTransactionId *
get_older(TransactionId last, int *n)
{
	return GetCurrentVirtualXIDs(last, true, false, PROC_IS_AUTOVACUUM | PROC_IN_VACUUM, n);
}

/* Is the transaction among the n holders of a lock? */
static bool
is_among(VirtualTransactionId vxid, const VirtualTransactionId *holders, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (VirtualTransactionIdEquals(vxid, holders[i]))
			return true;
	}
	return false;
}

/* When this process last saw a session wait for a safe snapshot */
static IdemClock waited_at = 0;

/* Does the session wait for a safe snapshot? */
static bool
waits_for_safe(VirtualTransactionId vxid)
{
	PGPROC	   *proc = idem_compat_vxid_proc(vxid);

	if (proc == NULL || *(volatile uint32 *) &proc->wait_event_info != WAIT_EVENT_SAFE_SNAPSHOT)
		return false;
	waited_at = idem_clock();
	return true;
}

/* May a session with an older snapshot still show that it is a dump? */
static bool
is_recent(IdemClock at)
{
	return at != 0 && idem_clock_ms_until(idem_clock_plus_ms(at, UNKNOWN_MS)) > 0;
}

/* Has one of the n sessions a lock on a catalog that a dump reads at its beginning? */
static bool
have_lock(const VirtualTransactionId *sessions, int n, Oid catalog)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			nholders;
	bool		found = false;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, catalog);
	holders = GetLockConflicts(&tag, AccessExclusiveLock, &nholders);
	for (int i = 0; i < n && !found; i++)
		found = is_among(sessions[i], holders, nholders);
	pfree(holders);
	return found;
}

/* Is an older snapshot a dump's?  unknown: each one may be. */
static bool
has_older(TransactionId last, bool unknown)
{
	int			nolder;
	VirtualTransactionId *older = get_older(last, &nolder);
	bool		found = (unknown || is_recent(waited_at)) && nolder > 0;

	for (int i = 0; i < nolder; i++)
		found |= waits_for_safe(older[i]);
	if (!found && nolder > 0)
		found = have_lock(older, nolder, ExtensionRelationId) || have_lock(older, nolder, NamespaceRelationId);
	pfree(older);
	return found;
}

bool
idem_dump_is_older(const IdemDumpMark *mark)
{
	return has_older(mark->last, is_recent(mark->at));
}

bool
idem_dump_runs(void)
{
	IdemDumpMark now;

	idem_dump_mark(&now);
	return has_older(now.last, false);
}
