/*-------------------------------------------------------------------------
 *
 * maintain.c
 *		Closes the current segment, and empties segments whose events are
 *		all delivered.
 *
 * Closing: the current segment is due when its oldest event is older than a
 * sixth of the retention, so that six closed segments span the retention, one
 * is current and one is spare.  It is also due when it is larger than
 * outbox_segment_size and at least half of the ring is empty.  Closings are
 * never less than outbox_rotation_interval apart.  The next empty segment in
 * the ring becomes current.  Segments that cannot be emptied, e.g. because a
 * transaction that has been open for a month has events in them, are stepped
 * over.  If no segment is empty, the current segment grows.
 *
 * Emptying: a closed segment is emptied in place when every event in it is
 * delivered at each position and older than the retention.  Events are
 * delivered at a position if their transactions are visible in its snapshot:
 * the last xid in the index is before the snapshot's xmax, and the index has
 * no xid that was running at the snapshot.  The snapshot's xmin plays no part.
 * So an idle writer stops the emptying only of the segments that it wrote to.
 * Entries of transactions that were rolled back count as well: nothing here asks
 * the commit log.  So a position has to move past a rollback, too, of which
 * nobody is woken; idem_outbox_has_ended_since tells when that is worth a look.
 *
 * What was emptied cannot be read again.  So the caller notes durably, before
 * it empties, which transactions that concerns (idem_outbox_survey), and gives
 * the note to idem_outbox_maintain as one more position: an event that the note
 * does not tell of is not emptied.
 *
 * Files are truncated and nothing is deleted.  There are no dead tuples, not
 * even in the catalogs (index_build updates pg_class in place), so a pinned
 * xmin horizon does not matter.  As with TRUNCATE, a snapshot that is older
 * than the emptying sees the segment empty.  A transaction that has read the
 * segment holds a lock that keeps it from being emptied.
 *
 * One kind of old snapshot does matter.  A dump copies the segment as of its
 * snapshot, long after it has taken it.  If the events were not delivered then,
 * neither their effects nor their parked copies are in the dump, and without
 * the events they would be lost to the restored database.  So this file marks
 * when it first finds a segment delivered, and keeps the segment from dumps that
 * are older than the mark (shared/dump.c), until what is kept is larger than
 * outbox_dump_size.  Another process, after a restart, marks later.  Snapshots
 * other than a dump's are waited for only in the seconds after the mark.
 *
 * Invariant: a segment is made current only if all its files are as new.  A
 * segment is emptied only if it is not current and no transaction holds a lock
 * on it.
 *
 * What a crash leaves: every step is WAL-logged on its own.  The index is cut
 * first.  A segment whose index has no blocks is empty to its readers,
 * whatever other files it has.  Such a segment is not as new, so the next call
 * finishes it.  Until then VACUUM of the segment fails, and so does a plan
 * that uses it, because both read the index's meta page.  So the worker that
 * leaves a database without relays finishes such a segment first (upkeep.c).
 *
 * LOCKING: ShareUpdateExclusiveLock on outbox_generation, then AccessShareLock
 * on one segment at a time.  Emptying takes AccessExclusiveLock on the
 * segment's heap, index, TOAST table and TOAST index, in this order.  This
 * file waits for none of these locks.  The (sub)transaction owns them
 * (txn_owner.h).  The exclusive locks are kept to the end of the transaction,
 * which must come next.
 *
 * MEMORY: a mark per segment.
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
#include "catalog/heap.h"
#include "catalog/storage.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "outbox/number.h"
#include "outbox/outbox.h"
#include "outbox/reader.h"
#include "outbox/segment.h"
#include "shared/catalog.h"
#include "shared/cell.h"
#include "shared/dump.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/txn_owner.h"

/* The number of closed segments that the retention is spread over. */
#define RETENTION_SLICES	6

/* The number of empty segments that closing for size must leave. */
#define MIN_EMPTY			(IDEM_OUTBOX_SEGMENTS / 2)

/*
 * Is the time at least that many seconds ago, or that many seconds ahead?  A
 * clock that was wrong may have dated events years ahead.  Nobody knows how
 * old they are, and waiting for their time to come could fill the disk for
 * years.
 */
static bool
older_than(TimestampTz time, int seconds)
{
	return llabs(GetCurrentTimestamp() - time) >= seconds * USECS_PER_SEC;
}

/*
 * Closing
 */

/*
 * The steps from the current segment to the next that may become current, or 0
 * if there is none.  *nempty: how many segments may become current.
 */
