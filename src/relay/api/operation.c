/*-------------------------------------------------------------------------
 *
 * operation.c
 *		SQL functions by which a relay sends events again, or forgets them:
 *		relay_replay, relay_redrive, relay_discard.
 *
 * All changes are transactional: a worker acts on committed changes only.
 *
 * LOCKING: the relay's row, then rows of relay_parked.  Meanwhile a worker goes
 * on with parked events, except for a relay under on_dead => 'stop'.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/operation.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/pg_type.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"
#include "utils/uuid.h"

#include "outbox/reader.h"
#include "relay/api/arguments.h"
#include "relay/api/definition.h"
#include "relay/config.h"
#include "relay/position/parked.h"
#include "relay/position/position.h"
#include "relay/wake.h"
#include "shared/args.h"
#include "shared/spi.h"

PG_FUNCTION_INFO_V1(idem_relay_replay_fn);
PG_FUNCTION_INFO_V1(idem_relay_redrive_fn);
PG_FUNCTION_INFO_V1(idem_relay_discard_fn);

/*
 * Replay an event that is parked.  In state retry it becomes due at once.  In
 * state waiting it goes on waiting.  A dead letter is an error: relay_redrive,
 * which also counts its attempts anew, is for dead letters.  False if the
 * event is not parked.
 */
static bool
replay_parked(IdemRelayConfig *c, const pg_uuid_t *event_id)
{
	Oid			types[2] = {INT4OID, UUIDOID};
	Datum		values[2] = {Int32GetDatum(c->relay_id), UUIDPGetDatum(event_id)};
	char	   *state;

	SPI_connect();
	if (idem_spi_run("UPDATE %s.relay_parked SET next_attempt_at ="
					 " CASE WHEN state = 'retry' THEN pg_catalog.now() ELSE next_attempt_at END"
					 " WHERE relay_id = $1 AND event_id = $2 RETURNING state::text",
					 2, types, values, NULL) == 0)
	{
		SPI_finish();
		return false;
	}
	state = idem_spi_text(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1);
	if (strcmp(state, "dead") == 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("event %s is a dead letter of relay \"%s\"",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id))), c->name),
				 errhint("Use relay_redrive.")));
	if (strcmp(state, "waiting") == 0)
		ereport(NOTICE,
				(errmsg("event %s waits behind another of its aggregate already",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id))))));
	SPI_finish();
	return true;
}

/*
 * Copy one event from the outbox to the parked events, so that it is sent
 * again.
 */
static void
replay_one(IdemRelayConfig *c, const pg_uuid_t *event_id)
{
	IdemReader *reader = idem_reader_create(CurrentMemoryContext);
	IdemFailure again = {.sqlstate = "00000", .message = "replayed by an operator"};
	IdemEvent	event;

	if (replay_parked(c, event_id))
		return;
	if (!idem_reader_find(reader, event_id, &event))
		ereport(ERROR,
				(errcode(ERRCODE_UNDEFINED_OBJECT),
				 errmsg("event %s is not in the outbox",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id)))),
				 errhint("Events are kept for idempotency.outbox_retention after every relay has passed them.")));
	if (!idem_relay_wants(c, &event))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("relay \"%s\" does not send events of type \"%.*s\"",
						c->name, event.aggregate_type.len, event.aggregate_type.data),
				 errhint("Its aggregate_types are set by relay_alter.")));
	idem_parked_add(c, &event, &again, NULL);
	idem_reader_suspend(reader);
	idem_reader_free(reader);
}

/*
 * Move the position back to the last snapshot known to be older than the time.
 * Never move it forward: a relay that lags behind that snapshot stays where it
 * is.
 */
static void
replay_since(IdemRelayConfig *c, TimestampTz since)
{
	IdemPositionRow *tick = idem_position_tick_before(since);
	IdemPositionRow *last = idem_position_last(c->relay_id, c->epoch);
	IdemPosition pos = {tick && last ? tick->pos.base : idem_snap_empty(), NULL, 0};

	if (last && idem_position_sees_more(pos.base, last->pos.base))
		pos.base = last->pos.base;
	idem_relay_move_position(c, IDEM_FRESH_MOVED, &pos);
}

Datum
idem_relay_replay_fn(PG_FUNCTION_ARGS)
{
	char	   *name = idem_relay_args_name(fcinfo);
	IdemRelayConfig *c;

	idem_prevent_read_only("relay_replay()");
	if (PG_ARGISNULL(1) == PG_ARGISNULL(2))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("exactly one of \"since\" and \"event_id\" must be given")));
	c = idem_relay_get_locked(name);
	idem_parked_force_flush();
	if (!PG_ARGISNULL(2))
		replay_one(c, PG_GETARG_UUID_P(2));
	else
		replay_since(c, PG_GETARG_TIMESTAMPTZ(1));
	idem_relay_config_changed();
	PG_RETURN_VOID();
}

/*
 * Run the statement of redrive or discard: $1 is the relay, $2 the ids or
 * NULL.
 */
static int64
act_on_dead(FunctionCallInfo fcinfo, const char *sql)
{
	IdemRelayConfig *c = idem_relay_get_locked(idem_relay_args_name(fcinfo));
	Oid			types[2] = {INT4OID, UUIDARRAYOID};
	Datum		values[2];
	int64		n;

	idem_parked_force_flush();
	values[0] = Int32GetDatum(c->relay_id);
	values[1] = PG_ARGISNULL(1) ? (Datum) 0 : PG_GETARG_DATUM(1);
	SPI_connect();
	n = (int64) idem_spi_run(sql, 2, types, values, PG_ARGISNULL(1) ? " n" : "  ");
	SPI_finish();
	idem_relay_config_changed();
	return n;
}

Datum
idem_relay_redrive_fn(PG_FUNCTION_ARGS)
{
	idem_prevent_read_only("relay_redrive()");
	PG_RETURN_INT64(act_on_dead(fcinfo,
								"UPDATE %s.relay_parked SET state = 'retry', attempts = 0, deferrals = 0,"
								" crashes = LEAST(crashes, 1),"
								" next_attempt_at = pg_catalog.now()"
								" WHERE relay_id = $1 AND state = 'dead'"
								" AND ($2 IS NULL OR event_id = ANY ($2))"));
}

Datum
idem_relay_discard_fn(PG_FUNCTION_ARGS)
{
	idem_prevent_read_only("relay_discard()");
	PG_RETURN_INT64(act_on_dead(fcinfo,
								"DELETE FROM %s.relay_parked"
								" WHERE relay_id = $1 AND state = 'dead'"
								" AND ($2 IS NULL OR event_id = ANY ($2))"));
}
