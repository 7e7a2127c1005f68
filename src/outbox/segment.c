/*-------------------------------------------------------------------------
 *
 * segment.c
 *		The ring of segments: finding, opening and probing them.
 *
 * The log of events is a ring of eight tables that the install script makes,
 * each with one btree on (xid, seq).  New events go to the current segment,
 * whose number is the generation modulo eight.  The generation is the value of
 * a cell (shared/cell.h), the sequence outbox_generation: changed in place, outside
 * transactions, and WAL-logged.
 *
 * Invariant: an event of a running or committed transaction that is not yet
 * delivered everywhere is in the heap and the index of some segment.
 *
 * What a crash leaves: the generation is recovered to a value at least as new
 * as any that a committed transaction used, because WAL has the generation
 * before its use.  maintain.c tells what a crash in the middle of emptying
 * leaves.
 *
 * LOCKING
 *		writers			RowExclusiveLock on a segment's heap; then the writer
 *						reads the generation.  The lock stands until the
 *						transaction ends, or the subtransaction that wrote
 *						there aborts (writer.c)
 *		readers			AccessShareLock on heap and index
 *		maintenance		ShareUpdateExclusiveLock on outbox_generation, against
 *						other maintenance; AccessExclusiveLock on the segment
 *						that is emptied
 *
 * A writer that finds another segment current gives back the lock of this call
 * before it waits for the lock on the other segment.
 *
 * Dropping the extension locks every member first, so a process with a lock on
 * a segment can read the sequences without a lock on them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/segment.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "catalog/pg_type.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/cell.h"
#include "outbox/segment.h"
#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/guard.h"

/* The estimate of the number of events looks at this many pages. */
#define MAX_SAMPLES			10

static const IdemColumn columns[IDEM_NATTS] = {
	[IDEM_ATT_XID] = {XID8OID, true},
	[IDEM_ATT_SEQ] = {INT8OID, true},
	[IDEM_ATT_EVENT_ID] = {UUIDOID, true},
	[IDEM_ATT_ENQUEUED_AT] = {TIMESTAMPTZOID, true},
	[IDEM_ATT_AGGREGATE_TYPE] = {TEXTOID, true},
	[IDEM_ATT_AGGREGATE_ID] = {TEXTOID, true},
	[IDEM_ATT_EVENT_TYPE] = {TEXTOID, true},
	[IDEM_ATT_PAYLOAD] = {JSONBOID, false},
	[IDEM_ATT_PAYLOAD_BYTES] = {BYTEAOID, false},
	[IDEM_ATT_CONTENT_TYPE] = {TEXTOID, false},
	[IDEM_ATT_HEADERS] = {JSONBOID, false}
};

static const IdemIndexForm index_form = {
	.text = "(xid, seq)", .n = 2,
	.columns = {IDEM_ATT_XID + 1, IDEM_ATT_SEQ + 1}, .compare = {F_XID8CMP, F_BTINT8CMP}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_NATTS, .exact = true, .triggers = 1, .index = &index_form
};

#define SEGMENT_REF(n) IDEM_TABLEREF("outbox_segment_" n, &form)

IdemRelRef	idem_outbox_segments[IDEM_OUTBOX_SEGMENTS] = {
	SEGMENT_REF("0"),
	SEGMENT_REF("1"),
	SEGMENT_REF("2"),
	SEGMENT_REF("3"),
	SEGMENT_REF("4"),
	SEGMENT_REF("5"),
	SEGMENT_REF("6"),
	SEGMENT_REF("7"),
};
IdemRelRef	idem_outbox_seq_cell = IDEM_RELREF("outbox_seq");
IdemRelRef	idem_outbox_generation_cell = IDEM_RELREF("outbox_generation");

Oid
idem_segment_oid(int number)
{
	return idem_relref_oid(&idem_outbox_segments[number]);
}

int64
idem_outbox_generation_locked(void)
{
	Relation	rel = RelationIdGetRelation(idem_relref_oid(&idem_outbox_generation_cell));
	int64		value;

	if (!RelationIsValid(rel))
		elog(ERROR, "could not open sequence \"outbox_generation\"");
	value = idem_cell_read(rel).value;
	RelationClose(rel);
	return value;
}

