/*-------------------------------------------------------------------------
 *
 * copy.c
 *		Writes runs: copies a closed segment into runs, one of each class that it
 *		has; and merges the runs of a slot into one run of a higher level.
 *
 * A completion of turn 1 becomes a digest on a page; its result, if it has one,
 * goes beside it as a detail, and its id is dropped unless its consumer keeps
 * ids.  Every other entry is kept as it is.  Claims that were kept, orders to
 * forget, and what follows them are few.
 *
 * In a merge, all runs are read at once, in the order of (digest, turn).  Of the entries of
 * one event the highest turn stands: it decides wherever it is, so entries of
 * lower turns have no more use.  An entry may be in two runs, if a packer failed
 * between writing a run and marking its segment packed.  Then it has its details
 * in both.
 *
 * Invariant: the runs have every committed entry of the segment.  The segment is
 * closed, and ShareLock on it was free for a moment, so nobody writes to it any
 * more: who finds it current later on locks it, reads the state again, and
 * leaves it.  The lock is not kept, so that those do not wait.
 *
 * Whatever a search of the old runs decides, a search of the new run decides as well.
 *
 * What a crash leaves: pages without an end mark, which do not count; or the
 * runs, whose entries are in the segment as well, until the segment is marked
 * packed (pack.c).  Some of the runs may be there without the others: one
 * transaction writes them all, but a run counts with its own end mark.  The mark of a
 * merged run lists the runs that it replaces.  These stay until rotate.c empties their slot.
 *
 * A merge is one transaction with an xid, of minutes if the runs are large.
 * It holds the xmin horizon back as any transaction of that length does.
 *
 * LOCKING: ShareLock on the segment for a moment, then AccessShareLock on the
 * segment or on the old slot, then RowExclusiveLock on the slot.  Each is taken only if it
 * is free; the last two are kept to the end of the transaction.
 *
 * MEMORY: an entry's values are in a context of their own, reset for each entry.  The
 * sort of digests and places takes maintenance_work_mem, and files beyond it.  A merge
 * has what the readers and the writer need, a few pages per run; and one entry
 * with its details.  Of the shared buffers the old runs, which are read once and may
 * be gigabytes, get a ring: a merge does not drive out what others have there.
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
#include "lib/binaryheap.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplesort.h"
#include "utils/typcache.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/progress.h"
#include "shared/xid.h"
#include "store/copy.h"
#include "store/pace.h"
#include "store/plan.h"
#include "store/retention.h"
#include "store/ring.h"

/* A closed segment that is being copied. */
typedef struct Copy
{
	Relation	heap;
	Snapshot	snapshot;
	FullTransactionId next_xid; /* read after the snapshot was taken */
	int64		rows[IDEM_RETENTION_CLASSES];	/* that the snapshot sees, by
												 * class */
	IdemRun		runs[IDEM_RETENTION_CLASSES];	/* what they say of all
												 * entries is set first */
} Copy;

/* Open the segment; false if a lock is not free. */
static bool
open_segment(Copy *copy, int segment)
{
	if (!idem_store_segment_is_drained(segment))
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
summarize_row(Copy *copy, TupleTableSlot *row)
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
summarize(Copy *copy)
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
sort_rows(Copy *copy, int class, TupleTableSlot *row, TupleTableSlot *key)
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
	idem_progress_add();
	idem_pace_entry();
}

/*
 * Give the rows of a class to the writer, by digest and turn.  A restore into a segment
 * in use may have left several rows of one turn; then the first one counts, for claims as
 * well (ring.c).
 */
static void
copy_rows(Copy *copy, int class, IdemRunWriter *writer)
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

/* Begin to write a run. */
static IdemRunWriter *
begin_run(Relation source, IdemSlot *slot, IdemRun *run, int64 expected)
{
	run->number = idem_run_new_number();
	idem_pace_begin(source, slot->heap);
	slot->wrote = idem_pace_wrote;
	return idem_run_begin(slot, run, expected);
}

/* Copy the rows of a class into a new run of a slot.  stamp: the time of the store. */
static void
copy_class(Copy *copy, int class, IdemSlot *slot, int64 stamp)
{
	IdemRun    *run = &copy->runs[class];
	IdemRunWriter *writer;

	run->stamp = stamp;

	/* no row had a time that can be believed */
	run->oldest = Min(run->oldest, run->newest);
	if (TIMESTAMP_NOT_FINITE(run->oldest))
		run->oldest = run->newest = 0;
	writer = begin_run(copy->heap, slot, run, copy->rows[class]);
	copy_rows(copy, class, writer);
	IDEM_FAULT_POINT("store-run-pages");
	idem_run_finish(writer);
	IDEM_FAULT_POINT("store-mark-written");
}

