/*-------------------------------------------------------------------------
 *
 * range.h
 *		Where the events of a difference of snapshots are, in order of seq.
 *
 * Private to src/outbox.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/range.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_RANGE_H
#define IDEM_OUTBOX_RANGE_H

#include "postgres.h"

#include "outbox/segment.h"
#include "outbox/snapshot.h"

/* Where one event is. */
typedef struct IdemPlace
{
	int64		seq;
	uint64		xid;
	ItemPointerData tid;
	uint16		segment;
} IdemPlace;

typedef struct IdemRange IdemRange;

/* Gives an open segment, which the range never closes. */
typedef const IdemSegment *(*IdemSegmentOpener) (void *arg, int number);

extern IdemRange *idem_range_create(MemoryContext context);

/*
 * Begin with the events that "target" sees, "base" does not, and whose seq is
 * greater than the one given.  The snapshots must outlive their use.
 */
extern void idem_range_start(IdemRange *range, const IdemSnap *base,
							 const IdemSnap *target, int64 seq);

/* Go on after another seq of the same difference; cheap if its place is held. */
extern void idem_range_move(IdemRange *range, int64 seq);

/* Forget all places; idem_range_start comes next. */
extern void idem_range_forget(IdemRange *range);

/*
 * The next place, valid until the next call; NULL at the end of the range.  Scans
 * indexes through the opener when the places held have run out.
 */
extern const IdemPlace *idem_range_next(IdemRange *range, IdemSegmentOpener opener,
										void *arg);

/* Step back by the one place that idem_range_next gave last. */
extern void idem_range_back(IdemRange *range);

#endif							/* IDEM_OUTBOX_RANGE_H */
