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
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"

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

/* Is an older snapshot a dump's?  unknown: each one may be. */
static bool
has_older(TransactionId last, bool unknown)
{
	LOCKTAG		tag;
	int			nolder;
	int			nholders;
	VirtualTransactionId *older = get_older(last, &nolder);
	VirtualTransactionId *holders;
	bool		found = unknown && nolder > 0;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, ExtensionRelationId);
	holders = GetLockConflicts(&tag, AccessExclusiveLock, &nholders);
	for (int i = 0; i < nolder && !found; i++)
		found = is_among(older[i], holders, nholders);
	pfree(older);
	pfree(holders);
	return found;
}

bool
idem_dump_is_older(const IdemDumpMark *mark)
{
	return has_older(mark->last, idem_clock_ms_until(idem_clock_plus_ms(mark->at, UNKNOWN_MS)) > 0);
}

bool
idem_dump_runs(void)
{
	IdemDumpMark now;

	idem_dump_mark(&now);
	return has_older(now.last, false);
}
