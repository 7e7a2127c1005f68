/*-------------------------------------------------------------------------
 *
 * copy.c
 *		Copies a closed segment into runs, one of each class that it has.
 *
 * A completion of turn 1 becomes a digest on a page; its result, if it has one,
 * goes beside it as a detail, and its id is dropped unless its consumer keeps
 * ids.  Every other entry is kept as it is.  Claims that were kept, orders to
 * forget, and what follows them are few.
 *
 * Invariant: the runs have every committed entry of the segment.  The segment is
 * closed, and ShareLock on it was free for a moment, so nobody writes to it any
 * more: who finds it current later on locks it, reads the state again, and
 * leaves it.  The lock is not kept, so that those do not wait.
 *
 * What a crash leaves: pages without an end mark, which do not count; or the
 * runs, whose entries are in the segment as well, until the segment is marked
 * packed (pack.c).  Some of the runs may be there without the others: one
 * transaction writes them all, but a run counts with its own end mark.
 *
 * LOCKING: ShareLock on the segment for a moment, then AccessShareLock on the
 * segment, then RowExclusiveLock on the slot.  Each is taken only if it is free; the
 * last two are kept to the end of the transaction.
 *
 * MEMORY: an entry's values are in a context of their own, reset for each entry.  The
 * sort of digests and places takes maintenance_work_mem, and files beyond it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/copy.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relation.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplesort.h"
#include "utils/typcache.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/xid.h"
#include "store/copy.h"
#include "store/pace.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/run.h"
#include "store/survey.h"

struct IdemCopy
{
	Relation	heap;
	Snapshot	snapshot;
	FullTransactionId next_xid; /* read after the snapshot was taken */
	int64		rows[IDEM_RETENTION_CLASSES];	/* that the snapshot sees, by
												 * class */
	IdemRun		runs[IDEM_RETENTION_CLASSES];	/* what they say of all
												 * entries is set first */
};

bool
idem_copy_is_drained(int segment)
{
	Oid			oid = idem_store_segment_oid(segment);

	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	UnlockRelationOid(oid, ShareLock);
	return true;
}

/* Open the segment; false if a lock is not free. */
static bool
open_segment(IdemCopy *copy, int segment)
{
	if (!idem_copy_is_drained(segment))
		return false;
	copy->heap = idem_store_segment_open_nowait(segment, AccessShareLock);
	if (copy->heap == NULL)
		return false;
	/* Newer than the drain, so it sees all that was committed. */
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	PushActiveSnapshot(GetLatestSnapshot());
	copy->snapshot = GetActiveSnapshot();
	copy->next_xid = ReadNextFullTransactionId();
	return true;
}

void
idem_copy_end(IdemCopy *copy)
{
	PopActiveSnapshot();
	table_close(copy->heap, NoLock);
	pfree(copy);
}

/* The class of a row; one that is not known counts as for ever. */
static int
class_of(TupleTableSlot *row)
{
	int			class = DatumGetInt16(row->tts_values[IDEM_RING_CLASS]);

	return idem_retention_seconds(class) > 0 ? class : IDEM_RETENTION_FOR_EVER;
}

/* Has the row to be kept as more than a digest? */
static bool
has_detail(TupleTableSlot *row)
{
	return !row->tts_isnull[IDEM_RING_RESULT] ||
		DatumGetBool(row->tts_values[IDEM_RING_KEEP_ID]) ||
		DatumGetChar(row->tts_values[IDEM_RING_STATE]) != IDEM_ENTRY_COMPLETED ||
		DatumGetInt16(row->tts_values[IDEM_RING_TURN]) != 1;
}

/*
 * Count a row, for what its run says of all its entries.  A frozen row is visible
 * to everybody, whatever its xid was.
 */
static void
summarize_row(IdemCopy *copy, TupleTableSlot *row)
{
	HeapTupleHeader header = ((HeapTupleTableSlot *) row)->tuple->t_data;
	TimestampTz oldest;
	TimestampTz newest;
	IdemRun    *run;

	slot_getsomeattrs(row, IDEM_RING_NATTS);
	if (row->tts_isnull[IDEM_RING_DIGEST])
		return;
	run = &copy->runs[class_of(row)];
	run->plain = run->plain && !has_detail(row);
	newest = DatumGetTimestampTz(row->tts_values[row->tts_isnull[IDEM_RING_COMPLETED_AT] ?
												 IDEM_RING_CLAIMED_AT : IDEM_RING_COMPLETED_AT]);
	oldest = DatumGetTimestampTz(row->tts_values[IDEM_RING_CLAIMED_AT]);
	if (!TIMESTAMP_NOT_FINITE(oldest))
		run->oldest = Min(run->oldest, oldest);
	if (!TIMESTAMP_NOT_FINITE(newest))
		run->newest = Max(run->newest, newest);
	copy->rows[class_of(row)]++;
	if (!HeapTupleHeaderXminFrozen(header) && TransactionIdIsNormal(HeapTupleHeaderGetRawXmin(header)))
	{
		FullTransactionId xid = idem_xid_widen(HeapTupleHeaderGetRawXmin(header), copy->next_xid);

		if (FullTransactionIdFollows(xid, run->last_xid))
			run->last_xid = xid;
	}
}

