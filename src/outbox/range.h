/*-------------------------------------------------------------------------
 *
 * range.h
 *		The places of the events of a difference of snapshots, in order of seq.
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

/* The place of an event. */
typedef struct IdemPlace
{
	int64		seq;
	uint64		xid;
	ItemPointerData tid;
	uint16		segment;
} IdemPlace;

typedef struct IdemRange IdemRange;

/* Returns an open segment.  The range never closes it. */
typedef const IdemSegment *(*IdemSegmentOpener) (void *arg, int number);

extern IdemRange *idem_range_create(MemoryContext context);

/*
 * Begin the range of the events that "target" sees and "base" does not see,
 * and whose seq is greater than the one given.  The snapshots must stay until
 * the next start or forget.
 */
extern void idem_range_start(IdemRange *range, const IdemSnap *base,
							 const IdemSnap *target, int64 seq);

/*
 * Go on after another seq of the same difference.  Cheap if the place after it
 * is held.
 */
extern void idem_range_move(IdemRange *range, int64 seq);

/* Forget all places; idem_range_start comes next. */
extern void idem_range_forget(IdemRange *range);

/*
 * The next place, valid until the next call; NULL at the end of the range.
 * When no place is left, scans indexes, which it gets from the opener.
 */
extern const IdemPlace *idem_range_next(IdemRange *range, IdemSegmentOpener opener,
										void *arg);

/* Step back by one place: idem_range_next gives the same place again. */
extern void idem_range_back(IdemRange *range);

#endif							/* IDEM_OUTBOX_RANGE_H */
