/*-------------------------------------------------------------------------
 *
 * lag.c
 *		Counts how much of the outbox a position has not delivered.
 *
 * Undelivered are the events that a snapshot taken now sees and "base" does
 * not see, except those that batches of the difference up to "target" have
 * passed.  Their transactions are of two kinds: the xid range after "base",
 * and the stragglers, which were running at "base" and have ended since.  This
 * file walks the index entries of both kinds, and looks up the rows: rows of
 * running and aborted transactions do not count.
 *
 * The walk ends after MAX_ROWS rows or MAX_ENTRIES index entries.  The rest is
 * then estimated, by the numbers of the entries and by the part of the heap
 * that follows; the estimate is at least one event.
 *
 * Invariant: events = 0 only if the position has delivered every event that
 * had committed when the call began.  The caller reads the position before the
 * call; the snapshot is taken in the call.  A segment that is emptied in
 * between was delivered at every position.
 *
 * Equal positions are counted once: of a thousand relays most stand at the
 * same place.  Each segment is opened once for all positions.
 *
 * LOCKING: AccessShareLock on one segment at a time, given back at once.
 *
 * MEMORY: one snapshot; one slot for the segment and position at hand; a few
 * dozen bytes per position.  All is freed before the call returns.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/lag.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox/reader.h"
#include "outbox/segment.h"
#include "shared/durable.h"

/* Bounds of a walk, which takes some milliseconds. */
#define MAX_ROWS		1000
#define MAX_ENTRIES		20000

/* A descent of the index costs as much as a walk through this many entries. */
#define JUMP_ENTRIES	16

/*
 * After so many rows of a transaction that the snapshot does not see, one
 * after the other, the walk looks up whether the transaction aborted.
 */
#define MAX_UNSEEN		16

typedef struct Count
{
	const IdemPosition *pos;
	IdemSnap   *seen;			/* the snapshot, as an IdemSnap */
	Snapshot	snapshot;
	IdemLag    *lag;
	int			rows;
	int			entries;
} Count;

/* A range of transactions in one segment. */
typedef struct XidRange
{
	const IdemSegment *seg;
	TupleTableSlot *slot;
	BlockNumber nblocks;		/* of the heap */
	uint64		lo;
	uint64		hi;
} XidRange;

/* idem_snap_sees for the xid of an index entry. */
static bool
sees(const IdemSnap *snap, uint64 xid)
{
	return idem_snap_sees(snap, FullTransactionIdFromU64(xid));
}

/* Bytes of a row: the tuple, and its values in the TOAST table. */
static int64
row_bytes(TupleTableSlot *slot)
{
	HeapTuple	tuple = ExecFetchSlotHeapTuple(slot, false, NULL);

	return MAXALIGN(tuple->t_len) + sizeof(ItemIdData) + idem_table_bytes_out_of_line(slot);
}

/* Note the time of an event, if it is the oldest so far. */
static void
note_time(IdemLag *lag, TimestampTz time)
{
	if (lag->oldest == 0 || time < lag->oldest)
		lag->oldest = time;
}

/* Count the entry's event; false if the snapshot does not see it. */
static bool
count_row(Count *c, const XidRange *range, const IdemEntry *entry)
{
	ItemPointerData tid = entry->tid;
	TupleTableSlot *slot = range->slot;

	c->rows++;
	if (ItemPointerGetBlockNumber(&tid) >= range->nblocks ||
		!table_tuple_fetch_row_version(range->seg->heap, &tid, c->snapshot, slot))
		return false;
	c->lag->events++;
	c->lag->bytes += row_bytes(slot);
	note_time(c->lag, DatumGetTimestampTz(slot->tts_values[IDEM_ATT_ENQUEUED_AT]));
	ExecClearTuple(slot);
	return true;
}

/* Scan the range's transactions from the xid "from" on. */
static void
rescan(IndexScanDesc scan, const XidRange *range, uint64 from)
{
	ScanKeyData keys[2];

	idem_scankey_xid(&keys[0], BTGreaterEqualStrategyNumber, from);
	idem_scankey_xid(&keys[1], BTLessEqualStrategyNumber, range->hi);
	index_rescan(scan, keys, 2, NULL, 0);
}

/* The size of the segment's part from a block on, in bytes. */
static double
bytes_from(const XidRange *range, BlockNumber block)
{
	if (range->nblocks == 0)
		return 0;
	return (double) idem_segment_bytes(range->seg) *
		(range->nblocks - Min(block, range->nblocks)) / range->nblocks;
}

/*
 * Estimate the range from the entry on.  Events are estimated by the numbers;
 * bytes by the blocks, times the part of the numbers that no batch has passed.
 */
