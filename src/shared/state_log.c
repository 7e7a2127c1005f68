/*-------------------------------------------------------------------------
 *
 * state_log.c
 *		Appended rows, of which the newest of a key wins, in tables that
 *		take turns.
 *
 * A sequence numbers the rows.  The newest row of a key is the row with the
 * highest number, whichever table it is in.  The current table, the one that
 * new rows go to, is the shortest table that has rows.  Every process finds
 * the current table anew each time, so that no process keeps a longer table in
 * use.
 *
 * The tables take turns in steps, each in a transaction of its own:
 * 1. If the current table has grown, and another table is empty: a row is put
 *    into the empty table, which thereby becomes current.
 * 2. If a table that is not current has needed rows that no other table has:
 *    the rows are copied into the current table.  They keep their numbers,
 *    since others may name them.
 * 3. If each needed row of a table that is not current is in another table,
 *    too: the table is emptied in place.
 *
 * Invariant: a table becomes current only if all its files are as new.  A
 * table is emptied only if, under its exclusive lock, every needed row of it
 * stands committed in another table.  So it does no harm if a writer still
 * appends to a former current table.  If a transaction holds such a table for
 * long, the table becomes current again once the other tables are longer.
 * That costs room and nothing else.
 *
 * A crash between the steps leaves several tables with rows, which reads the
 * same: a copy has the number of its original.  A crash inside a step leaves
 * rows that never committed, or a table without rows whose files are not all
 * as new (empty.c).  That table is emptied again before its turn.  A pinned
 * xmin horizon changes nothing: no tuple is ever dead.  Dumps do not have the
 * tables, so emptying waits for no dump.
 *
 * LOCKING: to append: RowExclusiveLock on the table that is written, to the end
 * of the transaction, owned by the subtransaction (txn_owner.h).  To scan:
 * AccessShareLock on all tables in their order, taken before the snapshot and
 * kept until the scan ends.  Otherwise a turn taken between snapshot and lock
 * would hide both a row and its copy.  Maintenance takes AccessExclusiveLock on
 * the table that it wants to empty, and the locks of idem_empty_in_place, all
 * conditionally.  Maintenance also scans all tables and appends to the current
 * one, with the locks above.
 *
 * MEMORY: while maintenance empties a table, an entry for each row of all
 * tables, in the caller's context; otherwise one row at a time.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/state_log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "commands/sequence.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/guard.h"
#include "shared/state_log.h"
#include "shared/table.h"
#include "shared/txn_owner.h"

/* OID of the log's table n. */
static Oid
table_oid(const IdemStateLog *log, int n)
{
	return idem_relref_oid(&log->tables[n]);
}

/* Draw a number for a row. */
static int64
next_id(const IdemStateLog *log)
{
	idem_guard_ref(log->sequence);
	return nextval_internal(idem_relref_oid(log->sequence), false);
}

/* The length of table n, in blocks. */
static BlockNumber
table_blocks(const IdemStateLog *log, int n)
{
	Relation	rel = table_open(table_oid(log, n), AccessShareLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);

	table_close(rel, AccessShareLock);
	return blocks;
}

/*
 * The current table: the shortest that has rows, or the first table if none
 * has rows.  Cheap enough for each append.
 */
static int
find_current(const IdemStateLog *log)
{
	BlockNumber least = 0;
	int			current = 0;

	for (int n = 0; n < log->ntables; n++)
	{
		BlockNumber blocks = table_blocks(log, n);

		if (blocks > 0 && (least == 0 || blocks < least))
		{
			least = blocks;
			current = n;
		}
	}
	return current;
}

/* Open a table for writing; its lock is kept to the end of the transaction. */
static Relation
open_to_write(const IdemStateLog *log, int n)
{
	Relation	rel = table_open(table_oid(log, n), RowExclusiveLock);

	idem_guard_table(&log->tables[n], rel, IDEM_GUARD_WRITE);
	return rel;
}

/* Insert a tuple into a table, and free the tuple. */
static void
insert_tuple(Relation rel, HeapTuple tup)
{
	idem_table_append_row(rel, tup);
	heap_freetuple(tup);
}

