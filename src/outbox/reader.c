/*-------------------------------------------------------------------------
 *
 * reader.c
 *		Reads the events of a difference of snapshots, in order of seq.
 *
 * Places come from the indexes (range.c), rows from the heap.  A place whose
 * row the snapshot does not see belongs to an aborted transaction or
 * subtransaction, and the reader passes over it.  The reader checks that it
 * does, because passing over a committed event would lose the event.
 *
 * A row does not move while its segment is locked.  Between transactions
 * VACUUM FULL may move it, into another file.  If a heap's file has changed
 * since its places were read, the reader reads them again.  Emptying keeps the
 * file.  It empties no segment with an event that a position has yet to
 * deliver.  So places in an emptied segment are of aborted transactions: the
 * reader finds no row there, or the row of another event.
 *
 * Invariant: between two calls, "seq" is that of the event given out last, and
 * the places held are those of the difference after it.
 *
 * LOCKING: AccessShareLock on heap and index of all segments, from the first
 * use until idem_reader_suspend.  The page of the event given out last is
 * pinned, not locked.
 *
 * MEMORY: the reader's context has places and snapshots, bounded (range.c).
 * The data of an event is in the pinned page.  A compressed name, which is
 * rare, is in a context that is reset with each event.
 *
 * Relations and the pin belong to the resource owner that was current at the
 * first use since the reader was suspended, whatever subtransaction uses the
 * reader later.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/reader.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/resowner.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "outbox/range.h"
#include "outbox/reader.h"
#include "outbox/segment.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/sound.h"

typedef struct ReaderSegment
{
	IdemSegment segment;
	bool		open;
	BlockNumber nblocks;		/* blocks of the heap when last looked, 0: not
								 * yet; it may have grown */
	Oid			file;			/* the heap's file when places were read, or 0 */
} ReaderSegment;

struct IdemReader
{
	MemoryContext context;
	MemoryContext event_context;	/* reset with each event */
	MemoryContext snap_context; /* base and target */

	ReaderSegment segments[IDEM_OUTBOX_SEGMENTS];
	ResourceOwner owner;		/* owns what is open; NULL: nothing is open */
	Buffer		buffer;			/* pinned page, or InvalidBuffer */
	int			buffer_segment; /* the segment of the pinned page */

	bool		positioned;		/* idem_reader_seek was called */
	IdemRange  *range;
	IdemSnap   *base;
	IdemSnap   *target;			/* NULL: no difference */
	int64		seq;			/* seq of the event given out last */
	int64		previous_seq;	/* seq of the event before it, for unget */
};

/*
 * Opening and closing
 */

/*
 * Return a segment to the range (IdemSegmentOpener), and open it unless it is open.  If its
 * file has changed, the places held are void, and the range starts anew.
 */
static const IdemSegment *
open_segment(void *arg, int number)
{
	IdemReader *reader = arg;
	ReaderSegment *rs = &reader->segments[number];
	Oid			file;

	if (rs->open)
		return &rs->segment;
	idem_segment_open(&rs->segment, number);
	rs->open = true;
	rs->nblocks = 0;
	file = IDEM_REL_FILE_NUMBER(rs->segment.heap);
	if (OidIsValid(rs->file) && rs->file != file && reader->target != NULL)
		idem_range_start(reader->range, reader->base, reader->target, reader->seq);
	rs->file = file;
	return &rs->segment;
}

/*
 * Make the reader's resource owner the current one; return the former one.
 * The first call since a suspension opens all segments, because only then the
 * reader knows whether the places that it holds are still valid.
 */
static ResourceOwner
enter(IdemReader *reader)
{
	ResourceOwner save = CurrentResourceOwner;

	if (reader->owner != NULL)
	{
		CurrentResourceOwner = reader->owner;
		return save;
	}
	reader->owner = save;
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
		(void) open_segment(reader, i);
	return save;
}

/* Release the pinned page, if there is one. */
static void
release_buffer(IdemReader *reader)
{
	if (BufferIsValid(reader->buffer))
		ReleaseBuffer(reader->buffer);
	reader->buffer = InvalidBuffer;
}

IdemReader *
idem_reader_create(MemoryContext parent)
{
	MemoryContext context = AllocSetContextCreate(parent, "outbox reader",
												  ALLOCSET_DEFAULT_SIZES);
	IdemReader *reader = MemoryContextAllocZero(context, sizeof(IdemReader));

	reader->context = context;
	reader->event_context = AllocSetContextCreate(context, "outbox event",
												  ALLOCSET_SMALL_SIZES);
	reader->snap_context = AllocSetContextCreate(context, "outbox position",
												 ALLOCSET_SMALL_SIZES);
	reader->range = idem_range_create(context);
	reader->buffer = InvalidBuffer;
	return reader;
}

