/*-------------------------------------------------------------------------
 *
 * filter.h
 *		Filters in pages: which runs of a slot may have an event?
 *
 * A slot has one or more matrices.  Page p of a matrix holds block p of the
 * filters of several runs side by side, so one pinned page answers for all of
 * them.  A run fills its column of the matrix when it is written.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/filter.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_FILTER_H
#define IDEM_STORE_FILTER_H

#include "postgres.h"

#include "store/slot.h"

/* The most matrices of a slot. */
#define IDEM_FILTER_MATRICES	2

/*
 * The matrices of a slot, as they are found in it.  Runs are put in columns in
 * the order in which they are written.
 */
typedef struct IdemFilters
{
	int			nmatrices;
	struct
	{
		int			first;		/* column of the slot */
		int			width;		/* number of columns */
		uint32		pages;		/* 0: there is no complete matrix */
		BlockNumber first_block;	/* page i is expected at first_block + i */
		TransactionId maker;	/* the transaction that made it */
	}			matrix[IDEM_FILTER_MATRICES];
} IdemFilters;

/* Read which matrices a slot has, at a level. */
extern void idem_filter_load(const IdemSlot *slot, int level, IdemFilters *filters);

/*
 * Which runs of the slot may have the event?  Bits by column.  A column of
 * "columns" whose matrix cannot be found as expected has its bit set.
 */
extern uint32 idem_filter_ask(const IdemSlot *slot, const IdemFilters *filters, uint32 columns,
							  const pg_uuid_t *digest);

/*
 * Fill a column.  begin makes the column's matrix if there is none, for runs of
 * "expected" entries; returns NULL if the column's matrix exists and is much
 * too small for the run, or is not as this version makes it: the run has no
 * filter then.  Digests are added in ascending order, repeated ones too.  A
 * column is overwritten as a whole, so remains of a run that was never finished
 * do no harm.  The changes of pages are WAL-logged.  finish returns false if a
 * page of the matrix could not be found, i.e. somebody damaged the slot: the
 * run must be marked as one without a filter.
 *
 * Begin writes rows of its own to "rows", flushes them, and resets the writer's
 * count of blocks.  Memory: in the current context, one block of a column.
 * Interrupts are served between pages.
 */
typedef struct IdemFilterWriter IdemFilterWriter;
extern IdemFilterWriter *idem_filter_begin(IdemSlot *slot, IdemSlotWriter *rows, int level, int column,
										   int64 expected);
extern void idem_filter_add(IdemFilterWriter *writer, const pg_uuid_t *digest);
extern bool idem_filter_finish(IdemFilterWriter *writer);

#endif							/* IDEM_STORE_FILTER_H */
