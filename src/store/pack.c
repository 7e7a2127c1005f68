/*-------------------------------------------------------------------------
 *
 * pack.c
 *		Closes segments, packs them into runs, merges runs, and empties what is
 *		no longer needed.
 *
 * The steps, each in a transaction of its own unless it says otherwise:
 *
 * - seal the state after a restore (state.c);
 * - close the current segment (close.c);
 * - copy a closed segment into runs, one for each class (copy.c), commit, flush;
 *	 then, in another transaction, mark the segment packed, which tells all
 *	 sessions of the runs;
 * - merge the runs of a slot into one run of a higher level (merge.c), commit,
 *	 flush; then raise the state;
 * - empty a packed segment (cut.c);
 * - raise the state; then, in another transaction, empty a slot whose runs were
 *	 merged, or have expired (cut.c).
 *
 * Each turn looks at everything anew, and takes the first step that it can.
 * Nothing is remembered from turn to turn, but which slots could not be merged.
 *
 * Invariant: an entry that a transaction has committed is in a segment that
 * claims probe, or in a run that counts.  The segment is marked packed only if
 * nothing has changed the state since the packer copied it: else another packer
 * may have packed it and let it become current once more.
 *
 * What a crash, or an error, leaves, and who mends it:
 *
 *	after closing			the segment is closed; it is packed next
 *	with a part of a run	the rows do not count.  They are in the way until their
 *							slot is emptied, which comes early if it has several such
 *							remains (plan.c)
 *	before "packed"			the segment is copied once more; the entries of both
 *							runs are the same
 *	before "raised"			the old runs and the new one say the same.  The state
 *							is raised before the old ones are emptied
 *	with half a cut			shared/empty.c; it is emptied again
 *
 * A step that cannot be taken now, for want of a lock, an empty segment or an
 * empty slot, is left out.  Then segments grow, and stat_claim_segments says why.
 *
 * LOCKING: ShareUpdateExclusiveLock on store_state, the packer's lock; then the
 * segment; then the slot.  Each is taken only if it is free.  The transaction
 * owns them.
 *
 * MEMORY: all is in the transaction's context, but two numbers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/pack.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "shared/catalog.h"
#include "shared/clock.h"
#include "shared/fault.h"
#include "shared/worker.h"
#include "shared/uptime.h"
#include "store/close.h"
#include "store/copy.h"
#include "store/cut.h"
#include "store/merge.h"
#include "store/pace.h"
#include "store/pack.h"
#include "store/plan.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/setting.h"
#include "store/start.h"
#include "store/survey.h"

#define BIT(n) ((uint32) 1 << (n))
#define SLOT_BIT(n) ((uint64) 1 << (n))

/* A session asks for a packer at most once in this time. */
#define REQUEST_MS	1000

/* Transactions */

/* Begin a transaction that holds the packer's lock; if not, none is open. */
static IdemMaintained
begin_step(void)
{
	idem_txn_begin();
	if (idem_pace_must_give_way())
	{
		idem_txn_commit(false);
		return IDEM_MAINTAINED_LEAVE;
	}
	if (!ConditionalLockRelationOid(idem_store_state_oid(), ShareUpdateExclusiveLock))
	{
		idem_txn_commit(false);
		return IDEM_MAINTAINED_BUSY;
	}
	return IDEM_MAINTAINED;
}

/*
 * Begin a transaction that goes on with a step, if the state is sealed and still
 * has this number: nobody else has packed meanwhile, and nobody has restored
 * rows.
 */
static bool
resume_step(int64 state_value)
{
	IdemStoreState state;

	if (begin_step() != IDEM_MAINTAINED)
		return false;
	state = idem_survey_state();
	if (state.sealed && state.value == state_value)
		return true;
	idem_txn_commit(false);
	return false;
}

