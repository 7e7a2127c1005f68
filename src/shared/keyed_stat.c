/*-------------------------------------------------------------------------
 *
 * keyed_stat.c
 *		What a keyed log costs, and what keeps it from being shortened.
 *
 * LOCKING: AccessShareLock on the tables and indexes of the log, given back before the
 * function returns; the maintainer's lock is tried and given back.
 *
 * MEMORY: one row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_stat.c
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
#include "shared/args.h"
#include "shared/lock_wait.h"
#include "shared/keyed_log.h"
#include "shared/keyed_stat.h"
#include "shared/worker.h"

/* The bytes that a function of the server says of all tables of the log. */
static int64
sum_of(const IdemKeyedLog *log, PGFunction bytes_of)
{
	int64		sum = 0;

	for (int n = 0; n < log->ntables; n++)
	{
		Oid			oid = idem_relref_oid(&log->tables[n]);

		sum += DatumGetInt64(DirectFunctionCall1(bytes_of, ObjectIdGetDatum(oid)));
	}
	return sum;
}

/* Who holds one of these tables by a lock that a lock of this mode conflicts with? */
static const char *
tables_holder(const IdemKeyedLog *log, uint32 tables, LOCKMODE mode, const char *session)
{
	const char *holder = NULL;

	for (int n = 0; n < log->ntables && holder == NULL; n++)
	{
		if (tables & (1 << n))
			holder = idem_holder(idem_relref_oid(&log->tables[n]), mode, session);
	}
	return holder;
}

/*
 * What keeps the tables that have lost their turn from being emptied?  NULL: nothing
 * does.  A worker that is at work reads them, so then only writers hold it up.
 */
static const char *
log_holder(const IdemKeyedLog *log)
{
	uint32		former = idem_keyed_log_former(log);
	const char *holder;

	if (former == 0 || RecoveryInProgress())
		return NULL;
	holder = tables_holder(log, former, ShareLock, "writer");
	if (holder != NULL || idem_singleton_is_at_work(IDEM_SINGLETON_LOGS))
		return holder;
	holder = tables_holder(log, former, AccessExclusiveLock, "reader");
	return holder != NULL ? holder : "no worker";
}

Datum
idem_keyed_stat(FunctionCallInfo fcinfo, const IdemKeyedLog *log)
{
	TupleDesc	desc;
	const char *holder = log_holder(log);
	Datum		values[3];
	bool		nulls[3] = {false, false, holder == NULL};

	desc = idem_row_type(fcinfo, lengthof(values));
	values[0] = Int64GetDatum(sum_of(log, pg_table_size));
	values[1] = Int64GetDatum(sum_of(log, pg_indexes_size));
	if (holder != NULL)
		values[2] = CStringGetTextDatum(holder);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}
