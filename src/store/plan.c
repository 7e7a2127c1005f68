/*-------------------------------------------------------------------------
 *
 * plan.c
 *		Which step is there for a packer to take?
 *
 * In this order:
 *
 * - seal the state, without which nothing else is done;
 * - close the current segment if it is large, so that claims write to a small
 *	 one, or if it has entries that are to expire;
 * - empty what is not needed, which makes room for the steps below;
 * - copy a closed segment, if there is a slot for its run that merges do not
 *	 need;
 * - merge the runs of a full slot, or of a slice that is over.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: segment.c tries ShareLock on closed segments for a moment.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/plan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shared/empty.h"
#include "store/rotate.h"
#include "store/plan.h"
#include "store/retention.h"
#include "store/ring.h"

/* Empty slots that are left to merges. */
#define SLOTS_FOR_MERGES	3

StaticAssertDecl(IDEM_STORE_SLOTS <= 64, "a bit for each slot");

/* Can the segment be copied? */
static bool
may_copy(const IdemSurvey *survey, int number)
{
	const IdemSegmentInfo *segment = &survey->segments[number];

	return number != survey->state.current && segment->seen && !segment->pristine &&
		(survey->state.unprobed & ((uint32) 1 << number)) == 0 && idem_store_segment_is_drained(number);
}

/*
 * Has the slot runs of several classes?  Only a restore brings that about, into a
 * slot in use.
 */
static bool
is_mixed(const IdemSlotInfo *slot)
{
	for (int i = 1; i < slot->nruns; i++)
	{
		if (slot->runs[i].class != slot->runs[0].class)
			return true;
	}
	return false;
}

/* The slice that the slot's runs are of, if they are of one class. */
static int64
slice_of(const IdemSlotInfo *slot)
{
	int64		stamp = 0;

	for (int i = 0; i < slot->nruns; i++)
		stamp = Max(stamp, slot->runs[i].stamp);
	return idem_retention_slice(slot->runs[0].class, stamp);
}

/* Has the slot so many remains that it is to be emptied? */
static bool
is_littered(const IdemSlotInfo *slot)
{
	return slot->nremains >= IDEM_SLOT_MAX_REMAINS;
}

/*
 * Is there room in the slot for one more run of a class and slice?  While runs of
 * the slot are being replaced, they are in the way.
 */
static bool
has_room(const IdemSlotInfo *slot, int class, int64 slice)
{
	return slot->nruns > 0 && slot->nruns < IDEM_SLOT_RUNS && slot->nreplaced == 0 &&
		!is_littered(slot) && !is_mixed(slot) && slot->runs[0].class == class && slice_of(slot) == slice;
}

/*
 * A slot for one more run of a class, slice and level: one that has such runs
 * already, else an empty one, if more than "spare" are empty; -1: none.
 */
static int
find_slot(const IdemSurvey *survey, int class, int64 slice, int level, int spare, uint64 taken)
{
	int			empty = -1;
	int			nempty = 0;

	for (int i = IDEM_STORE_SLOTS - 1; i >= 0; i--)
	{
		const IdemSlotInfo *slot = &survey->slots[i];

		if (has_room(slot, class, slice) && slot->runs[0].level == level)
			return i;
		if (slot->seen && slot->pristine && (taken & IDEM_STEP_BIT(i)) == 0)
		{
			empty = i;
			nempty++;
		}
	}
	return nempty > spare ? empty : -1;
}

int
idem_plan_target(const IdemSurvey *survey, int class, uint64 *taken)
{
	int			target = find_slot(survey, class, idem_retention_slice(class, survey->time), 0,
								   SLOTS_FOR_MERGES, *taken);

	if (target >= 0)
		*taken |= IDEM_STEP_BIT(target);
	return target;
}

bool
idem_plan_merges(const IdemSurvey *survey, const IdemStep *step, int i)
{
	const IdemSlotInfo *slot = &survey->slots[step->number];

	return slot->runs[i].replaced_by == NULL && survey->time < idem_run_end(&slot->runs[i]) &&
		slot->runs[i].class == step->class;
}

/*
 * Set the class and the level of the runs to merge next; false if there are none.
 *
 * What has expired is not merged: its slot is emptied as it is, perhaps by another
 * packer that is about to.
 */
