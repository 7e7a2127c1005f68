/*-------------------------------------------------------------------------
 *
 * ring.c
 *		The open ring: the segments that entries are written to.
 *
 * A row is an entry of an event.  Rows are inserted, never updated, and a
 * committed row is never deleted: what takes its place is another row with a
 * higher turn.  A transaction may delete a row of its own.
 *
 * This file calls heap and index directly.  SPI would cost several times as
 * much.  SPI would also let a row security policy, a rule,
 * session_replication_role or the search_path influence what is remembered.  On
 * the other hand triggers on the table do not fire.  So a trigger, a rule, an
 * index or a constraint that somebody added, or a generated column, is refused
 * (shared/guard.c).  If allow_system_table_mods is on, all indexes of the table
 * are maintained.
 *
 * Claims probe with a dirty snapshot.  The snapshot of the statement is older
 * than the lock that the claim takes inside the statement, and would miss rows
 * that the lock's former holder committed.  A claim probes and writes under the
 * event's lock, so no two rows of an event have the same turn.  The index is not
 * unique: tools that copy tables by a trigger take tables with a unique index.
 * Rows that a restore adds to a segment in use may have a turn that another row
 * has; then the row counts that stands first.
 *
 * LOCKING: AccessShareLock to read, RowExclusiveLock to write, on the table and
 * its index.  The first row that is written adds RowExclusiveLock on the
 * other indexes.  A long result adds it on the TOAST table and its index.
 *
 * MEMORY: a segment, and what it needs to probe and to write, are in the
 * context that it was opened with.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/ring.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/executor.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "storage/bufmgr.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/sound.h"
#include "shared/fault.h"
#include "shared/guard.h"
#include "shared/lock_wait.h"
#include "store/ring.h"

/* The first column of the index */
#define KEY_DIGEST	1

static const IdemColumn columns[IDEM_RING_NATTS] = {
	[IDEM_RING_CLAIMED_AT] = {TIMESTAMPTZOID, true},
	[IDEM_RING_COMPLETED_AT] = {TIMESTAMPTZOID, false},
	[IDEM_RING_DIGEST] = {UUIDOID, true},
	[IDEM_RING_TURN] = {INT2OID, true},
	[IDEM_RING_CLASS] = {INT2OID, true},
	[IDEM_RING_STATE] = {CHAROID, true},
	[IDEM_RING_KEEP_ID] = {BOOLOID, true},
	[IDEM_RING_EVENT_ID] = {TEXTOID, true},
	[IDEM_RING_CONSUMER] = {TEXTOID, true},
	[IDEM_RING_RESULT] = {JSONBOID, false}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = IDEM_RING_NATTS, .triggers = 1
};

#define SEGMENT_REF(n) \
	{IDEM_TABLEREF("store_segment_" n, &form), IDEM_RELREF("store_segment_" n "_digest_turn_idx")}

static struct
{
	IdemRelRef	heap;
	IdemRelRef	index;
}			segment_refs[IDEM_STORE_SEGMENTS] =

{
	SEGMENT_REF("0"), SEGMENT_REF("1"), SEGMENT_REF("2"), SEGMENT_REF("3"),
	SEGMENT_REF("4"), SEGMENT_REF("5"), SEGMENT_REF("6"), SEGMENT_REF("7")
};

/* Room for a text value that needs no allocation. */
typedef struct TextBuffer
{
	union
	{
		int32		align;
		char		data[VARHDRSZ + IDEM_MAX_ID_BYTES];
	}			u;
} TextBuffer;

/* An index to maintain. */
typedef struct RingIndex
{
	Relation	rel;
	IndexInfo  *info;
	ExprState  *predicate;		/* NULL: the index has every row */
} RingIndex;

struct IdemRingSegment
{
	int			number;
	MemoryContext context;
	LOCKMODE	mode;
	Relation	heap;
	Relation	index;

	/* Probing, made by the first probe */
	SnapshotData dirty;
	IndexScanDesc scan;
	TupleTableSlot *found;

	/* Writing, made by the first insert */
	int			nindexes;
	RingIndex  *indexes;
	EState	   *estate;			/* NULL: no index has expressions or a
								 * predicate */
	int			nslots;
	MemoryContext chunk_context;	/* NULL: only single rows so far */

	/* Not set when the segment is opened, because they take some kilobytes */
	TupleTableSlot *slots[IDEM_RING_CHUNK];
	TextBuffer	id;
	TextBuffer	consumer;
};