/* Have all sessions read the end marks anew; returns the state's number. */
static int64
raise_state(void)
{
	IdemStoreState state = idem_survey_state();

	idem_store_set_state(state.current, state.unprobed);
	return idem_survey_state().value;
}

/*
 * The slots whose runs could not be merged, since an error of this process's last hour.
 * Otherwise one run that is damaged would keep all others from being merged, and its merge
 * would be tried each minute.
 */
#define MERGE_AGAIN_MS	3600000

static uint64 unmerged = 0;
static IdemClock merge_again_at = 0;
static int	merging = -1;		/* the slot that is being merged */

/* What is not to be tried.  A merge that is still under way has ended by an error. */
static void
begin_trying(IdemTried *tried)
{
	if (merging >= 0)
		unmerged |= SLOT_BIT(merging);
	if (merging >= 0 && merge_again_at == 0)
		merge_again_at = idem_clock_plus_ms(idem_clock(), MERGE_AGAIN_MS);
	merging = -1;
	if (merge_again_at != 0 && idem_clock() >= merge_again_at)
		unmerged = merge_again_at = 0;
	memset(tried, 0, sizeof(*tried));
	tried->merges = unmerged;
}

/* Steps.  Each returns false, with the transaction open, if nothing was done. */

static bool
seal(void)
{
	Relation	rel = relation_open(idem_store_state_oid(), NoLock);
	bool		sealed = idem_store_seal(rel);

	relation_close(rel, NoLock);
	if (sealed)
		idem_txn_commit(false);
	return sealed;
}

static bool
close_current(const IdemSurvey *survey)
{
	if (!idem_close_if_due(survey->segments[survey->state.current].aged))
		return false;
	idem_txn_commit(false);
	return true;
}

/* In a transaction with the packer's lock, which ends here. */
static void
mark_packed(int segment)
{
	IdemStoreState state = idem_survey_state();

	idem_store_set_state(state.current, state.unprobed | BIT(segment));
	IDEM_FAULT_POINT("store-marked-packed");
	idem_txn_commit(false);
}

/* Close the slots of the classes below "end" that the segment has. */
static void
close_targets(const IdemCopy *segment, IdemSlot *targets, int end)
{
	for (int class = 0; class < end; class++)
	{
		if (idem_copy_has(segment, class))
			idem_slot_close(&targets[class], NoLock);
	}
}

/*
 * Open a slot for each class that the segment has; false, and none is open, if
 * there is none, or its lock is not free.  *nruns: how many classes.
 */
static bool
open_targets(const IdemSurvey *survey, const IdemCopy *segment, IdemSlot *targets, int *nruns)
{
	uint64		taken = 0;

	*nruns = 0;
	for (int class = 0; class < IDEM_RETENTION_CLASSES; class++)
	{
		int			number;

		if (!idem_copy_has(segment, class))
			continue;
		number = idem_plan_target(survey, class, &taken);
		if (number < 0 || !idem_slot_open_nowait(&targets[class], number, RowExclusiveLock))
		{
			close_targets(segment, targets, class);
			return false;
		}
		(*nruns)++;
	}
	return true;
}

/*
 * Copy each class that the segment has.  All slots are open before the first run
 * is written: a run counts with its end mark, and would be written again and again
 * if another one could not be.
 */
static bool
copy_classes(const IdemSurvey *survey, IdemCopy *segment, int *nruns)
{
	IdemSlot	targets[IDEM_RETENTION_CLASSES];
	int			ncopied = 0;

	if (!open_targets(survey, segment, targets, nruns))
		return false;
	for (int class = 0; class < IDEM_RETENTION_CLASSES; class++)
	{
		if (!idem_copy_has(segment, class))
			continue;
		if (ncopied++ > 0)
			IDEM_FAULT_POINT("store-class-copied");
		idem_copy_class(segment, class, &targets[class], idem_run_new_number(), survey->time);
	}
	close_targets(segment, targets, IDEM_RETENTION_CLASSES);
	return true;
}

