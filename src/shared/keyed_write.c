/*-------------------------------------------------------------------------
 *
 * keyed_write.c
 *		Writes a row of a keyed log into a table.
 *
 * LOCKING: RowExclusiveLock on the indexes, to the end of the transaction.
 *
 * MEMORY: one row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_write.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "catalog/pg_index.h"
#include "executor/tuptable.h"
#include "nodes/execnodes.h"
#include "utils/rel.h"

#include "compat.h"
#include "shared/guard.h"
#include "shared/keyed_write.h"
#include "shared/lock_wait.h"

/* REINDEX CONCURRENTLY makes a second index of this kind. */
static bool
is_keyed_index(Relation index)
{
	static const AttrNumber columns[] = {IDEM_KEYED_DIGEST, IDEM_KEYED_KIND, IDEM_KEYED_NUMBER};
	static const int16 options[] = {0, 0, INDOPTION_DESC | INDOPTION_NULLS_FIRST};

	return idem_guard_is_index(index, lengthof(columns), columns, options);
}

/*
 * Insert the entry of a row, which is in the heap already, into one index.  An index that
 * CREATE or REINDEX CONCURRENTLY has only announced has no pages yet, and gets its entries
 * when it is built.  Error 0A000 for an index that somebody added.
 */
static void
insert_index_entry(Relation heap, Oid indexid, TupleTableSlot *slot)
{
	Relation	index = index_open(indexid, RowExclusiveLock);
	IndexInfo  *info = BuildIndexInfo(index);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (!info->ii_ReadyForInserts)
	{
		index_close(index, NoLock);
		pfree(info);
		return;
	}
	if (!is_keyed_index(index))
		idem_guard_report_index(heap, index);
	FormIndexDatum(info, slot, NULL, values, nulls);
	index_insert(index, values, nulls, &slot->tts_tid, heap,
				 info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, info);
	idem_compat_index_insert_cleanup(index, info);
	index_close(index, NoLock);
	pfree(info);
}

/* A row to be inserted. */
typedef struct NewRow
{
	Relation	heap;
	TupleTableSlot *slot;
} NewRow;

/* Callback: insert a row and its index entries. */
static void
insert(void *arg)
{
	const NewRow *row = arg;
	List	   *indexes = RelationGetIndexList(row->heap);
	ListCell   *lc;

	table_tuple_insert(row->heap, row->slot, GetCurrentCommandId(true), 0, NULL);
	foreach(lc, indexes)
		insert_index_entry(row->heap, lfirst_oid(lc), row->slot);
	list_free(indexes);
}

ItemPointerData
idem_keyed_insert(const IdemKeyedLog *log, Relation heap, HeapTuple tuple)
{
	NewRow		row = {
		.heap = heap, .slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple)
	};
	ItemPointerData tid;

	ExecStoreHeapTuple(tuple, row.slot, true);
	idem_work_patiently(insert, &row);
	tid = row.slot->tts_tid;
	ExecDropSingleTupleTableSlot(row.slot);
	return tid;
}