/* Read the rows once, in the order in which they stand. */
static void
summarize(IdemCopy *copy)
{
	TableScanDesc scan = idem_compat_table_beginscan(copy->heap, copy->snapshot);
	TupleTableSlot *row = table_slot_create(copy->heap, NULL);

	for (int class = 0; class < IDEM_RETENTION_CLASSES; class++)
		copy->runs[class] = (IdemRun)
	{
		.class = class, .plain = true, .oldest = DT_NOEND, .newest = DT_NOBEGIN
	};
	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		summarize_row(copy, row);
	}
	ExecDropSingleTupleTableSlot(row);
	table_endscan(scan);
}

IdemCopy *
idem_copy_begin(int segment)
{
	IdemCopy   *copy = palloc0(sizeof(IdemCopy));

	if (!open_segment(copy, segment))
	{
		pfree(copy);
		return NULL;
	}
	summarize(copy);
	return copy;
}

bool
idem_copy_has(const IdemCopy *copy, int class)
{
	return copy->rows[class] > 0;
}

/* A value that may be missing; 0 stands for that. */
static Datum
varlena_or_none(TupleTableSlot *row, int column)
{
	return row->tts_isnull[column] ? (Datum) 0 :
		PointerGetDatum(PG_DETOAST_DATUM(row->tts_values[column]));
}

/* The entry of a row.  Its values are valid until the row changes. */
static void
form_entry(TupleTableSlot *row, IdemEventEntry *entry)
{
	slot_getsomeattrs(row, IDEM_RING_NATTS);
	memset(entry, 0, sizeof(*entry));
	entry->digest = *DatumGetUUIDP(row->tts_values[IDEM_RING_DIGEST]);
	entry->turn = DatumGetInt16(row->tts_values[IDEM_RING_TURN]);
	entry->state = DatumGetChar(row->tts_values[IDEM_RING_STATE]);
	entry->claimed_at = DatumGetTimestampTz(row->tts_values[IDEM_RING_CLAIMED_AT]);
	if (!row->tts_isnull[IDEM_RING_COMPLETED_AT])
		entry->completed_at = DatumGetTimestampTz(row->tts_values[IDEM_RING_COMPLETED_AT]);
	entry->result = varlena_or_none(row, IDEM_RING_RESULT);
	entry->has_detail = has_detail(row);
	if (idem_entry_is_special(entry) || DatumGetBool(row->tts_values[IDEM_RING_KEEP_ID]))
	{
		entry->event_id = varlena_or_none(row, IDEM_RING_EVENT_ID);
		entry->consumer = varlena_or_none(row, IDEM_RING_CONSUMER);
	}
}

/* Does the row have digest and turn of the last entry? */
static bool
is_repeat(TupleTableSlot *row, const IdemEventEntry *last)
{
	return DatumGetInt16(row->tts_values[IDEM_RING_TURN]) == last->turn &&
		idem_digest_compare(DatumGetUUIDP(row->tts_values[IDEM_RING_DIGEST]), &last->digest) == 0;
}

/* The columns by which rows are sorted. */
enum
{
	SORT_DIGEST,
	SORT_TURN,
	SORT_PLACE,
	SORT_COLUMNS
};

/* What is sorted: a row's digest, its turn and its place. */
static TupleDesc
sort_desc(void)
{
	TupleDesc	desc = CreateTemplateTupleDesc(SORT_COLUMNS);

	TupleDescInitEntry(desc, SORT_DIGEST + 1, "digest", UUIDOID, -1, 0);
	TupleDescInitEntry(desc, SORT_TURN + 1, "turn", INT2OID, -1, 0);
	TupleDescInitEntry(desc, SORT_PLACE + 1, "place", TIDOID, -1, 0);
	idem_compat_finish_desc(desc);
	return desc;
}

/* Begin to sort by digest, turn and place. */
static Tuplesortstate *
begin_sort(TupleDesc desc)
{
	AttrNumber	columns[SORT_COLUMNS];
	Oid			operators[SORT_COLUMNS];
	Oid			collations[SORT_COLUMNS] = {InvalidOid};
	bool		nulls_first[SORT_COLUMNS] = {false};

	for (int i = 0; i < SORT_COLUMNS; i++)
	{
		columns[i] = i + 1;
		operators[i] = lookup_type_cache(TupleDescAttr(desc, i)->atttypid, TYPECACHE_LT_OPR)->lt_opr;
	}
	return tuplesort_begin_heap(desc, SORT_COLUMNS, columns, operators, collations, nulls_first,
								maintenance_work_mem, NULL, TUPLESORT_NONE);
}