static bool
copy(const IdemSurvey *survey, const IdemStep *step)
{
	IdemCopy   *segment = idem_copy_begin(step->number);
	int64		state_value;
	bool		copied;
	int			nruns;

	if (segment == NULL)
		return false;
	copied = copy_classes(survey, segment, &nruns);
	idem_copy_end(segment);
	if (!copied)
		return false;
	if (nruns == 0)
	{
		mark_packed(step->number);
		return true;
	}
	/* the packer itself may have closed a segment meanwhile */
	state_value = idem_survey_state().value;
	idem_txn_commit(true);
	IDEM_FAULT_POINT("store-run-committed");
	if (resume_step(state_value))
		mark_packed(step->number);
	return true;
}

static bool
merge(const IdemSurvey *survey, const IdemStep *step)
{
	const IdemSlotInfo *slot = &survey->slots[step->number];
	const IdemSlotInfo *target = &survey->slots[step->target];
	bool		slice_is_over = target->nruns > 0;	/* see merge_target in
													 * plan.c */
	IdemRun		runs[IDEM_SLOT_RUNS];
	int			n = 0;

	for (int i = 0; i < slot->nruns && n < IDEM_SLOT_RUNS; i++)
	{
		if (idem_plan_merges(survey, step, i))
			runs[n++] = slot->runs[i];
	}
	if (!idem_merge_runs(step->number, runs, n, step->target,
						 slice_is_over ? target->runs[0].level : step->level + 1,
						 idem_run_new_number()))
		return false;
	idem_txn_commit(true);
	IDEM_FAULT_POINT("store-merge-committed");
	if (slice_is_over)
		IDEM_FAULT_POINT("store-slice-merged");
	if (begin_step() == IDEM_MAINTAINED)
	{
		(void) raise_state();
		IDEM_FAULT_POINT("store-merge-raised");
		idem_txn_commit(false);
	}
	return true;
}

static bool
cut_segment(int number)
{
	if (!idem_cut_segment(number))
		return false;
	idem_txn_commit(false);
	return true;
}

/* Is the slot emptied because its runs have expired?  A merged run may have, too. */
static bool
has_expired(const IdemSurvey *survey, int number)
{
	const IdemSlotInfo *slot = &survey->slots[number];

	return slot->nruns > 0 && survey->time >= idem_run_end(&slot->runs[0]);
}

/*
 * A session that read the end marks before the state is raised searches once
 * more; a session that reads them after that finds the runs in their new place.
 */
static bool
cut_slot(const IdemSurvey *survey, int number)
{
	bool		expired = has_expired(survey, number);	/* the survey ends with
														 * its transaction */
	int64		state_value = raise_state();

	idem_txn_commit(false);
	IDEM_FAULT_POINT("store-slot-raised");
	if (expired)
		IDEM_FAULT_POINT("store-expired-raised");
	if (!resume_step(state_value))
		idem_txn_begin();
	else if (idem_cut_slot(number))
	{
		if (expired)
			IDEM_FAULT_POINT("store-expired-cut");
		idem_txn_commit(false);
		return true;
	}
	return false;
}

/* Try a step; note it if it could not be taken. */
static bool
try_step(const IdemSurvey *survey, const IdemStep *step, IdemTried *tried)
{
	bool		merged;

	switch (step->kind)
	{
		case IDEM_STEP_NONE:
			break;
		case IDEM_STEP_SEAL:
			tried->seal = true;
			return seal();
		case IDEM_STEP_CLOSE:
			tried->close = true;
			return close_current(survey);
		case IDEM_STEP_CUT_SEGMENT:
			tried->cut_segments |= BIT(step->number);
			return cut_segment(step->number);
		case IDEM_STEP_CUT_SLOT:
			tried->cut_slots |= SLOT_BIT(step->number);
			return cut_slot(survey, step->number);
		case IDEM_STEP_COPY:
			tried->copies |= BIT(step->number);
			return copy(survey, step);
		case IDEM_STEP_MERGE:
			tried->merges |= SLOT_BIT(step->number);
			merging = step->number;
			merged = merge(survey, step);
			merging = -1;
			return merged;
	}
	return false;
}

