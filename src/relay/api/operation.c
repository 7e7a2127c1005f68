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
#include "funcapi.h"
#include "utils/builtins.h"
#include "utils/timestamp.h"

#include "outbox/reader.h"
#include "outbox/segment.h"
#include "relay/api/api.h"
#include "relay/position/blocked.h"
#include "relay/position/parked.h"
#include "relay/position/retention.h"
#include "shared/args.h"
#include "shared/spi.h"

PG_FUNCTION_INFO_V1(idem_relay_replay_fn);
PG_FUNCTION_INFO_V1(idem_relay_redrive_fn);
PG_FUNCTION_INFO_V1(idem_relay_discard_fn);

/* The arguments of relay_replay */
enum
{
	REPLAY_RELAY,
	REPLAY_SINCE,
	REPLAY_UNTIL,
	REPLAY_EVENT_ID,
	REPLAY_AGGREGATE_TYPES,
	REPLAY_AGGREGATE_IDS,
	REPLAY_EVENT_TYPES,
	REPLAY_PREVIEW
};

#define REPLAY_COLUMNS 3

/*
 * The arguments of relay_redrive and relay_discard; relay_discard has no
 * max_rate.
 */
enum
{
	DEAD_RELAY,
	DEAD_EVENT_IDS,
	DEAD_EVENT_TYPES,
	DEAD_SQLSTATE,
	DEAD_SINCE,
	DEAD_UNTIL,
	DEAD_NCHOICE,
	DEAD_MAX_RATE = DEAD_NCHOICE
};

/* The dead letters that these arguments choose; $1 is the relay's id. */
#define CHOSEN_DEAD_LETTERS \
	" WHERE relay_id = $1 AND state = 'dead'" \
	" AND ($2 IS NULL OR event_id = ANY ($2))" \
	" AND ($3 IS NULL OR event_type = ANY ($3))" \
	" AND ($4 IS NULL OR sqlstate = $4)" \
	" AND ($5 IS NULL OR last_failed_at >= $5)" \
	" AND ($6 IS NULL OR last_failed_at < $6)"

/* Refuse a time "until" before the time "since". */
static void
check_times(FunctionCallInfo fcinfo, int since, int until)
{
	if (!PG_ARGISNULL(since) && !PG_ARGISNULL(until) &&
		PG_GETARG_TIMESTAMPTZ(until) < PG_GETARG_TIMESTAMPTZ(since))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"until\" must not be before \"since\"")));
}

/*
 * Replay an event that is parked.  In state retry it becomes due at once.  In
 * state waiting or in_flight it goes on waiting.  A dead letter is an error: relay_redrive,
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
	if (strcmp(state, "in_flight") == 0)
		ereport(NOTICE,
				(errmsg("event %s has been sent, and its answer is awaited",
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
	if (idem_blocked_keeps(c->relay_id, &event))
		ereport(NOTICE,
				(errmsg("event %s waits behind another of its aggregate already",
						DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(event_id))))));
	else
		idem_parked_refuse(NULL, c, &event, &again);
	idem_reader_suspend(reader);
	idem_reader_free(reader);
}

/* Note what the replay has before it, for stat_progress. */
static void
note_replay(const IdemRelayConfig *c, const IdemPosition *start)
{
	Oid			types[3] = {INT4OID, INT8OID, INT8OID};
	Datum		values[3];
	IdemLag		lag;

	idem_reader_lags(&start, &lag, 1);
	values[0] = Int32GetDatum(c->relay_id);
	values[1] = Int64GetDatum(lag.events);
	values[2] = Int64GetDatum(idem_outbox_last_seq());
	SPI_connect();
	(void) idem_spi_run("UPDATE %s.relays SET replay_at = pg_catalog.clock_timestamp(), replay_events = $2, replay_seq = $3"
						" WHERE relay_id = $1", 3, types, values, NULL);
	SPI_finish();
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
	idem_retention_check_move(c, &pos);
	idem_relay_move_position(c, IDEM_FRESH_MOVED, false, &pos);
	note_replay(c, &pos);
}

/* Refuse arguments of relay_replay whose feature is not built. */
static void
reject_ranges(FunctionCallInfo fcinfo)
{
	static const char *const by_id =
	"Replay events one by one with event_id. The view idempotency.outbox_events has the ids.";

	idem_reject_arg(fcinfo, REPLAY_UNTIL, "until",
					"Leave it out: events after that time are sent as well.");
	idem_reject_arg(fcinfo, REPLAY_AGGREGATE_TYPES, "aggregate_types", by_id);
	idem_reject_arg(fcinfo, REPLAY_AGGREGATE_IDS, "aggregate_ids", by_id);
	idem_reject_arg(fcinfo, REPLAY_EVENT_TYPES, "event_types", by_id);
	if (PG_GETARG_BOOL(REPLAY_PREVIEW))
		idem_reject_arg(fcinfo, REPLAY_PREVIEW, "preview",
						"Count events in the view idempotency.outbox_events.");
}

/*
 * Refuse arguments of relay_replay that no version takes.  A range without
 * "since" is left to reject_ranges.
 */
