/*-------------------------------------------------------------------------
 *
 * lag.c
 *		Estimates how much of the outbox a position has not delivered.
 *
 * Numbers rise with transaction ids, by and large, so what begins with the
 * first entry of a segment that "done" does not see is taken to be undelivered
 * as a whole: its events by the numbers, its bytes by the part of the heap.
 * Events of running and aborted transactions count, stragglers that were
 * running at "done" do not.
 *
 * LOCKING: AccessShareLock on one segment at a time, given back at once.
 * MEMORY: none is kept.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/lag.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "outbox/reader.h"
#include "outbox/segment.h"

/* Entries looked at to find the first with seq > k. */
#define MAX_SKIP	256

/* First entry after the position. */
static bool
first_undelivered(const IdemSegment *seg, const IdemPosition *pos,
				  IdemEntry *entry)
{
	ScanKeyData key;
	IndexScanDesc scan;
	bool		found = false;

	if (idem_segment_is_empty(seg))
		return false;
	idem_key_xid(&key, BTGreaterEqualStrategyNumber,
				 U64FromFullTransactionId(pos->done->xmax));
	scan = idem_segment_beginscan(seg, 1);
	index_rescan(scan, &key, 1, NULL, 0);
	for (int i = 0; i < MAX_SKIP; i++)
	{
		if (!idem_segment_next(scan, ForwardScanDirection, entry))
		{
			found = false;
			break;
		}
		found = true;
		if (pos->cur == NULL || entry->seq > pos->k ||
			!idem_snap_sees(pos->cur, FullTransactionIdFromU64(entry->xid)))
			break;
	}
	index_endscan(scan);
	return found;
}

static void
add_segment(const IdemSegment *seg, const IdemPosition *pos, int64 last_seq,
			IdemLag *lag)
{
	IdemEntry	first;
	IdemEntry	last;
	BlockNumber nblocks;
	BlockNumber before;
	TimestampTz time;

	if (!first_undelivered(seg, pos, &first) || !idem_segment_last(seg, &last))
		return;
	last.seq = Max(Min(last.seq, last_seq), first.seq);
	lag->events += last.seq - (pos->cur ? Max(first.seq, pos->k + 1) : first.seq) + 1;

	nblocks = RelationGetNumberOfBlocks(seg->heap);
	before = Min(ItemPointerGetBlockNumber(&first.tid), nblocks);
	if (nblocks > 0)
		lag->bytes += (int64) ((double) idem_segment_bytes(seg) *
							   (nblocks - before) / nblocks);
	time = idem_segment_time_at(seg, &first.tid);
	if (time != 0 && (lag->oldest == 0 || time < lag->oldest))
		lag->oldest = time;
}

void
idem_reader_lag(const IdemPosition *pos, IdemLag *lag)
{
	int64		last_seq = idem_outbox_last_seq();

	memset(lag, 0, sizeof(*lag));
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		IdemSegment seg;

		idem_segment_open(&seg, i);
		add_segment(&seg, pos, last_seq, lag);
		idem_segment_close(&seg);
	}
	lag->events = Max(lag->events, 0);
}
