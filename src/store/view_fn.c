/*-------------------------------------------------------------------------
 *
 * view_fn.c
 *		What processed_events shows: rows of segments, and packed entries that
 *		have their id in clear.
 *
 * The latter are entries of consumers that keep ids, and entries that could not
 * become a digest, e.g. of kept claims.  They are the details of runs.  A row or a detail
 * is shown if it is the entry that decides about its event for the caller's
 * snapshot: not if something newer took its place, nor if it stands in a run that
 * was merged into another one, nor if the snapshot does not see the packer; then its
 * segment, or the older run, still has it.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: store.c, and AccessShareLock on one slot at a time, given back.
 *
 * MEMORY: rows of segments come one by one.  Packed entries go to a tuplestore, which goes
 * to disk; one entry at a time is in a context of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/view_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "shared/rows.h"
#include "store/ring.h"
#include "store/slot.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(idem_processed_events_source_fn);
PG_FUNCTION_INFO_V1(idem_processed_events_packed_fn);

/* Is it one of the extension's own consumers?  They are not shown. */
static bool
is_own_consumer(Datum consumer)
{
	text	   *name = DatumGetTextPP(consumer);

	return VARSIZE_ANY_EXHDR(name) > 0 && *VARDATA_ANY(name) == '@';
}

/* Rows of segments */

/* Callbacks of IdemRowSource: a store beside the tables of the view. */
static void *
open_for_view(TupleDesc desc)
{
	return idem_store_open(false);
}

static void
close_for_view(void *arg)
{
	idem_store_close(arg);
}

/*
 * Fill in a row as processed_events shows it.  False for a row of one of the
 * extension's own consumers, for a row that something newer, or its copy in a
 * run, took the place of, and for a row that the store did not write: a claim of
 * its event tells of that.
 */
static bool
show_row(TupleTableSlot *slot, Datum *values, bool *nulls, void *arg)
{
	static const int shown[] = {
		IDEM_RING_CONSUMER, IDEM_RING_EVENT_ID, IDEM_RING_CLAIMED_AT, IDEM_RING_COMPLETED_AT,
		IDEM_RING_RESULT
	};
	int64		run;

	slot_getsomeattrs(slot, IDEM_RING_NATTS);
	if (slot->tts_isnull[IDEM_RING_DIGEST] || slot->tts_isnull[IDEM_RING_CONSUMER] ||
		!idem_entry_is_sound(DatumGetInt16(slot->tts_values[IDEM_RING_TURN]),
							 DatumGetChar(slot->tts_values[IDEM_RING_STATE])))
		return false;
	if (is_own_consumer(slot->tts_values[IDEM_RING_CONSUMER]) ||
		DatumGetChar(slot->tts_values[IDEM_RING_STATE]) == IDEM_ENTRY_FORGOTTEN)
		return false;
	if (idem_store_decider(arg, DatumGetUUIDP(slot->tts_values[IDEM_RING_DIGEST]), &run) >
		DatumGetInt16(slot->tts_values[IDEM_RING_TURN]) || run != 0)
		return false;
	for (int i = 0; i < lengthof(shown); i++)
	{
		values[i] = slot->tts_values[shown[i]];
		nulls[i] = slot->tts_isnull[shown[i]];
	}
	return true;
}

/*
 * The rows of segments that the caller's snapshot sees and that nothing newer, and no run,
 * takes the place of, except those of the extension's own consumers.
 */
Datum
idem_processed_events_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ntables = IDEM_STORE_SEGMENTS, .ncolumns = 5, .tables = idem_store_segments,
		.begin = open_for_view, .end = close_for_view, .form_row = show_row
	};

	return idem_rows_next(fcinfo, &source);
}

/* Packed entries */

/* Columns of the view, and those of a slot that they are. */
static const int shown[] = {
	IDEM_SLOT_CONSUMER, IDEM_SLOT_EVENT_ID, IDEM_SLOT_CLAIMED_AT, IDEM_SLOT_COMPLETED_AT,
	IDEM_SLOT_RESULT
};

/* Has the row an id, of a consumer that is not the extension's own? */
static bool
has_id(const IdemSlot *slot, HeapTuple tuple)
{
	bool		no_id;
	bool		no_consumer;
	bool		isnull;
	Datum		consumer;

	(void) idem_slot_value(slot, tuple, IDEM_SLOT_EVENT_ID, &no_id);
	consumer = idem_slot_value(slot, tuple, IDEM_SLOT_CONSUMER, &no_consumer);
	return !no_id && !no_consumer && !is_own_consumer(consumer) &&
		DatumGetChar(idem_slot_value(slot, tuple, IDEM_SLOT_STATE, &isnull)) != IDEM_ENTRY_FORGOTTEN;
}

/* Does the row decide about its event? */
static bool
decides(IdemStore *store, const IdemSlot *slot, HeapTuple tuple)
{
	bool		isnull;
	int64		run;
	int16		turn = idem_store_decider(store,
										  DatumGetUUIDP(idem_slot_value(slot, tuple, IDEM_SLOT_DIGEST, &isnull)),
										  &run);

	return turn == DatumGetInt16(idem_slot_value(slot, tuple, IDEM_SLOT_TURN, &isnull)) &&
		run == DatumGetInt64(idem_slot_value(slot, tuple, IDEM_SLOT_RUN, &isnull));
}

/*
 * Add a row to the result.  The result outlives the lock on the slot, so nothing
 * of it points into the slot's TOAST table.
 */
static void
show(ReturnSetInfo *rsinfo, const IdemSlot *slot, HeapTuple tuple)
{
	Datum		values[lengthof(shown)];
	bool		nulls[lengthof(shown)];

	for (int i = 0; i < lengthof(shown); i++)
	{
		values[i] = idem_slot_value(slot, tuple, shown[i], &nulls[i]);
		if (!nulls[i] && TupleDescAttr(rsinfo->setDesc, i)->attlen == -1)
			values[i] = PointerGetDatum(PG_DETOAST_DATUM_PACKED(values[i]));
	}
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Show the details of a slot. */
static void
show_slot(ReturnSetInfo *rsinfo, IdemStore *store, const IdemSlot *slot, MemoryContext row_context)
{
	IdemSlotScan *scan = idem_slot_scan_begin(slot, IDEM_SLOT_DETAIL, -1, NULL);
	HeapTuple	tuple;

	while ((tuple = idem_slot_scan_next(scan)) != NULL)
	{
		MemoryContext old = MemoryContextSwitchTo(row_context);

		CHECK_FOR_INTERRUPTS();
		if (has_id(slot, tuple) && decides(store, slot, tuple))
			show(rsinfo, slot, tuple);
		MemoryContextSwitchTo(old);
		MemoryContextReset(row_context);
		heap_freetuple(tuple);
	}
	idem_slot_scan_end(scan);
}

/* The same columns of the packed entries that have their id in clear. */
Datum
idem_processed_events_packed_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	MemoryContext row_context = AllocSetContextCreate(CurrentMemoryContext, "idempotency kept row",
													  ALLOCSET_DEFAULT_SIZES);
	IdemStore  *store;

	InitMaterializedSRF(fcinfo, 0);
	store = idem_store_open(false);
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		IdemSlot	slot;

		idem_slot_open(&slot, i, AccessShareLock);
		if (RelationGetNumberOfBlocks(slot.heap) > 0)
			show_slot(rsinfo, store, &slot, row_context);
		idem_slot_close(&slot, AccessShareLock);
	}
	idem_store_close(store);
	MemoryContextDelete(row_context);
	return (Datum) 0;
}
