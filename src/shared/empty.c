/*-------------------------------------------------------------------------
 *
 * empty.c
 *		Empties a table in place, without waiting and without catalog tuples.
 *
 * TRUNCATE gives a table new files and leaves dead tuples in pg_class for each
 * of them.  Under a pinned xmin horizon those dead tuples stay.  Truncating
 * the files in place leaves no dead tuple.  A snapshot that is older than the
 * emptying sees the table empty, as it does after TRUNCATE.
 *
 * The heap is cut first.  Then each of its indexes is cut and built anew.
 * Then the TOAST table and its index follow in the same way
 * (heap_truncate_one_rel).  A crash leaves the first few of these steps done.
 * The table has no rows then.  But until the next emptying an index may have
 * entries, or no blocks at all, and the TOAST table may have values that no
 * row refers to.  Nobody can write a long value to a TOAST table whose index
 * has no blocks.  So a table that is not pristine (idem_empty_is_pristine) is
 * emptied again before anybody writes to it.  A table whose readers go by an
 * index needs the index cut before the heap (outbox/maintain.c).
 *
 * Building an index writes into the rows of pg_class in place, and waits for a
 * transaction that has changed such a row: GRANT and REVOKE do, and lock no table.  Whoever
 * waits for that with the table locked, and interrupts held, stops everybody for as
 * long as that transaction stays open.  So a table with such a row is not free, and
 * the rows are locked as PostgreSQL does it before a GRANT, which then waits for
 * the emptying.
 *
 * An abort undoes none of these steps.  The processes of this server were told
 * before the first step (idem_empty_announce).  The backends of a standby are
 * told by the commit record; after an abort, by the commit record of the next
 * emptying.
 *
 * LOCKING: AccessExclusiveLock on heap, indexes, TOAST table and its index, in
 * this order, then InplaceUpdateTupleLock on their rows of pg_class.  Each is
 * taken only if it is free.  The current resource owner keeps them.  A look
 * (idem_empty_is_pristine) takes AccessShareLock on indexes and TOAST table,
 * each only if it is free, and gives it back.
 *
 * MEMORY: a list of OIDs and some tags of locks in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/empty.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/table.h"
#include "catalog/heap.h"
#include "catalog/pg_am.h"
#include "catalog/pg_class.h"
#include "miscadmin.h"
#include "nodes/pg_list.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "storage/sinval.h"
#include "utils/rel.h"
#include "utils/syscache.h"

#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/fault.h"

/*
 * Lock a table, its indexes and its TOAST table; false if a lock is not free.
 * *locked gets the OIDs of the relations that are locked.
 */
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

/*
 * Lock a relation's row in pg_class; false if somebody else has it.  Minor releases before
 * 15.9, 16.5 and 17.1 do not know this lock, and wait for no row.
 */
