/*-------------------------------------------------------------------------
 *
 * empty.c
 *		Empties a table in place, without waiting and without catalog tuples.
 *
 * TRUNCATE gives a table new files and leaves dead tuples in pg_class for each
 * of them; under a pinned xmin horizon those stay.  Truncating the files in
 * place leaves nothing.  A snapshot older than that sees the table empty, as
 * it does after TRUNCATE.
 *
 * A crash in the middle leaves index entries gone and heap tuples there, or
 * the reverse of nothing; callers' tables read the same either way.  An abort
 * leaves the same; all processes were told before.  Standbys learn it at the next
 * commit that empties.
 *
 * LOCKING: conditionally only, heap before indexes before TOAST.
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

/* Lock a table and its indexes; what was locked is added to *locked. */
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
