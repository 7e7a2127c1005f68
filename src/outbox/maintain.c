/*-------------------------------------------------------------------------
 *
 * maintain.c
 *		Closes the current segment and empties those that are done with.
 *
 * Closing: the current segment is due when its oldest event is older than a
 * sixth of the retention, so that six closed segments span the retention, one
 * is current and one is spare; or when it is larger than outbox_segment_size
 * and at least half of the ring is empty.  Never more often than once in
 * outbox_rotation_interval.  The next empty segment in the ring becomes
 * current; segments that cannot be emptied, because a transaction of a month
 * has events in them, are stepped over.  If none is empty the current one
 * grows.
 *
 * Emptying: a closed segment is emptied in place when every event in it is
 * delivered at each position and older than the retention.  Delivered means
 * that its transaction is visible in the snapshot: the last xid in the index
 * is before its xmax, and no xid that was running then is in the index.  The
 * snapshot's xmin plays no part, so an idle writer stops the emptying of those
 * segments only that it wrote to.
 *
 * Files are truncated, nothing is deleted: no dead tuples, in catalogs either
 * (index_build updates pg_class in place), so a pinned xmin horizon does not
 * matter.  As with TRUNCATE, a snapshot that is older than the emptying sees
 * the segment empty; a transaction that has read the segment holds a lock that
 * keeps it from being emptied.
 *
 * Invariant: a segment is made current only if all its files are as new, and
 * emptied only if it is not current and no transaction holds a lock on it.
 *
 * What a crash leaves: every step is WAL-logged on its own.  The index goes
 * first, and a segment whose index has no blocks is empty to its readers
 * whatever else it has; the rest is finished by the next call, because such a
 * segment is not as new.  Until then VACUUM fails on the segment, and so does a plan
 * that uses it, since both read the index's meta page.  So the worker that leaves a
 * database without relays finishes it first (upkeep.c).
 *
 * LOCKING: owned by the (sub)transaction (txn_owner.h): ShareUpdateExclusiveLock
 * on outbox_generation, then AccessShareLock
 * on one segment at a time, and for emptying AccessExclusiveLock on its heap,
 * index, TOAST table and TOAST index, in this order.  None is waited for.
 * The exclusive ones are kept to the end of the transaction, which must come
 * next.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/maintain.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/relation.h"
#include "catalog/heap.h"
#include "catalog/storage.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "outbox/outbox.h"
#include "outbox/reader.h"
#include "outbox/segment.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/txn_owner.h"

/* Closed segments that a retention is spread over. */
#define RETENTION_SLICES	6

/* Empty segments that closing for size must leave. */
#define MIN_EMPTY			(IDEM_OUTBOX_SEGMENTS / 2)

/*
 * Or further ahead than that: nobody knows how old events are whose clock was
 * wrong, and waiting for their time to come could fill the disk for years.
 */
static bool
older_than(TimestampTz time, int seconds)
{
	return llabs(GetCurrentTimestamp() - time) >= seconds * USECS_PER_SEC;
}

/*
 * Closing
 */

/* Could the segment become current?  One that is locked could not. */
static bool
is_pristine(int number)
{
	IdemSegment seg;
	bool		pristine;

	if (!idem_segment_open_nowait(&seg, number))
		return false;
	pristine = idem_segment_is_pristine(&seg);
	idem_segment_close(&seg);
	return pristine;
}

/* Steps to the next segment that may become current, and how many may. */
static int
steps_to_empty(int current, int *nempty)
{
	int			steps = 0;

	*nempty = 0;
	for (int i = 1; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		if (!is_pristine((current + i) % IDEM_OUTBOX_SEGMENTS))
			continue;
		if (steps == 0)
			steps = i;
		(*nempty)++;
	}
	return steps;
}

/* Is the current segment to be closed, with so many empty ones? */
static bool
is_due(const IdemSegment *seg, int nempty)
{
	IdemPageSummary first;

	if (idem_segment_is_empty(seg))
		return false;
	idem_segment_summarize(seg, false, &first);
	if (first.tuples == 0 ||
		!older_than(first.oldest, idem_outbox_rotation_interval))
		return false;
	if (older_than(first.oldest, idem_outbox_retention / RETENTION_SLICES))
		return true;
	return nempty >= MIN_EMPTY &&
		idem_segment_bytes(seg) / 1024 >= idem_outbox_segment_size;
}

/* Make the next empty segment current if it is time. */
static void
close_if_due(void)
{
	int64		generation = idem_outbox_generation();
	int			current = idem_segment_of(generation);
	IdemSegment seg;
	int			nempty;
	int			steps;
	bool		due;

	if (!idem_segment_open_nowait(&seg, current))
		return;
	steps = steps_to_empty(current, &nempty);
	due = steps > 0 && is_due(&seg, nempty);
	idem_segment_close(&seg);
	if (due)
	{
		IDEM_FAULT_POINT("outbox-close");
		idem_outbox_set_generation(generation + steps);
		IDEM_FAULT_POINT("outbox-closed");
	}
}