int64
idem_outbox_generation(void)
{
	return idem_cell_read_ref(&idem_outbox_generation_cell).value;
}

int64
idem_outbox_last_seq(void)
{
	return idem_cell_read_ref(&idem_outbox_seq_cell).value;
}

bool
idem_segment_try_open(IdemSegment *seg, int number, bool waits)
{
	Oid			oid = idem_segment_oid(number);

	seg->number = number;
	seg->heap = waits ? table_open(oid, AccessShareLock) : idem_table_open_nowait(oid, AccessShareLock);
	if (seg->heap == NULL)
		return false;
	idem_guard_table(&idem_outbox_segments[number], seg->heap, IDEM_GUARD_READ);
	oid = idem_table_index(seg->heap, &index_form);
	if (waits || ConditionalLockRelationOid(oid, AccessShareLock))
	{
		seg->index = index_open(oid, waits ? AccessShareLock : NoLock);
		return true;
	}
	table_close(seg->heap, AccessShareLock);
	return false;
}

void
idem_segment_close(IdemSegment *seg)
{
	index_close(seg->index, AccessShareLock);
	table_close(seg->heap, AccessShareLock);
	seg->heap = seg->index = NULL;
}

void
idem_segment_open_indexes(const IdemSegment *seg, IdemTableIndexes *indexes)
{
	idem_guard_table(&idem_outbox_segments[seg->number], seg->heap, IDEM_GUARD_WRITE);
	idem_table_open_indexes(seg->heap, &index_form, indexes);
}

bool
idem_segment_is_empty(const IdemSegment *seg)
{
	return RelationGetNumberOfBlocks(seg->index) <= IDEM_EMPTY_INDEX_BLOCKS;
}

int64
idem_segment_bytes(const IdemSegment *seg)
{
	return DatumGetInt64(DirectFunctionCall1(pg_total_relation_size,
											 ObjectIdGetDatum(RelationGetRelid(seg->heap))));
}

/*
 * The scan needs no snapshot: it tells entries apart by their xids, and does
 * not visit the heap.
 */
IndexScanDesc
idem_segment_beginscan(const IdemSegment *seg, int nkeys)
{
	IndexScanDesc scan = idem_compat_index_beginscan(seg->heap, seg->index,
													 SnapshotAny, nkeys);

	scan->xs_want_itup = true;
	return scan;
}

bool
idem_segment_next(IndexScanDesc scan, ScanDirection direction, IdemEntry *entry)
{
	ItemPointer tid;

	/*
	 * xid and seq are NOT NULL; an entry without one of them is nobody's
	 * event
	 */
	do
	{
		tid = index_getnext_tid(scan, direction);
		if (tid == NULL)
			return false;
	} while (IndexTupleHasNulls(scan->xs_itup));
	idem_segment_read_entry(scan->xs_itup, entry);
	entry->tid = *tid;
	return true;
}

/* The comparison functions of scan keys, by their strategies. */
static const RegProcedure compare_xid[] = {
	[BTLessEqualStrategyNumber] = F_XID8LE,[BTEqualStrategyNumber] = F_XID8EQ,[BTGreaterEqualStrategyNumber] = F_XID8GE
};
static const RegProcedure compare_seq[] = {
	[BTEqualStrategyNumber] = F_INT8EQ,[BTGreaterEqualStrategyNumber] = F_INT8GE
};

void
idem_scankey_xid(ScanKey key, StrategyNumber strategy, uint64 xid)
{
	ScanKeyInit(key, IDEM_ATT_XID + 1, strategy, compare_xid[strategy],
				FullTransactionIdGetDatum(FullTransactionIdFromU64(xid)));
}

void
idem_scankey_seq(ScanKey key, StrategyNumber strategy, int64 seq)
{
	ScanKeyInit(key, IDEM_ATT_SEQ + 1, strategy, compare_seq[strategy],
				Int64GetDatum(seq));
}

/* The first entry that a scan with these keys finds; false if there is none. */
static bool
probe(const IdemSegment *seg, ScanKey keys, int nkeys, ScanDirection direction,
	  IdemEntry *entry)
{
	IndexScanDesc scan;
	bool		found;

	if (idem_segment_is_empty(seg))
		return false;
	scan = idem_segment_beginscan(seg, nkeys);
	index_rescan(scan, keys, nkeys, NULL, 0);
	found = idem_segment_next(scan, direction, entry);
	index_endscan(scan);
	return found;
}

