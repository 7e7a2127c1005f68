/*-------------------------------------------------------------------------
 *
 * ring.c
 *		The open ring: the segments that entries are written to.
 *
 * A row is an entry of an event.  Rows are inserted, never updated, and a
 * committed row is never deleted: what takes its place is another row with a
 * higher turn.  A transaction may delete a row of its own.
 *
 * Rows are written without the executor (shared/table.c).
 *
 * Rows are found by their keys (keys.c), which say where to look; or, where
 * the keys cannot tell, by reading the segment.
 *
 * Claims probe with a dirty snapshot.  The snapshot of the statement is older
 * than the lock that the claim takes inside the statement, and would miss rows
 * that the lock's former holder committed.  A claim probes and writes under the
 * event's lock, so no two rows of an event have the same turn.  Nothing else sees to
 * that: tools that copy tables by a trigger take tables with a unique index.
 * Rows that a restore adds to a segment in use may have a turn that another row
 * has; then the row counts that stands first.
 *
 * A standby has no keys, because their pages are not logged, and writes none.  So a
 * transaction lists the entries of all rows of a segment, in memory, at its first
 * look-up.  What changes on a standby comes by WAL, so a block whose LSN is that of
 * the last look has no new rows.  A look-up asks all blocks for their LSN, about
 * 0.1 us for each of the 512 of a segment of 4 MB, unless its snapshot is that of the look-up
 * before.  The list has an entry for each row that any snapshot may see which was taken
 * before the look-up.  Entries of rows that are gone stay; they are harmless.
 *
 * LOCKING: AccessShareLock to read, RowExclusiveLock to write, on the table.  A long
 * result adds it on the TOAST table and its index.
 *
 * MEMORY: a segment, and what it needs to probe and to write, are in the
 * context that it was opened with.  On a standby 8 bytes for each row and for each
 * block, to the end of the transaction.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/ring.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "lib/qunique.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/predicate.h"
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
#include "shared/table.h"
#include "store/keys.h"
#include "store/ring.h"

/* Room for a text value that needs no allocation. */
typedef struct TextBuffer
{
	union
	{
		int32		align;
		char		data[VARHDRSZ + IDEM_MAX_ID_BYTES];
	}			u;
} TextBuffer;

struct IdemRingSegment
{
	int			number;
	MemoryContext context;
	LOCKMODE	mode;
	Relation	heap;
	IdemKeys	keys;			/* not open on a standby */
	bool		has_keys;
	TupleTableSlot *found;		/* made by the first row that is found */
	MemoryContext chunk_context;	/* NULL: only single rows so far */

	/* Not set when the segment is opened, because they take some kilobytes */
	TextBuffer	id;
	TextBuffer	consumer;
};

IdemRingSegment *
idem_ring_open(int number, LOCKMODE mode, MemoryContext context)
{
	IdemRingSegment *segment = MemoryContextAlloc(context, sizeof(IdemRingSegment));

	memset(segment, 0, offsetof(IdemRingSegment, id));
	segment->context = context;
	segment->number = number;
	segment->mode = mode;
	segment->heap = idem_table_open_patiently(idem_store_segment_oid(number), mode);
	idem_guard_table(&idem_store_segments[number], segment->heap,
					 mode == RowExclusiveLock ? IDEM_GUARD_WRITE : IDEM_GUARD_READ);
	segment->has_keys = !RecoveryInProgress();
	if (segment->has_keys)
		idem_keys_open(&segment->keys, number, segment->heap);
	return segment;
}

