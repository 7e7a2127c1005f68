/*-------------------------------------------------------------------------
 *
 * run_fn.c
 *		SQL functions by which tests write and read runs of the dedup store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/run_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/jsonb.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "compat.h"
#include "store/run.h"

PG_FUNCTION_INFO_V1(idem_test_run_write_fn);
PG_FUNCTION_INFO_V1(idem_test_run_marks_fn);
PG_FUNCTION_INFO_V1(idem_test_run_found_fn);
PG_FUNCTION_INFO_V1(idem_test_run_search_fn);
PG_FUNCTION_INFO_V1(idem_test_run_read_fn);

/* Columns of the query of test_run_write, and of the result of test_run_read. */
enum
{
	COL_DIGEST, COL_TURN, COL_STATE, COL_DETAIL, COL_CLAIMED_AT, COL_COMPLETED_AT,
	COL_EVENT_ID, COL_CONSUMER, COL_RESULT, NCOLS
};

#define FETCH_ROWS	1000

/* A value of the row; 0 if it is NULL. */
static Datum
row_value(int row, int column, bool detoast)
{
	bool		isnull;
	Datum		value = SPI_getbinval(SPI_tuptable->vals[row], SPI_tuptable->tupdesc, column + 1, &isnull);

	if (isnull)
		return 0;
	return detoast ? PointerGetDatum(PG_DETOAST_DATUM(value)) : value;
}

/* Add a row of the query to the run. */
static void
add_row(IdemRunWriter *writer, int row)
{
	IdemEventEntry entry = {
		.digest = *DatumGetUUIDP(row_value(row, COL_DIGEST, false)),
		.turn = DatumGetInt16(row_value(row, COL_TURN, false)),
		.state = DatumGetChar(row_value(row, COL_STATE, false)),
		.has_detail = DatumGetBool(row_value(row, COL_DETAIL, false)),
		.claimed_at = DatumGetTimestampTz(row_value(row, COL_CLAIMED_AT, false)),
		.completed_at = DatumGetTimestampTz(row_value(row, COL_COMPLETED_AT, false)),
		.event_id = row_value(row, COL_EVENT_ID, true),
		.consumer = row_value(row, COL_CONSUMER, true),
		.result = row_value(row, COL_RESULT, true)
	};

	idem_run_add(writer, &entry);
}

/*
 * test_run_write(slot int, run bigint, query text, plain bool, finish bool, expected bigint)
 * -> void: write the rows of the query as a run; finish = false: without end mark
 */
Datum
idem_test_run_write_fn(PG_FUNCTION_ARGS)
{
	IdemRun		run = {.number = PG_GETARG_INT64(1), .plain = PG_GETARG_BOOL(3)};
	SPIParseOpenOptions options = {.read_only = true};
	Portal		portal;
	IdemRunWriter *writer;
	IdemSlot	slot;

	idem_slot_open(&slot, PG_GETARG_INT32(0), RowExclusiveLock);
	writer = idem_run_begin(&slot, &run, PG_GETARG_INT64(5));
	SPI_connect();
	portal = SPI_cursor_parse_open(NULL, text_to_cstring(PG_GETARG_TEXT_PP(2)), &options);
	for (;;)
	{
		SPI_cursor_fetch(portal, true, FETCH_ROWS);
		if (SPI_processed == 0)
			break;
		for (uint64 i = 0; i < SPI_processed; i++)
			add_row(writer, i);
		SPI_freetuptable(SPI_tuptable);
	}
	SPI_cursor_close(portal);
	SPI_finish();
	if (!PG_GETARG_BOOL(4))
		ereport(ERROR, (errmsg("run not finished")));
	idem_run_finish(writer);
	idem_slot_close(&slot, RowExclusiveLock);
	PG_RETURN_VOID();
}

