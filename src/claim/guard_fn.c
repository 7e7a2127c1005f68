/*-------------------------------------------------------------------------
 *
 * guard_fn.c
 *		lease_guard: a trigger that refuses writes outside of a claim.
 *
 * Whoever has claimed an event, or asserted its lease, holds the event's lock to the
 * end of the transaction.  So the trigger asks the state of the transaction only,
 * and no token needs to stand in the row.  It notes the write there, and a claim that has
 * allowed one cannot be given up: else the effect would be committed, and the event
 * claimed and made again.
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
	int			attnum = idem_trigger_column(rel, name, FUNCTION_NAME, "the event's id");

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
 * Error ID007.  why: a sentence about the row, or NULL.
 * No id is shown: the caller may not be allowed to see the row.
 */
pg_noreturn static void
report_refused(const TriggerData *data, const char *why, const char *hint)
{
	Trigger    *trigger = data->tg_trigger;

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("a write to \"%s\" needs a claim or an asserted lease for consumer \"%s\"",
					RelationGetRelationName(data->tg_relation), trigger->tgargs[0]),
			 errdetail("%s", why == NULL ? "This transaction has none." : why),
			 errhint("%s", hint)));
}

/*
 * Error unless the transaction holds the event whose id stands in the row.  The text of a
 * uuid is its canonical text, under which uuids are claimed.  is_there: not the statement brings the row.
 */
static void
check_row(const TriggerData *data, HeapTuple row, bool is_there, const char *hint)
{
	Trigger    *trigger = data->tg_trigger;
	TupleDesc	desc = RelationGetDescr(data->tg_relation);
	IdemClaimKey key = {0};

	key.id = SPI_getvalue(row, desc, find_column(data->tg_relation, trigger->tgargs[1]));
	if (key.id == NULL)
		report_refused(data, psprintf("Column \"%s\" of the row is null, so the row belongs to no event.", trigger->tgargs[1]),
					   "Write the id of an event that this transaction has claimed. A row that is there without one can be changed only while the trigger is disabled.");
	key.idlen = strlen(key.id);
	key.consumer = trigger->tgargs[0];
	key.consumerlen = strlen(key.consumer);
	if (!idem_state_note_write(&key))
		report_refused(data, is_there ?
					   psprintf("The row that is there belongs to an event, by its column \"%s\", of which this transaction has none.",
								trigger->tgargs[1]) :
					   psprintf("This transaction has none of the event that column \"%s\" names.", trigger->tgargs[1]), hint);
}

/*
 * With a column, an update is a write of two events: of that which the row has, and of
 * that which it gets.
 */
static void
check_write(const TriggerData *data)
{
	static const char hint[] = "Call assert_lease or claim_event first, in the same transaction.";
	Trigger    *trigger = data->tg_trigger;

	if (trigger->tgnargs < 2)
	{
		if (!idem_state_note_write_of_any(trigger->tgargs[0], strlen(trigger->tgargs[0])))
			report_refused(data, NULL, hint);
		return;
	}
	if (!TRIGGER_FIRED_BY_INSERT(data->tg_event))
		check_row(data, data->tg_trigtuple, true,
				  "Leave the row alone, or claim its event in the same transaction as well.");
	if (!TRIGGER_FIRED_BY_DELETE(data->tg_event))
		check_row(data, TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple : data->tg_trigtuple, false, hint);
}

Datum
idem_lease_guard_fn(PG_FUNCTION_ARGS)
{
	TriggerData *data = (TriggerData *) fcinfo->context;

	check_trigger(fcinfo);
	check_write(data);
	return PointerGetDatum(TRIGGER_FIRED_BY_UPDATE(data->tg_event) ? data->tg_newtuple :
						   data->tg_trigtuple);
}
