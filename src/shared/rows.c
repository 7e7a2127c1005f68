/*-------------------------------------------------------------------------
 *
 * rows.c
 *		Streams rows of the extension's tables out of a set-returning
 *		function.
 *
 * The tables are in a schema on which nobody has USAGE.  A view over a table
 * would not keep roles from locking it.  PostgreSQL locks a view's tables
 * while it parses a statement, before it checks privileges, so that PREPARE
 * alone would hold the lock.  A view over a function locks nothing before the
 * function runs, and the function runs only for a role with EXECUTE on it.
 *
 * Each call gives out one row.  The views call the function in a select list,
 * where the executor takes one row at a time.  So memory is one row, nothing
 * is written to disk, and LIMIT ends the scan.  In FROM the executor would
 * collect all rows first.
 *
 * Invariant: a row that was given out does not point into a table.  As a value
 * of a row type it is detoasted.  So the row outlives the lock, even if the
 * table is emptied in place.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: AccessShareLock on one table at a time, given back when the table's
 * last row was read, or when the executor ends earlier.  A cursor in the
 * middle of a table holds that table's lock.  A source that reads its rows itself
 * has locks of its own.
 *
 * MEMORY: the state is in the context of the set.  A row is in the caller's
 * context, which the executor resets for each row.
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
#include "shared/args.h"
#include "shared/guard.h"
#include "shared/rows.h"

typedef struct RowScan
{
	const IdemRowSource *source;
	ExprContext *econtext;
	TupleDesc	desc;
	Datum	   *values;
	bool	   *nulls;
	Snapshot	snapshot;
	int			number;			/* number of the table that is open, or that
								 * is opened next */
	Relation	table;			/* NULL: no table is open */
	TableScanDesc scan;
	TupleTableSlot *slot;
	void	   *arg;			/* from the source's begin */
} RowScan;

/* Open the next table and begin its scan. */
static void
open_table(RowScan *rows)
{
	IdemRelRef *ref = &rows->source->tables[rows->number];

	rows->table = table_open(idem_relref_oid(ref), AccessShareLock);
	idem_guard_table(ref, rows->table, IDEM_GUARD_READ);
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
 * Callback: the executor ends, or scans again from the beginning.  After an
 * error the callback is not called; resource owners give everything back then.
 */
static void
stop(Datum arg)
{
	RowScan    *rows = (RowScan *) DatumGetPointer(arg);

	if (rows->table != NULL)
		close_table(rows);
	if (rows->source->end != NULL)
		rows->source->end(rows->arg);
	UnregisterSnapshot(rows->snapshot);
}

/* The first call sets up the state of the set. */
static void
start(FunctionCallInfo fcinfo, const IdemRowSource *source)
{
	FuncCallContext *call = SRF_FIRSTCALL_INIT();
	MemoryContext saved = MemoryContextSwitchTo(call->multi_call_memory_ctx);
	RowScan    *rows = palloc0(sizeof(RowScan));

	rows->desc = idem_row_type(fcinfo, source->ncolumns);
	rows->source = source;
	rows->econtext = ((ReturnSetInfo *) fcinfo->resultinfo)->econtext;
	rows->values = palloc(source->ncolumns * sizeof(Datum));
	rows->nulls = palloc(source->ncolumns * sizeof(bool));
	rows->snapshot = RegisterSnapshot(GetActiveSnapshot());
	if (source->begin != NULL)
		rows->arg = source->begin(rows->desc);
	call->user_fctx = rows;

	/* This callback is called before the set's own, which frees the state. */
	RegisterExprContextCallback(rows->econtext, stop, PointerGetDatum(rows));
	MemoryContextSwitchTo(saved);
}

/* Get the next row that is shown, into values and nulls; false at the end. */
static bool
next_row(RowScan *rows)
{
	if (rows->source->next != NULL)
	{
		memset(rows->nulls, true, rows->source->ncolumns * sizeof(bool));
		return rows->source->next(rows->values, rows->nulls, rows->arg);
	}
	for (; rows->number < rows->source->ntables; rows->number++)
	{
		if (rows->table == NULL)
			open_table(rows);
		while (table_scan_getnextslot(rows->scan, ForwardScanDirection, rows->slot))
		{
			CHECK_FOR_INTERRUPTS();
			memset(rows->nulls, true, rows->source->ncolumns * sizeof(bool));
			if (rows->source->form_row(rows->slot, rows->values, rows->nulls, rows->arg))
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

	/* Memory that a scan allocates must live as long as the scan. */
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
