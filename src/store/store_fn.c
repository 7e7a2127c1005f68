/*-------------------------------------------------------------------------
 *
 * store_fn.c
 *		SQL functions of the dedup store: the triggers of its tables,
 *		claims_maintain(), and what stat_claim_segments shows.
 *
 * LOCKING: the triggers as state.c and keys.c.  claims_maintain() takes none.  The view's
 * source takes AccessShareLock on one table at a time, and gives it back.  A table whose
 * lock is not free is shown as held.
 *
 * MEMORY: of the view's source a survey, in the function's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/store_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/ipc.h"
#include "storage/proc.h"
#include "storage/procarray.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/args.h"
#include "shared/guard.h"
#include "shared/lock_wait.h"
#include "shared/uptime.h"
#include "shared/worker.h"
#include "store/keys.h"
#include "store/keys_head.h"
#include "store/pack.h"
#include "store/plan.h"
#include "store/retention.h"
#include "store/rotate.h"
#include "store/setting.h"

PG_FUNCTION_INFO_V1(idem_store_restored_fn);
PG_FUNCTION_INFO_V1(idem_store_keyed_fn);
PG_FUNCTION_INFO_V1(idem_store_restamp_fn);
PG_FUNCTION_INFO_V1(idem_claims_maintain_fn);
PG_FUNCTION_INFO_V1(idem_stat_claim_segments_source_fn);

/*
 * Trigger of segments and slots, for each statement that inserts rows: only a
 * restore does.  Sessions may know the segment as one that needs no probe, or the
 * runs without those that come, so they must rely on nothing until the restore
 * has committed.
 */
Datum
idem_store_restored_fn(PG_FUNCTION_ARGS)
{
	if (idem_table_of_trigger(fcinfo, idem_store_segments, IDEM_STORE_SEGMENTS) < 0)
		(void) idem_require_table(fcinfo, "store_restored", idem_store_slots, IDEM_STORE_SLOTS);
	idem_store_unseal();
	return PointerGetDatum(NULL);
}

/* Enter the row, if the table has it now. */
static void
enter_row(IdemKeys *keys, HeapTuple row)
{
	bool		isnull;
	Datum		digest = heap_getattr(row, IDEM_RING_DIGEST + 1, RelationGetDescr(keys->heap), &isnull);

	if (!isnull)
		idem_keys_enter(keys, DatumGetUUIDP(digest), &row->t_self);
}

/*
 * Trigger of segments, for each row that others bring, change or remove: a restore, a
 * subscription, for which no trigger of statements fires, or somebody by hand.
 */
Datum
idem_store_keyed_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	int			number = idem_require_table(fcinfo, "store_keyed", idem_store_segments, IDEM_STORE_SEGMENTS);
	IdemKeys	keys;

	idem_keys_open(&keys, number, trigger->tg_relation);
	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		idem_keys_make_anew(&keys);
	if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		enter_row(&keys, TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple);
	idem_keys_close(&keys);
	return PointerGetDatum(NULL);
}

/*
 * Trigger of each slot, before insert.  The packer fires no triggers, so the
 * rows that come here are restored from a dump.  Their transaction ids belong
 * to another cluster: everybody who sees an end mark sees what its packer saw.
 * Rows of a run whose end mark is still to come are kept by the time at which they
 * came (survey.c).
 */
