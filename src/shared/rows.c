/*-------------------------------------------------------------------------
 *
 * rows.c
 *		Streams rows of our tables out of a set-returning function.
 *
 * The tables are in a schema that nobody has USAGE on, and a view over a table
 * would not help: PostgreSQL locks a view's tables while it parses a statement,
 * before anybody is asked for privileges, so that PREPARE alone would hold the
 * lock.  A view over a function locks nothing before it runs, and it runs only
 * for a role with EXECUTE on the function.
 *
 * One row is given out per call.  The views call the function in a select list,
 * where the executor takes one row at a time: memory is one row, nothing is
 * written to disk, and LIMIT ends the scan.  In FROM the executor would collect
 * all rows first.
 *
 * Invariant: a row that was given out does not point into a table.  As a value of
 * a row type it has been detoasted, so it outlives the lock, and the table's
 * being emptied in place.
 *
 * A crash leaves nothing: nothing is written.
 *
 * LOCKING: AccessShareLock on one table at a time, given back when its last row was
 * read, or when the executor ends before.  A cursor in the middle of a table holds
 * that table's lock.
 *
 * MEMORY: the state in the context of the set; a row in the caller's, which the
 * executor resets for each row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/rows.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/rows.h"

typedef struct RowScan
{
	const IdemRowSource *source;
	ExprContext *econtext;
	TupleDesc	desc;
	Datum	   *values;
	bool	   *nulls;
	Snapshot	snapshot;
	int			number;			/* of the table that is open, or is opened
								 * next */
	Relation	table;			/* NULL: no table is open */
	TableScanDesc scan;
	TupleTableSlot *slot;
} RowScan;

/* Begin with the next table. */
static void
open_table(RowScan *rows)
{
	rows->table = table_open(rows->source->table_oid(rows->number), AccessShareLock);
	if (rows->source->check_table != NULL)
		rows->source->check_table(rows->table);
	rows->scan = idem_compat_table_beginscan(rows->table, rows->snapshot);
	rows->slot = table_slot_create(rows->table, NULL);
}

/* End a table, and give its lock back. */
static void
close_table(RowScan *rows)
{
	ExecDropSingleTupleTableSlot(rows->slot);
	table_endscan(rows->scan);
	table_close(rows->table, AccessShareLock);
	rows->table = NULL;
}

/*
 * The executor ends, or scans again from the beginning.  It does not call this
 * after an error, when resource owners give everything back.
 */
static void
stop(Datum arg)
{
	RowScan    *rows = (RowScan *) DatumGetPointer(arg);

	if (rows->table != NULL)
		close_table(rows);
	UnregisterSnapshot(rows->snapshot);
}

/* First call: set up the state of the set. */
static void
start(FunctionCallInfo fcinfo, const IdemRowSource *source)
{
	FuncCallContext *call = SRF_FIRSTCALL_INIT();
	MemoryContext saved = MemoryContextSwitchTo(call->multi_call_memory_ctx);
	RowScan    *rows = palloc0(sizeof(RowScan));

	if (get_call_result_type(fcinfo, NULL, &rows->desc) != TYPEFUNC_COMPOSITE ||
		rows->desc->natts != source->ncolumns)
		elog(ERROR, "return type must be a row type of %d columns", source->ncolumns);
	rows->desc = BlessTupleDesc(rows->desc);
	rows->source = source;
	rows->econtext = ((ReturnSetInfo *) fcinfo->resultinfo)->econtext;
	rows->values = palloc(source->ncolumns * sizeof(Datum));
	rows->nulls = palloc(source->ncolumns * sizeof(bool));
	rows->snapshot = RegisterSnapshot(GetActiveSnapshot());
	call->user_fctx = rows;

	/* Called before the set's own callback, which frees the state. */
	RegisterExprContextCallback(rows->econtext, stop, PointerGetDatum(rows));
	MemoryContextSwitchTo(saved);
}

/* The next row that is shown, into values and nulls; false at the end. */
static bool
next_row(RowScan *rows)
{
	for (; rows->number < rows->source->ntables; rows->number++)
	{
		if (rows->table == NULL)
			open_table(rows);
		while (table_scan_getnextslot(rows->scan, ForwardScanDirection, rows->slot))
		{
			CHECK_FOR_INTERRUPTS();
			memset(rows->nulls, true, rows->source->ncolumns * sizeof(bool));
			if (rows->source->form_row(rows->slot, rows->values, rows->nulls))
				return true;
		}
		close_table(rows);
	}
	return false;
}

Datum
idem_rows_next(FunctionCallInfo fcinfo, const IdemRowSource *source)
{
	FuncCallContext *call;
	MemoryContext saved;
	RowScan    *rows;
	bool		found;

	if (SRF_IS_FIRSTCALL())
		start(fcinfo, source);
	call = SRF_PERCALL_SETUP();
	rows = call->user_fctx;

	/* What a scan allocates lives as long as the scan. */
	saved = MemoryContextSwitchTo(call->multi_call_memory_ctx);
	found = next_row(rows);
	MemoryContextSwitchTo(saved);
	if (found)
		SRF_RETURN_NEXT(call, HeapTupleGetDatum(heap_form_tuple(rows->desc, rows->values,
																rows->nulls)));
	UnregisterExprContextCallback(rows->econtext, stop, PointerGetDatum(rows));
	stop(PointerGetDatum(rows));
	SRF_RETURN_DONE(call);
}
