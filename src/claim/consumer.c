/*-------------------------------------------------------------------------
 *
 * consumer.c
 *		What is registered about a consumer.
 *
 * Consumers need no registration; a row of idempotency.consumers only says in
 * what one differs.  It is read as of now, like the rows of events, and only
 * by claims past the budget of locks, so the ordinary claim never pays for it.
 *
 * LOCKING: AccessShareLock on table and index, for the look-up.
 *
 * MEMORY: nothing outlives the call.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/consumer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "claim/consumer.h"
#include "shared/catalog.h"

/* Columns of idempotency.consumers */
#define COL_CONSUMER			1
#define COL_FOREIGN_LOCKERS		2

static IdemRelRef consumers = IDEM_RELREF("consumers");
static IdemRelRef consumers_pkey = IDEM_RELREF("consumers_pkey");

bool
idem_consumer_foreign_lockers(const char *consumer, int len)
{
	Relation	rel = table_open(idem_relref_oid(&consumers), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	text	   *name = cstring_to_text_with_len(consumer, len);
	ScanKeyData key;
	SysScanDesc scan;
	HeapTuple	tup;
	bool		isnull;
	bool		foreign_lockers = false;

	ScanKeyInit(&key, COL_CONSUMER, BTEqualStrategyNumber, F_TEXTEQ,
				PointerGetDatum(name));
	scan = systable_beginscan(rel, idem_relref_oid(&consumers_pkey), true,
							  snapshot, 1, &key);
	tup = systable_getnext(scan);
	if (HeapTupleIsValid(tup))
		foreign_lockers = DatumGetBool(heap_getattr(tup, COL_FOREIGN_LOCKERS,
													RelationGetDescr(rel), &isnull));
	systable_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
	pfree(name);
	return foreign_lockers;
}