static void
estimate_rest(Count *c, const XidRange *range, IndexScanDesc scan, const IdemEntry *entry)
{
	ItemPointerData tid = entry->tid;
	TimestampTz time = idem_segment_time_at(range->seg, &tid);
	IdemEntry	last;
	int64		all;
	int64		rest;

	rescan(scan, range, entry->xid);
	if (!idem_segment_next(scan, BackwardScanDirection, &last))
		last = *entry;
	all = rest = Max(last.seq - entry->seq + 1, 1);
	if (c->pos->target != NULL)
		rest = Max(Min(all, last.seq - c->pos->seq), 1);
	c->lag->events += rest;
	if (range->lo != range->hi)
		c->lag->bytes += bytes_from(range, ItemPointerGetBlockNumber(&tid)) * rest / all;
	c->lag->bytes = Max(c->lag->bytes, 1);
	note_time(c->lag, time != 0 ? time : GetCurrentTimestamp());
}

/*
 * Count a range, entry by entry.  Jumps over transactions that have nothing to
 * count.
 */
static void
count_range(Count *c, const XidRange *range)
{
	IndexScanDesc scan = idem_segment_beginscan(range->seg, 2);
	IdemEntry	entry;
	uint64		xid = 0;
	int			unseen = 0;		/* rows of xid that the snapshot did not see,
								 * since the last that it saw */

	rescan(scan, range, range->lo);
	while (idem_segment_next(scan, ForwardScanDirection, &entry))
	{
		CHECK_FOR_INTERRUPTS();
		if (entry.xid != xid)
			unseen = 0;
		xid = entry.xid;
		c->entries++;
		if (!sees(c->seen, xid) || (unseen == MAX_UNSEEN && idem_durable_did_abort(FullTransactionIdFromU64(xid))))
		{
			c->entries += JUMP_ENTRIES;
			rescan(scan, range, xid + 1);
			continue;
		}
		if (c->rows >= MAX_ROWS || c->entries >= MAX_ENTRIES)
		{
			estimate_rest(c, range, scan, &entry);
			break;
		}
		/* a batch of the current difference has passed the event */
		if (c->pos->target != NULL && entry.seq <= c->pos->seq && sees(c->pos->target, xid))
			continue;
		unseen = count_row(c, range, &entry) ? 0 : unseen + 1;
	}
	index_endscan(scan);
}

/*
 * Count the undelivered events of one segment: the stragglers first, then the
 * range.
 */
static void
count_segment(Count *c, const IdemSegment *seg)
{
	const IdemSnap *done = c->pos->base;
	XidRange	range = {.seg = seg};
	IdemEntry	first;
	IdemEntry	last;

	if (!idem_segment_first(seg, &first) || !idem_segment_last(seg, &last))
		return;
	range.slot = table_slot_create(seg->heap, NULL);
	range.nblocks = RelationGetNumberOfBlocks(seg->heap);
	for (uint32 i = 0; i < done->nxip; i++)
	{
		range.lo = range.hi = U64FromFullTransactionId(done->xip[i]);
		if (range.lo >= first.xid && range.lo <= last.xid && sees(c->seen, range.lo))
			count_range(c, &range);
	}
	range.lo = Max(U64FromFullTransactionId(done->xmax), first.xid);
	range.hi = Min(U64FromFullTransactionId(c->seen->xmax) - 1, last.xid);
	if (range.lo <= range.hi)
		count_range(c, &range);
	ExecDropSingleTupleTableSlot(range.slot);
}

/* Are two positions equal? */
static bool
same_position(const IdemPosition *a, const IdemPosition *b)
{
	if ((a->target == NULL) != (b->target == NULL) || !idem_snap_equal(a->base, b->base))
		return false;
	return a->target == NULL || (a->seq == b->seq && idem_snap_equal(a->target, b->target));
}

/* For each position, count the undelivered events of all segments. */
static void
count_all(Count *counts, int n)
{
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		IdemSegment seg;

		idem_segment_open(&seg, i);
		if (!idem_segment_is_empty(&seg))
		{
			for (int j = 0; j < n; j++)
				count_segment(&counts[j], &seg);
		}
		idem_segment_close(&seg);
	}
}

void
idem_reader_lags(const IdemPosition **positions, IdemLag *lags, int n)
{
	Count	   *counts = palloc0(sizeof(Count) * Max(n, 1));
	int		   *count_of = palloc(sizeof(int) * Max(n, 1));
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	IdemSnap   *seen;
	int			ncounts = 0;

	PushActiveSnapshot(snapshot);
	seen = idem_snap_current();
	PopActiveSnapshot();
	memset(lags, 0, sizeof(IdemLag) * n);
	for (int i = 0; i < n; i++)
	{
		int			j = ncounts - 1;

		while (j >= 0 && !same_position(counts[j].pos, positions[i]))
			j--;
		if (j < 0)
		{
			j = ncounts++;
			counts[j] = (Count)
			{
				.pos = positions[i], .seen = seen,
					.snapshot = snapshot, .lag = &lags[i]
			};
		}
		count_of[i] = j;
	}
	count_all(counts, ncounts);
	for (int i = 0; i < n; i++)
		lags[i] = *counts[count_of[i]].lag;
	UnregisterSnapshot(snapshot);
	pfree(seen);
	pfree(counts);
	pfree(count_of);
}
