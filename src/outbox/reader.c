/*-------------------------------------------------------------------------
 *
 * reader.c
 *		Reads the events of a difference of snapshots, in order of seq.
 *
 * Keys come from the indexes (keys.c), rows from the heap by their place.  A
 * key whose row the snapshot does not see belongs to an aborted transaction or
 * subtransaction and is passed over; that is checked, because passing over a
 * committed event would lose it.  A row does not move while its segment is
 * locked; across transactions it may (VACUUM FULL, emptying), so a segment that
 * got other files since its keys were read makes the reader read keys again.
 *
 * Invariant: between two calls, k is the seq of the last event given out, and
 * the keys held are those of the difference after k.
 *
 * LOCKING: AccessShareLock on a segment's heap and index from its first use
 * until idem_reader_suspend.  A pin, no lock, on the page of the event given
 * out last.
 *
 * MEMORY: the reader's context holds keys and snapshots, bounded (keys.c).
 * What an event points to is in the pinned page or, for the rare compressed
 * name, in a context reset with each event.
 *
 * Resources belong to the resource owner that was current when the reader was
 * first used in a transaction, whatever subtransaction uses it later.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/reader.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

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
#include "outbox/keys.h"
#include "outbox/reader.h"
#include "outbox/segment.h"

typedef struct ReaderSegment
{
	IdemSegment segment;
	bool		open;
	BlockNumber nblocks;		/* of the heap, or fewer than it has now */
	Oid			file;			/* heap's file when keys were read, or 0 */
} ReaderSegment;

struct IdemReader
{
	MemoryContext context;
	MemoryContext event_context;	/* reset with each event */
	MemoryContext snap_context; /* done and cur */

	ReaderSegment segments[IDEM_OUTBOX_SEGMENTS];
	ResourceOwner owner;		/* of what is open; NULL = nothing is */
	Buffer		buffer;			/* pinned page, or InvalidBuffer */
	int			buffer_segment; /* whose it is */

	bool		positioned;		/* idem_reader_seek was called */
	IdemKeys   *keys;
	IdemSnap   *done;			/* NULL: no difference */
	IdemSnap   *cur;
	int64		k;				/* seq of the event given out last */
	int64		previous_k;		/* the one before it, for unget */
};

/*
 * Opening and closing
 */

static void
open_segment(IdemReader *reader, int number)
{
	ReaderSegment *rs = &reader->segments[number];
	Oid			file;

	if (rs->open)
		return;
	idem_segment_open(&rs->segment, number);
	rs->open = true;
	rs->nblocks = RelationGetNumberOfBlocks(rs->segment.heap);
	file = IDEM_REL_FILE_NUMBER(rs->segment.heap);
	if (OidIsValid(rs->file) && rs->file != file && reader->cur != NULL)
		idem_keys_start(reader->keys, reader->done, reader->cur, reader->k);
	rs->file = file;
}

static const IdemSegment *
opener(void *arg, int number)
{
	IdemReader *reader = arg;

	open_segment(reader, number);
	return &reader->segments[number].segment;
}

/*
 * Everything the reader opens belongs to one owner.  All segments are opened
 * at once: only then is it known that the keys held are still good.
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
		open_segment(reader, i);
	return save;
}

static void
leave(ResourceOwner save)
{
	CurrentResourceOwner = save;
}

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
	reader->keys = idem_keys_create(context);
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
	leave(save);
}

/* The abort has closed everything; only our notes of it are left. */
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
	idem_keys_forget(reader->keys);
	reader->positioned = false;
	reader->done = reader->cur = NULL;
	MemoryContextReset(reader->snap_context);
	MemoryContextReset(reader->event_context);
}

/*
 * Fetching rows
 */

static IdemEventText
text_of(Datum value)
{
	text	   *txt = DatumGetTextPP(value);
	IdemEventText result = {VARDATA_ANY(txt), VARSIZE_ANY_EXHDR(txt)};

	return result;
}

