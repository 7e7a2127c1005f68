/*-------------------------------------------------------------------------
 *
 * kept.c
 *		The packed entries that have their id in clear, for processed_events.
 *
 * These are entries of consumers that keep ids, and entries that could not
 * become a digest, e.g. of kept claims.  They are the details of runs.  A detail
 * is shown if it is the entry that decides about its event for the caller's
 * snapshot: not if something newer took its place, nor if it stands in a run that
 * was merged into another one, nor if the snapshot does not see the packer; then its
 * segment, or the older run, still has it.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: store.c, and AccessShareLock on one slot at a time, given back.
 *
 * MEMORY: the result is a tuplestore, which goes to disk; one entry at a time is
 * in a context of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/kept.c
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

#include "store/slot.h"
#include "store/store.h"

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
	text	   *name;

	(void) idem_slot_value(slot, tuple, IDEM_SLOT_EVENT_ID, &no_id);
	consumer = idem_slot_value(slot, tuple, IDEM_SLOT_CONSUMER, &no_consumer);
	if (no_id || no_consumer ||
		DatumGetChar(idem_slot_value(slot, tuple, IDEM_SLOT_STATE, &isnull)) == IDEM_ENTRY_FORGOTTEN)
		return false;
	name = DatumGetTextPP(consumer);
	return VARSIZE_ANY_EXHDR(name) == 0 || *VARDATA_ANY(name) != '@';
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

Datum
idem_store_kept_rows(FunctionCallInfo fcinfo)
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
