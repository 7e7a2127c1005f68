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
 * current when it is made.  The process keeps what it found of the age of one segment.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/survey.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/xid.h"
#include "shared/uptime.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/survey.h"

/*
 * For so long, in the time of the store, rows that a restore brought wait for the end mark of
 * their run.
 */
#define RESTORE_SECONDS		(7 * SECS_PER_DAY)

/* The most pages of the current segment that one survey reads for their age. */
#define AGE_PAGES	1024

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

/* Has the slot that is looked at the end mark of a run?  Its runs are the last of the set. */
static bool
has_mark(const IdemRunSet *set, const IdemSlotInfo *info, int64 number)
{
	for (int i = info->first; i < set->n; i++)
	{
		if (set->runs[i].number == number)
			return true;
	}
	return false;
}

/*
 * May more rows of the run, and its end mark, be to come?  A restore may commit row by row.  Its rows
 * come in the order in which the packer wrote them: details by digest, pages by digest, end
 * mark.  So the first row of a kind tells when the restore began with the kind.  A
 * restore that broke off for good must not keep the slot for ever.  It may have been begun
 * once more since, and then the row is there twice.
 */
static bool
is_coming(const IdemSlot *slot, IdemSlotKind kind, int64 number, int64 time)
{
	IdemSlotScan *scan = idem_slot_scan_begin(slot, kind, number, NULL);
	HeapTuple	first = idem_slot_scan_next(scan);
	int64		restored = -1;	/* the last time; -1: the packer wrote it */
	bool		isnull;

	for (HeapTuple row = first; row != NULL; row = idem_slot_scan_next(scan))
	{
		Datum		value = idem_slot_value(slot, row, IDEM_SLOT_PACKER, &isnull);
		uint64		packer = isnull ? 0 : U64FromFullTransactionId(DatumGetFullTransactionId(value));

		if (idem_digest_compare(idem_slot_digest(slot, row), idem_slot_digest(slot, first)) != 0)
			break;
		if ((packer & IDEM_SLOT_RESTORED) != 0)
			restored = Max(restored, (int64) (packer & ~IDEM_SLOT_RESTORED));
	}
	idem_slot_scan_end(scan);
	return restored >= 0 && time < restored + RESTORE_SECONDS;
}

/* Look at the runs that have rows of a kind and no end mark. */
static void
look_at_unfinished(const IdemSurvey *survey, const IdemSlot *slot, IdemSlotKind kind, IdemSlotInfo *info)
{
	int64		number = 0;

	while ((number = idem_slot_next_run(slot, kind, number)) > 0)
	{
		CHECK_FOR_INTERRUPTS();
		if (has_mark(&survey->runs, info, number))
			continue;
		if (is_coming(slot, kind, number, survey->time))
			info->restoring = info->finite = true;
		else if (info->nremains < IDEM_SLOT_MAX_REMAINS)
			info->nremains++;
	}
}

/* Did the transaction that wrote the mark write the first row of the kind, too? */
static bool
came_with_mark(const IdemSlot *slot, IdemSlotKind kind, const IdemRun *run)
{
	IdemSlotScan *scan = idem_slot_scan_begin(slot, kind, run->number, NULL);
	HeapTuple	row = idem_slot_scan_next(scan);
	bool		came = row != NULL && HeapTupleHeaderGetRawXmin(row->t_data) == run->xmin;

	idem_slot_scan_end(scan);
	return came;
}

/* May the run lack rows of the kind?  They are counted, unless the mark came with them. */
static bool
lacks(const IdemSlot *slot, IdemSlotKind kind, const IdemRun *run, int64 rows)
{
	return rows > 0 && !came_with_mark(slot, kind, run) &&
		idem_slot_count(slot, kind, run->number, rows) < rows;
}

/*
 * Look at the runs that a restore brought lately.  It may commit row by row, and the end mark may come
 * before other rows: where the dumped table was restored itself, they stand in any order.
 * Until they are there the run is not to be merged.  A merge, which reads all rows, has the
 * last word (run_read.c).
 */
static void
look_at_restored(IdemSurvey *survey, const IdemSlot *slot, IdemSlotInfo *info)
{
	for (int i = info->first; i < survey->runs.n; i++)
	{
		IdemRun    *run = &survey->runs.runs[i];

		CHECK_FOR_INTERRUPTS();
		if (U64FromFullTransactionId(run->packer) != 0 || survey->time >= run->stamp + RESTORE_SECONDS)
			continue;
		run->lacks_rows = run->lacks_rows || lacks(slot, IDEM_SLOT_PAGE, run, run->pages) ||
			lacks(slot, IDEM_SLOT_DETAIL, run, run->details);
		if (run->lacks_rows)
			info->restoring = info->finite = true;
	}
}

/*
 * Look at one slot.  A crash may have left an index without blocks, but only
 * below a table without blocks.
 */
