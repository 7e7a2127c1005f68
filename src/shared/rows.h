/*-------------------------------------------------------------------------
 *
 * rows.h
 *		Streams rows of the extension's tables out of a set-returning
 *		function.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/rows.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_ROWS_H
#define IDEM_ROWS_H

#include "postgres.h"

#include "access/tupdesc.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "utils/relcache.h"

#include "shared/catalog.h"

/*
 * The tables that a function reads, and callbacks that make their rows rows of
 * its result.  Or a function that reads them.
 */
typedef struct IdemRowSource
{
	int			ntables;
	int			ncolumns;		/* of the result */
	IdemRelRef *tables;

	/*
	 * Called when the scan begins and when it ends, but not after an error.
	 * desc: the columns of the result.  What begin returns is the last
	 * argument of form_row and next.  NULL: nothing.
	 */
	void	   *(*begin) (TupleDesc desc);
	void		(*end) (void *arg);

	/*
	 * Fill in a row of the result, which is all NULL before.  The values may
	 * point into the slot.  Returns false if the row is not shown.
	 */
	bool		(*form_row) (TupleTableSlot *slot, Datum *values, bool *nulls, void *arg);

	/*
	 * Instead of tables and form_row, for a source that reads its rows
	 * itself: fill in the next row of the result, which is all NULL before;
	 * false at the end.  The values stay valid until the next call.  It is
	 * called in a context that lives as long as the scan.
	 */
	bool		(*next) (Datum *values, bool *nulls, void *arg);
} IdemRowSource;

/*
 * Body of a function that returns SETOF record, with OUT arguments, one row
 * per call.  Returns the rows that the caller's snapshot sees, table by table,
 * in the order of a sequential scan.  The caller of the function has EXECUTE
 * on it.
 */
extern Datum idem_rows_next(FunctionCallInfo fcinfo, const IdemRowSource *source);

#endif							/* IDEM_ROWS_H */