IdemRelRef *
idem_store_segment_ref(int number)
{
	return &segment_refs[number].heap;
}

Oid
idem_store_segment_oid(int number)
{
	return idem_relref_oid(&segment_refs[number].heap);
}

Relation
idem_store_segment_open_nowait(int number, LOCKMODE mode)
{
	Relation	heap = idem_table_open_nowait(idem_store_segment_oid(number), mode);

	if (heap != NULL)
		idem_guard_table(&segment_refs[number].heap, heap, IDEM_GUARD_READ);
	return heap;
}

Oid
idem_store_segment_index_oid(int number)
{
	return idem_relref_oid(&segment_refs[number].index);
}

IdemRingSegment *
idem_ring_open(int number, LOCKMODE mode, MemoryContext context)
{
	IdemRingSegment *segment = MemoryContextAlloc(context, sizeof(IdemRingSegment));

	memset(segment, 0, offsetof(IdemRingSegment, slots));
	segment->context = context;
	segment->number = number;
	segment->mode = mode;
	segment->heap = idem_table_open_patiently(idem_store_segment_oid(number), mode);
	segment->index = index_open(idem_store_segment_index_oid(number), mode);
	idem_guard_table(&segment_refs[number].heap, segment->heap,
					 mode == RowExclusiveLock ? IDEM_GUARD_WRITE : IDEM_GUARD_READ);
	return segment;
}

void
idem_ring_close(IdemRingSegment *segment)
{
	LOCKMODE	mode = segment->mode == AccessShareLock ? AccessShareLock : NoLock;

	if (segment->scan != NULL)
		index_endscan(segment->scan);
	if (segment->found != NULL)
		ExecDropSingleTupleTableSlot(segment->found);
	for (int i = 0; i < segment->nslots; i++)
		ExecDropSingleTupleTableSlot(segment->slots[i]);
	for (int i = 0; i < segment->nindexes; i++)
	{
		idem_compat_index_insert_cleanup(segment->indexes[i].rel, segment->indexes[i].info);
		index_close(segment->indexes[i].rel, NoLock);
	}
	if (segment->estate != NULL)
		FreeExecutorState(segment->estate);
	if (segment->chunk_context != NULL)
		MemoryContextDelete(segment->chunk_context);
	index_close(segment->index, mode);
	table_close(segment->heap, mode);
	pfree(segment);
}

/* Reading */

/* Make a text value in the buffer; valid until the buffer is filled again. */
static Datum
fill_text(TextBuffer *buf, const char *data, int len)
{
	Assert(len <= IDEM_MAX_ID_BYTES);
	SET_VARSIZE(buf->u.data, VARHDRSZ + len);
	memcpy(VARDATA(buf->u.data), data, len);
	return PointerGetDatum(buf->u.data);
}

/* The slot that rows are read into. */
static TupleTableSlot *
found_slot(IdemRingSegment *segment)
{
	if (segment->found == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(segment->context);

		segment->found = table_slot_create(segment->heap, NULL);
		MemoryContextSwitchTo(old);
	}
	return segment->found;
}

/*
 * Describe the row that the scan returned, a committed row or our own
 * transaction's, unless a row with that turn or a higher one was found before.
 */
