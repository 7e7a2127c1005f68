/*-------------------------------------------------------------------------
 *
 * close.c
 *		Closes the current segment when it is large enough, or old enough.
 *
 * A segment is small so that the pages of its index are few: after a checkpoint
 * each of them is logged as a whole once.  It is closed when its heap has
 * claim_segment_size, twice as much for each other segment that is not empty.
 * So segments that cannot be emptied, e.g. under an old snapshot, do not use up
 * the ring; if no segment is empty all the same, the current one grows.
 *
 * A segment that has entries that expire is closed in time, too (age.c), but only
 * while half of the ring is empty.
 *
 * Invariant: a segment becomes current only if all its files are as new, and is
 * probed from then on.
 *
 * A crash leaves the old current segment or the new one.
 *
 * LOCKING: the caller holds the packer's lock.  Segments: survey.c.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/close.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shared/fault.h"
#include "store/close.h"
#include "store/setting.h"

/* Is the segment larger than the smallest size at which one is closed? */
static bool
may_be_full(const IdemSegmentInfo *current)
{
	return current->seen &&
		(int64) current->blocks * (BLCKSZ / 1024) >= idem_claim_segment_size;
}

/* How many other segments are not empty. */
static int
used_segments(const IdemSegmentInfo *segments, int current)
{
	int			n = 0;

	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (i != current && !segments[i].pristine)
			n++;
	}
	return n;
}

bool
idem_close_is_due(const IdemSegmentInfo *segments, int current)
{
	int			used = used_segments(segments, current);

	if (segments[current].aged && used < IDEM_STORE_SEGMENTS / 2)
		return true;
	return may_be_full(&segments[current]) &&
		(int64) segments[current].blocks * (BLCKSZ / 1024) >= (int64) idem_claim_segment_size << used;
}

int
idem_close_successor(const IdemSegmentInfo *segments, int current)
{
	for (int i = 1; i < IDEM_STORE_SEGMENTS; i++)
	{
		int			number = (current + i) % IDEM_STORE_SEGMENTS;

		if (segments[number].seen && segments[number].pristine)
			return number;
	}
	return -1;
}

bool
idem_close_if_due(bool aged)
{
	IdemStoreState state = idem_survey_state();
	IdemSegmentInfo segments[IDEM_STORE_SEGMENTS];
	int			next;

	idem_survey_segment(state.current, &segments[state.current]);
	segments[state.current].aged = aged;
	if (!aged && !may_be_full(&segments[state.current]))
		return false;
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (i != state.current)
			idem_survey_segment(i, &segments[i]);
	}
	next = idem_close_successor(segments, state.current);
	if (next < 0 || !idem_close_is_due(segments, state.current))
		return false;

	/* The seal is the business of those who write (idem_store_seal). */
	if (!state.sealed)
		return false;
	IDEM_FAULT_POINT("store-close");
	idem_store_set_state(next, state.unprobed & ~((uint32) 1 << next));
	IDEM_FAULT_POINT("store-generation-raised");
	return true;
}