/* Take the row apart; false if it is not the event looked for. */
static bool
read_event(IdemReader *reader, const IdemSegment *segment, HeapTuple tuple,
		   const IdemKey *key, IdemEvent *event)
{
	Datum		values[IDEM_NATTS];
	bool		nulls[IDEM_NATTS];
	MemoryContext old;

	idem_segment_deform_tuple(segment->heap, tuple, values, nulls);
	event->xid = DatumGetFullTransactionId(values[IDEM_ATT_XID]);
	event->seq = DatumGetInt64(values[IDEM_ATT_SEQ]);
	if (U64FromFullTransactionId(event->xid) != key->xid || event->seq != key->seq)
		return false;

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

/* Is it the key's event that stands there, whoever sees it? */
static bool
is_event_of(HeapTuple tuple, TupleDesc desc, const IdemKey *key)
{
	bool		isnull;
	Datum		xid = heap_getattr(tuple, IDEM_ATT_XID + 1, desc, &isnull);
	Datum		seq = heap_getattr(tuple, IDEM_ATT_SEQ + 1, desc, &isnull);

	return DatumGetInt64(seq) == key->seq &&
		U64FromFullTransactionId(DatumGetFullTransactionId(xid)) == key->xid;
}

/*
 * The transaction that inserted a row that nobody deleted and no snapshot was
 * given for; InvalidTransactionId if it is known to have aborted, or the row
 * is another than the key's.
 */
static TransactionId
unexplained_inserter(Relation heap, Buffer buffer, const IdemKey *key)
{
	Page		page = BufferGetPage(buffer);
	OffsetNumber off = ItemPointerGetOffsetNumber(&key->tid);
	ItemId		lp;
	HeapTupleData tuple;

	if (off > PageGetMaxOffsetNumber(page))
		return InvalidTransactionId;
	lp = PageGetItemId(page, off);
	if (!ItemIdIsNormal(lp))
		return InvalidTransactionId;
	tuple.t_tableOid = RelationGetRelid(heap);
	tuple.t_self = key->tid;
	tuple.t_data = (HeapTupleHeader) PageGetItem(page, lp);
	tuple.t_len = ItemIdGetLength(lp);
	if (HeapTupleHeaderXminInvalid(tuple.t_data) ||
		HeapTupleHeaderXminFrozen(tuple.t_data) ||
		(tuple.t_data->t_infomask & HEAP_XMAX_INVALID) == 0 ||
		!is_event_of(&tuple, RelationGetDescr(heap), key))
		return InvalidTransactionId;
	return HeapTupleHeaderGetRawXmin(tuple.t_data);
}

/*
 * The snapshot does not see the row.  That must be because its inserting
 * (sub)transaction aborted, or because somebody deleted it; a committed row
 * would mean that the caller's snapshot is older than the position.
 */
static void
check_row_is_gone(Relation heap, Buffer buffer, const IdemKey *key)
{
	TransactionId xmin;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	xmin = unexplained_inserter(heap, buffer, key);
	LockBuffer(buffer, BUFFER_LOCK_UNLOCK);

	if (TransactionIdIsValid(xmin) &&
		(TransactionIdIsInProgress(xmin) || TransactionIdDidCommit(xmin)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("snapshot is too old to read event %lld in table \"%s\"",
						(long long) key->seq, RelationGetRelationName(heap))));
}

/* Pin the key's page; false if the segment does not reach there any more. */
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

static bool
fetch_key(IdemReader *reader, const IdemKey *key, IdemEvent *event)
{
	ReaderSegment *rs = &reader->segments[key->segment];
	Relation	heap = rs->segment.heap;
	ItemPointerData tid = key->tid;
	HeapTupleData tuple;
	bool		visible;

	if (!pin_page(reader, rs, ItemPointerGetBlockNumber(&tid)))
		return false;
	LockBuffer(reader->buffer, BUFFER_LOCK_SHARE);
	visible = heap_hot_search_buffer(&tid, heap, reader->buffer,
									 GetActiveSnapshot(), &tuple, NULL, true);
	LockBuffer(reader->buffer, BUFFER_LOCK_UNLOCK);
	if (visible)
		return read_event(reader, &rs->segment, &tuple, key, event);
	check_row_is_gone(heap, reader->buffer, key);
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
	if (pos->cur != NULL && reader->cur != NULL &&
		idem_snap_equal(pos->done, reader->done) &&
		idem_snap_equal(pos->cur, reader->cur))
	{
		if (pos->k != reader->k)
			idem_keys_move(reader->keys, pos->k);
		reader->k = reader->previous_k = pos->k;
		return;
	}

	idem_keys_forget(reader->keys);
	reader->done = reader->cur = NULL;
	MemoryContextReset(reader->snap_context);
	reader->k = reader->previous_k = pos->k;
	if (pos->cur == NULL)
		return;
	old = MemoryContextSwitchTo(reader->snap_context);
	reader->done = idem_snap_copy(pos->done);
	reader->cur = idem_snap_copy(pos->cur);
	MemoryContextSwitchTo(old);
	idem_keys_start(reader->keys, reader->done, reader->cur, pos->k);
}

bool
idem_reader_next(IdemReader *reader, IdemEvent *event)
{
	ResourceOwner save;
	const IdemKey *key;
	bool		found = false;

	/* "No more events" would be taken for "all are delivered". */
	if (!reader->positioned)
		elog(ERROR, "outbox reader has no position");
	if (reader->cur == NULL)
		return false;
	save = enter(reader);
	while ((key = idem_keys_next(reader->keys, opener, reader)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		if (fetch_key(reader, key, event))
		{
			reader->previous_k = reader->k;
			reader->k = event->seq;
			found = true;
			break;
		}
	}
	leave(save);
	return found;
}

void
idem_reader_unget(IdemReader *reader)
{
	Assert(reader->cur != NULL);
	idem_keys_back(reader->keys);
	reader->k = reader->previous_k;
}

/*
 * Single events
 */

/* Look (xid, seq) up in one segment's index, then fetch the row. */
static bool
fetch_in_segment(IdemReader *reader, int number, uint64 xid, int64 seq,
				 IdemEvent *event)
{
	const IdemSegment *segment = opener(reader, number);
	IndexScanDesc scan;
	ScanKeyData keys[3];
	IdemEntry	entry;
	bool		found = false;

	if (idem_segment_is_empty(segment))
		return false;
	idem_key_xid(&keys[0], BTEqualStrategyNumber, xid);
	idem_key_seq(&keys[1], BTEqualStrategyNumber, seq);
	scan = idem_segment_beginscan(segment, 2);
	index_rescan(scan, keys, 2, NULL, 0);
	while (!found && idem_segment_next(scan, ForwardScanDirection, &entry))
	{
		IdemKey		key = {
			.seq = seq,
			.xid = xid,
			.tid = entry.tid,
			.segment = number
		};

		found = fetch_key(reader, &key, event);
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
	leave(save);
	return found;
}

/* The place of the event with that id in one segment, by a scan. */
static bool
find_in_segment(const IdemSegment *segment, const pg_uuid_t *event_id,
				IdemKey *key)
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
		Assert(!isnull);
		if (memcmp(DatumGetUUIDP(id), event_id, UUID_LEN) != 0)
			continue;
		key->xid = U64FromFullTransactionId(DatumGetFullTransactionId(heap_getattr(tuple, IDEM_ATT_XID + 1, desc, &isnull)));
		key->seq = DatumGetInt64(heap_getattr(tuple, IDEM_ATT_SEQ + 1, desc, &isnull));
		key->tid = tuple->t_self;
		key->segment = segment->number;
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
		const IdemSegment *segment = opener(reader, i);
		IdemKey		key;

		if (!idem_segment_is_empty(segment) &&
			find_in_segment(segment, event_id, &key))
			found = fetch_key(reader, &key, event);
	}
	leave(save);
	return found;
}