/*
 * Look around, and let the time of the store go on if anything expires; for that
 * the caller holds the packer's lock.  The survey's reading is over when the horizon is asked for, so
 * that no snapshot of this transaction counts.
 */
static bool
look_around(IdemSurvey **survey, const IdemTried *tried, bool advance, IdemStep *step)
{
	FullTransactionId horizon;

	*survey = idem_survey();
	if (advance && ((*survey)->finite || idem_uptime_is_needed()))
	{
		idem_uptime_advance();
		(*survey)->time = idem_uptime_now();
	}
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	horizon = idem_survey_horizon();
	*step = (IdemStep)
	{
		IDEM_STEP_NONE, -1, -1
	};
	return idem_plan_step(*survey, horizon, tried, step);
}

/*
 * One turn: look around and try a step.  *more: there was one to try; *taken: it
 * was taken.
 */
static IdemMaintained
turn(IdemTried *tried, bool *more, bool *taken)
{
	IdemSurvey *survey;
	IdemStep	step;
	IdemMaintained result = begin_step();

	*more = *taken = false;
	if (result != IDEM_MAINTAINED)
		return result;
	*more = look_around(&survey, tried, true, &step);
	if (*more)
	{
		PushActiveSnapshot(GetLatestSnapshot());
		*taken = try_step(survey, &step, tried);
	}
	if (!*taken)
		idem_txn_commit(false);
	return result;
}

IdemMaintained
idem_store_maintain(int *steps)
{
	IdemTried	tried;
	IdemMaintained result;
	bool		more;
	bool		taken;

	*steps = 0;
	begin_trying(&tried);
	if (RecoveryInProgress())
		return IDEM_MAINTAINED_LEAVE;
	do
	{
		CHECK_FOR_INTERRUPTS();
		result = turn(&tried, &more, &taken);
		if (taken)
		{
			/* What could not be done before may be possible now. */
			uint64		cut_slots = tried.cut_slots;

			begin_trying(&tried);
			tried.cut_slots = cut_slots;
			(*steps)++;
		}
	} while (result == IDEM_MAINTAINED && more);
	return result;
}

bool
idem_store_failed_to_merge(void)
{
	return merging >= 0;
}

/* Asking for a packer */

/* May a packer be asked for? */
static bool
may_request(void)
{
	return idem_store_maintenance && !RecoveryInProgress() && !IsBinaryUpgrade;
}

void
idem_store_request_maintenance(void)
{
	static IdemClock next_request = 0;
	IdemClock	now;

	if (!may_request())
		return;
	now = idem_clock();
	if (now < next_request)
		return;
	next_request = idem_clock_plus_ms(now, REQUEST_MS);
	if (!idem_singleton_is_at_work(IDEM_SINGLETON_PACKER))
		(void) idem_packer_register(false, NULL);
}

/* A packer lets the time of the store go on, and packs what has become old. */
void
idem_store_keep_time(void)
{
	static IdemClock next_request = 0;
	IdemClock	now = idem_clock();

	if (now < next_request)
		return;
	next_request = idem_clock_plus_ms(now, IDEM_UPTIME_PERIOD_MS);
	idem_store_request_maintenance();
}

void
idem_store_look_after(void)
{
	IdemTried	tried = {0};
	IdemSurvey *survey;
	IdemStep	step;
	bool		locked;

	if (!may_request() || idem_singleton_is_at_work(IDEM_SINGLETON_PACKER))
		return;
	locked = ConditionalLockRelationOid(idem_store_state_oid(), ShareUpdateExclusiveLock);
	if (look_around(&survey, &tried, locked, &step))
		(void) idem_packer_register(false, NULL);
}