/* Close the slots of the classes below "end" that the segment has. */
static void
close_targets(const Copy *copy, IdemSlot *targets, int end)
{
	for (int class = 0; class < end; class++)
	{
		if (copy->rows[class] > 0)
			idem_slot_close(&targets[class], NoLock);
	}
}

/*
 * Open a slot for each class that the segment has; false, and none is open, if
 * there is none, or its lock is not free.
 */
static bool
open_targets(const IdemSurvey *survey, const Copy *copy, IdemSlot *targets)
{
	uint64		taken = 0;

	for (int class = 0; class < IDEM_RETENTION_CLASSES; class++)
	{
		int			number;

		if (copy->rows[class] == 0)
			continue;
		number = idem_plan_target(survey, class, &taken);
		if (number < 0 || !idem_slot_open_nowait(&targets[class], number, RowExclusiveLock))
		{
			close_targets(copy, targets, class);
			return false;
		}
	}
	return true;
}

/* How many entries are copied? */
static int64
count_rows(const Copy *copy)
{
	int64		n = 0;

	for (int class = 0; class < IDEM_RETENTION_CLASSES; class++)
		n += copy->rows[class];
	return n;
}

/*
 * All slots are open before the first run is written: a run counts with its end mark, and
 * would be written again and again if another one could not be.
 */
bool
idem_copy_segment(const IdemSurvey *survey, int number, int *nruns)
{
	IdemSlot	targets[IDEM_RETENTION_CLASSES];
	Copy		copy = {.heap = NULL};
	bool		copied;

	*nruns = 0;
	if (!open_segment(&copy, number))
		return false;
	summarize(&copy);
	copied = open_targets(survey, &copy, targets);
	if (copied)
		idem_progress_begin(IDEM_JOB_PACKING, number, count_rows(&copy));
	for (int class = 0; copied && class < IDEM_RETENTION_CLASSES; class++)
	{
		if (copy.rows[class] == 0)
			continue;
		if ((*nruns)++ > 0)
			IDEM_FAULT_POINT("store-class-copied");
		copy_class(&copy, class, &targets[class], survey->time);
	}
	if (copied)
	{
		idem_progress_end();
		close_targets(&copy, targets, IDEM_RETENTION_CLASSES);
	}
	PopActiveSnapshot();
	table_close(copy.heap, NoLock);
	return copied;
}

/* Merging */

typedef struct Merge
{
	int			n;
	IdemRunReader *readers[IDEM_SLOT_RUNS];
	IdemEventEntry entries[IDEM_SLOT_RUNS]; /* the next one of each reader */
	binaryheap *order;			/* of the readers that are not at their end */
	IdemRunWriter *writer;

	/* The entry that stands so far for its event */
	bool		has_standing;
	IdemEventEntry standing;
	MemoryContext details;		/* what "standing" points to */
} Merge;

/*
 * Order readers by their next entry, by digest, then by turn; the heap has the greatest
 * on top.
 */
static int
compare_readers(Datum a, Datum b, void *arg)
{
	const Merge *merge = arg;
	const IdemEventEntry *left = &merge->entries[DatumGetInt32(b)];
	const IdemEventEntry *right = &merge->entries[DatumGetInt32(a)];
	int			result = idem_digest_compare(&left->digest, &right->digest);

	return result != 0 ? result : left->turn - right->turn;
}

/* Open the readers, and put those that have entries in order. */
static void
begin_merge(Merge *merge, const IdemSlot *slot, const IdemRun *runs)
{
	merge->order = binaryheap_allocate(merge->n, compare_readers, merge);
	merge->details = AllocSetContextCreate(CurrentMemoryContext, "idempotency merge",
										   ALLOCSET_DEFAULT_SIZES);
	for (int i = 0; i < merge->n; i++)
	{
		merge->readers[i] = idem_run_read(slot, &runs[i]);
		if (idem_run_next(merge->readers[i], &merge->entries[i]))
			binaryheap_add_unordered(merge->order, Int32GetDatum(i));
	}
	binaryheap_build(merge->order);
}

