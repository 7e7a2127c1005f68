/*-------------------------------------------------------------------------
 *
 * cut.c
 *		Empties segments and slots that are no longer needed.
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
 * What a crash leaves: shared/empty.c.  A table that is half emptied has no
 * rows, and is emptied again before anybody writes to it.
 *
 * LOCKING: shared/empty.c; no lock is waited for.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/cut.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"
#include "access/xlog_internal.h"
#include "storage/lmgr.h"

#include "shared/empty.h"
#include "shared/fault.h"
#include "store/cut.h"
#include "store/keys.h"
#include "store/keys_fill.h"
#include "store/ring.h"
#include "store/slot.h"

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
	const IdemRun *by = idem_survey_replacement(survey, run);

	return (survey->time >= idem_run_end(run) && !idem_cut_packed_remain(survey)) ||
		(by != NULL && FullTransactionIdPrecedes(by->packer, horizon));
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