static bool
choose_class(const IdemSurvey *survey, IdemStep *step)
{
	const IdemSlotInfo *slot = &survey->slots[step->number];

	for (int i = 0; i < slot->nruns; i++)
	{
		step->class = slot->runs[i].class;
		step->level = slot->runs[i].level;
		if (idem_plan_merges(survey, step, i))
			return true;
	}
	return false;
}

/*
 * A slot for what the runs of a class of a slot are merged into; -1: they are not
 * to be merged, or there is none.
 *
 * A slot has sixteen runs at most that are not replaced, and these are of one
 * class, unless a restore has added some: then they are merged class by class, by
 * sixteen, until all are.  Runs of two classes are never merged into one, or what is
 * to be remembered for long would expire with what is not.
 *
 * Runs of a slot that has many remains beside them are merged early, so that the slot
 * is emptied.
 *
 * Of a slice that is over no more runs come.  Its runs of lower levels go to the
 * slot of its highest level, so that it keeps one slot until it expires.
 */
static int
merge_target(const IdemSurvey *survey, const IdemStep *step)
{
	const IdemSlotInfo *slot = &survey->slots[step->number];
	int			counted = 0;
	int64		stamp = 0;
	int64		slice;

	for (int i = 0; i < slot->nruns; i++)
	{
		if (!idem_plan_merges(survey, step, i))
			continue;
		stamp = Max(stamp, slot->runs[i].stamp);
		counted++;
	}
	slice = idem_retention_slice(step->class, stamp);
	if (counted >= IDEM_SLOT_RUNS || slot->nreplaced > 0 || is_mixed(slot) || is_littered(slot))
		return find_slot(survey, step->class, slice, step->level + 1, 0, 0);
	if (slice == idem_retention_slice(step->class, survey->time))
		return -1;
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		if (i != step->number && has_room(&survey->slots[i], step->class, slice) &&
			survey->slots[i].runs[0].level > step->level)
			return i;
	}
	return -1;
}

/* Make it the step, unless it was tried. */
static bool
choose(IdemStep *step, const IdemTried *tried, IdemStepKind kind, int number)
{
	*step = (IdemStep)
	{
		.kind = kind, .number = number, .target = -1
	};
	return (tried->steps[kind] & IDEM_STEP_BIT(number)) == 0;
}

/* Find a table that may be emptied. */
static bool
choose_cut(const IdemSurvey *survey, FullTransactionId horizon, const IdemTried *tried, IdemStep *step)
{
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (choose(step, tried, IDEM_STEP_CUT_SEGMENT, i) &&
			idem_cut_may_segment(survey, i, horizon) && !idem_empty_is_held(idem_store_segment_oid(i)))
			return true;
	}
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		if (choose(step, tried, IDEM_STEP_CUT_SLOT, i) &&
			idem_cut_may_slot(survey, i, horizon) && !idem_empty_is_held(idem_slot_oid(i)))
			return true;
	}
	return false;
}

/* Find a segment to copy. */
static bool
choose_copy(const IdemSurvey *survey, const IdemTried *tried, IdemStep *step)
{
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (choose(step, tried, IDEM_STEP_COPY, i) && may_copy(survey, i))
			return true;
	}
	return false;
}

/* Find a slot whose runs to merge.  Unless all runs are known, some may be replaced already. */
static bool
choose_merge(const IdemSurvey *survey, const IdemTried *tried, IdemStep *step)
{
	for (int i = 0; i < IDEM_STORE_SLOTS && survey->complete; i++)
	{
		if (!choose(step, tried, IDEM_STEP_MERGE, i) || survey->slots[i].restoring ||
			!choose_class(survey, step))
			continue;
		step->target = merge_target(survey, step);
		if (step->target >= 0)
			return true;
	}
	return false;
}

bool
idem_plan_step(const IdemSurvey *survey, FullTransactionId horizon, const IdemTried *tried, IdemStep *step)
{
	int			current = survey->state.current;

	if (!survey->state.sealed)
		return choose(step, tried, IDEM_STEP_SEAL, 0);
	if (idem_close_is_due(survey->segments, current) &&
		idem_close_successor(survey->segments, current) >= 0 &&
		choose(step, tried, IDEM_STEP_CLOSE, 0))
		return true;
	return choose_cut(survey, horizon, tried, step) || choose_copy(survey, tried, step) ||
		choose_merge(survey, tried, step);
}