/* Copy a value of an entry. */
static Datum
copy_value(Datum value)
{
	return value == 0 ? 0 : datumCopy(value, false, -1);
}

/* The entry stands for its event, in place of what stood before. */
static void
let_stand(Merge *merge, const IdemEventEntry *entry)
{
	merge->standing = *entry;
	merge->has_standing = true;
	if (entry->has_detail)
	{
		MemoryContext old;

		MemoryContextReset(merge->details);
		old = MemoryContextSwitchTo(merge->details);
		merge->standing.event_id = copy_value(entry->event_id);
		merge->standing.consumer = copy_value(entry->consumer);
		merge->standing.result = copy_value(entry->result);
		MemoryContextSwitchTo(old);
	}
}

/* Write the entry that stands. */
static void
write_standing(Merge *merge)
{
	if (merge->has_standing)
		idem_run_add(merge->writer, &merge->standing);
	merge->has_standing = false;
}

/* Take one more entry, in the order of (digest, turn). */
static void
add_entry(Merge *merge, const IdemEventEntry *entry)
{
	bool		same = merge->has_standing &&
	idem_digest_compare(&merge->standing.digest, &entry->digest) == 0;

	if (!same)
		write_standing(merge);
	if (!same || entry->turn > merge->standing.turn ||
		(entry->has_detail && !merge->standing.has_detail))
		let_stand(merge, entry);
}

/* Read all entries, and write those that stand. */
static void
merge_entries(Merge *merge)
{
	while (!binaryheap_empty(merge->order))
	{
		int			i = DatumGetInt32(binaryheap_first(merge->order));

		add_entry(merge, &merge->entries[i]);
		if (idem_run_next(merge->readers[i], &merge->entries[i]))
			binaryheap_replace_first(merge->order, Int32GetDatum(i));
		else
			(void) binaryheap_remove_first(merge->order);
		idem_progress_add();
		idem_pace_entry();
	}
	write_standing(merge);
}

/* Close the readers. */
static void
end_merge(Merge *merge)
{
	for (int i = 0; i < merge->n; i++)
		idem_run_end_read(merge->readers[i]);
	binaryheap_free(merge->order);
	MemoryContextDelete(merge->details);
}

/* What the mark of the new run takes over from the old ones. */
static void
describe(IdemRun *run, const IdemRun *runs, int n, int level, int64 *expected)
{
	*run = (IdemRun)
	{
		.class = runs[0].class, .level = level, .stamp = runs[0].stamp,
			.oldest = runs[0].oldest, .newest = runs[0].newest,
			.last_xid = runs[0].last_xid, .nreplaces = n, .plain = true
	};
	*expected = 0;
	for (int i = 0; i < n; i++)
	{
		run->oldest = Min(run->oldest, runs[i].oldest);
		run->newest = Max(run->newest, runs[i].newest);
		run->stamp = Max(run->stamp, runs[i].stamp);
		if (FullTransactionIdPrecedes(run->last_xid, runs[i].last_xid))
			run->last_xid = runs[i].last_xid;
		run->plain = run->plain && runs[i].details == 0;
		run->replaces[i] = runs[i].number;
		*expected += runs[i].digests + runs[i].specials;
	}
}

bool
idem_merge_runs(int from, const IdemRun *runs, int n, int to, int level)
{
	Merge		merge = {.n = n};
	IdemSlot	source;
	IdemSlot	target;
	IdemRun		run;
	int64		expected;

	if (!idem_slot_open_nowait(&source, from, AccessShareLock))
		return false;
	if (!idem_slot_open_nowait(&target, to, RowExclusiveLock))
	{
		idem_slot_close(&source, AccessShareLock);
		return false;
	}
	describe(&run, runs, n, level, &expected);
	source.strategy = GetAccessStrategy(BAS_BULKREAD);
	begin_merge(&merge, &source, runs);
	merge.writer = begin_run(source.heap, &target, &run, expected);
	idem_progress_begin(IDEM_JOB_MERGING, from, expected);
	merge_entries(&merge);
	idem_progress_end();
	IDEM_FAULT_POINT("store-merge-pages");
	idem_run_finish(merge.writer);
	IDEM_FAULT_POINT("store-merge-mark-written");
	end_merge(&merge);
	FreeAccessStrategy(source.strategy);
	idem_slot_close(&target, NoLock);
	idem_slot_close(&source, NoLock);
	return true;
}
