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
 * the reverse of nothing; callers' tables read the same either way.
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
#include "utils/rel.h"

#include "shared/empty.h"

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
	if (ok && OidIsValid(rel->rd_rel->reltoastrelid))
		ok = lock_with_indexes(rel->rd_rel->reltoastrelid, locked);
	table_close(rel, NoLock);
	return ok;
}

bool
idem_empty_in_place(Oid relid)
{
	List	   *locked = NIL;
	Relation	rel;
	ListCell   *lc;

	if (!lock_with_indexes(relid, &locked))
	{
		foreach(lc, locked)
			UnlockRelationOid(lfirst_oid(lc), AccessExclusiveLock);
		return false;
	}
	rel = table_open(relid, NoLock);

	/* Between the files nothing may come but a crash. */
	HOLD_INTERRUPTS();
	heap_truncate_one_rel(rel);
	RESUME_INTERRUPTS();
	table_close(rel, NoLock);
	return true;
}
