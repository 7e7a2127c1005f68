/*-------------------------------------------------------------------------
 *
 * table.c
 *		The tables of the log of leases.
 *
 * LOCKING: none.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/table.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lease/table.h"

IdemRelRef	idem_lease_tables[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0"), IDEM_RELREF("lease_log_1"), IDEM_RELREF("lease_log_2")
};

IdemRelRef	idem_lease_indexes[IDEM_LEASE_TABLES] = {
	IDEM_RELREF("lease_log_0_key"), IDEM_RELREF("lease_log_1_key"), IDEM_RELREF("lease_log_2_key")
};

IdemRelRef	idem_lease_number = IDEM_RELREF("lease_number");

IdemRelRef	idem_lease_identity = IDEM_RELREF("lease_identity");