static void
describe_row(IdemRingSegment *segment, IdemRingFinding *finding)
{
	TupleTableSlot *slot = segment->found;
	HeapTuple	tup = ((HeapTupleTableSlot *) slot)->tuple;
	Buffer		buffer = ((BufferHeapTupleTableSlot *) slot)->buffer;
	TransactionId xmin = HeapTupleHeaderGetRawXmin(tup->t_data);
	int16		turn;

	slot_getsomeattrs(slot, IDEM_RING_STATE + 1);
	turn = DatumGetInt16(slot->tts_values[IDEM_RING_TURN]);
	if (finding->found && finding->turn >= turn)
		return;
	finding->found = true;
	finding->turn = turn;
	finding->class = DatumGetInt16(slot->tts_values[IDEM_RING_CLASS]);
	finding->state = DatumGetChar(slot->tts_values[IDEM_RING_STATE]);
	finding->claimed_at = DatumGetTimestampTz(slot->tts_values[IDEM_RING_CLAIMED_AT]);
	finding->completed_at = slot->tts_isnull[IDEM_RING_COMPLETED_AT] ? 0 :
		DatumGetTimestampTz(slot->tts_values[IDEM_RING_COMPLETED_AT]);
	finding->unsound = !idem_entry_is_sound(turn, finding->state) ||
		!idem_sound_time(slot->tts_values[IDEM_RING_CLAIMED_AT], slot->tts_isnull[IDEM_RING_CLAIMED_AT]) ||
		!idem_sound_time_or_null(slot->tts_values[IDEM_RING_COMPLETED_AT],
								 slot->tts_isnull[IDEM_RING_COMPLETED_AT]);
	finding->tid = slot->tts_tid;
	finding->own = TransactionIdIsCurrentTransactionId(xmin);
	finding->in_snapshot = finding->own || !IsolationUsesXactSnapshot() ||
		table_tuple_satisfies_snapshot(segment->heap, slot, GetTransactionSnapshot());

	/*
	 * The transaction that wrote a frozen tuple may have left the commit log.
	 * But the WAL record that froze the tuple is younger than the
	 * transaction's commit record, and the page is at least as new as the
	 * freezing record.
	 */
	if (finding->own)
		finding->commit_lsn = InvalidXLogRecPtr;
	else if (HeapTupleHeaderXminFrozen(tup->t_data))
		finding->commit_lsn = BufferGetLSNAtomic(buffer);
	else
		finding->commit_lsn = TransactionIdGetCommitLSN(xmin);
}

/*
 * Get the next row of a scan; false at its end.  Notes index entries whose row
 * is dead, which index_getnext_slot would pass over in silence.  With a dirty
 * snapshot an entry whose row was returned is asked once more, for further
 * versions of the row; that there is none says nothing.
 */
static bool
next_row(IdemRingSegment *segment, IndexScanDesc scan, IdemRingFinding *finding)
{
	for (;;)
	{
		bool		goes_on = scan->xs_heap_continue;

		if (!goes_on && index_getnext_tid(scan, ForwardScanDirection) == NULL)
			return false;
		if (index_fetch_heap(scan, found_slot(segment)))
			return true;
		if (!goes_on)
			finding->dead_entries = true;
	}
}

/* Look at all rows of a digest. */
static void
scan_rows(IdemRingSegment *segment, IndexScanDesc scan, const pg_uuid_t *digest,
		  IdemRingFinding *finding)
{
	ScanKeyData key;

	ScanKeyInit(&key, KEY_DIGEST, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(digest));
	index_rescan(scan, &key, 1, NULL, 0);
	while (!finding->busy && next_row(segment, scan, finding))
	{
		/*
		 * The visibility test sets these if another transaction is writing or
		 * removing the row.
		 */
		if (scan == segment->scan &&
			(TransactionIdIsValid(segment->dirty.xmin) || TransactionIdIsValid(segment->dirty.xmax)))
		{
			finding->busy = true;
			finding->busy_xid = TransactionIdIsValid(segment->dirty.xmin) ?
				segment->dirty.xmin : segment->dirty.xmax;
		}
		else
			describe_row(segment, finding);
	}
	ExecClearTuple(found_slot(segment));
}

bool
idem_ring_is_empty(IdemRingSegment *segment)
{
	return RelationGetNumberOfBlocks(segment->heap) == 0;
}

void
idem_ring_probe(IdemRingSegment *segment, const pg_uuid_t *digest, IdemRingFinding *finding)
{
	memset(finding, 0, sizeof(*finding));
	if (segment->scan == NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(segment->context);

		InitDirtySnapshot(segment->dirty);
		segment->scan = idem_compat_index_beginscan(segment->heap, segment->index,
													&segment->dirty, 1);
		MemoryContextSwitchTo(old);
	}
	scan_rows(segment, segment->scan, digest, finding);
}

void
idem_ring_look_up(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot,
				  IdemRingFinding *finding)
{
	IndexScanDesc scan;

	memset(finding, 0, sizeof(*finding));
	scan = idem_compat_index_beginscan(segment->heap, segment->index, snapshot, 1);
	scan_rows(segment, scan, digest, finding);
	index_endscan(scan);
}

bool
idem_ring_result(IdemRingSegment *segment, const ItemPointerData *tid, Datum *result)
{
	TupleTableSlot *slot = found_slot(segment);
	ItemPointerData at = *tid;
	bool		isnull = true;
	Datum		value;

	if (table_tuple_fetch_row_version(segment->heap, &at, SnapshotAny, slot))
	{
		value = slot_getattr(slot, IDEM_RING_RESULT + 1, &isnull);
		if (!isnull)
			*result = PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
	}
	ExecClearTuple(slot);
	return !isnull;
}