static bool
lock_row(Oid relid, LOCKTAG *tag)
{
	HeapTuple	tuple = SearchSysCache1(RELOID, ObjectIdGetDatum(relid));

	if (!HeapTupleIsValid(tuple))
		return false;
	SET_LOCKTAG_TUPLE(*tag, MyDatabaseId, RelationRelationId,
					  ItemPointerGetBlockNumber(&tuple->t_self),
					  ItemPointerGetOffsetNumber(&tuple->t_self));
	ReleaseSysCache(tuple);
	if (LockAcquire(tag, ExclusiveLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
		return false;
	if (!TransactionIdIsValid(idem_relation_changer(relid)))
		return true;
	LockRelease(tag, ExclusiveLock, false);
	return false;
}

/* Lock the rows of all the relations, or none. */
static bool
lock_rows(const List *locked)
{
	LOCKTAG    *tags = palloc(list_length(locked) * sizeof(LOCKTAG));
	int			n = 0;
	ListCell   *lc;

	foreach(lc, locked)
	{
		if (!lock_row(lfirst_oid(lc), &tags[n]))
			break;
		n++;
	}
	if (lc != NULL)
	{
		while (n > 0)
			LockRelease(&tags[--n], ExclusiveLock, false);
	}
	pfree(tags);
	return lc == NULL;
}

bool
idem_empty_is_held(Oid relid)
{
	LOCKTAG		tag;
	int			n;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, relid);
	pfree(GetLockConflicts(&tag, AccessExclusiveLock, &n));
	return n > 0 || TransactionIdIsValid(idem_relation_changer(relid));
}

List *
idem_empty_lock(Oid relid)
{
	List	   *locked = NIL;
	ListCell   *lc;

	if (lock_with_indexes(relid, &locked) && lock_rows(locked))
		return locked;
	foreach(lc, locked)
		UnlockRelationOid(lfirst_oid(lc), AccessExclusiveLock);
	list_free(locked);
	return NIL;
}

/*
 * Is the index as new?  False if its lock is not to be had.  Only of a btree
 * it is known how many blocks it has without entries.
 */
static bool
index_is_pristine(Oid oid)
{
	Relation	index;
	BlockNumber blocks;
	bool		pristine;

	if (!ConditionalLockRelationOid(oid, AccessShareLock))
		return false;
	index = index_open(oid, NoLock);
	blocks = RelationGetNumberOfBlocks(index);
	pristine = index->rd_rel->relam == BTREE_AM_OID ? blocks == IDEM_EMPTY_INDEX_BLOCKS :
		blocks > 0;
	index_close(index, AccessShareLock);
	return pristine;
}

/*
 * Are all live indexes as new?  An invalid index is among them: it may have
 * entries that a crash left.
 */
static bool
indexes_are_pristine(Relation heap)
{
	List	   *indexes = RelationGetIndexList(heap);
	bool		pristine = true;
	ListCell   *lc;

	foreach(lc, indexes)
		pristine = pristine && index_is_pristine(lfirst_oid(lc));
	list_free(indexes);
	return pristine;
}

bool
idem_empty_is_pristine(Relation heap)
{
	Oid			toast_oid = heap->rd_rel->reltoastrelid;
	Relation	toast;
	bool		pristine = RelationGetNumberOfBlocks(heap) == 0 && indexes_are_pristine(heap);

	if (!pristine || !OidIsValid(toast_oid))
		return pristine;
	if (!ConditionalLockRelationOid(toast_oid, AccessShareLock))
		return false;
	toast = table_open(toast_oid, NoLock);
	pristine = idem_empty_is_pristine(toast);
	table_close(toast, AccessShareLock);
	return pristine;
}

IdemFiles
idem_empty_look(Oid relid)
{
	Relation	rel = idem_table_open_nowait(relid, AccessShareLock);
	IdemFiles	state;

	if (rel == NULL)
		return IDEM_FILES_LOCKED;
	if (RelationGetNumberOfBlocks(rel) > 0)
		state = IDEM_FILES_ROWS;
	else
		state = idem_empty_is_pristine(rel) ? IDEM_FILES_NEW : IDEM_FILES_REMAINS;
	table_close(rel, AccessShareLock);
	return state;
}

/*
 * Cutting queues invalidations, but these are sent at commit only.  After an
 * abort other processes would go on with the root page of a larger index,
 * which they have cached, and find no such block.  So this function sends the
 * invalidations before the cut.  That is early enough and not too early:
 * nobody can read a root anew until the lock is gone.
 */
void
idem_empty_announce(const List *locked)
{
	ListCell   *lc;

	foreach(lc, locked)
		idem_announce_change(lfirst_oid(lc));
}

void
idem_announce_change(Oid relid)
{
	SharedInvalidationMessage msg;

	/* the padding goes to shared memory, too */
	memset(&msg, 0, sizeof(msg));
	msg.rc.id = SHAREDINVALRELCACHE_ID;
	msg.rc.dbId = MyDatabaseId;
	msg.rc.relId = relid;
	SendSharedInvalidMessages(&msg, 1);
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

	/* No cancel may come between the cuts of the files. */
	HOLD_INTERRUPTS();
	idem_empty_announce(locked);
	heap_truncate_one_rel(rel);
	IDEM_FAULT_POINT("log-emptied");
	RESUME_INTERRUPTS();
	table_close(rel, NoLock);
	list_free(locked);
	return true;
}
