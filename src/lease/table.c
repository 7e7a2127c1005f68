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

#include "compat.h"
#include "lease/table.h"
#include "shared/keyed_log.h"

IdemRelRef	idem_lease_tables[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0"), IDEM_RELREF("lease_log_1"), IDEM_RELREF("lease_log_2")
};

IdemRelRef	idem_lease_indexes[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0_key"), IDEM_RELREF("lease_log_1_key"), IDEM_RELREF("lease_log_2_key")
};

IdemRelRef	idem_lease_number = IDEM_RELREF("lease_number");

/* The greatest number in one table. */
static int64
greatest_in_table(Oid oid)
{
	Relation	rel = table_open(oid, AccessShareLock);
	TableScanDesc scan = idem_compat_table_beginscan(rel, SnapshotAny);
	int64		greatest = 0;
	HeapTuple	tuple;
	bool		isnull;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		greatest = Max(greatest, DatumGetInt64(heap_getattr(tuple, IDEM_KEYED_NUMBER,
															RelationGetDescr(rel), &isnull)));
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	return greatest;
}

int64
idem_lease_greatest(void)
{
	int64		greatest = 0;

	for (int n = 0; n < IDEM_LEASE_TABLES; n++)
		greatest = Max(greatest, greatest_in_table(idem_relref_oid(&idem_lease_tables[n])));
	return greatest;
}