void
idem_reader_free(IdemReader *reader)
{
	idem_reader_suspend(reader);
	MemoryContextDelete(reader->context);
}

void
idem_reader_suspend(IdemReader *reader)
{
	ResourceOwner save;

	if (reader->owner == NULL)
		return;
	save = enter(reader);
	release_buffer(reader);
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		if (reader->segments[i].open)
			idem_segment_close(&reader->segments[i].segment);
		reader->segments[i].open = false;
	}
	reader->owner = NULL;
	CurrentResourceOwner = save;
}

/* The abort has closed everything, so there is nothing to close here. */
void
idem_reader_reset(IdemReader *reader)
{
	reader->buffer = InvalidBuffer;
	reader->owner = NULL;
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		reader->segments[i].open = false;
		reader->segments[i].file = InvalidOid;
	}
	idem_range_forget(reader->range);
	reader->positioned = false;
	reader->base = reader->target = NULL;
	MemoryContextReset(reader->snap_context);
	MemoryContextReset(reader->event_context);
}

/*
 * Fetching rows
 */

/* Point to the bytes of a text; detoast it if necessary. */
static IdemEventText
text_of(Datum value)
{
	text	   *txt = DatumGetTextPP(value);
	IdemEventText result = {VARDATA_ANY(txt), VARSIZE_ANY_EXHDR(txt)};

	return result;
}

/* What a name may have grown to when a dump was restored into another encoding. */
#define MAX_RESTORED	(4 * IDEM_MAX_NAME_BYTES)

/* Has the row what each event has?  The constraint of the segments says the same. */
static bool
is_event(const Datum *values, const bool *nulls)
{
	return !nulls[IDEM_ATT_EVENT_ID] &&
		idem_sound_time(values[IDEM_ATT_ENQUEUED_AT], nulls[IDEM_ATT_ENQUEUED_AT]) &&
		idem_sound_text(values[IDEM_ATT_AGGREGATE_TYPE], nulls[IDEM_ATT_AGGREGATE_TYPE], 1, MAX_RESTORED) &&
		idem_sound_text(values[IDEM_ATT_AGGREGATE_ID], nulls[IDEM_ATT_AGGREGATE_ID], 1, MAX_RESTORED) &&
		idem_sound_text(values[IDEM_ATT_EVENT_TYPE], nulls[IDEM_ATT_EVENT_TYPE], 1, MAX_RESTORED) &&
		idem_sound_text_or_null(values[IDEM_ATT_CONTENT_TYPE], nulls[IDEM_ATT_CONTENT_TYPE], 1, MAX_RESTORED) &&
		nulls[IDEM_ATT_PAYLOAD] != nulls[IDEM_ATT_PAYLOAD_BYTES];
}

/* Take the row apart; false if it is not the event of the place. */
static bool
read_event(IdemReader *reader, const IdemSegment *segment, HeapTuple tuple,
		   const IdemPlace *place, IdemEvent *event)
{
	Datum		values[IDEM_NATTS];
	bool		nulls[IDEM_NATTS];
	MemoryContext old;

	idem_table_take_apart(RelationGetDescr(segment->heap), IDEM_NATTS, tuple, values, nulls);
	if (nulls[IDEM_ATT_XID] || nulls[IDEM_ATT_SEQ])
		return false;
	event->xid = DatumGetFullTransactionId(values[IDEM_ATT_XID]);
	event->seq = DatumGetInt64(values[IDEM_ATT_SEQ]);
	if (U64FromFullTransactionId(event->xid) != place->xid || event->seq != place->seq)
		return false;

	if (!is_event(values, nulls))
		idem_report_row(ERROR, RelationGetRelid(segment->heap), &tuple->t_self,
						"No relay passes it over, so that no event is lost in silence. Delete the row if it is no event that has to arrive.");
	MemoryContextReset(reader->event_context);
	old = MemoryContextSwitchTo(reader->event_context);
	event->event_id = *DatumGetUUIDP(values[IDEM_ATT_EVENT_ID]);
	event->enqueued_at = DatumGetTimestampTz(values[IDEM_ATT_ENQUEUED_AT]);
	event->aggregate_type = text_of(values[IDEM_ATT_AGGREGATE_TYPE]);
	event->aggregate_id = text_of(values[IDEM_ATT_AGGREGATE_ID]);
	event->event_type = text_of(values[IDEM_ATT_EVENT_TYPE]);
	event->is_json = !nulls[IDEM_ATT_PAYLOAD];
	event->payload = values[event->is_json ? IDEM_ATT_PAYLOAD : IDEM_ATT_PAYLOAD_BYTES];
	event->has_content_type = !nulls[IDEM_ATT_CONTENT_TYPE];
	if (event->has_content_type)
		event->content_type = text_of(values[IDEM_ATT_CONTENT_TYPE]);
	event->has_headers = !nulls[IDEM_ATT_HEADERS];
	event->headers = values[IDEM_ATT_HEADERS];
	MemoryContextSwitchTo(old);
	return true;
}

