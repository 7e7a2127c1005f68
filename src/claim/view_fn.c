/*-------------------------------------------------------------------------
 *
 * view_fn.c
 *		SQL functions behind the views processed_events and claim_consumers.
 *
 * LOCKING, MEMORY: shared/rows.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/view_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "executor/tuptable.h"
#include "fmgr.h"
#include "miscadmin.h"
#include "utils/builtins.h"

#include "compat.h"
#include "claim/consumer.h"
#include "claim/consumers.h"
#include "claim/owner.h"
#include "shared/rows.h"
#include "store/retention.h"
#include "store/store.h"

PG_FUNCTION_INFO_V1(idem_processed_events_source_fn);
PG_FUNCTION_INFO_V1(idem_processed_events_packed_fn);
PG_FUNCTION_INFO_V1(idem_claim_consumers_source_fn);

Datum
idem_processed_events_source_fn(PG_FUNCTION_ARGS)
{
	return idem_store_next_row(fcinfo);
}

Datum
idem_processed_events_packed_fn(PG_FUNCTION_ARGS)
{
	return idem_store_kept_rows(fcinfo);
}

/* Columns of claim_consumers */
enum
{
	SHOWN_CONSUMER,
	SHOWN_FOREIGN_LOCKERS,
	SHOWN_PRIVATE_LOCKS,
	SHOWN_RETENTION,
	SHOWN_CLASS,
	SHOWN_KEEP_IDS,
	SHOWN_EXPIRE_BY_ID_AGE,
	SHOWN_LEASE_DURATION,
	SHOWN_MAX_ATTEMPTS,
	SHOWN_MIN_BACKOFF,
	SHOWN_MAX_BACKOFF,
	SHOWN_OWNER,
	SHOWN_OWNER_MISSING,
	SHOWN_COLUMNS
};

/* Show a column of the table. */
static void
copy_column(TupleTableSlot *slot, int column, int shown, Datum *values, bool *nulls)
{
	values[shown] = slot_getattr(slot, column, &nulls[shown]);
}

/* Show the owner by its present name, or by its last one if it does not exist. */
static void
show_owner(TupleTableSlot *slot, Datum *values, bool *nulls)
{
	bool		shouldfree;
	HeapTuple	row = ExecFetchSlotHeapTuple(slot, false, &shouldfree);
	IdemOwnerNote note = idem_owner_read(row, slot->tts_tupleDescriptor);
	Oid			role;
	const char *name;

	if (shouldfree)
		heap_freetuple(row);
	nulls[SHOWN_OWNER_MISSING] = false;
	values[SHOWN_OWNER_MISSING] = BoolGetDatum(false);
	if (note.role == NULL)
		return;
	role = idem_owner_role(&note);
	name = OidIsValid(role) ? GetUserNameFromId(role, true) : NULL;
	values[SHOWN_OWNER] = CStringGetTextDatum(name != NULL ? name : note.role);
	nulls[SHOWN_OWNER] = false;
	values[SHOWN_OWNER_MISSING] = BoolGetDatum(name == NULL);
}

/* Fill in a consumer as claim_consumers shows it (callback of IdemRowSource). */
static bool
show_consumer(TupleTableSlot *slot, Datum *values, bool *nulls, void *arg)
{
	int			class;

	copy_column(slot, IDEM_CONSUMERS_CONSUMER, SHOWN_CONSUMER, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_FOREIGN_LOCKERS, SHOWN_FOREIGN_LOCKERS, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_PRIVATE_LOCKS, SHOWN_PRIVATE_LOCKS, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_RETENTION, SHOWN_RETENTION, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_KEEP_IDS, SHOWN_KEEP_IDS, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_EXPIRE_BY_ID_AGE, SHOWN_EXPIRE_BY_ID_AGE, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_LEASE_DURATION, SHOWN_LEASE_DURATION, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_MAX_ATTEMPTS, SHOWN_MAX_ATTEMPTS, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_MIN_BACKOFF, SHOWN_MIN_BACKOFF, values, nulls);
	copy_column(slot, IDEM_CONSUMERS_MAX_BACKOFF, SHOWN_MAX_BACKOFF, values, nulls);

	class = idem_consumer_class(nulls[SHOWN_RETENTION] ? NULL :
								DatumGetIntervalP(values[SHOWN_RETENTION]));
	values[SHOWN_CLASS] = CStringGetTextDatum(idem_retention_name(class));
	nulls[SHOWN_CLASS] = false;
	show_owner(slot, values, nulls);
	return true;
}

static IdemRelRef *
consumers_table(int number)
{
	return idem_consumers_ref();
}

Datum
idem_claim_consumers_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ntables = 1, .ncolumns = SHOWN_COLUMNS,
		.table = consumers_table, .form_row = show_consumer
	};

	return idem_rows_next(fcinfo, &source);
}
