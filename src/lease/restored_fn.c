/*-------------------------------------------------------------------------
 *
 * restored_fn.c
 *		The triggers that fire when a dump of the log of leases is restored.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/restored_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "lease/log.h"
#include "lease/token.h"
#include "shared/args.h"

PG_FUNCTION_INFO_V1(idem_lease_restored_fn);
PG_FUNCTION_INFO_V1(idem_lease_restamp_fn);

/*
 * Trigger of the log's tables, after each statement that inserts rows: only a
 * restore does.  The rows are in the table, committed or not, when the next number
 * is drawn.
 */
Datum
idem_lease_restored_fn(PG_FUNCTION_ARGS)
{
	if (!CALLED_AS_TRIGGER(fcinfo))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" was not called by trigger manager", "lease_restored")));
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

	return PointerGetDatum(idem_lease_restamp(trigger->tg_trigtuple,
											  RelationGetDescr(trigger->tg_relation)));
}
