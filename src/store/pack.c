/*-------------------------------------------------------------------------
 *
 * pack.c
 *		Closes segments, packs them into runs, merges runs, and empties what is
 *		no longer needed.
 *
 * The steps, each in a transaction of its own unless it says otherwise:
 *
 * - seal the state after a restore (state.c);
 * - close the current segment (rotate.c);
 * - copy a closed segment into runs, one for each class (copy.c), commit, flush;
 *	 then, in another transaction, mark the segment packed, which tells all
 *	 sessions of the runs;
 * - merge the runs of a slot into one run of a higher level (copy.c), commit,
 *	 flush; then raise the state;
 * - empty a packed segment (rotate.c);
 * - raise the state; then, in another transaction, empty a slot whose runs were
 *	 merged, or have expired (rotate.c).
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
#include "store/rotate.h"
#include "store/copy.h"
#include "store/pace.h"
#include "store/pack.h"
#include "store/plan.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/setting.h"
#include "store/survey.h"

/* A session asks for a packer at most once in this time. */
#define REQUEST_MS	1000

/* Transactions */

/* How often, and how soon, a step that another process stands in the way of goes on. */
#define RESUME_TRIES	50
#define RESUME_PAUSE_MS 20

/*
 * Begin a transaction that holds the packer's lock.  It is open, too, if the lock is not
 * to be had.
 */
static IdemMaintained
begin_step(void)
{
	idem_txn_begin();
	if (idem_pace_must_give_way())
		return IDEM_MAINTAINED_LEAVE;
	if (!ConditionalLockRelationOid(idem_store_state_oid(), ShareUpdateExclusiveLock))
		return IDEM_MAINTAINED_BUSY;
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
	IdemMaintained begun = begin_step();
	IdemStoreState state;

	/*
	 * A claim that looks whether there is work has the lock to the end of its
	 * transaction, mostly a short one.  Without it a copied segment would be
	 * copied once more.
	 */
	for (int tries = 0; begun == IDEM_MAINTAINED_BUSY && tries < RESUME_TRIES; tries++)
	{
		idem_txn_commit(false);
		idem_pause(RESUME_PAUSE_MS);
		begun = begin_step();
	}
	if (begun != IDEM_MAINTAINED)
		return false;
	state = idem_store_state(NULL);
	return state.sealed && state.value == state_value;
}

/* Have all sessions read the end marks anew; returns the state's number. */
static int64
raise_state(void)
{
	IdemStoreState state = idem_store_state(NULL);

	idem_store_set_state(state.current, state.unprobed);
	return idem_store_state(NULL).value;
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
		unmerged |= IDEM_STEP_BIT(merging);
	if (merging >= 0 && merge_again_at == 0)
		merge_again_at = idem_clock_plus_ms(idem_clock(), MERGE_AGAIN_MS);
	merging = -1;
	if (merge_again_at != 0 && idem_clock() >= merge_again_at)
		unmerged = merge_again_at = 0;
	memset(tried, 0, sizeof(*tried));
	tried->steps[IDEM_STEP_MERGE] = unmerged;
}

/* Steps.  Each returns false if nothing was done; a transaction is open either way. */

static void
mark_packed(int segment)
{
	IdemStoreState state = idem_store_state(NULL);

	idem_store_set_state(state.current, state.unprobed | (uint32) 1 << segment);
	IDEM_FAULT_POINT("store-marked-packed");
}

static bool
copy(const IdemSurvey *survey, const IdemStep *step)
{
	int			nruns;

	if (!idem_copy_segment(survey, step->number, &nruns))
		return false;
	if (nruns > 0)
	{
		/* the packer itself may have closed a segment meanwhile */
		int64		state_value = idem_store_state(NULL).value;

		idem_txn_commit(true);
		IDEM_FAULT_POINT("store-run-committed");
		if (!resume_step(state_value))
			return true;
	}
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
						 slice_is_over ? target->runs[0].level : step->level + 1))
		return false;
	idem_txn_commit(true);
	IDEM_FAULT_POINT("store-merge-committed");
	if (slice_is_over)
		IDEM_FAULT_POINT("store-slice-merged");
	if (begin_step() == IDEM_MAINTAINED)
	{
		(void) raise_state();
		IDEM_FAULT_POINT("store-merge-raised");
	}
	return true;
}