void
idem_ring_visit_page(Relation heap, BlockNumber block,
					 void (*visit) (Relation heap, HeapTuple tuple, void *arg), void *arg)
{
	Buffer		buffer = ReadBuffer(heap, block);
	Page		page;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	for (OffsetNumber off = FirstOffsetNumber;
		 !PageIsNew(page) && off <= PageGetMaxOffsetNumber(page); off++)
	{
		ItemId		lp = PageGetItemId(page, off);
		HeapTupleData tuple;

		if (!ItemIdIsNormal(lp))
			continue;
		tuple.t_tableOid = RelationGetRelid(heap);
		tuple.t_data = (HeapTupleHeader) PageGetItem(page, lp);
		tuple.t_len = ItemIdGetLength(lp);
		ItemPointerSet(&tuple.t_self, block, off);
		visit(heap, &tuple, arg);
	}
	UnlockReleaseBuffer(buffer);
}

/* Writing */

/* REINDEX CONCURRENTLY makes a second index of this kind. */
static bool
is_ring_index(Relation index)
{
	static const AttrNumber columns[] = {IDEM_RING_DIGEST + 1, IDEM_RING_TURN + 1};
	static const int16 options[] = {0, 0};

	return idem_guard_is_index(index, lengthof(columns), columns, options);
}

/*
 * Open one index.  Makes the executor state if the index has expressions or a
 * predicate.
 */
static void
open_index(IdemRingSegment *segment, Oid indexid, RingIndex *index)
{
	index->rel = index_open(indexid, RowExclusiveLock);
	index->info = BuildIndexInfo(index->rel);
	index->predicate = NULL;

	if (!is_ring_index(index->rel) && !allowSystemTableMods)
		idem_guard_report_index(segment->heap, index->rel);
	if (index->info->ii_ExclusionOps != NULL)
		idem_guard_report_constraint(segment->heap, "exclusion constraint", RelationGetRelationName(index->rel),
									 "Drop the constraint.");

	if (segment->estate == NULL &&
		(index->info->ii_Expressions != NIL || index->info->ii_Predicate != NIL))
		segment->estate = CreateExecutorState();
	if (index->info->ii_Predicate != NIL)
		index->predicate = ExecPrepareQual(index->info->ii_Predicate,
										   segment->estate);
}

/* Open all indexes of the table. */
static void
start_writing(IdemRingSegment *segment)
{
	MemoryContext old = MemoryContextSwitchTo(segment->context);
	List	   *oids = RelationGetIndexList(segment->heap);
	ListCell   *lc;

	segment->indexes = palloc(list_length(oids) * sizeof(RingIndex));
	foreach(lc, oids)
	{
		open_index(segment, lfirst_oid(lc), &segment->indexes[segment->nindexes]);
		segment->nindexes++;
	}
	list_free(oids);
	MemoryContextSwitchTo(old);
}

/* Slot n, filled with the row as a heap tuple. */
static TupleTableSlot *
form_row(IdemRingSegment *segment, int n, const IdemNewEntry *entry)
{
	TupleDesc	desc = RelationGetDescr(segment->heap);
	Datum		values[MaxHeapAttributeNumber];
	bool		nulls[MaxHeapAttributeNumber];
	TupleTableSlot *slot;

	if (n == segment->nslots)
	{
		MemoryContext old = MemoryContextSwitchTo(segment->context);

		segment->slots[n] = MakeSingleTupleTableSlot(desc, &TTSOpsHeapTuple);
		segment->nslots++;
		MemoryContextSwitchTo(old);
	}
	slot = segment->slots[n];

	memset(nulls, true, desc->natts * sizeof(bool));
	memset(nulls, false, IDEM_RING_NATTS * sizeof(bool));
	nulls[IDEM_RING_COMPLETED_AT] = entry->state != IDEM_ENTRY_COMPLETED;
	nulls[IDEM_RING_RESULT] = !entry->has_result;
	values[IDEM_RING_CLAIMED_AT] = TimestampTzGetDatum(entry->claimed_at);
	values[IDEM_RING_COMPLETED_AT] = TimestampTzGetDatum(entry->completed_at);
	values[IDEM_RING_DIGEST] = UUIDPGetDatum(&entry->digest);
	values[IDEM_RING_TURN] = Int16GetDatum(entry->turn);
	values[IDEM_RING_CLASS] = Int16GetDatum(entry->class);
	values[IDEM_RING_KEEP_ID] = BoolGetDatum(entry->keep_id);
	values[IDEM_RING_STATE] = CharGetDatum(entry->state);
	values[IDEM_RING_EVENT_ID] = fill_text(&segment->id, entry->event_id, entry->event_id_len);
	values[IDEM_RING_CONSUMER] = fill_text(&segment->consumer, entry->consumer, entry->consumer_len);
	values[IDEM_RING_RESULT] = entry->result;

	return ExecStoreHeapTuple(heap_form_tuple(desc, values, nulls), slot, true);
}