/*
 * Is the tuple the event of the place, whether a snapshot sees the tuple or
 * not?
 */
static bool
is_event_of(HeapTuple tuple, TupleDesc desc, const IdemPlace *place)
{
	bool		no_xid;
	bool		no_seq;
	Datum		xid = heap_getattr(tuple, IDEM_ATT_XID + 1, desc, &no_xid);
	Datum		seq = heap_getattr(tuple, IDEM_ATT_SEQ + 1, desc, &no_seq);

	if (no_xid || no_seq)
		return false;
	return DatumGetInt64(seq) == place->seq &&
		U64FromFullTransactionId(DatumGetFullTransactionId(xid)) == place->xid;
}

/*
 * The transaction that inserted the row at a place, unless the row's absence
 * from the snapshot is explained.  Returns InvalidTransactionId if it is
 * explained: the transaction is known to have aborted, somebody deleted the
 * row, or the place has no row of the event.
 */
static TransactionId
unexplained_inserter(Relation heap, Buffer buffer, const IdemPlace *place)
{
	HeapTupleData tuple;

	if (!idem_table_row_at(heap, buffer, ItemPointerGetOffsetNumber(&place->tid), &tuple) ||
		HeapTupleHeaderXminInvalid(tuple.t_data) ||
		HeapTupleHeaderXminFrozen(tuple.t_data) ||
		(tuple.t_data->t_infomask & HEAP_XMAX_INVALID) == 0 ||
		!is_event_of(&tuple, RelationGetDescr(heap), place))
		return InvalidTransactionId;
	return HeapTupleHeaderGetRawXmin(tuple.t_data);
}

/*
 * Check that the row at a place, which the snapshot does not see, may be
 * passed over: its inserting (sub)transaction aborted, or somebody deleted the
 * row.  A committed row means that the caller's snapshot is older than the
 * position: error.
 */
static void
check_row_is_gone(Relation heap, Buffer buffer, const IdemPlace *place)
{
	TransactionId xmin;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	xmin = unexplained_inserter(heap, buffer, place);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	if (TransactionIdIsValid(xmin) &&
		(TransactionIdIsInProgress(xmin) || TransactionIdDidCommit(xmin)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("snapshot is too old to read event %lld in table \"%s\"",
						(long long) place->seq, RelationGetRelationName(heap))));
}

/*
 * Pin a page of a segment; false if the segment does not reach there any more.
 */
static bool
pin_page(IdemReader *reader, ReaderSegment *rs, BlockNumber block)
{
	if (block >= rs->nblocks)
	{
		rs->nblocks = RelationGetNumberOfBlocks(rs->segment.heap);
		if (block >= rs->nblocks)
			return false;
	}
	if (BufferIsValid(reader->buffer) &&
		reader->buffer_segment == rs->segment.number &&
		BufferGetBlockNumber(reader->buffer) == block)
		return true;
	release_buffer(reader);
	reader->buffer = ReadBuffer(rs->segment.heap, block);
	reader->buffer_segment = rs->segment.number;
	return true;
}

/* Read the row at a place; false if the snapshot sees no such event there. */
static bool
fetch_place(IdemReader *reader, const IdemPlace *place, IdemEvent *event)
{
	ReaderSegment *rs = &reader->segments[place->segment];
	Relation	heap = rs->segment.heap;
	ItemPointerData tid = place->tid;
	HeapTupleData tuple;
	bool		visible;

	if (!pin_page(reader, rs, ItemPointerGetBlockNumber(&tid)))
		return false;
	LockBuffer(reader->buffer, BUFFER_LOCK_SHARE);
	visible = heap_hot_search_buffer(&tid, heap, reader->buffer,
									 GetActiveSnapshot(), &tuple, NULL, true);
	LockBuffer(reader->buffer, BUFFER_LOCK_UNLOCK);
	if (visible)
		return read_event(reader, &rs->segment, &tuple, place, event);
	check_row_is_gone(heap, reader->buffer, place);
	return false;
}

/*
 * Positions
 */

void
idem_reader_seek(IdemReader *reader, const IdemPosition *pos)
{
	MemoryContext old;

	reader->positioned = true;
	if (pos->target != NULL && reader->target != NULL &&
		idem_snap_equal(pos->base, reader->base) &&
		idem_snap_equal(pos->target, reader->target))
	{
		if (pos->seq != reader->seq)
			idem_range_move(reader->range, pos->seq);
		reader->seq = reader->previous_seq = pos->seq;
		return;
	}

	idem_range_forget(reader->range);
	reader->base = reader->target = NULL;
	MemoryContextReset(reader->snap_context);
	reader->seq = reader->previous_seq = pos->seq;
	if (pos->target == NULL)
		return;
	old = MemoryContextSwitchTo(reader->snap_context);
	reader->base = idem_snap_copy(pos->base);
	reader->target = idem_snap_copy(pos->target);
	MemoryContextSwitchTo(old);
	idem_range_start(reader->range, reader->base, reader->target, pos->seq);
}