static void
survey_slot(IdemSurvey *survey, int number, IdemSlotInfo *info)
{
	IdemSlot	slot;

	info->first = survey->runs.n;
	if (!idem_slot_open_nowait(&slot, number, AccessShareLock))
	{
		survey->complete = false;
		return;
	}
	info->seen = true;
	info->pristine = idem_empty_is_pristine(slot.heap);
	if (RelationGetNumberOfBlocks(slot.heap) > 0)
	{
		idem_run_read_marks(&slot, &survey->runs);
		look_at_restored(survey, &slot, info);
		look_at_unfinished(survey, &slot, IDEM_SLOT_PAGE, info);
		look_at_unfinished(survey, &slot, IDEM_SLOT_DETAIL, info);
	}
	idem_slot_close(&slot, AccessShareLock);
	info->nruns = survey->runs.n - info->first;
}

/* What the runs of a slot say, when all are known. */
static void
look_at_runs(IdemSurvey *survey, IdemSlotInfo *info)
{
	if (info->nruns > 0)
		info->runs = &survey->runs.runs[info->first];
	for (int i = 0; i < info->nruns; i++)
	{
		info->finite = info->finite || idem_retention_seconds(info->runs[i].class) > 0;
		if (info->runs[i].replaced_by != NULL)
			info->nreplaced++;
	}
	survey->finite = survey->finite || info->finite;
}

/* What was found so far of the age of the current segment. */
static int	known_segment = -1;
static BlockNumber known_blocks = 0;	/* read, and full by now but for the
										 * last */
static TimestampTz due = DT_NOEND;

/* Callback: when is it time to pack the row? */
static void
look_at_row(Relation heap, HeapTuple tuple, void *arg)
{
	TupleDesc	desc = RelationGetDescr(heap);
	bool		isnull;
	int			class = DatumGetInt16(heap_getattr(tuple, IDEM_RING_CLASS + 1, desc, &isnull));
	int64		seconds = idem_retention_seconds(class);

	if (seconds > 0)
		due = Min(due,
				  DatumGetTimestampTz(heap_getattr(tuple, IDEM_RING_CLAIMED_AT + 1, desc, &isnull)) +
				  seconds / IDEM_RETENTION_SLICES * USECS_PER_SEC);
}

/*
 * Is it time to pack what the current segment has?  Entries expire from the time on at
 * which they were packed.  So a segment that has an entry that expires is closed when that
 * entry is a slice of its class old, even if the segment is small.
 *
 * Nothing says which classes a segment has, but its rows.  A process that looks
 * again and again reads each page once, and the last one again.  Rows of
 * transactions that aborted count; then a segment is closed early, which does no
 * harm.  The same holds if another process has closed, emptied and used the
 * segment again since the last look.
 */
static void
look_at_age(IdemSurvey *survey)
{
	int			current = survey->state.current;
	Relation	heap = idem_store_segment_open_nowait(current, AccessShareLock);
	BlockNumber blocks;
	BlockNumber end;

	if (heap == NULL)
		return;
	blocks = RelationGetNumberOfBlocks(heap);
	if (current != known_segment || blocks < known_blocks)
	{
		known_segment = current;
		known_blocks = 0;
		due = DT_NOEND;
	}
	end = Min(blocks, known_blocks + AGE_PAGES);
	for (BlockNumber block = known_blocks > 0 ? known_blocks - 1 : 0; block < end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		idem_table_visit_page(heap, block, NULL, look_at_row, NULL);
	}
	known_blocks = end;
	survey->segments[current].aged = due <= GetCurrentTimestamp();
	table_close(heap, AccessShareLock);
}

IdemSurvey *
idem_survey(void)
{
	IdemSurvey *survey = palloc0(sizeof(IdemSurvey));

	survey->state = idem_store_state(NULL);
	survey->time = idem_uptime_now();
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
		idem_survey_segment(i, &survey->segments[i]);
	survey->complete = true;
	survey->runs.context = CurrentMemoryContext;
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		CHECK_FOR_INTERRUPTS();
		survey_slot(survey, i, &survey->slots[i]);
	}
	idem_run_find_replaced(&survey->runs);
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
		look_at_runs(survey, &survey->slots[i]);
	look_at_age(survey);
	return survey;
}

bool
idem_survey_has_run(const IdemSurvey *survey, int64 number)
{
	for (int i = 0; i < survey->runs.n; i++)
	{
		if (survey->runs.runs[i].number == number)
			return true;
	}
	return false;
}

FullTransactionId
idem_survey_last_packer(const IdemSurvey *survey)
{
	FullTransactionId last = InvalidFullTransactionId;

	for (int i = 0; i < survey->runs.n; i++)
	{
		if (FullTransactionIdPrecedes(last, survey->runs.runs[i].packer))
			last = survey->runs.runs[i].packer;
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