/* Insert the entry of a row, which is in the heap already, into one index. */
static void
insert_index_entry(IdemRingSegment *segment, RingIndex *index, TupleTableSlot *slot)
{
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (!index->info->ii_ReadyForInserts)
		return;
	/* an index with a predicate made the state that evaluates the predicate */
	Assert(segment->estate != NULL || index->predicate == NULL);
	if (segment->estate != NULL)
		GetPerTupleExprContext(segment->estate)->ecxt_scantuple = slot;
	if (index->predicate != NULL &&
		!ExecQual(index->predicate, GetPerTupleExprContext(segment->estate)))
		return;

	FormIndexDatum(index->info, slot, segment->estate, values, nulls);
	index_insert(index->rel, values, nulls, &slot->tts_tid, segment->heap,
				 index->info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO,
				 false, index->info);
}

/* Insert the rows into the heap, then into each index. */
static void
insert_rows(IdemRingSegment *segment, IdemNewEntry *entries, int n)
{
	CommandId	cid = GetCurrentCommandId(true);
	TupleTableSlot *slot;

	for (int i = 0; i < n; i++)
		form_row(segment, i, &entries[i]);

	if (n == 1)
		table_tuple_insert(segment->heap, segment->slots[0], cid, 0, NULL);
	else
		table_multi_insert(segment->heap, segment->slots, n, cid, 0, NULL);

	IDEM_FAULT_POINT("claim-heap-inserted");
	for (int i = 0; i < n; i++)
	{
		slot = segment->slots[i];
		for (int k = 0; k < segment->nindexes; k++)
			insert_index_entry(segment, &segment->indexes[k], slot);
		if (segment->estate != NULL)
			ResetPerTupleExprContext(segment->estate);
		entries[i].ref = (IdemEntryRef)
		{
			.segment = segment->number, .tid = slot->tts_tid
		};
		ExecClearTuple(slot);
	}
}

/* Insert several rows by heap_multi_insert. */
static void
insert_chunk(IdemRingSegment *segment, IdemNewEntry *entries, int n)
{
	MemoryContext old = CurrentMemoryContext;

	/* heap_multi_insert leaves about a page of memory behind each time */
	if (segment->chunk_context == NULL)
		segment->chunk_context = AllocSetContextCreate(segment->context,
													   "idempotency rows",
													   ALLOCSET_DEFAULT_SIZES);
	MemoryContextSwitchTo(segment->chunk_context);
	insert_rows(segment, entries, n);
	MemoryContextSwitchTo(old);
	MemoryContextReset(segment->chunk_context);
}

/* The entries of a call. */
typedef struct Entries
{
	IdemRingSegment *segment;
	IdemNewEntry *entries;
	int			n;
} Entries;

/* Callback: insert the entries. */
static void
insert(void *arg)
{
	const Entries *entries = arg;

	if (entries->n == 1)
		insert_rows(entries->segment, entries->entries, 1);
	else
		insert_chunk(entries->segment, entries->entries, entries->n);
}

void
idem_ring_insert(IdemRingSegment *segment, IdemNewEntry *entries, int n)
{
	Entries		call = {segment, entries, n};

	Assert(n > 0 && n <= IDEM_RING_CHUNK);
	if (segment->indexes == NULL)
		start_writing(segment);
	idem_work_patiently(insert, &call);
}

bool
idem_ring_delete(IdemRingSegment *segment, const ItemPointerData *tid)
{
	ItemPointerData at = *tid;
	TM_FailureData tmfd;

	/* a command cannot remove rows that it wrote itself */
	CommandCounterIncrement();
	return idem_compat_table_tuple_delete(segment->heap, &at, GetCurrentCommandId(true), &tmfd) == TM_Ok;
}
