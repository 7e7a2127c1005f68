/*-------------------------------------------------------------------------
 *
 * lock_wait.c
 *		Waits for locks, and says in the error what was waited for, and for whom.
 *
 * A user's lock_timeout is meant for the locks of other users.  It applies to each lock
 * of the session all the same: to that of a table which the extension empties, and to
 * that by which the server extends a file.  With 5 ms two of a hundred claims failed.
 * So locks that maintenance may have, or the server for a moment, are waited for a
 * second at least.  All other waits have the user's timeout.
 *
 * The server's error of a timeout names nothing.  Ours names the object and the
 * process that holds it.
 *
 * An error leaves lock_timeout as it was.
 *
 * LOCKING: what the callers ask for.
 *
 * MEMORY: that of the error.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/lock_wait.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/subtrans.h"
#include "access/table.h"
#include "access/transam.h"
#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/lock_wait.h"

/*
 * Names what holds a lock, for the views and errors that say so, and for commands
 * that wait for them all.
 */

/* The same for the transaction that keeps the table from being emptied without a lock. */
static const char *
changer(Oid oid, const char *session)
{
	TransactionId xid = idem_relation_changer(oid);

	if (!TransactionIdIsValid(xid))
		return NULL;
	return BackendXidGetPid(SubTransGetTopmostTransaction(xid)) == 0 ? "prepared transaction" : session;
}

const char *
idem_holder(Oid oid, LOCKMODE mode, const char *session)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			n;
	bool		have_more;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, oid);
	holders = GetLockConflicts(&tag, mode, &n);
	for (int i = 0; i < n; i++)
	{
		if (VirtualTransactionIdIsRecoveredPreparedXact(holders[i]) ||
			TransactionIdIsValid(TwoPhaseGetXidByVirtualXID(holders[i], &have_more)))
			return "prepared transaction";
	}
	if (n > 0)
		return session;
	return mode == AccessExclusiveLock ? changer(oid, session) : NULL;
}

IdemHolder *
idem_holders(const LOCKTAG *tag, LOCKMASK modes, int *n)
{
	LockData   *data = GetLockStatusData();
	IdemHolder *holders = palloc(Max(data->nelements, 1) * sizeof(IdemHolder));

	*n = 0;
	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];

		CHECK_FOR_INTERRUPTS();
		if (memcmp(&lock->locktag, tag, sizeof(LOCKTAG)) != 0 || (lock->holdMask & modes) == 0 ||
			lock->pid == MyProcPid)
			continue;
		holders[(*n)++] = (IdemHolder)
		{
			.vxid = idem_compat_lock_vxid(lock), .pid = lock->pid
		};
	}
	return holders;
}

/* One who holds a lock that a lock of this mode conflicts with; NULL: nobody. */
static IdemHolder *
find_holder(const LOCKTAG *tag, LOCKMODE mode)
{
	LOCKMASK	modes = 0;
	IdemHolder *holders;
	int			n;

	for (LOCKMODE held = AccessShareLock; held <= AccessExclusiveLock; held++)
	{
		if (DoLockModesConflict(held, mode))
			modes |= LOCKBIT_ON(held);
	}
	holders = idem_holders(tag, modes, &n);
	return n > 0 ? &holders[0] : NULL;
}

/* The least timeout of locks that maintenance, or the server, has for a moment. */
#define PATIENCE_MS		1000

/* A lock that is waited for. */
typedef struct Wait
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	bool		is_relation;
	int			ms;				/* for how long */
	IdemLockTitle title;
	const void *arg;
} Wait;

/* Callback: error 55P03, in the place of the server's. */
static void
report_timeout(void *arg)
{
	const Wait *wait = arg;
	IdemHolder *holder = find_holder(&wait->tag, wait->mode);
	char	   *title = wait->title(wait->arg);

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not lock %s within %d ms", title, wait->ms),
			 holder == NULL ? 0 :
			 holder->pid == 0 ? errdetail("A prepared transaction has locked it.") :
			 errdetail("Process %d has locked it.", holder->pid),
			 errhint("Try again when that transaction has ended, or with a longer lock_timeout.")));
}

/* Callback: wait for the lock. */
static void
wait_for_lock(void *arg)
{
	const Wait *wait = arg;

	if (wait->is_relation)
		LockRelationOid(wait->tag.locktag_field2, wait->mode);
	else
		(void) LockAcquire(&wait->tag, wait->mode, false, false);
}

void
idem_work_with_timeout(int ms, void (*work) (void *arg), void (*report) (void *arg), void *arg)
{
	MemoryContext context = CurrentMemoryContext;
	int			saved = LockTimeout;

	PG_TRY();
	{
		LockTimeout = ms;
		work(arg);
		LockTimeout = saved;
	}
	PG_CATCH();
	{
		LockTimeout = saved;
		if (report == NULL || geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		report(arg);
	}
	PG_END_TRY();
}

void
idem_lock_acquire(const LOCKTAG *tag, LOCKMODE mode, int ms, IdemLockTitle title, const void *arg)
{
	Wait		wait = {.tag = *tag, .mode = mode, .ms = ms, .title = title, .arg = arg};

	if (ms == 0 && LockTimeout == 0)
		wait_for_lock(&wait);
	else if (LockAcquire(tag, mode, false, true) == LOCKACQUIRE_NOT_AVAIL)
		idem_work_with_timeout(ms, wait_for_lock, report_timeout, &wait);
}

/* IdemLockTitle of a table; arg: its OID. */
static char *
table_title(const void *arg)
{
	char	   *name = get_rel_name(*(const Oid *) arg);

	return psprintf("table \"%s.%s\"", IDEM_DATA_SCHEMA_NAME, name == NULL ? "?" : name);
}

void
idem_lock_table(Oid oid, LOCKMODE mode)
{
	Wait		wait = {.mode = mode, .is_relation = true, .title = table_title, .arg = &oid};

	if (LockTimeout == 0)
		LockRelationOid(oid, mode);
	else if (!ConditionalLockRelationOid(oid, mode))
	{
		SET_LOCKTAG_RELATION(wait.tag, MyDatabaseId, oid);
		wait.ms = Max(LockTimeout, PATIENCE_MS);
		idem_work_with_timeout(wait.ms, wait_for_lock, report_timeout, &wait);
	}
}

Relation
idem_table_open_patiently(Oid oid, LOCKMODE mode)
{
	idem_lock_table(oid, mode);
	return table_open(oid, NoLock);
}

void
idem_work_patiently(void (*work) (void *arg), void *arg)
{
	if (LockTimeout == 0 || LockTimeout >= PATIENCE_MS)
		work(arg);
	else
		idem_work_with_timeout(PATIENCE_MS, work, NULL, arg);
}
