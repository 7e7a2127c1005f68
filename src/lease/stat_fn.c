/*-------------------------------------------------------------------------
 *
 * stat_fn.c
 *		The SQL function behind the view stat_leases.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/stat_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"

#include "compat.h"
#include "lease/log.h"
#include "shared/keyed_stat.h"

PG_FUNCTION_INFO_V1(idem_stat_leases_source_fn);

Datum
idem_stat_leases_source_fn(PG_FUNCTION_ARGS)
{
	return idem_keyed_stat(fcinfo, &idem_lease_log);
}
