/*-------------------------------------------------------------------------
 *
 * log_fn.c
 *		The triggers that fire when a dump of the log of leases is restored, and the
 *		function behind the view stat_leases.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/log_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "lease/log.h"
#include "lease/table.h"
#include "lease/token.h"
#include "shared/args.h"
#include "shared/keyed_log.h"
#include "shared/keyed_worker.h"

PG_FUNCTION_INFO_V1(idem_lease_restored_fn);
PG_FUNCTION_INFO_V1(idem_lease_restamp_fn);
PG_FUNCTION_INFO_V1(idem_stat_leases_source_fn);

/*
 * Trigger of the log's tables, after each statement that inserts rows: only a
 * restore does.  The rows are in the table, committed or not, when the next number
 * is drawn.
 */
Datum
idem_lease_restored_fn(PG_FUNCTION_ARGS)
{
	const IdemKeyedLog *const *logs;
	int			n = idem_keyed_worker_logs(&logs);

	/* the logs of others draw their numbers here, too */
	while (n > 0 && idem_table_of_trigger(fcinfo, logs[n - 1]->tables, logs[n - 1]->ntables) < 0)
		n--;
	if (n == 0)
		(void) idem_require_table(fcinfo, "lease_restored", NULL, 0);
	idem_token_distrust();
	return PointerGetDatum(NULL);
}

/*
 * Trigger of the log's tables, before each row that is inserted.  The time by which rows
 * expire is that of another server, so they are kept from now on.
 */
Datum
idem_lease_restamp_fn(PG_FUNCTION_ARGS)
{
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "lease_restamp");

	(void) idem_require_table(fcinfo, "lease_restamp", idem_lease_tables, IDEM_LEASE_TABLES);
	return PointerGetDatum(idem_lease_restamp(trigger->tg_trigtuple,
											  RelationGetDescr(trigger->tg_relation)));
}

Datum
idem_stat_leases_source_fn(PG_FUNCTION_ARGS)
{
	return idem_keyed_stat(fcinfo, &idem_lease_log);
}
