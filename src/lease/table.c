/*-------------------------------------------------------------------------
 *
 * table.c
 *		The tables of the log of leases.
 *
 * LOCKING: AccessShareLock on a table while it is read.
 *
 * MEMORY: one row at a time.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "miscadmin.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "lease/table.h"
#include "shared/keyed.h"

IdemRelRef	idem_lease_tables[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0"), IDEM_RELREF("lease_log_1"), IDEM_RELREF("lease_log_2")
};

IdemRelRef	idem_lease_indexes[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0_key"), IDEM_RELREF("lease_log_1_key"), IDEM_RELREF("lease_log_2_key")
};

IdemRelRef	idem_lease_number = IDEM_RELREF("lease_number");

/* Take the number and the time of a row, if the number is the greatest so far. */
static void
take_greater(TupleDesc desc, HeapTuple tuple, int64 *greatest, TimestampTz *at)
{
	bool		isnull;
	int64		number = DatumGetInt64(heap_getattr(tuple, IDEM_KEYED_NUMBER, desc, &isnull));

	if (number <= *greatest)
		return;
	*greatest = number;
	*at = DatumGetTimestampTz(heap_getattr(tuple, IDEM_LEASE_AT, desc, &isnull));
}

/* Look for a greater number in one table. */
static void
scan_table(Oid oid, int64 *greatest, TimestampTz *at)
{
	Relation	rel = table_open(oid, AccessShareLock);
	TableScanDesc scan = idem_compat_table_beginscan(rel, SnapshotAny);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		take_greater(RelationGetDescr(rel), tuple, greatest, at);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
}

int64
idem_lease_greatest(TimestampTz *at)
{
	int64		greatest = 0;

	*at = 0;
	for (int n = 0; n < IDEM_LEASE_TABLES; n++)
		scan_table(idem_relref_oid(&idem_lease_tables[n]), &greatest, at);
	return greatest;
}
