/*-------------------------------------------------------------------------
 *
 * writer.c
 *		Appends events to the current segment.
 *
 * Invariant: a writer puts an event only into a segment that was current while
 * the writer held the segment's lock.  Consider a writer that reads the
 * generation, stalls, and locks the segment after the segment was closed and
 * emptied: its event would be in a segment in which nobody expects events.  So
 * the writer reads the generation after it has the lock, and starts over if
 * another segment is current.
 *
 * The top-level transaction id is assigned before a number is drawn: the
 * events of a transaction that starts after a number was given out have higher
 * numbers.
 *
 * What a crash leaves: rows of a transaction that never committed, as any
 * aborted insert leaves.  Emptying the segment removes them.
 *
 * LOCKING: RowExclusiveLock on the segment's heap, on its indexes and on the
 * number sequence, in this order, then on the TOAST table and its index (by
 * the heap insert).  A segment that proves not to be current is unlocked at
 * once.  All other locks stand as long as the rows may be committed: the locks
 * belong to the subtransaction (txn_owner.h), and fall with its rows at
 * ROLLBACK TO, or at the end of the transaction.  The lock on the table makes
 * REINDEX CONCURRENTLY wait.
 *
 * MEMORY: tuples are in the caller's context; those of many events in a
 * context that is reset after each chunk.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/writer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"
#include "utils/xid8.h"

#include "outbox/entries.h"
#include "outbox/number.h"
#include "outbox/outbox.h"
#include "outbox/segment.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/lock_wait.h"
#include "shared/table.h"
#include "shared/txn_owner.h"

/* A chunk of a multi-insert ends when it reaches either bound. */
#define MAX_CHUNK_ROWS		IDEM_TABLE_ROWS
#define MAX_CHUNK_BYTES		(256 * 1024)

/* The data that all events of one call have in common. */
typedef struct Writer
{
	IdemSegment segment;		/* only its heap is open */
	IdemTableIndexes indexes;
	const IdemOutboxRow *rows;	/* of the call */
	int			nrows;
	FullTransactionId xid;
	int64		next_seq;		/* the next of the numbers that were drawn */
	TimestampTz now;
} Writer;

/* The segment that was current at the last call.  Each call verifies it. */
static int	guessed_segment = 0;

/*
 * Open and lock the current segment: lock the guessed segment, and guess anew
 * until the guess is right (see the file header).
 */
static void
open_current_segment(IdemSegment *seg)
{
	for (;;)
	{
		int			current;

		seg->number = guessed_segment;
		IDEM_FAULT_POINT("outbox-segment-chosen");
		seg->heap = idem_table_open_patiently(idem_segment_oid(seg->number), RowExclusiveLock);
		IDEM_FAULT_POINT("outbox-segment-locked");
		current = idem_segment_of(idem_outbox_generation_locked());
		if (current == seg->number)
			break;
		table_close(seg->heap, RowExclusiveLock);
		guessed_segment = current;
		IDEM_FAULT_POINT("outbox-overtaken");
		CHECK_FOR_INTERRUPTS();
	}
	IDEM_FAULT_POINT("outbox-segment-current");
}

/* Lock a segment, then draw n numbers.  number.c relies on this order. */
static void
open_and_draw(Writer *writer, int n)
{
	for (;;)
	{
		open_current_segment(&writer->segment);
		idem_segment_open_indexes(&writer->segment, &writer->indexes);
		if (idem_number_draw(n, &writer->next_seq))
			break;
		idem_table_close_indexes(&writer->indexes, RowExclusiveLock);
		table_close(writer->segment.heap, RowExclusiveLock);
		idem_number_make_safe();
	}
	IDEM_FAULT_POINT("outbox-numbers-drawn");
}

/* Make a tuple with the next number, and all but the tid of its index entry. */
static HeapTuple
form_tuple(Writer *writer, const IdemOutboxRow *row, IdemEntry *entry)
{
	Datum		values[IDEM_NATTS];
	bool		nulls[IDEM_NATTS] = {false};

	entry->xid = U64FromFullTransactionId(writer->xid);
	entry->seq = writer->next_seq++;
	values[IDEM_ATT_XID] = FullTransactionIdGetDatum(writer->xid);
	values[IDEM_ATT_SEQ] = Int64GetDatum(entry->seq);
	values[IDEM_ATT_EVENT_ID] = PointerGetDatum(&row->event_id);
	values[IDEM_ATT_ENQUEUED_AT] = TimestampTzGetDatum(writer->now);
	values[IDEM_ATT_AGGREGATE_TYPE] = row->aggregate_type;
	values[IDEM_ATT_AGGREGATE_ID] = row->aggregate_id;
	values[IDEM_ATT_EVENT_TYPE] = row->event_type;
	values[IDEM_ATT_PAYLOAD] = values[IDEM_ATT_PAYLOAD_BYTES] = row->payload;
	nulls[row->is_json ? IDEM_ATT_PAYLOAD_BYTES : IDEM_ATT_PAYLOAD] = true;
	values[IDEM_ATT_CONTENT_TYPE] = row->content_type;
	nulls[IDEM_ATT_CONTENT_TYPE] = !row->has_content_type;
	values[IDEM_ATT_HEADERS] = row->headers;
	nulls[IDEM_ATT_HEADERS] = !row->has_headers;

	return idem_table_form_row(RelationGetDescr(writer->segment.heap), IDEM_NATTS, values, nulls);
}