/*
 * A session that read the end marks before the state is raised searches once
 * more; a session that reads them after that finds the runs in their new place.
 */
static bool
cut_slot(const IdemSurvey *survey, int number)
{
	const IdemSlotInfo *slot = &survey->slots[number];

	/*
	 * a merged run may have expired, too; the survey ends with its
	 * transaction
	 */
	bool		expired = slot->nruns > 0 && survey->time >= idem_run_end(&slot->runs[0]);
	int64		state_value = raise_state();

	idem_txn_commit(false);
	IDEM_FAULT_POINT("store-slot-raised");
	if (expired)
		IDEM_FAULT_POINT("store-expired-raised");
	if (!resume_step(state_value) || !idem_cut_slot(number))
		return false;
	if (expired)
		IDEM_FAULT_POINT("store-expired-cut");
	return true;
}

/* Try a step; note it if it could not be taken. */
static bool
try_step(const IdemSurvey *survey, const IdemStep *step, IdemTried *tried)
{
	bool		merged;

	tried->steps[step->kind] |= IDEM_STEP_BIT(step->number);
	switch (step->kind)
	{
		case IDEM_STEP_SEAL:
			return idem_store_seal();
		case IDEM_STEP_CLOSE:
			return idem_close_if_due(survey->segments[survey->state.current].aged);
		case IDEM_STEP_CUT_SEGMENT:
			return idem_cut_segment(step->number);
		case IDEM_STEP_CUT_SLOT:
			return cut_slot(survey, step->number);
		case IDEM_STEP_COPY:
			return copy(survey, step);
		case IDEM_STEP_MERGE:
			merging = step->number;
			merged = merge(survey, step);
			merging = -1;
			return merged;
		case IDEM_STEP_KINDS:
			break;
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
	*survey = idem_survey();
	if (advance && ((*survey)->finite || idem_uptime_is_needed()))
	{
		idem_uptime_advance();
		(*survey)->time = idem_uptime_now();
	}
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	return idem_plan_step(*survey, idem_survey_horizon(), tried, step);
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
	if (result == IDEM_MAINTAINED)
		*more = look_around(&survey, tried, true, &step);
	if (*more)
	{
		PushActiveSnapshot(GetLatestSnapshot());
		*taken = try_step(survey, &step, tried);
	}
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
			uint64		cut_slots = tried.steps[IDEM_STEP_CUT_SLOT];

			begin_trying(&tried);
			tried.steps[IDEM_STEP_CUT_SLOT] = cut_slots;
			(*steps)++;
		}
		if (idem_singleton_turn_is_over())
			return IDEM_MAINTAINED_LEAVE;
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

/*
 * A packer that stays for a while is the only one of the database (shared/worker.c).  One
 * that takes a step for whoever asks for it may work beside it.
 */
bool
idem_packer_register(bool once, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;
	IdemPackerOrder order;

	memset(&order, 0, sizeof(order));
	order.database = MyDatabaseId;
	order.once = once;
	idem_singleton_describe(&worker, "idem_store_worker_main", "idempotency packer");
	memcpy(worker.bgw_extra, &order, sizeof(order));
	worker.bgw_notify_pid = handle == NULL ? 0 : MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
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
	if (idem_singleton_is_needed(IDEM_SINGLETON_PACKER))
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

	if (!may_request() || !idem_singleton_is_needed(IDEM_SINGLETON_PACKER))
		return;
	locked = ConditionalLockRelationOid(idem_store_state_oid(), ShareUpdateExclusiveLock);
	if (look_around(&survey, &tried, locked, &step))
		(void) idem_packer_register(false, NULL);
}
