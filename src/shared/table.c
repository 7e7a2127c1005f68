/*-------------------------------------------------------------------------
 *
 * table.c
 *		Appends rows to a table, and their index entries, without the executor.
 *
 * These are the rows of events, claims, leases, cursors and positions.  SPI would cost
 * several times as much, and would let a row security policy, a rule,
 * session_replication_role or the search_path decide what is written.
 *
 * Invariant: each row gets an entry in every index that is ready for entries.  An index
 * that CREATE or REINDEX CONCURRENTLY has only announced has no pages yet; it gets its
 * entries when it is built, and waits before that for who has a lock on the table.  All
 * indexes are of the table's form, or guard_table.c would have refused the table.
 *
 * What a crash leaves: rows of a transaction that never committed, and the entries of the
 * first few of them.
 *
 * LOCKING: the callers have RowExclusiveLock on the table, to the end of the
 * (sub)transaction.  RowExclusiveLock on the indexes, for ALTER INDEX ... SET TABLESPACE,
 * which copies an index under no other lock.  The heap insert takes it on the TOAST table
 * and its index.
 *
 * MEMORY: rows are in the caller's context.  A user's slots, of about
 * 250 bytes each, live as long as the process.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/genam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "nodes/execnodes.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "shared/lock_wait.h"
#include "shared/table.h"

/* The argument of index_insert; a plain btree reads nothing from it, and keeps nothing in it. */
static IndexInfo index_info = {.type = T_IndexInfo};

/* Indexes */

/* To copy the relcache's list would cost more than the rest of this. */
int
idem_table_indexes(Relation heap, Oid *oids)
{
	ListCell   *lc;
	int			n = 0;

	if (!heap->rd_indexvalid)
		list_free(RelationGetIndexList(heap));
	foreach(lc, heap->rd_indexlist)
	{
		if (n == IDEM_TABLE_INDEXES)
			ereport(ERROR,
					(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
					 errmsg("table \"%s\" has more than %d indexes", RelationGetRelationName(heap), IDEM_TABLE_INDEXES),
					 errhint("Drop the invalid ones, which REINDEX CONCURRENTLY leaves behind when it is cancelled.")));
		oids[n++] = lfirst_oid(lc);
	}
	return n;
}

Oid
idem_table_index(Relation heap, const IdemIndexForm *form)
{
	Oid			oids[IDEM_TABLE_INDEXES];
	int			n = idem_table_indexes(heap, oids);

	for (int i = 0; i < n; i++)
	{
		Relation	index = RelationIdGetRelation(oids[i]);
		bool		valid = RelationIsValid(index) && index->rd_index->indisvalid;

		if (RelationIsValid(index))
			RelationClose(index);
		if (valid)
			return oids[i];
	}
	idem_guard_report_no_index(heap, form);
}

void
idem_table_open_indexes(Relation heap, const IdemIndexForm *form, IdemTableIndexes *indexes)
{
	Oid			oids[IDEM_TABLE_INDEXES];
	int			n = idem_table_indexes(heap, oids);

	indexes->n = 0;
	for (int i = 0; i < n; i++)
	{
		Relation	index = index_open(oids[i], RowExclusiveLock);

		if (index->rd_index->indisready)
			indexes->rels[indexes->n++] = index;
		else
			index_close(index, NoLock);
	}
	if (indexes->n == 0 && form != NULL)
		idem_guard_report_no_index(heap, form);
}

void
idem_table_close_indexes(const IdemTableIndexes *indexes, LOCKMODE mode)
{
	for (int i = 0; i < indexes->n; i++)
		index_close(indexes->rels[i], mode);
}

void
idem_table_insert_entry(Relation heap, Relation index, const Datum *values, const bool *nulls,
						const ItemPointerData *tid)
{
	index_insert(index, unconstify(Datum *, values), unconstify(bool *, nulls),
				 unconstify(ItemPointerData *, tid), heap, UNIQUE_CHECK_NO, false, &index_info);
}

void
idem_table_insert_entries(Relation heap, const IdemTableIndexes *indexes, HeapTuple row)
{
	for (int i = 0; i < indexes->n; i++)
	{
		Form_pg_index key = indexes->rels[i]->rd_index;
		Datum		values[INDEX_MAX_KEYS];
		bool		nulls[INDEX_MAX_KEYS];

		for (int k = 0; k < key->indnkeyatts; k++)
			values[k] = heap_getattr(row, key->indkey.values[k], RelationGetDescr(heap), &nulls[k]);
		idem_table_insert_entry(heap, indexes->rels[i], values, nulls, &row->t_self);
	}
}

/* Rows */

HeapTuple
idem_table_form_row(TupleDesc desc, int n, const Datum *values, const bool *nulls)
{
	Datum	   *all_values;
	bool	   *all_nulls;
	HeapTuple	row;

	if (desc->natts <= n)
		return heap_form_tuple(desc, unconstify(Datum *, values), unconstify(bool *, nulls));
	all_values = palloc0(desc->natts * sizeof(Datum));
	all_nulls = palloc(desc->natts * sizeof(bool));
	memset(all_nulls, true, desc->natts * sizeof(bool));
	memcpy(all_values, values, n * sizeof(Datum));
	memcpy(all_nulls, nulls, n * sizeof(bool));
	row = heap_form_tuple(desc, all_values, all_nulls);
	pfree(all_values);
	pfree(all_nulls);
	return row;
}

void
idem_table_take_apart(TupleDesc desc, int n, HeapTuple row, Datum *values, bool *nulls)
{
	if (desc->natts == n)
	{
		heap_deform_tuple(row, desc, values, nulls);
		return;
	}
	for (int i = 0; i < n; i++)
		values[i] = heap_getattr(row, i + 1, desc, &nulls[i]);
}