void
idem_ring_close(IdemRingSegment *segment)
{
	LOCKMODE	mode = segment->mode == AccessShareLock ? AccessShareLock : NoLock;

	if (segment->found != NULL)
		ExecDropSingleTupleTableSlot(segment->found);
	if (segment->chunk_context != NULL)
		MemoryContextDelete(segment->chunk_context);
	if (segment->has_keys)
		idem_keys_close(&segment->keys);
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

/* Did the store write the row? */
static bool
is_sound(TupleTableSlot *slot)
{
	return idem_entry_is_sound(DatumGetInt16(slot->tts_values[IDEM_RING_TURN]),
							   DatumGetChar(slot->tts_values[IDEM_RING_STATE])) &&
		idem_sound_time(slot->tts_values[IDEM_RING_CLAIMED_AT], slot->tts_isnull[IDEM_RING_CLAIMED_AT]) &&
		idem_sound_time_or_null(slot->tts_values[IDEM_RING_COMPLETED_AT],
								slot->tts_isnull[IDEM_RING_COMPLETED_AT]);
}

/*
 * Describe the row that the scan returned, a committed row or our own
 * transaction's, unless a row with a higher turn was found before, or one with that turn
 * in another segment or at an earlier place.
 */
static void
describe_row(IdemRingSegment *segment, IdemFinding *finding)
{
	TupleTableSlot *slot = segment->found;
	HeapTupleHeader header = ((HeapTupleTableSlot *) slot)->tuple->t_data;
	TransactionId xmin = HeapTupleHeaderGetRawXmin(header);
	IdemRow    *row = &finding->row;
	int16		turn;

	slot_getsomeattrs(slot, IDEM_RING_STATE + 1);
	turn = DatumGetInt16(slot->tts_values[IDEM_RING_TURN]);
	if (finding->found && (row->turn > turn ||
						   (row->turn == turn && (finding->segment != segment->number ||
												  ItemPointerCompare(&finding->tid, &slot->tts_tid) < 0))))
		return;
	finding->found = true;
	finding->segment = segment->number;
	finding->tid = slot->tts_tid;
	finding->state = DatumGetChar(slot->tts_values[IDEM_RING_STATE]);
	finding->unsound = is_sound(slot) ? InvalidOid : RelationGetRelid(segment->heap);
	row->turn = turn;
	row->class = DatumGetInt16(slot->tts_values[IDEM_RING_CLASS]);
	row->claimed_at = DatumGetTimestampTz(slot->tts_values[IDEM_RING_CLAIMED_AT]);
	row->completed_at = row->completed_latest = slot->tts_isnull[IDEM_RING_COMPLETED_AT] ? 0 :
		DatumGetTimestampTz(slot->tts_values[IDEM_RING_COMPLETED_AT]);
	row->own = TransactionIdIsCurrentTransactionId(xmin);
	row->in_snapshot = row->own || !IsolationUsesXactSnapshot() ||
		table_tuple_satisfies_snapshot(segment->heap, slot, GetTransactionSnapshot());

	/*
	 * The transaction that wrote a frozen tuple may have left the commit log.
	 * But the WAL record that froze the tuple is younger than the
	 * transaction's commit record, and the page is at least as new as the
	 * freezing record.
	 */
	if (row->own)
		row->commit_lsn = InvalidXLogRecPtr;
	else if (HeapTupleHeaderXminFrozen(header))
		row->commit_lsn = BufferGetLSNAtomic(((BufferHeapTupleTableSlot *) slot)->buffer);
	else
		row->commit_lsn = TransactionIdGetCommitLSN(xmin);
}

/* Is the row in the slot one of the event's? */
static bool
is_row_of(TupleTableSlot *slot, const pg_uuid_t *digest)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, IDEM_RING_DIGEST + 1, &isnull);

	return !isnull && memcmp(DatumGetUUIDP(value), digest, UUID_LEN) == 0;
}

/*
 * Note a row of the event that a dirty snapshot sees.  The visibility test has set the
 * snapshot's xids if another transaction is writing or removing the row.
 */
static void
note_row(IdemRingSegment *segment, const SnapshotData *dirty, IdemFinding *finding)
{
	if (TransactionIdIsValid(dirty->xmin) || TransactionIdIsValid(dirty->xmax))
	{
		finding->busy = true;
		finding->row.busy_xid = TransactionIdIsValid(dirty->xmin) ? dirty->xmin : dirty->xmax;
	}
	else
		describe_row(segment, finding);
}

/* Read the whole segment, for all rows that are there now. */
static void
probe_all(IdemRingSegment *segment, const pg_uuid_t *digest, IdemFinding *finding)
{
	TableScanDesc scan = idem_compat_table_beginscan(segment->heap, SnapshotAny);
	TupleTableSlot *slot = found_slot(segment);
	SnapshotData dirty;

	InitDirtySnapshot(dirty);
	while (!finding->busy && table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (!is_row_of(slot, digest))
			continue;
		if (table_tuple_satisfies_snapshot(segment->heap, slot, &dirty))
			note_row(segment, &dirty, finding);
		else
			finding->dead_rows = true;
	}
	ExecClearTuple(slot);
	table_endscan(scan);
}

