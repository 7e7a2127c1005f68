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

#include "access/table.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "storage/proc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/holder.h"
#include "shared/lock_wait.h"

/* The least timeout of locks that maintenance, or the server, has for a moment. */
#define PATIENCE_MS		1000

/* A lock that is waited for. */
typedef struct Wait
{
	LOCKTAG		tag;
	LOCKMODE	mode;
	bool		is_relation;
	IdemLockTitle title;
	const void *arg;
} Wait;

/* Error 55P03, in the place of the server's. */
pg_noreturn static void
report_timeout(const Wait *wait, int ms)
{
	IdemHolder *holder = idem_find_holder(&wait->tag, wait->mode);
	char	   *title = wait->title(wait->arg);

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not lock %s within %d ms", title, ms),
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
idem_work_with_timeout(int ms, void (*work) (void *arg), void *arg)
{
	int			saved = LockTimeout;

	PG_TRY();
	{
		LockTimeout = ms;
		work(arg);
	}
	PG_FINALLY();
	{
		LockTimeout = saved;
	}
	PG_END_TRY();
}

/* Wait for a lock that is not free; ms: for how long. */
static void
wait_or_report(Wait *wait, int ms)
{
	MemoryContext context = CurrentMemoryContext;

	PG_TRY();
	{
		idem_work_with_timeout(ms, wait_for_lock, wait);
	}
	PG_CATCH();
	{
		if (geterrcode() != ERRCODE_LOCK_NOT_AVAILABLE)
			PG_RE_THROW();
		MemoryContextSwitchTo(context);
		FlushErrorState();
		report_timeout(wait, ms);
	}
	PG_END_TRY();
}

void
idem_lock_acquire(const LOCKTAG *tag, LOCKMODE mode, int ms, IdemLockTitle title, const void *arg)
{
	Wait		wait = {.tag = *tag, .mode = mode, .title = title, .arg = arg};

	if (ms == 0 && LockTimeout == 0)
		wait_for_lock(&wait);
	else if (LockAcquire(tag, mode, false, true) == LOCKACQUIRE_NOT_AVAIL)
		wait_or_report(&wait, ms);
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
		wait_or_report(&wait, Max(LockTimeout, PATIENCE_MS));
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
		idem_work_with_timeout(PATIENCE_MS, work, arg);
}