Datum
idem_store_restamp_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "store_restamp");
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	HeapTuple	tuple = trigger->tg_trigtuple;
	int			columns[2] = {IDEM_SLOT_PACKER + 1, IDEM_SLOT_BODY + 1};
	Datum		values[2];
	bool		nulls[2] = {false};
	bool		no_kind;
	bool		no_body;
	Datum		kind;
	Datum		body;
	bool		is_mark;
	int64		now = idem_uptime_now();

	/* another table may have fewer columns than are read below */
	(void) idem_require_table(fcinfo, "store_restamp", idem_store_slots, IDEM_STORE_SLOTS);
	kind = heap_getattr(tuple, IDEM_SLOT_KIND + 1, desc, &no_kind);
	body = heap_getattr(tuple, IDEM_SLOT_BODY + 1, desc, &no_body);
	is_mark = !no_kind && DatumGetInt16(kind) == IDEM_SLOT_MARK && !no_body;
	values[0] = FullTransactionIdGetDatum(idem_slot_restored(is_mark, now));
	if (is_mark)
	{
		bytea	   *bytes = DatumGetByteaPP(body);

		values[1] = PointerGetDatum(idem_run_restamp(RelationGetRelationName(trigger->tg_relation),
													 VARDATA_ANY(bytes), VARSIZE_ANY_EXHDR(bytes),
													 now));
	}
	else if (!no_body)
	{
		/* INSERT has packed a short one, which nobody could read in place */
		values[1] = PointerGetDatum(PG_DETOAST_DATUM(body));
	}
	return PointerGetDatum(heap_modify_tuple_by_cols(tuple, desc, no_body ? 1 : 2,
													 columns, values, nulls));
}

Datum
idem_claims_maintain_fn(PG_FUNCTION_ARGS)
{
	BackgroundWorkerHandle *handle;

	idem_prevent_read_only("claims_maintain()");
	if (!idem_store_maintenance)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("packing is switched off"),
				 errhint("Set idempotency.store_maintenance to on.")));
	if (!idem_packer_register(true, &handle))
		PG_RETURN_BOOL(false);
	if (WaitForBackgroundWorkerShutdown(handle) == BGWH_POSTMASTER_DIED)
		proc_exit(1);
	PG_RETURN_BOOL(true);
}

/* stat_claim_segments */

/* The number of rows of a segment is taken from so many pages. */
#define SAMPLES	64

/* Columns of stat_claim_segments */
enum
{
	COL_KIND,
	COL_NUMBER,
	COL_SLOT,
	COL_LEVEL,
	COL_CLASS,
	COL_STATE,
	COL_ENTRIES,
	COL_BYTES,
	COL_OLDEST,
	COL_NEWEST,
	COL_EXPIRES,
	COL_HELD_BY,
	NCOLUMNS
};

typedef struct ViewRow
{
	Datum		values[NCOLUMNS];
	bool		nulls[NCOLUMNS];
} ViewRow;

/* All columns NULL but the first ones. */
static void
init_row(ViewRow *row, const char *kind, int64 number, const char *state)
{
	memset(row->nulls, true, sizeof(row->nulls));
	idem_set_column(row->values, row->nulls, COL_KIND, CStringGetTextDatum(kind));
	idem_set_column(row->values, row->nulls, COL_NUMBER, Int64GetDatum(number));
	idem_set_column(row->values, row->nulls, COL_STATE, CStringGetTextDatum(state));
}

/* NULL: nothing holds it. */
static void
set_held_by(ViewRow *row, const char *what)
{
	if (what != NULL)
		idem_set_column(row->values, row->nulls, COL_HELD_BY, CStringGetTextDatum(what));
}

/* Segments */

typedef struct PageCount
{
	int64		rows;
	TimestampTz oldest;
	TimestampTz newest;
} PageCount;

/* Callback: count a row, whether it is visible or not. */
static void
count_row(Relation heap, HeapTuple tuple, void *arg)
{
	PageCount  *count = arg;
	bool		isnull;
	TimestampTz time = DatumGetTimestampTz(heap_getattr(tuple, IDEM_RING_CLAIMED_AT + 1,
														RelationGetDescr(heap), &isnull));

	count->oldest = Min(count->oldest, time);
	count->newest = Max(count->newest, time);
	count->rows++;
}

/* The bytes of a table with its indexes and what is stored out of line. */
static int64
total_bytes(Oid oid)
{
	return DatumGetInt64(DirectFunctionCall1(pg_total_relation_size, ObjectIdGetDatum(oid)));
}