/* Read the whole segment, for all rows that a snapshot sees. */
static void
look_up_all(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot,
			IdemFinding *finding)
{
	TableScanDesc scan = idem_compat_table_beginscan(segment->heap, snapshot);
	TupleTableSlot *slot = found_slot(segment);

	PredicateLockRelation(segment->heap, snapshot);
	while (table_scan_getnextslot(scan, ForwardScanDirection, slot))
	{
		CHECK_FOR_INTERRUPTS();
		if (is_row_of(slot, digest))
			describe_row(segment, finding);
	}
	ExecClearTuple(slot);
	table_endscan(scan);
}

/* Probe at the places that the keys name; false if the keys cannot tell. */
static bool
probe_by_keys(IdemRingSegment *segment, const pg_uuid_t *digest, IdemFinding *finding)
{
	ItemPointerData tids[IDEM_KEYS_MOST];
	SnapshotData dirty;
	bool		thinned;
	int			n = idem_keys_find(&segment->keys, digest, tids, &thinned);

	if (n <= 0)
		return n == 0;
	InitDirtySnapshot(dirty);
	for (int i = 0; i < n && !finding->busy; i++)
	{
		if (!table_tuple_fetch_row_version(segment->heap, &tids[i], &dirty, found_slot(segment)))
			finding->dead_rows = true;
		else if (is_row_of(segment->found, digest))
			note_row(segment, &dirty, finding);
	}
	ExecClearTuple(found_slot(segment));
	return true;
}

/*
 * A row that is dead may have been removed by hand after the keys were asked, so that an older
 * row counts again whose entry was gone: then the keys have changed.
 */
void
idem_ring_probe(IdemRingSegment *segment, const pg_uuid_t *digest, IdemFinding *finding)
{
	IdemFinding before = *finding;

	do
	{
		*finding = before;
		if (!probe_by_keys(segment, digest, finding))
		{
			probe_all(segment, digest, finding);
			return;
		}
	} while (finding->dead_rows && !finding->busy && !idem_keys_are_unchanged(&segment->keys));
}

/* Look at rows that a snapshot may see; false if there is one that it does not see. */
static bool
look_at(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot,
		ItemPointerData *tids, int n, IdemFinding *finding)
{
	bool		all = true;

	for (int i = 0; i < n; i++)
	{
		if (!table_tuple_fetch_row_version(segment->heap, &tids[i], snapshot, found_slot(segment)))
			all = false;
		else if (is_row_of(segment->found, digest))
			describe_row(segment, finding);
	}
	ExecClearTuple(found_slot(segment));
	return all;
}

/*
 * Look where the keys say.  False if they do not suffice: a row that they name is too
 * new for the snapshot, and the entry of the one that the snapshot sees may have gone then.
 */
static bool
look_up_by_keys(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot,
				IdemFinding *finding)
{
	ItemPointerData tids[IDEM_KEYS_MOST];
	bool		thinned;
	int			n = idem_keys_find(&segment->keys, digest, tids, &thinned);

	if (n <= 0)
		return n == 0;
	if (look_at(segment, digest, snapshot, tids, n, finding) || !thinned)
		return true;
	for (int i = 0; i < n; i++)
	{
		if (!idem_keys_is_needless(&segment->keys, digest, &tids[i]) &&
			!table_tuple_fetch_row_version(segment->heap, &tids[i], snapshot, found_slot(segment)))
			return false;
	}
	return true;
}

/* On a standby: a list */

/* With more entries that are not sorted, all are sorted. */
#define TAIL		1024

typedef struct RowList
{
	uint32		of;				/* the segment's file; 0: nothing is listed */
	BlockNumber blocks;
	XLogRecPtr *lsns;			/* of each block, when it was listed */
	uint64	   *entries;
	Size		n;
	Size		sorted;			/* so many of them */
	Size		room;
} RowList;

static RowList lists[IDEM_STORE_SEGMENTS];
static MemoryContext list_context = NULL;

/* Callback: the transaction ends. */
static void
forget_lists(void *arg)
{
	memset(lists, 0, sizeof(lists));
	list_context = NULL;
}

