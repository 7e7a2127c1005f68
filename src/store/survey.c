/*-------------------------------------------------------------------------
 *
 * survey.c
 *		What segments and slots there are, for whoever maintains or shows them.
 *
 * A survey holds as long as the caller holds the packer's lock: only a packer
 * empties tables, writes end marks and changes the state.  Without that lock a
 * survey may be outdated at once.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: AccessShareLock on store_state, then on one segment or slot at a
 * time, each given back.  Those of segments and slots are taken only if they are
 * free.
 *
 * MEMORY: a survey, with the end marks of all runs, is in the context that is
 * current when it is made.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/survey.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/xid.h"
#include "shared/uptime.h"
#include "store/age.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/survey.h"

/*
 * For so long, in the time of the store, rows that a restore brought wait for the end mark of
 * their run.
 */
#define RESTORE_SECONDS		(7 * SECS_PER_DAY)

IdemStoreState
idem_survey_state(void)
{
	Relation	rel = relation_open(idem_store_state_oid(), AccessShareLock);
	IdemStoreState state = idem_store_state(rel);

	relation_close(rel, AccessShareLock);
	return state;
}

void
idem_survey_segment(int number, IdemSegmentInfo *info)
{
	Relation	heap = idem_table_open_nowait(idem_store_segment_oid(number), AccessShareLock);

	memset(info, 0, sizeof(*info));
	if (heap == NULL)
		return;
	info->seen = true;
	info->blocks = RelationGetNumberOfBlocks(heap);
	info->pristine = info->blocks == 0 && idem_empty_is_pristine(heap);
	table_close(heap, AccessShareLock);
}

/* Callback: note an end mark. */
static void
add_run(const IdemRun *run, void *arg)
{
	IdemSlotInfo *info = arg;

	if (info->nruns == 0)
		info->runs = palloc(sizeof(IdemRun));
	else
		info->runs = repalloc(info->runs, (info->nruns + 1) * sizeof(IdemRun));
	info->runs[info->nruns++] = *run;
	info->finite = info->finite || idem_retention_seconds(run->class) > 0;
}

/* Has the slot the end mark of a run? */
static bool
has_mark(const IdemSlotInfo *info, int64 number)
{
	for (int i = 0; i < info->nruns; i++)
	{
		if (info->runs[i].number == number)
			return true;
	}
	return false;
}

/* When did restores bring the first row of a kind of a run? */
typedef struct FirstRow
{
	bool		seen;
	pg_uuid_t	digest;
	int64		restored;		/* the last time; -1: the packer wrote it */
} FirstRow;

/*
 * Callback: look at a row of the first digest.  A restore that broke off may have been begun
 * once more since, and then the row is there twice.
 */
static bool
look_at_first(const Datum *values, const bool *nulls, ItemPointer tid, void *arg)
{
	FirstRow   *first = arg;
	const pg_uuid_t *digest = DatumGetUUIDP(values[IDEM_SLOT_DIGEST]);
	uint64		packer = 0;

	if (!nulls[IDEM_SLOT_PACKER])
		packer = U64FromFullTransactionId(DatumGetFullTransactionId(values[IDEM_SLOT_PACKER]));
	if (first->seen && idem_digest_compare(digest, &first->digest) != 0)
		return false;
	first->seen = true;
	first->digest = *digest;
	if ((packer & IDEM_SLOT_RESTORED) != 0)
		first->restored = Max(first->restored, (int64) (packer & ~IDEM_SLOT_RESTORED));
	return true;
}

/*
 * May more rows of the run, and its end mark, be to come?  A restore may commit row by row.  Its rows
 * come in the order in which the packer wrote them: details by digest, pages by digest, end
 * mark.  So the first row of a kind tells when the restore began with the kind.  A
 * restore that broke off for good must not keep the slot for ever.
 */
static bool
is_coming(const IdemSlot *slot, IdemSlotKind kind, int64 number, int64 time)
{
	FirstRow	first = {.restored = -1};

	idem_slot_visit(slot, kind, number, look_at_first, &first);
	return first.restored >= 0 && time < first.restored + RESTORE_SECONDS;
}