/* A row of the marks. */
static void
put_mark(const IdemRun *run, ReturnSetInfo *rsinfo)
{
	Datum		values[] = {
		Int64GetDatum(run->number), Int32GetDatum(run->class), Int32GetDatum(run->level),
		Int32GetDatum(run->column), Int64GetDatum(run->pages), Int64GetDatum(run->first_block),
		Int64GetDatum(run->digests), Int64GetDatum(run->details), Int64GetDatum(run->specials),
		Int32GetDatum(run->nreplaces), BoolGetDatum(FullTransactionIdIsValid(run->packer))
	};
	bool		nulls[lengthof(values)] = {false};

	nulls[5] = run->first_block == InvalidBlockNumber;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* test_run_marks(slot int) -> setof (run, class, level, "column", pages, first_block, ...) */
Datum
idem_test_run_marks_fn(PG_FUNCTION_ARGS)
{
	IdemRunSet	set = {.context = CurrentMemoryContext};
	IdemSlot	slot;

	InitMaterializedSRF(fcinfo, 0);
	if (!idem_slot_open_nowait(&slot, PG_GETARG_INT32(0), AccessShareLock))
		elog(ERROR, "slot is locked");
	idem_run_read_marks(&slot, &set);
	for (int i = 0; i < set.n; i++)
		put_mark(&set.runs[i], (ReturnSetInfo *) fcinfo->resultinfo);
	idem_slot_close(&slot, AccessShareLock);
	return (Datum) 0;
}

/* Open a slot and find a run in it.  shift: move its first block; NULL: forget it. */
static void
open_run(FunctionCallInfo fcinfo, int shift_argno, IdemSlot *slot, IdemRun *run)
{
	IdemRunSet	set = {.context = CurrentMemoryContext};

	memset(run, 0, sizeof(*run));
	run->pages = -1;
	idem_slot_open(slot, PG_GETARG_INT32(0), AccessShareLock);
	idem_run_read_marks(slot, &set);
	for (int i = 0; i < set.n; i++)
	{
		if (set.runs[i].number == PG_GETARG_INT64(1))
			*run = set.runs[i];
	}
	if (run->pages < 0)
		elog(ERROR, "run has no end mark");
	if (shift_argno < 0)
		return;
	if (PG_ARGISNULL(shift_argno))
		run->first_block = InvalidBlockNumber;
	else if (run->first_block != InvalidBlockNumber)
		run->first_block += PG_GETARG_INT32(shift_argno);
}

/* test_run_found(slot int, run bigint, digests uuid[], shift int) -> bigint: how many are found */
Datum
idem_test_run_found_fn(PG_FUNCTION_ARGS)
{
	Datum	   *digests;
	int			n;
	int64		found = 0;
	IdemSlot	slot;
	IdemRun		run;

	deconstruct_array(PG_GETARG_ARRAYTYPE_P(2), UUIDOID, UUID_LEN, false, TYPALIGN_CHAR,
					  &digests, NULL, &n);
	open_run(fcinfo, 3, &slot, &run);
	for (int i = 0; i < n; i++)
	{
		IdemEventEntry entry;

		CHECK_FOR_INTERRUPTS();
		if (idem_run_search(&slot, &run, DatumGetUUIDP(digests[i]), false, &entry))
			found++;
	}
	idem_slot_close(&slot, AccessShareLock);
	PG_RETURN_INT64(found);
}

/* The columns of an entry. */
static void
entry_values(const IdemEventEntry *entry, Datum *values, bool *nulls)
{
	memset(nulls, false, NCOLS * sizeof(bool));
	values[COL_DIGEST] = UUIDPGetDatum(&entry->digest);
	values[COL_TURN] = Int16GetDatum(entry->turn);
	values[COL_STATE] = CharGetDatum(entry->state);
	values[COL_DETAIL] = BoolGetDatum(entry->has_detail);
	values[COL_CLAIMED_AT] = TimestampTzGetDatum(entry->claimed_at);
	nulls[COL_CLAIMED_AT] = entry->claimed_at == 0;
	values[COL_COMPLETED_AT] = TimestampTzGetDatum(entry->completed_at);
	nulls[COL_COMPLETED_AT] = entry->completed_at == 0;
	values[COL_EVENT_ID] = entry->event_id;
	nulls[COL_EVENT_ID] = entry->event_id == 0;
	values[COL_CONSUMER] = entry->consumer;
	nulls[COL_CONSUMER] = entry->consumer == 0;
	values[COL_RESULT] = entry->result;
	nulls[COL_RESULT] = entry->result == 0;
}

/* Add an entry to the result. */
static void
put_entry(FunctionCallInfo fcinfo, const IdemEventEntry *entry)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	Datum		values[NCOLS];
	bool		nulls[NCOLS];

	entry_values(entry, values, nulls);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* test_run_search(slot int, run bigint, digest uuid, shift int, detail bool) -> setof an entry, if it is found */
Datum
idem_test_run_search_fn(PG_FUNCTION_ARGS)
{
	IdemEventEntry entry;
	IdemSlot	slot;
	IdemRun		run;

	InitMaterializedSRF(fcinfo, 0);
	open_run(fcinfo, 3, &slot, &run);
	if (idem_run_search(&slot, &run, PG_GETARG_UUID_P(2), PG_GETARG_BOOL(4), &entry))
		put_entry(fcinfo, &entry);
	idem_slot_close(&slot, AccessShareLock);
	return (Datum) 0;
}

/* test_run_read(slot int, run bigint) -> setof entries, in the order in which they come */
Datum
idem_test_run_read_fn(PG_FUNCTION_ARGS)
{
	IdemRunReader *reader;
	IdemEventEntry entry;
	IdemSlot	slot;
	IdemRun		run;

	InitMaterializedSRF(fcinfo, 0);
	open_run(fcinfo, -1, &slot, &run);
	reader = idem_run_read(&slot, &run);
	while (idem_run_next(reader, &entry))
		put_entry(fcinfo, &entry);
	idem_run_end_read(reader);
	idem_slot_close(&slot, AccessShareLock);
	return (Datum) 0;
}