/* The type of column i, from 0; InvalidOid if there is none, or a dropped one. */
static Oid
type_of(TupleDesc desc, int i)
{
	return i < desc->natts && !TupleDescAttr(desc, i)->attisdropped ?
		TupleDescAttr(desc, i)->atttypid : InvalidOid;
}

HeapTuple
idem_table_copy_row(TupleTableSlot *slot, TupleDesc to)
{
	TupleDesc	from = slot->tts_tupleDescriptor;
	Datum	   *values = palloc0(to->natts * sizeof(Datum));
	bool	   *nulls = palloc(to->natts * sizeof(bool));
	HeapTuple	row;

	slot_getallattrs(slot);
	for (int i = 0; i < to->natts; i++)
	{
		Oid			type = type_of(to, i);

		nulls[i] = !OidIsValid(type) || type_of(from, i) != type || slot->tts_isnull[i];
		if (!nulls[i])
			values[i] = slot->tts_values[i];
	}
	row = heap_form_tuple(to, values, nulls);
	pfree(values);
	pfree(nulls);
	return row;
}

/* Have two tables columns of the same types? */
static bool
have_same_types(TupleDesc a, TupleDesc b)
{
	for (int i = 0; i < a->natts && a->natts == b->natts; i++)
	{
		if (TupleDescAttr(a, i)->atttypid != TupleDescAttr(b, i)->atttypid)
			return false;
	}
	return a->natts == b->natts;
}

/* Make n slots for rows of a table, unless they are there. */
static void
make_slots(IdemTableSlots *slots, TupleDesc desc, int n)
{
	MemoryContext old;

	if (slots->context == NULL)
		slots->context = AllocSetContextCreate(TopMemoryContext, "idempotency slots", ALLOCSET_DEFAULT_SIZES);
	old = MemoryContextSwitchTo(slots->context);
	if (slots->desc == NULL || !have_same_types(slots->desc, desc))
	{
		slots->desc = NULL;
		memset(slots->slots, 0, sizeof(slots->slots));
		MemoryContextReset(slots->context);
		slots->desc = CreateTupleDescCopy(desc);
	}
	for (int i = 0; i < n; i++)
	{
		if (slots->slots[i] == NULL)
			slots->slots[i] = MakeSingleTupleTableSlot(slots->desc, &TTSOpsHeapTuple);
	}
	MemoryContextSwitchTo(old);
}

/*
 * Lend a row to a slot, which neither copies it nor frees it; nor the row of an earlier
 * call, whose memory may be gone.
 */
static void
lend(HeapTuple row, TupleTableSlot *slot)
{
	slot->tts_flags &= ~TTS_FLAG_SHOULDFREE;
	ExecStoreHeapTuple(row, slot, true);
}

void
idem_table_append(Relation heap, IdemTableSlots *slots, HeapTuple *rows, int n,
				  int options, BulkInsertState bulk)
{
	CommandId	cid = GetCurrentCommandId(true);

	Assert(n > 0 && n <= IDEM_TABLE_ROWS);
	if (n == 1 && bulk == NULL)
	{
		heap_insert(heap, rows[0], cid, options, NULL);
		return;
	}
	make_slots(slots, RelationGetDescr(heap), n);
	for (int i = 0; i < n; i++)
		lend(rows[i], slots->slots[i]);
	heap_multi_insert(heap, slots->slots, n, cid, options, bulk);
	for (int i = 0; i < n; i++)
		rows[i]->t_self = slots->slots[i]->tts_tid;
}

void
idem_table_visit_page(Relation heap, BlockNumber block, BufferAccessStrategy strategy,
					  void (*visit) (Relation heap, HeapTuple row, void *arg), void *arg)
{
	Buffer		buffer = ReadBufferExtended(heap, MAIN_FORKNUM, block, RBM_NORMAL, strategy);
	HeapTupleData row;
	int			last;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	last = PageGetMaxOffsetNumber(BufferGetPage(buffer));
	for (int off = FirstOffsetNumber; off <= last; off++)
	{
		if (idem_table_row_at(heap, buffer, off, &row))
			visit(heap, &row, arg);
	}
	UnlockReleaseBuffer(buffer);
}

int64
idem_table_bytes_out_of_line(TupleTableSlot *slot)
{
	TupleDesc	desc = slot->tts_tupleDescriptor;
	int64		bytes = 0;

	slot_getallattrs(slot);
	for (int i = 0; i < desc->natts; i++)
	{
		if (!slot->tts_isnull[i] && TupleDescAttr(desc, i)->attlen == -1 &&
			VARATT_IS_EXTERNAL(DatumGetPointer(slot->tts_values[i])))
			bytes += toast_datum_size(slot->tts_values[i]);
	}
	return bytes;
}

/* A row to be appended. */
typedef struct NewRow
{
	Relation	heap;
	HeapTuple	row;
} NewRow;

/* Callback: append a row and its entries. */
static void
append_row(void *arg)
{
	NewRow	   *new_row = arg;
	IdemTableIndexes indexes;

	idem_table_open_indexes(new_row->heap, NULL, &indexes);
	idem_table_append(new_row->heap, NULL, &new_row->row, 1, 0, NULL);
	idem_table_insert_entries(new_row->heap, &indexes, new_row->row);
	idem_table_close_indexes(&indexes, NoLock);
}

void
idem_table_append_row(Relation heap, HeapTuple row)
{
	NewRow		new_row = {heap, row};

	idem_work_patiently(append_row, &new_row);
}