/* Look at the runs that have rows of a kind and no end mark. */
static void
look_at_unfinished(const IdemSlot *slot, IdemSlotKind kind, int64 time, IdemSlotInfo *info)
{
	int64		number = 0;

	while ((number = idem_slot_next_run(slot, kind, number)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (has_mark(info, number))
			continue;
		if (is_coming(slot, kind, number, time))
			info->restoring = info->finite = true;
		else if (info->nremains < IDEM_SLOT_MAX_REMAINS)
			info->nremains++;
	}
}

/*
 * Look at one slot.  A crash may have left an index without blocks, but only
 * below a table without blocks.
 */
static void
survey_slot(int number, int64 time, IdemSlotInfo *info)
{
	IdemSlot	slot;

	if (!idem_slot_open_nowait(&slot, number, AccessShareLock))
		return;
	info->seen = true;
	info->pristine = idem_empty_is_pristine(slot.heap);
	if (RelationGetNumberOfBlocks(slot.heap) > 0)
	{
		idem_run_read_marks(&slot, add_run, info);
		look_at_unfinished(&slot, IDEM_SLOT_PAGE, time, info);
		look_at_unfinished(&slot, IDEM_SLOT_DETAIL, time, info);
	}
	idem_slot_close(&slot, AccessShareLock);
	info->replaced = palloc0((info->nruns + 1) * sizeof(bool));
}

/* Mark the runs that other runs have replaced, and look at the classes. */
static void
find_replaced(IdemSurvey *survey)
{
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		IdemSlotInfo *slot = &survey->slots[i];

		survey->finite = survey->finite || slot->finite;
		for (int j = 0; j < slot->nruns; j++)
		{
			slot->replaced[j] = idem_survey_replacement(survey, &slot->runs[j]) != NULL;
			if (slot->replaced[j])
				slot->nreplaced++;
		}
	}
}

/* Is it time to pack what the current segment has? */
static void
look_at_age(IdemSurvey *survey)
{
	int			current = survey->state.current;
	Relation	heap = idem_store_segment_open_nowait(current, AccessShareLock);

	if (heap == NULL)
		return;
	survey->segments[current].aged = idem_age_is_due(heap, current);
	table_close(heap, AccessShareLock);
}

IdemSurvey *
idem_survey(void)
{
	IdemSurvey *survey = palloc0(sizeof(IdemSurvey));

	survey->state = idem_survey_state();
	survey->time = idem_uptime_now();
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
		idem_survey_segment(i, &survey->segments[i]);
	survey->complete = true;
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		CHECK_FOR_INTERRUPTS();
		survey_slot(i, survey->time, &survey->slots[i]);
		survey->complete = survey->complete && survey->slots[i].seen;
	}
	find_replaced(survey);
	look_at_age(survey);
	return survey;
}

bool
idem_survey_has_run(const IdemSurvey *survey, int64 number)
{
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		for (int j = 0; j < survey->slots[i].nruns; j++)
		{
			if (survey->slots[i].runs[j].number == number)
				return true;
		}
	}
	return false;
}

const IdemRun *
idem_survey_replacement(const IdemSurvey *survey, const IdemRun *run)
{
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		for (int j = 0; j < survey->slots[i].nruns; j++)
		{
			if (idem_run_was_merged_into(run, &survey->slots[i].runs[j]))
				return &survey->slots[i].runs[j];
		}
	}
	return NULL;
}

FullTransactionId
idem_survey_last_packer(const IdemSurvey *survey)
{
	FullTransactionId last = InvalidFullTransactionId;

	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		for (int j = 0; j < survey->slots[i].nruns; j++)
		{
			if (FullTransactionIdPrecedes(last, survey->slots[i].runs[j].packer))
				last = survey->slots[i].runs[j].packer;
		}
	}
	return last;
}

/*
 * The horizon of the tables of this database.  That of any of our tables will
 * do.  The catalog's snapshot would count, so it goes first.
 */
FullTransactionId
idem_survey_horizon(void)
{
	FullTransactionId horizon = InvalidFullTransactionId;

	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		Relation	heap = idem_table_open_nowait(idem_store_segment_oid(i), AccessShareLock);

		if (heap == NULL)
			continue;
		InvalidateCatalogSnapshot();
		horizon = idem_xid_widen(GetOldestNonRemovableTransactionId(heap),
								 ReadNextFullTransactionId());
		table_close(heap, AccessShareLock);
		break;
	}
	return horizon;
}
