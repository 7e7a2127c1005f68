/*-------------------------------------------------------------------------
 *
 * store_fn.c
 *		SQL functions of the dedup store.
 *
 * LOCKING, MEMORY: as state.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/store_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "compat.h"
#include "access/htup_details.h"
#include "commands/trigger.h"
#include "utils/rel.h"
#include "utils/uuid.h"

#include "shared/args.h"
#include "shared/guard.h"
#include "store/keys.h"
#include "store/keys_fill.h"
#include "store/ring.h"
#include "store/slot.h"
#include "store/state.h"

PG_FUNCTION_INFO_V1(idem_store_restored_fn);
PG_FUNCTION_INFO_V1(idem_store_keyed_fn);

/* Table n of those that have the trigger: segments, then slots. */
static IdemRelRef *
table(int number)
{
	return number < IDEM_STORE_SEGMENTS ? idem_store_segment_ref(number) :
		idem_slot_ref(number - IDEM_STORE_SEGMENTS);
}

/*
 * Trigger of segments and slots, for each statement that inserts rows: only a
 * restore does.  Sessions may know the segment as one that needs no probe, or the
 * runs without those that come, so they must rely on nothing until the restore
 * has committed.
 */
Datum
idem_store_restored_fn(PG_FUNCTION_ARGS)
{
	idem_require_table(fcinfo, "store_restored", table, IDEM_STORE_SEGMENTS + IDEM_STORE_SLOTS);
	idem_store_unseal();
	return PointerGetDatum(NULL);
}

/* The number of a segment. */
static int
segment_number(Oid oid)
{
	int			number = 0;

	while (idem_store_segment_oid(number) != oid)
		number++;
	return number;
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
	IdemKeys	keys;

	idem_require_table(fcinfo, "store_keyed", idem_store_segment_ref, IDEM_STORE_SEGMENTS);
	idem_guard_table(idem_store_segment_ref(segment_number(RelationGetRelid(trigger->tg_relation))),
					 trigger->tg_relation, IDEM_GUARD_READ);
	idem_keys_open(&keys, segment_number(RelationGetRelid(trigger->tg_relation)), trigger->tg_relation);
	if (!TRIGGER_FIRED_BY_INSERT(trigger->tg_event))
		idem_keys_make_anew(&keys);
	if (!TRIGGER_FIRED_BY_DELETE(trigger->tg_event))
		enter_row(&keys, TRIGGER_FIRED_BY_UPDATE(trigger->tg_event) ? trigger->tg_newtuple : trigger->tg_trigtuple);
	idem_keys_close(&keys);
	return PointerGetDatum(NULL);
}