/* Sort the rows of a class. */
static Tuplesortstate *
sort_rows(IdemCopy *copy, int class, TupleTableSlot *row, TupleTableSlot *key)
{
	Tuplesortstate *sort = begin_sort(key->tts_tupleDescriptor);
	TableScanDesc scan = idem_compat_table_beginscan(copy->heap, copy->snapshot);

	while (table_scan_getnextslot(scan, ForwardScanDirection, row))
	{
		CHECK_FOR_INTERRUPTS();
		slot_getsomeattrs(row, IDEM_RING_NATTS);
		if (class_of(row) != class || row->tts_isnull[IDEM_RING_DIGEST])
			continue;
		ExecClearTuple(key);
		memset(key->tts_isnull, false, SORT_COLUMNS * sizeof(bool));
		key->tts_values[SORT_DIGEST] = row->tts_values[IDEM_RING_DIGEST];
		key->tts_values[SORT_TURN] = row->tts_values[IDEM_RING_TURN];
		key->tts_values[SORT_PLACE] = PointerGetDatum(&row->tts_tid);
		ExecStoreVirtualTuple(key);
		tuplesort_puttupleslot(sort, key);
	}
	table_endscan(scan);
	ExecClearTuple(row);
	tuplesort_performsort(sort);
	return sort;
}

/* Give a row to the writer, unless it repeats the last entry. */
static void
copy_row(TupleTableSlot *row, IdemRunWriter *writer, MemoryContext entry_context, IdemEventEntry *last)
{
	slot_getsomeattrs(row, IDEM_RING_NATTS);
	if (!is_repeat(row, last))
	{
		MemoryContext old = MemoryContextSwitchTo(entry_context);

		form_entry(row, last);
		MemoryContextSwitchTo(old);
		idem_run_add(writer, last);
		MemoryContextReset(entry_context);
	}
	idem_pace_entry();
}

/*
 * Give the rows of a class to the writer, by digest and turn.  A restore into a segment
 * in use may have left several rows of one turn; then the first one counts, for claims as
 * well (ring.c).
 */
static void
copy_rows(IdemCopy *copy, int class, IdemRunWriter *writer)
{
	MemoryContext entry_context = AllocSetContextCreate(CurrentMemoryContext, "idempotency entry",
														ALLOCSET_DEFAULT_SIZES);
	TupleTableSlot *row = table_slot_create(copy->heap, NULL);
	TupleTableSlot *key = MakeSingleTupleTableSlot(sort_desc(), &TTSOpsVirtual);
	TupleTableSlot *sorted = MakeSingleTupleTableSlot(key->tts_tupleDescriptor, &TTSOpsMinimalTuple);
	Tuplesortstate *sort = sort_rows(copy, class, row, key);
	IdemEventEntry entry = {.turn = 0};

	while (tuplesort_gettupleslot(sort, true, false, sorted, NULL))
	{
		bool		isnull;
		ItemPointer tid = (ItemPointer) DatumGetPointer(slot_getattr(sorted, SORT_PLACE + 1, &isnull));

		/*
		 * all rows were seen by this snapshot, and nobody removes them
		 * meanwhile
		 */
		if (table_tuple_fetch_row_version(copy->heap, tid, copy->snapshot, row))
			copy_row(row, writer, entry_context, &entry);
	}
	tuplesort_end(sort);
	ExecDropSingleTupleTableSlot(sorted);
	ExecDropSingleTupleTableSlot(key);
	ExecDropSingleTupleTableSlot(row);
	MemoryContextDelete(entry_context);
}

void
idem_copy_class(IdemCopy *copy, int class, IdemSlot *slot, int64 run_number, int64 stamp)
{
	IdemRun    *run = &copy->runs[class];
	IdemRunWriter *writer;

	run->number = run_number;
	run->stamp = stamp;

	/* no row had a time that can be believed */
	run->oldest = Min(run->oldest, run->newest);
	if (TIMESTAMP_NOT_FINITE(run->oldest))
		run->oldest = run->newest = 0;
	idem_pace_begin();
	slot->wrote = idem_pace_wrote;
	writer = idem_run_begin(slot, run, copy->rows[class]);
	copy_rows(copy, class, writer);
	IDEM_FAULT_POINT("store-run-pages");
	idem_run_finish(writer);
	IDEM_FAULT_POINT("store-mark-written");
}