static void
make_list_context(void)
{
	MemoryContextCallback *callback;

	list_context = AllocSetContextCreate(TopTransactionContext, "idempotency rows of segments", ALLOCSET_DEFAULT_SIZES);
	callback = MemoryContextAllocZero(list_context, sizeof(MemoryContextCallback));
	callback->func = forget_lists;
	MemoryContextRegisterResetCallback(list_context, callback);
}

/* Enlarge an array. */
static void *
enlarge(void *array, Size bytes)
{
	return array == NULL ? MemoryContextAllocExtended(list_context, bytes, MCXT_ALLOC_HUGE) :
		repalloc_huge(array, bytes);
}

static int
compare(const void *a, const void *b)
{
	uint64		left = *(const uint64 *) a;
	uint64		right = *(const uint64 *) b;

	return left < right ? -1 : left > right;
}

/* Callback of idem_table_visit_page: list a row. */
static void
list_row(Relation heap, HeapTuple row, void *arg)
{
	RowList    *list = arg;
	bool		isnull;
	Datum		digest = heap_getattr(row, IDEM_RING_DIGEST + 1, RelationGetDescr(heap), &isnull);

	if (!isnull)
		list->entries[list->n++] = idem_keypage_entry(idem_keypage_hash(DatumGetUUIDP(digest), 0), &row->t_self);
	if (!isnull && list->entries[list->n - 1] == 0)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("a segment of the dedup store is larger than a standby can look into"),
				 errhint("Ask the primary.")));
}

/* List the rows of a block, if it has changed. */
static void
list_block(RowList *list, Relation heap, BlockNumber block)
{
	Buffer		buffer = idem_keypage_lock(heap, block, BUFFER_LOCK_SHARE);
	XLogRecPtr	lsn = PageGetLSN(BufferGetPage(buffer));

	UnlockReleaseBuffer(buffer);
	if (lsn == list->lsns[block] && !XLogRecPtrIsInvalid(lsn))
		return;
	if (list->n + MaxHeapTuplesPerPage > list->room)
	{
		list->room = Max(2 * list->room, 64 * MaxHeapTuplesPerPage);
		list->entries = enlarge(list->entries, list->room * sizeof(uint64));
	}
	/* noted first: what is replayed between the two looks is listed twice */
	list->lsns[block] = lsn;
	idem_table_visit_page(heap, block, NULL, list_row, list);
}

/* List what has come since the last look.  Of sorted entries each is there once. */
static void
refresh_list(RowList *list, Relation heap)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(heap);

	if (list->of != IDEM_REL_FILE_NUMBER(heap))
	{
		list->of = IDEM_REL_FILE_NUMBER(heap);
		list->n = list->sorted = 0;
		list->blocks = 0;
	}
	if (blocks > list->blocks)
	{
		list->lsns = enlarge(list->lsns, blocks * sizeof(XLogRecPtr));
		memset(list->lsns + list->blocks, 0, (blocks - list->blocks) * sizeof(XLogRecPtr));
	}
	list->blocks = blocks;
	for (BlockNumber block = 0; block < blocks; block++)
	{
		CHECK_FOR_INTERRUPTS();
		list_block(list, heap, block);
	}
	if (list->n - list->sorted > TAIL)
	{
		qsort(list->entries, list->n, sizeof(uint64), compare);
		list->n = list->sorted = qunique(list->entries, list->n, sizeof(uint64), compare);
	}
}

