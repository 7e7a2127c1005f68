/*-------------------------------------------------------------------------
 *
 * rotate.c
 *		Closes the current segment when it is large or old enough, and empties
 *		segments and slots that are no longer needed.
 *
 * A segment is small so that the pages of its keys are few.  It is closed when its heap has
 * claim_segment_size, twice as much for each other segment that is not empty.
 * So segments that cannot be emptied, e.g. under an old snapshot, do not use up
 * the ring; if no segment is empty all the same, the current one grows.
 *
 * A segment that has entries that expire is closed in time, too (survey.c), but only
 * while half of the ring is empty.
 *
 * Invariant: a segment becomes current only if all its files are as new, and is
 * probed from then on.
 *
 * A segment is not needed when it is marked packed and every live snapshot sees
 * the packer.  Until then a dump, or a transaction of REPEATABLE READ, needs the
 * rows: it does not see the run.  The packer is not noted with the segment, so
 * the latest packer of all runs has to be visible.
 *
 * A slot is not needed when each of its runs was merged into another one whose
 * packer every live snapshot sees, or has expired.  What has expired is forgotten
 * for everybody at once, old snapshots included.  Until the slot is emptied
 * everybody finds it: nobody looks at the time in a search, so two sessions
 * cannot differ about it.  Nothing that has expired goes while a packed segment
 * is not emptied, because the entries may stand there, too.  Nobody would find
 * them, so a later entry might get the same turn; and if a restore broke the seal
 * of the state, the segment would be probed again.  The end marks of a slot also say which runs
 * they replace, and those runs would count again without them.  So a slot is
 * emptied only when nothing is left of the runs that its runs replace.
 *
 * Rows of a run without an end mark are what a packer left that failed.  Nobody reads
 * them, and they go with their slot.  If they were restored, the end mark may be to come: a
 * restore of INSERTs commits row by row.  Until it comes, or a week is over
 * (survey.c), the slot is neither emptied nor merged (plan.c).
 *
 * "Every live snapshot sees it" is asked by the xmin horizon of the database.  So
 * a transaction of this database that has an xid holds emptying back as well,
 * without any snapshot; e.g. a prepared one.
 *
 * A crash leaves the old current segment or the new one; of emptying, what shared/empty.c
 * says.  A table that is half emptied has no
 * rows, and is emptied again before anybody writes to it.
 *
 * LOCKING: the caller holds the packer's lock.  Segments: survey.c.  Emptying:
 * shared/empty.c; no lock is waited for.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/rotate.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "storage/lmgr.h"

#include "shared/empty.h"
#include "shared/fault.h"
#include "store/keys.h"
#include "store/rotate.h"
#include "store/setting.h"

/* Closing */

/* Is the segment larger than the smallest size at which one is closed? */
static bool
may_be_full(const IdemSegmentInfo *current)
{
	return current->seen &&
		(int64) current->blocks * (BLCKSZ / 1024) >= idem_claim_segment_size;
}

bool
idem_close_is_due(const IdemSegmentInfo *segments, int current)
{
	int			used = 0;		/* other segments that are not empty */

	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
		used += i != current && !segments[i].pristine;
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
	IdemStoreState state = idem_store_state(NULL);
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

/* Emptying */

bool
idem_cut_may_segment(const IdemSurvey *survey, int number, FullTransactionId horizon)
{
	const IdemSegmentInfo *segment = &survey->segments[number];

	return number != survey->state.current && segment->seen && !segment->pristine &&
		(survey->state.unprobed & ((uint32) 1 << number)) != 0 &&
		survey->complete &&
		FullTransactionIdPrecedes(idem_survey_last_packer(survey), horizon);
}

/* Is anything left of the runs that this run replaces? */
static bool
replaced_remain(const IdemSurvey *survey, const IdemRun *run)
{
	for (int i = 0; i < run->nreplaces; i++)
	{
		if (idem_survey_has_run(survey, run->replaces[i]))
			return true;
	}
	return false;
}

bool
idem_cut_packed_remain(const IdemSurvey *survey)
{
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if ((survey->state.unprobed & ((uint32) 1 << i)) != 0 && !survey->segments[i].pristine)
			return true;
	}
	return false;
}

/* Has the run expired, or does every live snapshot see what replaced it? */
static bool
is_dispensable(const IdemSurvey *survey, const IdemRun *run, FullTransactionId horizon)
{
	return (survey->time >= idem_run_end(run) && !idem_cut_packed_remain(survey)) ||
		(run->replaced_by != NULL && FullTransactionIdPrecedes(run->replaced_by->packer, horizon));
}

bool
idem_cut_may_slot(const IdemSurvey *survey, int number, FullTransactionId horizon)
{
	const IdemSlotInfo *slot = &survey->slots[number];

	if (!survey->complete || slot->pristine || slot->restoring)
		return false;
	for (int i = 0; i < slot->nruns; i++)
	{
		if (!is_dispensable(survey, &slot->runs[i], horizon) ||
			replaced_remain(survey, &slot->runs[i]))
			return false;
	}
	return true;
}

/*
 * The end of the WAL that was written so far.  If the last record ended with its
 * page, the place for the next record is behind the header of a page that does
 * not exist yet, and XLogFlush refuses to flush up to there.
 */
static XLogRecPtr
end_of_wal(void)
{
	XLogRecPtr	next = GetXLogInsertRecPtr();

	if (XLogSegmentOffset(next, wal_segment_size) == SizeOfXLogLongPHD)
		return next - SizeOfXLogLongPHD;
	if (next % XLOG_BLCKSZ == SizeOfXLogShortPHD)
		return next - SizeOfXLogShortPHD;
	return next;
}

/*
 * What makes the table dispensable, the end mark and the change of the state, is
 * flushed first.
 */
static bool
cut(Oid oid)
{
	XLogFlush(end_of_wal());
	IDEM_FAULT_POINT("store-cut");
	if (!idem_empty_in_place(oid))
		return false;
	IDEM_FAULT_POINT("store-segment-cut");
	return true;
}

bool
idem_cut_segment(int number)
{
	Oid			oid = idem_store_segment_oid(number);

	/* The keys go first: nobody looks at them while the segment is locked. */
	if (!ConditionalLockRelationOid(oid, AccessExclusiveLock))
		return false;
	return idem_keys_forget(number) && cut(oid);
}

bool
idem_cut_slot(int number)
{
	return cut(idem_slot_oid(number));
}