/* Number and age of the rows, from a part of the pages. */
static void
describe_rows(Relation heap, ViewRow *row)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(heap);
	BlockNumber samples = Min(blocks, SAMPLES);
	PageCount	count = {0, DT_NOEND, DT_NOBEGIN};

	for (BlockNumber i = 0; i < samples; i++)
	{
		CHECK_FOR_INTERRUPTS();
		/* the first page and the last one are among them */
		idem_table_visit_page(heap, samples == 1 ? 0 : (uint64) (blocks - 1) * i / (samples - 1),
							  NULL, count_row, &count);
	}
	idem_set_column(row->values, row->nulls, COL_ENTRIES, Int64GetDatum(samples == 0 ? 0 : count.rows * blocks / samples));
	idem_set_column(row->values, row->nulls, COL_BYTES, Int64GetDatum(total_bytes(RelationGetRelid(heap))));
	if (count.rows > 0)
	{
		idem_set_column(row->values, row->nulls, COL_OLDEST, TimestampTzGetDatum(count.oldest));
		idem_set_column(row->values, row->nulls, COL_NEWEST, TimestampTzGetDatum(count.newest));
	}
}

static const char *
segment_state(const IdemSurvey *survey, int number)
{
	if (number == survey->state.current)
		return "current";
	if (survey->segments[number].seen && survey->segments[number].pristine)
		return "empty";
	return survey->state.unprobed & ((uint32) 1 << number) ? "packed" : "closed";
}

/* What keeps a table from being emptied that one of these packers wrote to? */
static const char *
snapshot_holder(FullTransactionId packer, FullTransactionId horizon)
{
	int			n;

	if (FullTransactionIdPrecedes(packer, horizon))
		return NULL;
	pfree(GetCurrentVirtualXIDs(XidFromFullTransactionId(packer), true, false, PROC_IN_VACUUM, &n));
	return n > 0 ? "snapshot" : "transaction";
}

/* What keeps all steps from being taken? */
static const char *
packer_missing(void)
{
	if (!idem_store_maintenance)
		return "idempotency.store_maintenance";
	return idem_singleton_is_at_work(IDEM_SINGLETON_PACKER) ? NULL : "no packer";
}

/* What keeps a segment in its state? */
static const char *
segment_holder(const IdemSurvey *survey, int number, FullTransactionId horizon)
{
	Oid			oid = idem_store_segment_oid(number);
	const char *holder = NULL;

	if (!survey->segments[number].seen)
		return "lock";
	if (number == survey->state.current)
	{
		if (!idem_close_is_due(survey->segments, number))
			return NULL;
		if (idem_close_successor(survey->segments, number) < 0)
			return "no empty segment";
		return packer_missing();
	}
	if (survey->segments[number].pristine)
		return NULL;
	if ((survey->state.unprobed & ((uint32) 1 << number)) == 0)
	{
		uint64		taken = 0;

		holder = idem_holder(oid, ShareLock, "writer");
		if (holder == NULL && idem_plan_target(survey, IDEM_RETENTION_FOR_EVER, &taken) < 0)
			holder = "no empty slot";
	}
	else
	{
		holder = snapshot_holder(idem_survey_last_packer(survey), horizon);
		if (holder == NULL)
			holder = idem_holder(oid, AccessExclusiveLock, "reader");
		if (holder == NULL)
			holder = idem_holder(idem_relref_oid(&idem_store_keys[number]), AccessExclusiveLock, "reader");
	}
	return holder != NULL ? holder : packer_missing();
}

static void
describe_segment(const IdemSurvey *survey, int number, FullTransactionId horizon, ViewRow *row)
{
	Relation	heap;

	init_row(row, "segment", number, segment_state(survey, number));
	set_held_by(row, segment_holder(survey, number, horizon));
	heap = idem_store_segment_open_nowait(number, AccessShareLock);
	if (heap != NULL)
	{
		describe_rows(heap, row);
		table_close(heap, AccessShareLock);
	}
}

/* Slots */