/* The first of the sorted entries whose hash is not less. */
static Size
lower_bound(const RowList *list, uint32 hash)
{
	Size		low = 0;
	Size		high = list->sorted;

	while (low < high)
	{
		Size		middle = low + (high - low) / 2;

		if (idem_keypage_hash_in(list->entries[middle]) < hash)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void
look_up_by_list(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot, bool again,
				IdemFinding *finding)
{
	RowList    *list = &lists[segment->number];
	uint32		hash = idem_keypage_hash(digest, 0);

	if (list_context == NULL)
		make_list_context();
	if (!again || list->of != IDEM_REL_FILE_NUMBER(segment->heap))
		refresh_list(list, segment->heap);
	for (Size i = lower_bound(list, hash); i < list->n; i++)
	{
		ItemPointerData tid;

		idem_keypage_tid(list->entries[i], &tid);
		if (idem_keypage_hash_in(list->entries[i]) != hash)
			i = Max(i + 1, list->sorted) - 1;	/* the others are not sorted */
		else if (ItemPointerGetBlockNumber(&tid) < list->blocks)	/* VACUUM may have cut
																	 * the file */
			(void) look_at(segment, digest, snapshot, &tid, 1, finding);
	}
}

void
idem_ring_look_up(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot,
				  bool again, IdemFinding *finding)
{
	if (!segment->has_keys)
		look_up_by_list(segment, digest, snapshot, again, finding);
	else if (!look_up_by_keys(segment, digest, snapshot, finding))
		look_up_all(segment, digest, snapshot, finding);
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

/* Writing */

/* The row of an entry. */
static HeapTuple
form_row(IdemRingSegment *segment, const IdemNewEntry *entry)
{
	Datum		values[IDEM_RING_NATTS];
	bool		nulls[IDEM_RING_NATTS] = {false};

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

	return idem_table_form_row(RelationGetDescr(segment->heap), IDEM_RING_NATTS, values, nulls);
}

/* The entries of a call. */
typedef struct Entries
{
	IdemRingSegment *segment;
	IdemNewEntry *entries;
	int			n;
} Entries;

/* Callback: insert the rows into the heap, then tell the keys (rule 1 of keys.c). */
static void
insert(void *arg)
{
	static IdemTableSlots slots;
	const Entries *call = arg;
	IdemRingSegment *segment = call->segment;
	MemoryContext old = CurrentMemoryContext;
	HeapTuple	rows[IDEM_STORE_CHUNK];

	/* heap_multi_insert leaves about a page of memory behind each time */
	if (call->n > 1 && segment->chunk_context == NULL)
		segment->chunk_context = AllocSetContextCreate(segment->context, "idempotency rows",
													   ALLOCSET_DEFAULT_SIZES);
	if (call->n > 1)
		MemoryContextSwitchTo(segment->chunk_context);
	for (int i = 0; i < call->n; i++)
		rows[i] = form_row(segment, &call->entries[i]);
	idem_table_append(segment->heap, &slots, rows, call->n, 0, NULL);

	IDEM_FAULT_POINT("claim-heap-inserted");
	for (int i = 0; i < call->n; i++)
	{
		idem_keys_enter(&segment->keys, &call->entries[i].digest, &rows[i]->t_self);
		call->entries[i].ref = (IdemEntryRef)
		{
			.segment = segment->number, .tid = rows[i]->t_self
		};
		heap_freetuple(rows[i]);
	}
	MemoryContextSwitchTo(old);
	if (call->n > 1)
		MemoryContextReset(segment->chunk_context);
}

void
idem_ring_insert(IdemRingSegment *segment, IdemNewEntry *entries, int n)
{
	Entries		call = {segment, entries, n};

	Assert(n > 0 && n <= IDEM_STORE_CHUNK);
	idem_work_patiently(insert, &call);
}

/* Has this transaction written a row of the event at this place? */
static bool
is_own_row(IdemRingSegment *segment, const pg_uuid_t *digest, ItemPointerData *tid)
{
	TupleTableSlot *slot = found_slot(segment);
	bool		own = ItemPointerGetBlockNumber(tid) < RelationGetNumberOfBlocks(segment->heap) &&
	table_tuple_fetch_row_version(segment->heap, tid, SnapshotSelf, slot) &&
	is_row_of(slot, digest) &&
	TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(((HeapTupleTableSlot *) slot)->tuple->t_data));

	ExecClearTuple(slot);
	return own;
}

bool
idem_ring_delete(IdemRingSegment *segment, const pg_uuid_t *digest, const ItemPointerData *tid)
{
	ItemPointerData at = *tid;
	IdemFinding finding = {.found = false};
	TM_FailureData tmfd;

	/* a command cannot remove rows that it wrote itself */
	CommandCounterIncrement();

	/* the transaction may have rewritten the table, e.g. by CLUSTER */
	if (!is_own_row(segment, digest, &at))
	{
		idem_ring_probe(segment, digest, &finding);
		if (!finding.found || !finding.row.own)
			return false;
		at = finding.tid;
	}
	return idem_compat_table_tuple_delete(segment->heap, &at, GetCurrentCommandId(true), &tmfd) == TM_Ok;
}