bool
idem_segment_first(const IdemSegment *seg, IdemEntry *entry)
{
	return probe(seg, NULL, 0, ForwardScanDirection, entry);
}

bool
idem_segment_last(const IdemSegment *seg, IdemEntry *entry)
{
	return probe(seg, NULL, 0, BackwardScanDirection, entry);
}

bool
idem_segment_has_xid(const IdemSegment *seg, uint64 xid)
{
	ScanKeyData key;
	IdemEntry	entry;

	idem_scankey_xid(&key, BTEqualStrategyNumber, xid);
	return probe(seg, &key, 1, ForwardScanDirection, &entry);
}

/* enqueued_at of a row. */
static TimestampTz
row_time(Relation heap, HeapTuple row)
{
	bool		isnull;

	return DatumGetTimestampTz(heap_getattr(row, IDEM_ATT_ENQUEUED_AT + 1, RelationGetDescr(heap), &isnull));
}

/* Has a page an event, visible or not, that was enqueued in between? */
typedef struct Between
{
	TimestampTz after;
	TimestampTz before;
	bool		found;
} Between;

/* Callback of idem_table_visit_page */
static void
look_between(Relation heap, HeapTuple row, void *arg)
{
	Between    *between = arg;
	TimestampTz time = row_time(heap, row);

	between->found |= time > between->after && time < between->before;
}

/* Callback of idem_table_visit_page: add a row to the summary. */
static void
summarize_row(Relation heap, HeapTuple row, void *arg)
{
	IdemPageSummary *summary = arg;
	TimestampTz time = row_time(heap, row);

	if (summary->tuples == 0 || time < summary->oldest)
		summary->oldest = time;
	if (summary->tuples == 0 || time > summary->newest)
		summary->newest = time;
	summary->tuples++;
}

void
idem_segment_summarize(const IdemSegment *seg, bool last,
					   IdemPageSummary *summary)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(seg->heap);

	memset(summary, 0, sizeof(*summary));
	for (BlockNumber i = 0; i < nblocks && summary->tuples == 0; i++)
	{
		CHECK_FOR_INTERRUPTS();
		idem_table_visit_page(seg->heap, last ? nblocks - 1 - i : i, NULL, summarize_row, summary);
	}
}

bool
idem_segment_has_between(const IdemSegment *seg, TimestampTz after, TimestampTz before)
{
	BufferAccessStrategy strategy = GetAccessStrategy(BAS_BULKREAD);
	Between		between = {after, before, false};

	for (BlockNumber i = RelationGetNumberOfBlocks(seg->heap); i > 0 && !between.found; i--)
	{
		CHECK_FOR_INTERRUPTS();
		idem_table_visit_page(seg->heap, i - 1, strategy, look_between, &between);
	}
	FreeAccessStrategy(strategy);
	return between.found;
}

int64
idem_segment_estimate_events(const IdemSegment *seg)
{
	BlockNumber nblocks = RelationGetNumberOfBlocks(seg->heap);
	BlockNumber samples = Min(nblocks, MAX_SAMPLES);
	IdemPageSummary sum = {0};

	if (samples == 0)
		return 0;
	for (BlockNumber i = 0; i < samples; i++)
		idem_table_visit_page(seg->heap, (uint64) nblocks * i / samples, NULL, summarize_row, &sum);
	return (int64) sum.tuples * nblocks / samples;
}

TimestampTz
idem_segment_time_at(const IdemSegment *seg, ItemPointer tid)
{
	BlockNumber block = ItemPointerGetBlockNumber(tid);
	TimestampTz time = 0;
	Buffer		buffer;
	HeapTupleData row;

	if (block >= RelationGetNumberOfBlocks(seg->heap))
		return 0;
	buffer = ReadBuffer(seg->heap, block);
	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	if (idem_table_row_at(seg->heap, buffer, ItemPointerGetOffsetNumber(tid), &row))
		time = row_time(seg->heap, &row);
	UnlockReleaseBuffer(buffer);
	return time;
}