/* What keeps a run that was replaced, or has expired, from going, and the others from being merged? */
static const char *
run_holder(const IdemSurvey *survey, int slot, const IdemRun *run, FullTransactionId horizon)
{
	const char *holder = NULL;

	if (survey->slots[slot].restoring)
		return "restore";
	if (survey->time >= idem_run_end(run))
	{
		if (idem_cut_packed_remain(survey))
			holder = "packed segment";
	}
	else if (run->replaced_by != NULL)
		holder = snapshot_holder(run->replaced_by->packer, horizon);
	else
		return NULL;
	if (holder == NULL)
		holder = idem_holder(idem_slot_oid(slot), AccessExclusiveLock, "reader");
	return holder != NULL ? holder : packer_missing();
}

static const char *
run_state(const IdemSurvey *survey, const IdemRun *run)
{
	if (run->replaced_by != NULL)
		return "merged";
	if (run->lacks_rows)
		return "unfinished";
	return survey->time < idem_run_end(run) ? "searched" : "expired";
}

static void
describe_run(const IdemSurvey *survey, int slot, int i, FullTransactionId horizon, ViewRow *row)
{
	const IdemRun *run = &survey->slots[slot].runs[i];

	init_row(row, "run", run->number, run_state(survey, run));
	idem_set_column(row->values, row->nulls, COL_SLOT, Int32GetDatum(slot));
	idem_set_column(row->values, row->nulls, COL_LEVEL, Int32GetDatum(run->level));
	idem_set_column(row->values, row->nulls, COL_CLASS, CStringGetTextDatum(idem_retention_name(run->class)));
	idem_set_column(row->values, row->nulls, COL_ENTRIES, Int64GetDatum(run->digests + run->specials));
	idem_set_column(row->values, row->nulls, COL_BYTES, Int64GetDatum(run->pages * BLCKSZ));
	idem_set_column(row->values, row->nulls, COL_OLDEST, TimestampTzGetDatum(run->oldest));
	idem_set_column(row->values, row->nulls, COL_NEWEST, TimestampTzGetDatum(run->newest));
	if (idem_run_end(run) != PG_INT64_MAX)
		idem_set_column(row->values, row->nulls, COL_EXPIRES,
						TimestampTzGetDatum(GetCurrentTimestamp() +
											(idem_run_end(run) - survey->time) * USECS_PER_SEC));
	set_held_by(row, run_holder(survey, slot, run, horizon));
}

/* A slot without an end mark: a packer or a restore is at work on it, or one has failed. */
static void
describe_remains(int slot, const IdemSlotInfo *info, ViewRow *row)
{
	init_row(row, "slot", slot, info->seen ? "unfinished" : "unknown");
	idem_set_column(row->values, row->nulls, COL_SLOT, Int32GetDatum(slot));
	idem_set_column(row->values, row->nulls, COL_BYTES, Int64GetDatum(total_bytes(idem_slot_oid(slot))));
	if (!info->seen)
		set_held_by(row, "lock");
	else
		set_held_by(row, info->restoring ? "restore" : packer_missing());
}

static void
put_row(ReturnSetInfo *rsinfo, ViewRow *row)
{
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, row->values, row->nulls);
}

static void
put_slot(ReturnSetInfo *rsinfo, const IdemSurvey *survey, int slot, FullTransactionId horizon)
{
	const IdemSlotInfo *info = &survey->slots[slot];
	ViewRow		row;

	for (int i = 0; i < info->nruns; i++)
	{
		describe_run(survey, slot, i, horizon, &row);
		put_row(rsinfo, &row);
	}
	if (!info->seen || (info->nruns == 0 && !info->pristine))
	{
		describe_remains(slot, info, &row);
		put_row(rsinfo, &row);
	}
}

Datum
idem_stat_claim_segments_source_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemSurvey *survey = idem_survey();
	FullTransactionId horizon = idem_survey_horizon();

	InitMaterializedSRF(fcinfo, 0);
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		ViewRow		row;

		describe_segment(survey, i, horizon, &row);
		put_row(rsinfo, &row);
	}
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
		put_slot(rsinfo, survey, i, horizon);
	PG_RETURN_NULL();
}
