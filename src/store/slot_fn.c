/*-------------------------------------------------------------------------
 *
 * slot_fn.c
 *		SQL functions of the slots.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/slot_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/rel.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/args.h"
#include "shared/uptime.h"
#include "store/run.h"

PG_FUNCTION_INFO_V1(idem_store_restamp_fn);

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
	idem_require_table(fcinfo, "store_restamp", idem_slot_ref, IDEM_STORE_SLOTS);
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