/*
 * Emptying
 */

/* Is every transaction with events in the segment visible in the snapshot? */
static bool
is_delivered(const IdemSegment *seg, const IdemSnap *done,
			 const IdemEntry *first, const IdemEntry *last)
{
	if (last->xid >= U64FromFullTransactionId(done->xmax))
		return false;
	for (uint32 i = 0; i < done->nxip; i++)
	{
		uint64		xid = U64FromFullTransactionId(done->xip[i]);

		if (xid >= first->xid && xid <= last->xid &&
			idem_segment_has_xid(seg, xid))
			return false;
	}
	return true;
}

/*
 * Without its lock, one that others hold is not looked at further: that would be
 * reading all of it, again and again while a reader stays.
 */
static bool
is_releasable(const IdemSegment *seg, IdemSnap *const *done, int npos, bool locked)
{
	IdemEntry	first;
	IdemEntry	last;
	TimestampTz now = GetCurrentTimestamp();
	int64		retention = idem_outbox_retention * USECS_PER_SEC;

	if (idem_segment_is_pristine(seg) ||
		(!locked && idem_empty_is_held(RelationGetRelid(seg->heap))))
		return false;
	if (!idem_segment_first(seg, 0, &first) || !idem_segment_last(seg, &last))
		return true;			/* remains only, of a crash or an abort */
	if (npos == 0)
		return false;
	for (int i = 0; i < npos; i++)
	{
		if (!is_delivered(seg, done[i], &first, &last))
			return false;
	}
	return retention == 0 ||
		!idem_segment_has_between(seg, now - retention, now + retention);
}

/*
 * Nothing may come between the steps but a crash; a cancel can wait for the
 * few milliseconds.  See the file header for the order.
 */
static void
empty_in_place(const IdemSegment *seg, const List *locked)
{
	IDEM_FAULT_POINT("outbox-empty-locked");
	HOLD_INTERRUPTS();
	idem_empty_announce(locked);
	RelationTruncate(seg->index, 0);
	IDEM_FAULT_POINT("outbox-index-cut");
	heap_truncate_one_rel(seg->heap);
	IDEM_FAULT_POINT("outbox-emptied");
	RESUME_INTERRUPTS();
}

/* Empty one closed segment, if all have read it and no lock is in the way. */
static bool
try_to_empty(int number, IdemSnap *const *done, int npos)
{
	IdemSegment seg;
	List	   *locked;
	bool		emptied = false;

	if (!idem_segment_open_nowait(&seg, number))
		return false;

	/*
	 * Look before locking, because locking writes WAL; look again after it,
	 * because only then no writer is left that found the segment current.  A
	 * reference besides ours is an open cursor of this very session.
	 */
	if (seg.heap->rd_refcnt == 1 && is_releasable(&seg, done, npos, false) &&
		(locked = idem_empty_lock(RelationGetRelid(seg.heap))) != NIL &&
		is_releasable(&seg, done, npos, true))
	{
		empty_in_place(&seg, locked);
		list_free(locked);
		emptied = true;
	}
	idem_segment_close(&seg);
	return emptied;
}

/* The caller holds the maintenance lock. */
static int
maintain(IdemSnap *const *done, int npos)
{
	int			current;
	int			emptied = 0;

	close_if_due();
	current = idem_segment_of(idem_outbox_generation());
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		/*
		 * What was emptied is not undone by an abort, so it had better
		 * commit.
		 */
		if (emptied == 0)
			CHECK_FOR_INTERRUPTS();
		if (i != current && try_to_empty(i, done, npos))
			emptied++;
	}
	return emptied;
}

int
idem_outbox_maintain(IdemSnap *const *done, int npos)
{
	ResourceOwner saved = idem_txn_owner_enter();
	int			emptied = 0;

	if (!RecoveryInProgress() &&
		ConditionalLockRelationOid(idem_outbox_generation_oid(), ShareUpdateExclusiveLock))
		emptied = maintain(done, npos);
	idem_txn_owner_leave(saved);
	return emptied;
}

/* Did a crash leave it half emptied?  One that cannot be looked at may be. */
static bool
has_remains(int number)
{
	IdemSegment seg;
	IdemEntry	first;
	bool		remains;

	if (!idem_segment_open_nowait(&seg, number))
		return true;
	remains = !idem_segment_is_pristine(&seg) && !idem_segment_first(&seg, 0, &first);
	idem_segment_close(&seg);
	return remains;
}

bool
idem_outbox_has_remains(void)
{
	int			current = idem_segment_of(idem_outbox_generation());

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		/* An aborted writer leaves blocks without events in the current one. */
		if (i != current && has_remains(i))
			return true;
	}
	return false;
}