static void
check_replay(FunctionCallInfo fcinfo)
{
	bool		has_since = !PG_ARGISNULL(REPLAY_SINCE);
	bool		has_id = !PG_ARGISNULL(REPLAY_EVENT_ID);
	bool		has_none = !has_since && !has_id &&
	PG_ARGISNULL(REPLAY_UNTIL) && PG_ARGISNULL(REPLAY_AGGREGATE_TYPES) &&
	PG_ARGISNULL(REPLAY_AGGREGATE_IDS) && PG_ARGISNULL(REPLAY_EVENT_TYPES);

	idem_require_arg(fcinfo, REPLAY_PREVIEW, "preview");
	if ((has_since && has_id) || has_none)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("exactly one of \"since\" and \"event_id\" must be given")));
	check_times(fcinfo, REPLAY_SINCE, REPLAY_UNTIL);
	idem_relay_args_check_names(fcinfo, REPLAY_AGGREGATE_TYPES, "aggregate_types");
	idem_relay_args_check_names(fcinfo, REPLAY_AGGREGATE_IDS, "aggregate_ids");
	idem_relay_args_check_names(fcinfo, REPLAY_EVENT_TYPES, "event_types");
}

/* The result is a row of NULLs: nobody counts the events of a replay. */
Datum
idem_relay_replay_fn(PG_FUNCTION_ARGS)
{
	char	   *name = idem_relay_args_begin(fcinfo, "relay_replay");
	Datum		values[REPLAY_COLUMNS] = {0};
	bool		nulls[REPLAY_COLUMNS] = {true, true, true};
	IdemRelayConfig *c;

	check_replay(fcinfo);
	c = idem_relay_get_locked(name);
	reject_ranges(fcinfo);
	idem_parked_force_flush();
	if (!PG_ARGISNULL(REPLAY_EVENT_ID))
		replay_one(c, PG_GETARG_UUID_P(REPLAY_EVENT_ID));
	else
		replay_since(c, PG_GETARG_TIMESTAMPTZ(REPLAY_SINCE));
	idem_relay_command_done("relay_replay", name);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(idem_row_type(fcinfo, REPLAY_COLUMNS),
													  values, nulls)));
}

/* Refuse an SQLSTATE that no dead letter can have: a misspelt one would find none. */
static void
check_sqlstate(FunctionCallInfo fcinfo)
{
	char	   *s;

	if (PG_ARGISNULL(DEAD_SQLSTATE))
		return;
	s = text_to_cstring(PG_GETARG_TEXT_PP(DEAD_SQLSTATE));
	if (strlen(s) != 5 || strspn(s, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ") != 5)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"sqlstate\" is not an SQLSTATE"),
				 errhint("Give five digits or capital letters, as the view idempotency.dead_letters shows them.")));
}

/*
 * The relay of relay_redrive or relay_discard, locked, if the other arguments
 * are right.
 */
static IdemRelayConfig *
relay_of_dead(FunctionCallInfo fcinfo)
{
	char	   *name = idem_relay_args_name(fcinfo);

	idem_relay_args_check_names(fcinfo, DEAD_EVENT_TYPES, "event_types");
	check_sqlstate(fcinfo);
	check_times(fcinfo, DEAD_SINCE, DEAD_UNTIL);
	return idem_relay_get_locked(name);
}

/* Run a statement on CHOSEN_DEAD_LETTERS of the relay, for a command. */
static int64
act_on_dead(FunctionCallInfo fcinfo, const IdemRelayConfig *c, const char *command, const char *sql)
{
	Oid			types[DEAD_NCHOICE] = {INT4OID, UUIDARRAYOID, TEXTARRAYOID, TEXTOID,
	TIMESTAMPTZOID, TIMESTAMPTZOID};
	Datum		values[DEAD_NCHOICE] = {Int32GetDatum(c->relay_id)};
	char		nulls[DEAD_NCHOICE + 1] = " ";
	int64		n;

	for (int i = DEAD_EVENT_IDS; i < DEAD_NCHOICE; i++)
	{
		nulls[i] = PG_ARGISNULL(i) ? 'n' : ' ';
		values[i] = PG_ARGISNULL(i) ? (Datum) 0 : PG_GETARG_DATUM(i);
	}
	idem_parked_force_flush();
	SPI_connect();
	n = (int64) idem_spi_run(sql, DEAD_NCHOICE, types, values, nulls);
	SPI_finish();
	idem_relay_command_done(command, c->name);
	return n;
}

Datum
idem_relay_redrive_fn(PG_FUNCTION_ARGS)
{
	IdemRelayConfig *c;

	idem_prevent_read_only("relay_redrive()");
	c = relay_of_dead(fcinfo);
	idem_reject_arg(fcinfo, DEAD_MAX_RATE, "max_rate",
					"Redrive some dead letters at a time, with event_ids.");
	PG_RETURN_INT64(act_on_dead(fcinfo, c, "relay_redrive",
								"UPDATE %s.relay_parked SET state = 'retry', attempts = 0, deferrals = 0, tried_for = '0',"
								" crashes = LEAST(crashes, 1),"
								" next_attempt_at = pg_catalog.now()" CHOSEN_DEAD_LETTERS));
}

Datum
idem_relay_discard_fn(PG_FUNCTION_ARGS)
{
	idem_prevent_read_only("relay_discard()");
	PG_RETURN_INT64(act_on_dead(fcinfo, relay_of_dead(fcinfo), "relay_discard",
								"DELETE FROM %s.relay_parked" CHOSEN_DEAD_LETTERS));
}
