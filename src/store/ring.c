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
 * A standby has no keys: their pages are not logged.  There each transaction makes a list of
 * the rows of a segment (keys_list.c).
 *
 * LOCKING: AccessShareLock to read, RowExclusiveLock to write, on the table.  A long
 * result adds it on the TOAST table and its index.
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

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
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
#include "store/keys_list.h"
#include "store/keys_tidy.h"
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
	idem_guard_table(idem_store_segment_ref(number), segment->heap,
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
	if (finding->found && (finding->turn > turn ||
						   (finding->turn == turn && ItemPointerCompare(&finding->tid, &slot->tts_tid) < 0)))
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
note_row(IdemRingSegment *segment, const SnapshotData *dirty, IdemRingFinding *finding)
{
	if (TransactionIdIsValid(dirty->xmin) || TransactionIdIsValid(dirty->xmax))
	{
		finding->busy = true;
		finding->busy_xid = TransactionIdIsValid(dirty->xmin) ? dirty->xmin : dirty->xmax;
	}
	else
		describe_row(segment, finding);
}

/* Read the whole segment, for all rows that are there now. */
static void
probe_all(IdemRingSegment *segment, const pg_uuid_t *digest, IdemRingFinding *finding)
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
			IdemRingFinding *finding)
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

bool
idem_ring_is_empty(IdemRingSegment *segment)
{
	return RelationGetNumberOfBlocks(segment->heap) == 0;
}

/* Probe at the places that the keys name; false if the keys cannot tell. */
static bool
probe_by_keys(IdemRingSegment *segment, const pg_uuid_t *digest, IdemRingFinding *finding)
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
idem_ring_probe(IdemRingSegment *segment, const pg_uuid_t *digest, IdemRingFinding *finding)
{
	do
	{
		memset(finding, 0, sizeof(*finding));
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
		ItemPointerData *tids, int n, IdemRingFinding *finding)
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
				IdemRingFinding *finding)
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

/* A look-up on a standby. */
typedef struct LookUp
{
	IdemRingSegment *segment;
	const pg_uuid_t *digest;
	Snapshot	snapshot;
	IdemRingFinding *finding;
} LookUp;

/* Callback of idem_keys_list_visit. */
static void
look_at_place(ItemPointerData *tid, void *arg)
{
	const LookUp *look_up = arg;

	(void) look_at(look_up->segment, look_up->digest, look_up->snapshot, tid, 1, look_up->finding);
}

void
idem_ring_look_up(IdemRingSegment *segment, const pg_uuid_t *digest, Snapshot snapshot,
				  bool again, IdemRingFinding *finding)
{
	LookUp		look_up = {segment, digest, snapshot, finding};

	memset(finding, 0, sizeof(*finding));
	if (!segment->has_keys)
		idem_keys_list_visit(segment->number, segment->heap, digest, again, look_at_place, &look_up);
	else if (!look_up_by_keys(segment, digest, snapshot, finding))
	{
		memset(finding, 0, sizeof(*finding));
		look_up_all(segment, digest, snapshot, finding);
	}
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

/* Insert the rows into the heap, then tell the keys (rule 1 of keys.c). */
static void
insert_rows(IdemRingSegment *segment, IdemNewEntry *entries, int n)
{
	static IdemTableSlots slots;
	HeapTuple	rows[IDEM_RING_CHUNK];

	for (int i = 0; i < n; i++)
		rows[i] = form_row(segment, &entries[i]);
	idem_table_append(segment->heap, &slots, rows, n, 0, NULL);

	IDEM_FAULT_POINT("claim-heap-inserted");
	for (int i = 0; i < n; i++)
	{
		idem_keys_enter(&segment->keys, &entries[i].digest, &rows[i]->t_self);
		entries[i].ref = (IdemEntryRef)
		{
			.segment = segment->number, .tid = rows[i]->t_self
		};
		heap_freetuple(rows[i]);
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
	IdemRingFinding finding;
	TM_FailureData tmfd;

	/* a command cannot remove rows that it wrote itself */
	CommandCounterIncrement();

	/* the transaction may have rewritten the table, e.g. by CLUSTER */
	if (!is_own_row(segment, digest, &at))
	{
		idem_ring_probe(segment, digest, &finding);
		if (!finding.found || !finding.own)
			return false;
		at = finding.tid;
	}
	return idem_compat_table_tuple_delete(segment->heap, &at, GetCurrentCommandId(true), &tmfd) == TM_Ok;
}
