/*-------------------------------------------------------------------------
 *
 * stat_fn.c
 *		The SQL function behind the view stat_leases.
 *
 * LOCKING: AccessShareLock on the tables and indexes of the log, given back before the
 * function returns; the maintainer's lock is tried and given back.
 *
 * MEMORY: one row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/stat_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/xlog.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/fmgrprotos.h"

#include "compat.h"
#include "lease/log.h"
#include "lease/table.h"
#include "shared/args.h"
#include "shared/holder.h"
#include "shared/keyed_log.h"
#include "shared/singleton.h"

PG_FUNCTION_INFO_V1(idem_stat_leases_source_fn);

/* The bytes that a function of the server says of all tables of the log. */
static int64
sum_of(PGFunction bytes_of)
{
	int64		sum = 0;

	for (int n = 0; n < IDEM_LEASE_TABLES; n++)
	{
		Oid			oid = idem_relref_oid(&idem_lease_tables[n]);

		sum += DatumGetInt64(DirectFunctionCall1(bytes_of, ObjectIdGetDatum(oid)));
	}
	return sum;
}

/* Who holds one of these tables by a lock that a lock of this mode conflicts with? */
static const char *
tables_holder(uint32 tables, LOCKMODE mode, const char *session)
{
	const char *holder = NULL;

	for (int n = 0; n < IDEM_LEASE_TABLES && holder == NULL; n++)
	{
		if (tables & (1 << n))
			holder = idem_holder(idem_relref_oid(&idem_lease_tables[n]), mode, session);
	}
	return holder;
}

/*
 * What keeps the tables that have lost their turn from being emptied?  NULL: nothing
 * does.  A worker that is at work reads them, so then only writers hold it up.
 */
static const char *
log_holder(void)
{
	uint32		former = idem_keyed_log_former(&idem_lease_log);
	const char *holder;

	if (former == 0 || RecoveryInProgress())
		return NULL;
	holder = tables_holder(former, ShareLock, "writer");
	if (holder != NULL || idem_singleton_is_at_work(IDEM_SINGLETON_LEASES))
		return holder;
	holder = tables_holder(former, AccessExclusiveLock, "reader");
	return holder != NULL ? holder : "no worker";
}

Datum
idem_stat_leases_source_fn(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	const char *holder = log_holder();
	Datum		values[3];
	bool		nulls[3] = {false, false, holder == NULL};

	desc = idem_row_type(fcinfo, lengthof(values));
	values[0] = Int64GetDatum(sum_of(pg_table_size));
	values[1] = Int64GetDatum(sum_of(pg_indexes_size));
	if (holder != NULL)
		values[2] = CStringGetTextDatum(holder);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}
