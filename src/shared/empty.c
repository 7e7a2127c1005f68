/*-------------------------------------------------------------------------
 *
 * empty.c
 *		Empties a table in place, without waiting and without catalog tuples.
 *
 * TRUNCATE gives a table new files and leaves dead tuples in pg_class for each
 * of them; under a pinned xmin horizon those stay.  Truncating the files in
 * place leaves no dead tuple.  A snapshot that is older than the emptying sees the
 * table empty, as it does after TRUNCATE.
 *
 * The heap is cut first, then each of its indexes is cut and built anew, then
 * likewise the TOAST table and its index (heap_truncate_one_rel).  A crash leaves
 * the first of these steps done.  The table has no rows then, but an index may have
 * entries or no blocks at all, and the TOAST table values that no row refers to,
 * until the next emptying.  A table that is read by an index has the index cut
 * before the heap (outbox/maintain.c).
 *
 * An abort takes no step back.  The processes of this server were told before the
 * first one (idem_empty_announce); a standby's backends learn it from the commit
 * record, after an abort from that of the next emptying.
 *
 * LOCKING: AccessExclusiveLock on heap, indexes, TOAST table and its index, in this
 * order, each only if it is to be had at once; kept by the current resource owner.
 *
 * MEMORY: a list of OIDs in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/empty.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/table.h"
#include "catalog/heap.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/sinval.h"
#include "utils/rel.h"

#include "shared/empty.h"
#include "shared/fault.h"

/* Lock a table, its indexes and its TOAST table; *locked gets their OIDs. */
static bool
lock_with_indexes(Oid relid, List **locked)
{
	Relation	rel;
	List	   *indexes;
	ListCell   *lc;
	bool		ok = true;

	if (!ConditionalLockRelationOid(relid, AccessExclusiveLock))
		return false;
	*locked = lappend_oid(*locked, relid);
	rel = table_open(relid, NoLock);
	indexes = RelationGetIndexList(rel);
	foreach(lc, indexes)
	{
		ok = ConditionalLockRelationOid(lfirst_oid(lc), AccessExclusiveLock);
		if (!ok)
			break;
		*locked = lappend_oid(*locked, lfirst_oid(lc));
	}
	list_free(indexes);
	if (ok && OidIsValid(rel->rd_rel->reltoastrelid))
		ok = lock_with_indexes(rel->rd_rel->reltoastrelid, locked);
	table_close(rel, NoLock);
	return ok;
}

bool
idem_empty_is_held(Oid relid)
{
	LOCKTAG		tag;
	int			n;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	pfree(GetLockConflicts(&tag, AccessExclusiveLock, &n));
	return n > 0;
}

List *
idem_empty_lock(Oid relid)
{
	List	   *locked = NIL;
	ListCell   *lc;

	if (lock_with_indexes(relid, &locked))
		return locked;
	foreach(lc, locked)
		UnlockRelationOid(lfirst_oid(lc), AccessExclusiveLock);
	list_free(locked);
	return NIL;
}

/*
 * The invalidations that cutting queues are sent at commit only.  After an
 * abort others would go on with the root page that they have cached of a larger
 * index, and find no such block.  Sent before the cut these are right as well:
 * nobody can read a root anew until the lock is gone.
 */
void
idem_empty_announce(const List *locked)
{
	ListCell   *lc;

	foreach(lc, locked)
	{
		SharedInvalidationMessage msg;

		/* padding goes to shared memory as well */
		memset(&msg, 0, sizeof(msg));
		msg.rc.id = SHAREDINVALRELCACHE_ID;
		msg.rc.dbId = MyDatabaseId;
		msg.rc.relId = lfirst_oid(lc);
		SendSharedInvalidMessages(&msg, 1);
	}
}

bool
idem_empty_in_place(Oid relid)
{
	List	   *locked = idem_empty_lock(relid);
	Relation	rel;

	if (locked == NIL)
		return false;
	rel = table_open(relid, NoLock);
	IDEM_FAULT_POINT("log-empty-locked");

	/* Between the files nothing may come but a crash. */
	HOLD_INTERRUPTS();
	idem_empty_announce(locked);
	heap_truncate_one_rel(rel);
	IDEM_FAULT_POINT("log-emptied");
	RESUME_INTERRUPTS();
	table_close(rel, NoLock);
	list_free(locked);
	return true;
}