void
idem_state_log_append(const IdemStateLog *log, const void *rows, int n, int64 *ids)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	rel;

	for (int i = 0; i < n; i++)
		ids[i] = next_id(log);

	/*
	 * Another process may make another table current just now.  That does no
	 * harm: rows are found in any table.
	 */
	rel = open_to_write(log, find_current(log));
	for (int i = 0; i < n; i++)
		insert_tuple(rel, log->form(RelationGetDescr(rel), rows, i, ids[i]));
	table_close(rel, NoLock);
	idem_txn_owner_leave(saved);
}

/* Visit each row of one table. */
static void
scan_table(Relation rel, Snapshot snapshot, int n, IdemStateVisit visit, void *arg)
{
	TableScanDesc scan = idem_compat_table_beginscan(rel, snapshot);
	HeapTuple	tup;

	while ((tup = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		visit(tup, RelationGetDescr(rel), n, arg);
	}
	table_endscan(scan);
}

void
idem_state_log_scan(const IdemStateLog *log, IdemStateVisit visit, void *arg)
{
	Relation   *rels = palloc(sizeof(Relation) * log->ntables);
	Snapshot	snapshot;

	for (int n = 0; n < log->ntables; n++)
	{
		rels[n] = table_open(table_oid(log, n), AccessShareLock);
		idem_guard_table(&log->tables[n], rels[n], IDEM_GUARD_READ);
	}
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	for (int n = 0; n < log->ntables; n++)
		scan_table(rels[n], snapshot, n, visit, arg);
	UnregisterSnapshot(snapshot);
	for (int n = 0; n < log->ntables; n++)
		table_close(rels[n], AccessShareLock);
	pfree(rels);
}

/* The entries of all rows of all tables. */
typedef struct Entries
{
	const IdemStateLog *log;
	void	   *arg;			/* the user's argument */
	char	   *entries;		/* each of log->entry_size bytes */
	Size		n;
	Size		allocated;
} Entries;

/* The entry of place i. */
static IdemStateRow *
entry_at(const Entries *e, Size i)
{
	return (IdemStateRow *) (e->entries + i * e->log->entry_size);
}

/* Add an entry for a row. */
static void
visit_to_collect(HeapTuple tup, TupleDesc desc, int table, void *arg)
{
	Entries    *e = arg;
	IdemStateRow *row;
	bool		isnull;

	if (e->n == e->allocated)
	{
		e->allocated *= 2;
		e->entries = repalloc_huge(e->entries, e->log->entry_size * e->allocated);
	}
	row = entry_at(e, e->n++);
	memset(row, 0, e->log->entry_size);
	row->id = DatumGetInt64(heap_getattr(tup, e->log->id_column, desc, &isnull));
	row->table = table;
	row->tid = tup->t_self;
	e->log->read(tup, desc, row, e->arg);
}

/* Do two entries stand for the same row, one of them a copy? */
static bool
is_same_row(const IdemStateLog *log, const IdemStateRow *a, const IdemStateRow *b)
{
	return a->id == b->id && log->compare(a, b) == 0;
}

/*
 * Order as the user does, then newest first.  Copies of a row stand side by
 * side.
 */
static int
compare_entries(const void *a, const void *b, void *arg)
{
	const IdemStateLog *log = arg;
	const IdemStateRow *x = a;
	const IdemStateRow *y = b;
	int			order = log->compare(x, y);

	if (order != 0)
		return order;
	if (x->id != y->id)
		return x->id > y->id ? -1 : 1;
	return x->table - y->table;
}

/*
 * Mark the rows that are needed and in no table but "from".  Returns how many
 * there are.
 */
static Size
mark_missing(Entries *e, int from)
{
	Size		missing = 0;
	Size		next;

	for (Size i = 0; i < e->n; i = next)
	{
		IdemStateRow *row = entry_at(e, i);
		bool		elsewhere = false;

		for (next = i; next < e->n && is_same_row(e->log, row, entry_at(e, next)); next++)
			elsewhere |= entry_at(e, next)->table != from;
		row->missing = e->log->is_needed(row, e->arg) && !elsewhere;
		missing += row->missing ? 1 : 0;
		CHECK_FOR_INTERRUPTS();
	}
	return missing;
}

/* Copy a row, with its number. */
static void
copy_row(Relation from, Relation to, const IdemStateRow *row, Snapshot snapshot,
		 TupleTableSlot *slot)
{
	ItemPointerData tid = row->tid;

	if (!table_tuple_fetch_row_version(from, &tid, snapshot, slot))
		elog(ERROR, "row " INT64_FORMAT " vanished from the locked table \"%s\"",
			 row->id, RelationGetRelationName(from));
	insert_tuple(to, idem_table_copy_row(slot, RelationGetDescr(to)));
	ExecClearTuple(slot);
	IDEM_FAULT_POINT("log-row-copied");
}

/* Copy the rows that are marked as missing into the table "to". */
static void
copy_marked(const Entries *e, int from, int to)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	from_rel = table_open(table_oid(e->log, from), AccessShareLock);
	Relation	to_rel = open_to_write(e->log, to);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TupleTableSlot *slot = table_slot_create(from_rel, NULL);

	for (Size i = 0; i < e->n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (entry_at(e, i)->missing)
			copy_row(from_rel, to_rel, entry_at(e, i), snapshot, slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	UnregisterSnapshot(snapshot);
	table_close(to_rel, NoLock);
	table_close(from_rel, AccessShareLock);
	idem_txn_owner_leave(saved);
}

/*
 * Copy the needed rows of "from" that no other table has.  Returns whether
 * there were any.  The caller's lock keeps "from" unchanged.
 */
static bool
copy_missing(const IdemStateLog *log, int from, int to, void *arg)
{
	Entries		e = {log, arg, NULL, 0, 1024};
	Size		missing;

	if (log->begin)
		log->begin(arg);
	e.entries = palloc(log->entry_size * e.allocated);
	idem_state_log_scan(log, visit_to_collect, &e);
	qsort_arg(e.entries, e.n, log->entry_size, compare_entries, (void *) log);
	missing = mark_missing(&e, from);
	if (missing > 0)
		copy_marked(&e, from, to);
	pfree(e.entries);
	return missing > 0;
}

/*
 * Make an empty table current: any row makes it the shortest table that has
 * rows.
 */
static void
make_current(const IdemStateLog *log, int n)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	rel = open_to_write(log, n);

	insert_tuple(rel, log->form_marker(RelationGetDescr(rel), next_id(log)));
	table_close(rel, NoLock);
	idem_txn_owner_leave(saved);
	IDEM_FAULT_POINT("log-switched");
}

void
idem_state_log_maintain(const IdemStateLog *log, void *arg)
{
	int			current = find_current(log);
	int			empty = -1;

	for (int n = 0; n < log->ntables; n++)
	{
		/* A current table without rows may be what a crash left, too. */
		if (n == current && table_blocks(log, n) > 0)
			continue;
		if (idem_empty_look(table_oid(log, n)) == IDEM_FILES_NEW)
		{
			if (empty < 0)
				empty = n;
			continue;
		}

		/* No writer may be at work in the table that is going to be emptied. */
		if (!ConditionalLockRelationOid(table_oid(log, n), AccessExclusiveLock))
			continue;
		if (n == current ? table_blocks(log, n) == 0 : !copy_missing(log, n, current, arg))
			(void) idem_empty_in_place(table_oid(log, n));
		return;
	}
	if (empty >= 0 && table_blocks(log, current) > log->max_blocks)
		make_current(log, empty);
}

bool
idem_state_log_has_remains(const IdemStateLog *log)
{
	bool		remains = false;

	for (int n = 0; n < log->ntables && !remains; n++)
	{
		IdemFiles	state = idem_empty_look(table_oid(log, n));

		remains = state == IDEM_FILES_REMAINS || state == IDEM_FILES_LOCKED;
	}
	return remains;
}