static int
steps_to_empty(int current, int *nempty)
{
	int			steps = 0;

	*nempty = 0;
	for (int i = 1; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		if (idem_empty_look(idem_segment_oid((current + i) % IDEM_OUTBOX_SEGMENTS)) != IDEM_FILES_NEW)
			continue;
		if (steps == 0)
			steps = i;
		(*nempty)++;
	}
	return steps;
}

/* Is the current segment due, if nempty segments are empty? */
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

/*
 * Make the next empty segment current if it is time.  In a database that was restored
 * or upgraded nothing is closed before the first event is enqueued: sealing the generation
 * alone would say that outbox_seq was set by hand (number.c), and would refuse the rest
 * of a restore that is under way.
 */
static void
close_if_due(void)
{
	int64		generation = idem_outbox_generation();
	int			current = idem_segment_of(generation);
	IdemSegment seg;
	int			nempty;
	int			steps;
	bool		due;

	if (!idem_number_in_use() || !idem_segment_open_nowait(&seg, current))
		return;
	steps = steps_to_empty(current, &nempty);
	due = steps > 0 && is_due(&seg, nempty);
	idem_segment_close(&seg);
	if (due)
	{
		IDEM_FAULT_POINT("outbox-close");
		idem_cell_write_ref(&idem_outbox_generation_cell, generation + steps);
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

/* What this process knows of a closed segment whose events are all delivered */
typedef struct Delivered
{
	uint64		last;			/* the last xid with events; 0: not delivered */
	IdemDumpMark mark;			/* the events were delivered before */
	uint64		kept;			/* bytes that are kept for a dump only */
} Delivered;

static Delivered delivered[IDEM_OUTBOX_SEGMENTS];

/*
 * The bytes that the outbox has because a dump runs.  If no segment is empty, the
 * current one grows for this reason, too.
 */
static uint64
kept_bytes(void)
{
	int			current = idem_segment_of(idem_outbox_generation());
	uint64		bytes = 0;
	int			nempty;
	IdemSegment seg;

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
		bytes += delivered[i].kept;
	if (steps_to_empty(current, &nempty) == 0 && idem_segment_open_nowait(&seg, current))
	{
		bytes += idem_segment_bytes(&seg);
		idem_segment_close(&seg);
	}
	return bytes;
}

/*
 * Must the segment be kept for a dump, although its events are delivered and old
 * enough?
 */
static bool
is_awaited(const IdemSegment *seg)
{
	Delivered  *state = &delivered[seg->number];

	if (idem_outbox_dump_size == 0 || !idem_dump_is_older(&state->mark))
		return false;
	state->kept = idem_segment_bytes(seg);
	return kept_bytes() / 1024 <= (uint64) idem_outbox_dump_size;
}

/* Note that all events of the segment are delivered, or that some are not. */
static void
note_delivered(const IdemSegment *seg, uint64 last)
{
	Delivered  *state = &delivered[seg->number];

	if (last != 0 && last != state->last)
		idem_dump_mark(&state->mark);
	state->last = last;
}

/*
 * May the segment be emptied?  locked: the caller holds its exclusive lock.
 * Without the lock, a segment that others hold is not looked at further: that
 * would read the whole segment again and again while a reader stays.
 */
static bool
is_releasable(const IdemSegment *seg, IdemSnap *const *done, int npos, bool locked)
{
	IdemEntry	first;
	IdemEntry	last;
	TimestampTz now = GetCurrentTimestamp();
	int64		retention = idem_outbox_retention * USECS_PER_SEC;

	delivered[seg->number].kept = 0;
	if (idem_empty_is_pristine(seg->heap) ||
		(!locked && idem_empty_is_held(RelationGetRelid(seg->heap))))
		return false;
	if (!idem_segment_first(seg, &first) || !idem_segment_last(seg, &last))
		return true;			/* only remains of a crash or an abort */
	if (npos == 0)
		return false;
	for (int i = 0; i < npos; i++)
	{
		if (!is_delivered(seg, done[i], &first, &last))
		{
			note_delivered(seg, 0);
			return false;
		}
	}
	note_delivered(seg, last.xid);
	if (retention > 0 && idem_segment_has_between(seg, now - retention, now + retention))
		return false;
	return !is_awaited(seg);
}

/* Tell that a dump may lack the events of a segment that is being emptied. */
static void
report_dump(const IdemSegment *seg)
{
	ereport(LOG,
			(errmsg("table \"%s.%s\" is emptied while a dump of the database runs",
					IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(seg->heap)),
			 errdetail("The dump may lack events that were delivered meanwhile, together with their effects."),
			 errhint("Dump the database again, or raise idempotency.outbox_dump_size.")));
}

/*
 * Empty a segment.  No cancel may come between the cuts of the files; a cancel
 * can wait for the few milliseconds.  The file header tells the order.
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

/*
 * Empty one closed segment, if all its events are delivered and nobody holds a
 * lock on it.
 */
static bool
try_to_empty(int number, IdemSnap *const *done, int npos)
{
	IdemSegment seg;
	List	   *locked;
	bool		emptied = false;

	if (!idem_segment_open_nowait(&seg, number))
		return false;

	/*
	 * Look before locking, because locking writes WAL.  Look again after
	 * locking, because only then no writer is left that found the segment
	 * current.  If the reference count is not 1, this session has an open
	 * cursor on the segment.
	 */
	if (seg.heap->rd_refcnt == 1 && is_releasable(&seg, done, npos, false) &&
		(locked = idem_empty_lock(RelationGetRelid(seg.heap))) != NIL &&
		is_releasable(&seg, done, npos, true))
	{
		if (delivered[number].kept > 0)
			report_dump(&seg);
		empty_in_place(&seg, locked);
		memset(&delivered[number], 0, sizeof(Delivered));
		list_free(locked);
		emptied = true;
	}
	idem_segment_close(&seg);
	return emptied;
}

/*
 * Empty the table of the numbers of restored events (outbox_stat_fn.c), once no
 * event can be restored any more.  A dump does not have the table.
 */
static void
forget_restored(void)
{
	static IdemRelRef restored = IDEM_RELREF("outbox_restored");
	Oid			oid = idem_relref_oid(&restored);

	if (idem_number_in_use() && idem_empty_look(oid) != IDEM_FILES_NEW && !idem_empty_is_held(oid))
		(void) idem_empty_in_place(oid);
}

IdemSnap *
idem_outbox_survey(IdemSnap *const *done, int npos)
{
	ResourceOwner saved = idem_txn_owner_enter();
	int			current = idem_segment_of(idem_outbox_generation());
	uint64		last = 0;

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
	{
		IdemSegment seg;
		IdemEntry	entry;

		CHECK_FOR_INTERRUPTS();
		if (i == current || !idem_segment_open_nowait(&seg, i))
			continue;
		if (is_releasable(&seg, done, npos, false) && idem_segment_last(&seg, &entry))
			last = Max(last, entry.xid);
		idem_segment_close(&seg);
	}
	idem_txn_owner_leave(saved);
	return last == 0 ? NULL :
		idem_snap_common(done, npos, FullTransactionIdFromU64(last + 1));
}

bool
idem_outbox_has_ended_since(const IdemSnap *then, const IdemSnap *now)
{
	ResourceOwner saved = idem_txn_owner_enter();
	int			current = idem_segment_of(idem_outbox_generation());
	bool		ended = false;

	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS && !ended; i++)
	{
		IdemSegment seg;
		IdemEntry	first;
		IdemEntry	last;

		CHECK_FOR_INTERRUPTS();
		if (i == current || !idem_segment_open_nowait(&seg, i))
			continue;
		ended = idem_segment_first(&seg, &first) && idem_segment_last(&seg, &last) &&
			!is_delivered(&seg, then, &first, &last) && is_delivered(&seg, now, &first, &last);
		idem_segment_close(&seg);
	}
	idem_txn_owner_leave(saved);
	return ended;
}

int
idem_outbox_maintain(IdemSnap *const *done, int npos)
{
	ResourceOwner saved = idem_txn_owner_enter();
	int			emptied = 0;

	if (!RecoveryInProgress() &&
		ConditionalLockRelationOid(idem_relref_oid(&idem_outbox_generation_cell), ShareUpdateExclusiveLock))
	{
		int			current;

		close_if_due();
		current = idem_segment_of(idem_outbox_generation());
		for (int i = 0; i < IDEM_OUTBOX_SEGMENTS; i++)
		{
			/*
			 * An abort would not undo the emptying, so after the first
			 * segment is emptied the transaction had better commit.
			 */
			if (emptied == 0)
				CHECK_FOR_INTERRUPTS();
			if (i != current && try_to_empty(i, done, npos))
				emptied++;
		}
		forget_restored();
	}
	idem_txn_owner_leave(saved);
	return emptied;
}

bool
idem_outbox_has_remains(void)
{
	int			current = idem_segment_of(idem_outbox_generation());
	bool		remains = false;

	/* An aborted writer leaves blocks without events in the current one, too. */
	for (int i = 0; i < IDEM_OUTBOX_SEGMENTS && !remains; i++)
	{
		IdemSegment seg;
		IdemEntry	first;

		if (i == current)
			continue;
		if (!idem_segment_open_nowait(&seg, i))
			return true;
		remains = !idem_empty_is_pristine(seg.heap) && !idem_segment_first(&seg, &first);
		idem_segment_close(&seg);
	}
	return remains;
}