int64
idem_event_size(const IdemEvent *event)
{
	return (int64) event->aggregate_type.len + event->aggregate_id.len + event->event_type.len +
		toast_raw_datum_size(event->payload) + (event->has_headers ? toast_raw_datum_size(event->headers) : 0);
}

bool
idem_reader_next(IdemReader *reader, IdemEvent *event)
{
	ResourceOwner save;
	const IdemPlace *place;
	bool		found = false;

	/* the caller would take "no more events" for "all are delivered" */
	if (!reader->positioned)
		elog(ERROR, "outbox reader has no position");
	if (reader->target == NULL)
		return false;
	save = enter(reader);
	while ((place = idem_range_next(reader->range, open_segment, reader)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (fetch_place(reader, place, event))
		{
			reader->previous_seq = reader->seq;
			reader->seq = event->seq;
			found = true;
			break;
		}
	}
	CurrentResourceOwner = save;
	return found;
}

void
idem_reader_unget(IdemReader *reader)
{
	Assert(reader->target != NULL);
	idem_range_back(reader->range);
	reader->seq = reader->previous_seq;
}

/*
 * Single events
 */

/* Look (xid, seq) up in one segment's index, then fetch the row. */
static bool
fetch_in_segment(IdemReader *reader, int number, uint64 xid, int64 seq,
				 IdemEvent *event)
{
	const IdemSegment *segment = open_segment(reader, number);
	IndexScanDesc scan;
	ScanKeyData keys[3];
	IdemEntry	entry;
	bool		found = false;

	if (idem_segment_is_empty(segment))
		return false;
	idem_scankey_xid(&keys[0], BTEqualStrategyNumber, xid);
	idem_scankey_seq(&keys[1], BTEqualStrategyNumber, seq);
	scan = idem_segment_beginscan(segment, 2);
	index_rescan(scan, keys, 2, NULL, 0);
	while (!found && idem_segment_next(scan, ForwardScanDirection, &entry))
	{
		IdemPlace	place = {
			.seq = seq,
			.xid = xid,
			.tid = entry.tid,
			.segment = number
		};

		found = fetch_place(reader, &place, event);
	}
	index_endscan(scan);
	return found;
}

bool
idem_reader_fetch(IdemReader *reader, FullTransactionId xid, int64 seq,
				  IdemEvent *event)
{
	ResourceOwner save = enter(reader);
	bool		found = false;

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS && !found; i++)
		found = fetch_in_segment(reader, i, U64FromFullTransactionId(xid), seq,
								 event);
	CurrentResourceOwner = save;
	return found;
}

/* Find the place of the event with an id in one segment, by a scan. */
static bool
find_in_segment(const IdemSegment *segment, const pg_uuid_t *event_id,
				IdemPlace *place)
{
	TableScanDesc scan;
	HeapTuple	tuple;
	bool		found = false;

	scan = idem_compat_table_beginscan(segment->heap, GetActiveSnapshot());
	while (!found && (tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		TupleDesc	desc = RelationGetDescr(segment->heap);
		bool		isnull;
		Datum		id = heap_getattr(tuple, IDEM_ATT_EVENT_ID + 1, desc, &isnull);

		CHECK_FOR_INTERRUPTS();
		if (isnull || memcmp(DatumGetUUIDP(id), event_id, UUID_LEN) != 0 ||
			heap_attisnull(tuple, IDEM_ATT_XID + 1, desc) ||
			heap_attisnull(tuple, IDEM_ATT_SEQ + 1, desc))
			continue;
		place->xid = U64FromFullTransactionId(DatumGetFullTransactionId(heap_getattr(tuple, IDEM_ATT_XID + 1, desc, &isnull)));
		place->seq = DatumGetInt64(heap_getattr(tuple, IDEM_ATT_SEQ + 1, desc, &isnull));
		place->tid = tuple->t_self;
		place->segment = segment->number;
		found = true;
	}
	table_endscan(scan);
	return found;
}

bool
idem_reader_find(IdemReader *reader, const pg_uuid_t *event_id, IdemEvent *event)
{
	ResourceOwner save = enter(reader);
	bool		found = false;

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS && !found; i++)
	{
		const IdemSegment *segment = open_segment(reader, i);
		IdemPlace	place;

		if (!idem_segment_is_empty(segment) &&
			find_in_segment(segment, event_id, &place))
			found = fetch_in_segment(reader, i, place.xid, place.seq, event);
	}
	CurrentResourceOwner = save;
	return found;
}
