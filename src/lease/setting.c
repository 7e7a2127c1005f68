/*-------------------------------------------------------------------------
 *
 * setting.c
 *		The setting of the log of leases.
 *
 * LOCKING: none.
 *
 * MEMORY: the value.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/setting.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "utils/guc.h"

#include "lease/setting.h"

int			idem_lease_log_dump_size = 131072;	/* 1 GB */

void
idem_lease_setting_init(void)
{
	DefineCustomIntVariable("idempotency.lease_log_dump_size",
							"How long the log of leases may become while a dump of the database runs.",
							"Until then no table is emptied that the dump needs. 0: a dump is not waited for.",
							&idem_lease_log_dump_size,
							131072, 0, INT_MAX / 2,
							PGC_SIGHUP, GUC_UNIT_BLOCKS, NULL, NULL, NULL);
}
