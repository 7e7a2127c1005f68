/*-------------------------------------------------------------------------
 *
 * guard_fn.c
 *		lease_guard: a trigger that refuses writes outside of a claim.
 *
 * Whoever has claimed an event, or asserted its lease, holds the event's lock to the
 * end of the transaction.  So the trigger asks the state of the transaction only,
 * and no token needs to stand in the row.
 *
 * The file is not in src/guard, which knows nothing of claims.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: none.
 *
 * MEMORY: the id of a row, in the caller's context, which the server resets after
 * each row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/guard_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "claim/state.h"
#include "shared/args.h"
#include "shared/error.h"

#define FUNCTION_NAME	"lease_guard"

PG_FUNCTION_INFO_V1(idem_lease_guard_fn);

/* Error unless the function was called, and its trigger defined, as it must be. */
static void
check_trigger(FunctionCallInfo fcinfo)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Trigger    *trigger;
	int			len;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(data->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(data->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"%s\" must be fired before insert, update or delete for each row",
						FUNCTION_NAME),
				 errhint("Create its trigger with BEFORE INSERT OR UPDATE OR DELETE and FOR EACH ROW.")));
	trigger = data->tg_trigger;
	len = trigger->tgnargs < 1 ? 0 : strlen(trigger->tgargs[0]);
	if (trigger->tgnargs > 2 || len == 0 || len > IDEM_MAX_NAME_BYTES || trigger->tgargs[0][0] == '@')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("trigger \"%s\" of \"%s\" has wrong arguments", trigger->tgname,
						RelationGetRelationName(data->tg_relation)),
				 errhint("Create it with %s('consumer') or %s('consumer', 'column').",
						 FUNCTION_NAME, FUNCTION_NAME)));
}

/* The number of the column that has the event's id. */
static int
find_column(Relation rel, const char *name)
{
	int			attnum = SPI_fnumber(RelationGetDescr(rel), name);

	if (attnum <= 0)
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_COLUMN),
				 errmsg("column \"%s\" of relation \"%s\" does not exist", name,
						RelationGetRelationName(rel)),
				 errhint("Create the trigger of \"%s\" with the name of the column that has the event's id.",
						 FUNCTION_NAME)));
	if (TupleDescAttr(RelationGetDescr(rel), attnum - 1)->attgenerated != '\0')
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_OBJECT_DEFINITION),
				 errmsg("function \"%s\" cannot read the generated column \"%s\" of \"%s\"",
						FUNCTION_NAME, name, RelationGetRelationName(rel)),
				 errdetail("A generated column has no new value yet when the trigger fires."),
				 errhint("Name a column from which it is generated.")));
	return attnum;
}

/*
 * Does the transaction hold the event whose id stands in the row?  The text of a uuid
 * is its canonical text, under which uuids are claimed.
 */
static bool
holds_row(const TriggerData *data, HeapTuple row)
{
	Trigger    *trigger = data->tg_trigger;
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	IdemClaimKey key = {0};

	key.id = SPI_getvalue(row, desc, find_column(data->tg_relation, trigger->tgargs[1]));
	if (key.id == NULL)
		return false;
	key.idlen = strlen(key.id);
	key.consumer = trigger->tgargs[0];
	key.consumerlen = strlen(key.consumer);
	return idem_state_holds(&key);
}

/* Error ID007.  The id is not shown: the caller may not be allowed to see the row. */
pg_noreturn static void
report_refused(const TriggerData *data)
{
	Trigger    *trigger = data->tg_trigger;

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("a write to \"%s\" needs a claim or an asserted lease for consumer \"%s\"",
					RelationGetRelationName(data->tg_relation), trigger->tgargs[0]),
			 trigger->tgnargs > 1 ?
			 errdetail("This transaction has none of the event that column \"%s\" names.",
					   trigger->tgargs[1]) :
			 errdetail("This transaction has none."),
			 errhint("Call assert_lease or claim_event first, in the same transaction.")));
}

Datum
idem_lease_guard_fn(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;
	Trigger    *trigger;
	HeapTuple	row;

	check_trigger(fcinfo);
	trigger = data->tg_trigger;
	row = TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple;
	if (!(trigger->tgnargs > 1 ? holds_row(data, row) :
		  idem_state_holds_any(trigger->tgargs[0], strlen(trigger->tgargs[0]))))
		report_refused(data);
	return PointerGetDatum(row);
}