/* Insert an entry into an index, in the usual way. */
static void
insert_index_entry(const Writer *writer, Relation index, const IdemEntry *entry)
{
	Datum		values[2] = {UInt64GetDatum(entry->xid), Int64GetDatum(entry->seq)};
	bool		nulls[2] = {false, false};

	idem_table_insert_entry(writer->segment.heap, index, values, nulls, &entry->tid);
}

/*
 * Insert the entries of a chunk into all indexes: together where they belong
 * and fit, else one, whose place nbtree finds; then the rest may fit again, as
 * behind a page that was full.  If it does not, it goes the long way.
 */
static void
insert_index_entries(const Writer *writer, const IdemEntry *entries, int n)
{
	for (int i = 0; i < writer->indexes.n; i++)
	{
		int			done = 0,
					singles = 0;

		while (done < n)
		{
			int			put = 0;

			if (n - done >= IDEM_ENTRIES_TOGETHER && singles < 2)
				put = idem_entries_put(writer->indexes.rels[i], writer->segment.heap, &entries[done], n - done);
			if (put > 0)
				singles = 0;
			else
			{
				insert_index_entry(writer, writer->indexes.rels[i], &entries[done]);
				put = 1;
				singles++;
			}
			done += put;
		}
	}
}

/* Append a single row. */
static void
insert_one(Writer *writer, const IdemOutboxRow *row)
{
	IdemEntry	entry;
	HeapTuple	tuple = form_tuple(writer, row, &entry);

	idem_table_append(writer->segment.heap, NULL, &tuple, 1, 0, NULL);
	IDEM_FAULT_POINT("outbox-row-inserted");
	entry.tid = tuple->t_self;
	insert_index_entries(writer, &entry, 1);
	heap_freetuple(tuple);
}

/* Append as many of the rows as make a chunk; returns their number. */
static int
insert_chunk(Writer *writer, const IdemOutboxRow *rows, int n)
{
	static IdemTableSlots slots;
	IdemEntry	entries[MAX_CHUNK_ROWS];
	HeapTuple	tuples[MAX_CHUNK_ROWS];
	Size		bytes = 0;
	int			count = 0;

	n = Min(n, MAX_CHUNK_ROWS);
	while (count < n && bytes < MAX_CHUNK_BYTES)
	{
		tuples[count] = form_tuple(writer, &rows[count], &entries[count]);
		bytes += tuples[count]->t_len;
		count++;
	}

	idem_table_append(writer->segment.heap, &slots, tuples, count, 0, NULL);
	IDEM_FAULT_POINT("outbox-chunk-inserted");
	for (int i = 0; i < count; i++)
		entries[i].tid = tuples[i]->t_self;
	insert_index_entries(writer, entries, count);
	return count;
}

/* Append rows chunk by chunk, in a context that is reset after each. */
static void
insert_many(Writer *writer, const IdemOutboxRow *rows, int n)
{
	MemoryContext chunk_context = AllocSetContextCreate(CurrentMemoryContext,
														"outbox chunk",
														ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(chunk_context);

	while (n > 0)
	{
		int			inserted = insert_chunk(writer, rows, n);

		rows += inserted;
		n -= inserted;
		MemoryContextReset(chunk_context);
		CHECK_FOR_INTERRUPTS();
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(chunk_context);
}

/* Callback: append the rows. */
static void
insert(void *arg)
{
	Writer	   *writer = arg;

	if (writer->nrows == 1)
		insert_one(writer, writer->rows);
	else
		insert_many(writer, writer->rows, writer->nrows);
}

void
idem_outbox_insert(const IdemOutboxRow *rows, int n)
{
	ResourceOwner saved;
	Writer		writer;

	idem_check_no_script("an event");
	saved = idem_txn_owner_enter();
	writer.rows = rows;
	writer.nrows = n;
	writer.xid = GetTopFullTransactionId();
	writer.now = GetCurrentTimestamp();
	open_and_draw(&writer, n);

	idem_work_patiently(insert, &writer);

	idem_table_close_indexes(&writer.indexes, NoLock);
	table_close(writer.segment.heap, NoLock);
	idem_txn_owner_leave(saved);
	IDEM_FAULT_POINT("outbox-inserted");

	if (idem_outbox_enqueued_hook != NULL)
		(*idem_outbox_enqueued_hook) ();
}
