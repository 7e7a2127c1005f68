/*-------------------------------------------------------------------------
 *
 * statistics.c
 *		SQL functions behind the views stat_relay and dead_letters, and the
 *		trigger that receives parked events from a dump.
 *
 * LOCKING: the trigger takes ShareRowExclusiveLock on "relays" once per statement of a restore,
 * kept to the end of the transaction.  So it waits for relay_create and for a restore
 * of the relays, and neither gives out nor restores an id meanwhile.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/statistics.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "executor/spi.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "outbox/number.h"
#include "outbox/reader.h"
#include "outbox/segment.h"
#include "relay/api/api.h"
#include "relay/config.h"
#include "relay/position/blocked.h"
#include "relay/position/parked.h"
#include "relay/position/position.h"
#include "relay/position/retention.h"
#include "relay/report.h"
#include "relay/worker_slots.h"
#include "shared/args.h"
#include "shared/catalog.h"
#include "shared/spi.h"
#include "shared/txn_owner.h"

PG_FUNCTION_INFO_V1(idem_stat_relay_source_fn);
PG_FUNCTION_INFO_V1(idem_dead_letters_source_fn);
PG_FUNCTION_INFO_V1(idem_relay_status_fn);
PG_FUNCTION_INFO_V1(idem_relay_lag_fn);
PG_FUNCTION_INFO_V1(idem_relay_replays_fn);
PG_FUNCTION_INFO_V1(idem_relay_parked_restore_fn);

#define STATUS_COLUMNS 12
#define LAG_COLUMNS 6
#define REPLAY_COLUMNS 4

/*
 * Return the rows of a view, to any caller with EXECUTE on its function.  The
 * names of the server and the anchor come from the same snapshot as the rows.
 */
static Datum
rows_of_view(FunctionCallInfo fcinfo, const char *sql)
{
	InitMaterializedSRF(fcinfo, 0);
	SPI_connect();
	idem_spi_read_into(sql, (ReturnSetInfo *) fcinfo->resultinfo);
	SPI_finish();
	PG_RETURN_NULL();
}

Datum
idem_stat_relay_source_fn(PG_FUNCTION_ARGS)
{
	return rows_of_view(fcinfo,
						"SELECT r.relay_id, r.relay, v.srvname::text, r.paused,"
						" COALESCE(d.dead, 0), COALESCE(o.retrying, 0), COALESCE(o.in_flight, 0), o.oldest"
						" FROM %s.relays r"
						" LEFT JOIN (SELECT p.relay_id, pg_catalog.count(*) AS dead"
						"    FROM %s.relay_parked p WHERE p.state = 'dead'"
						"    GROUP BY p.relay_id) d ON d.relay_id = r.relay_id"
						" LEFT JOIN (SELECT p.relay_id, pg_catalog.count(*) FILTER (WHERE p.state <> 'in_flight') AS retrying,"
						"    pg_catalog.count(*) FILTER (WHERE p.state = 'in_flight') AS in_flight,"
						"    pg_catalog.min(p.enqueued_at) AS oldest"
						"    FROM %s.relay_parked p WHERE p.state <> 'dead'"
						"    GROUP BY p.relay_id) o ON o.relay_id = r.relay_id"
						" LEFT JOIN pg_catalog.pg_class c"
						"   ON c.relname = ('relay_' || r.relay_id::text)::name AND c.relkind = 'f'"
						"  AND c.relnamespace = (SELECT t.relnamespace FROM pg_catalog.pg_class t"
						"    WHERE t.oid = '%s.relays'::pg_catalog.regclass)"
						" LEFT JOIN pg_catalog.pg_foreign_table f ON f.ftrelid = c.oid"
						" LEFT JOIN pg_catalog.pg_foreign_server v ON v.oid = f.ftserver");
}

Datum
idem_dead_letters_source_fn(PG_FUNCTION_ARGS)
{
	return rows_of_view(fcinfo,
						"SELECT r.relay, p.event_id, p.attempts, p.sqlstate, p.error,"
						" p.first_failed_at, p.last_failed_at"
						" FROM %s.relay_parked p JOIN %s.relays r USING (relay_id)"
						" WHERE p.state = 'dead'");
}

/*
 * The rate as of now.  Each batch updates the entry's rate; without batches
 * the rate fades here.
 */
static double
rate_now(const IdemRelayEntry *e)
{
	double		idle = e->rate_at == 0 ? 0 :
	(double) (GetCurrentTimestamp() - e->rate_at) / USECS_PER_SEC;

	return e->rate * IDEM_RATE_TAU / (IDEM_RATE_TAU + Max(idle, 0));
}

/*
 * A worker that hangs says nothing any more.  Where its last word was that it has nothing to
 * do, or was about to do something, the relay waits for the worker; each other wait shows
 * by its age.
 */
static void
note_hung_worker(IdemRelayEntry *e)
{
	TimestampTz since;

	if (e->waiting != IDEM_WAIT_EVENTS && e->waiting != IDEM_WAIT_RETRY && e->waiting != IDEM_WAIT_NOTHING)
		return;
	since = idem_slots_hung_since(e->function ? e->relay_id : 0);
	if (since == 0)
		return;
	e->waiting = IDEM_WAIT_TURN;
	e->waiting_since = since;
}

/*
 * Return a row for a relay.  "e" is a copy of the entry, since palloc must not
 * run under the entry's spinlock.
 */
static void
put_entry(ReturnSetInfo *rsinfo, const IdemRelayEntry *e, bool with_error)
{
	Datum		values[STATUS_COLUMNS];
	bool		nulls[STATUS_COLUMNS] = {false};
	const char *waiting = idem_wait_names[e->waiting];

	values[0] = Int32GetDatum(e->relay_id);
	values[1] = CStringGetTextDatum(idem_state_names[e->state]);
	nulls[2] = waiting == NULL;
	values[2] = waiting ? CStringGetTextDatum(waiting) : (Datum) 0;
	values[3] = Float8GetDatum(rate_now(e));
	values[4] = Int64GetDatum(e->sent);
	values[5] = Int64GetDatum(e->retried);
	nulls[6] = e->last_error[0] == '\0';
	values[6] = nulls[6] ? (Datum) 0 :
		CStringGetTextDatum(with_error ? e->last_error : "<insufficient privilege>");
	nulls[7] = e->last_error_at == 0;
	values[7] = TimestampTzGetDatum(e->last_error_at);
	nulls[8] = e->pid == 0;
	values[8] = Int32GetDatum(e->pid);
	nulls[9] = e->sink_pid == 0;
	values[9] = Int32GetDatum(e->sink_pid);
	nulls[10] = waiting == NULL;
	values[10] = TimestampTzGetDatum(e->waiting_since);
	nulls[11] = e->delivered_at == 0;
	values[11] = TimestampTzGetDatum(e->delivered_at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * The launcher starts no worker for a copy that CREATE DATABASE ... TEMPLATE made,
 * or for a dump that was restored without the label of its database.  There the
 * rows of the relays tell what a worker would say.
 */
static void
put_without_worker(ReturnSetInfo *rsinfo, const IdemRelayEntry *copies, int n, bool with_error)
{
	char	   *here = idem_publish_identity();
	ListCell   *lc;

	foreach(lc, idem_relay_rows())
	{
		const IdemRelayConfig *relay = lfirst(lc);
		Datum		values[STATUS_COLUMNS] = {0};
		bool		nulls[STATUS_COLUMNS] = {false, false, false, true, true, true, false, true, true, true, true, true};
		bool		has_worker = false;

		for (int i = 0; i < n && !has_worker; i++)
			has_worker = copies[i].relay_id == relay->relay_id;
		if (has_worker || idem_relay_is_adopted(relay, here))
			continue;
		values[0] = Int32GetDatum(relay->relay_id);
		values[1] = CStringGetTextDatum(idem_state_names[IDEM_RELAY_UNADOPTED]);
		values[2] = CStringGetTextDatum(idem_wait_names[IDEM_WAIT_OPERATOR]);
		values[6] = CStringGetTextDatum(with_error ? idem_relay_unadopted_message(relay, here) :
										"<insufficient privilege>");
		tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
	}
}

/*
 * The entries are copied first: rows may go to disk, and no process is to wait
 * for the lock meanwhile.
 */
Datum
idem_relay_status_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	static IdemRelRef dead_letters = IDEM_VIEWREF("dead_letters");
	IdemRelayEntry *copies;
	bool		with_error;
	int			n;

	InitMaterializedSRF(fcinfo, 0);
	if (!idem_slots_exist())
		PG_RETURN_VOID();

	/*
	 * Error texts may quote parts of an event or a target.  So they are for
	 * roles that may read dead_letters, where the same texts stand.
	 */
	with_error = pg_class_aclcheck(idem_relref_oid(&dead_letters), GetUserId(),
								   ACL_SELECT) == ACLCHECK_OK;

	/*
	 * For a relay without a process the worker of the database keeps the
	 * state up to date.  If that worker does not run either, the state is
	 * unknown, the relay does not run, and its entry is left out.
	 */
	copies = idem_relay_entries_copy(idem_slots_state(0) == IDEM_SLOT_RUNS, &n);
	for (int i = 0; i < n; i++)
	{
		note_hung_worker(&copies[i]);
		put_entry(rsinfo, &copies[i], with_error);
	}
	put_without_worker(rsinfo, copies, n, with_error);
	pfree(copies);
	PG_RETURN_VOID();
}

/*
 * A position as text: xmax of "base", and within a difference also xmax of
 * "target" and seq.
 */
static char *
position_text(const IdemPosition *pos)
{
	if (pos->target == NULL)
		return psprintf(UINT64_FORMAT, U64FromFullTransactionId(pos->base->xmax));
	return psprintf(UINT64_FORMAT ".." UINT64_FORMAT "/" INT64_FORMAT,
					U64FromFullTransactionId(pos->base->xmax),
					U64FromFullTransactionId(pos->target->xmax), pos->seq);
}

/*
 * Return a row of a relay's lag.  The oldest event's age is 0 if no event is
 * behind the position.
 */
static void
put_lag(ReturnSetInfo *rsinfo, int relay_id, const IdemPosition *pos, const IdemLag *lag, const IdemLag *held)
{
	Datum		values[LAG_COLUMNS];
	bool		nulls[LAG_COLUMNS] = {false};
	int64		age = lag->oldest != 0 ? Max(0, GetCurrentTimestamp() - lag->oldest) : 0;

	values[0] = Int32GetDatum(relay_id);
	values[1] = CStringGetTextDatum(position_text(pos));
	values[2] = Int64GetDatum(lag->events);
	values[3] = idem_interval_datum(age);
	values[4] = Int64GetDatum(held->bytes);
	values[5] = TimestampTzGetDatum(lag->oldest);
	nulls[5] = lag->oldest == 0;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/*
 * The lag of all relays at once: one scan of the log of positions.  Events
 * behind a position are counted once, however many relays stand at that
 * position.  The positions are read before the count takes its snapshot.  Behind
 * a position that is not credible is all that the outbox has.  The bytes are those that the
 * relay holds, for blocked keys as well.
 */
Datum
idem_relay_lag_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	List	   *relays = idem_relay_rows();
	HTAB	   *rows = idem_position_all_last();
	const IdemPosition **shown = palloc(sizeof(*shown) * (list_length(relays) + 1));
	const IdemPosition **positions = palloc(sizeof(*positions) * (2 * list_length(relays) + 1));
	int		   *ids = palloc(sizeof(*ids) * (list_length(relays) + 1));
	IdemPosition *held = palloc(sizeof(*held) * (list_length(relays) + 1));
	IdemLag    *lags = palloc(sizeof(*lags) * (2 * list_length(relays) + 1));
	HTAB	   *bases = idem_blocked_bases();
	int			n = 0;
	ListCell   *lc;

	InitMaterializedSRF(fcinfo, 0);
	foreach(lc, relays)
	{
		const IdemRelayConfig *relay = lfirst(lc);
		const IdemPositionRow *row = idem_position_of(rows, relay->relay_id, relay->epoch);

		if (row == NULL)
			continue;
		ids[n] = relay->relay_id;
		shown[n] = &row->pos;
		positions[n++] = idem_retention_position(relay, row);
	}
	for (int i = 0; i < n; i++)
	{
		held[i] = idem_retention_held(positions[i], bases, ids[i]);
		positions[n + i] = &held[i];
	}
	idem_reader_lags(positions, lags, 2 * n);
	for (int i = 0; i < n; i++)
		put_lag(rsinfo, ids[i], shown[i], &lags[i], &lags[n + i]);
	PG_RETURN_VOID();
}

/* A replay that is going on. */
typedef struct Replay
{
	int			relay_id;
	int64		epoch;
	char	   *relay;
	TimestampTz at;
	int64		events;			/* that it had before it */
	int64		seq;			/* the last number of an event then */
} Replay;

/*
 * The relays whose position was moved back last by a replay; *n: how many.  palloc'd.
 * Rows that only an edited dump can bring are not relays.
 */
static Replay *
read_replays(int *n)
{
	MemoryContext caller = CurrentMemoryContext;
	Replay	   *replays;

	SPI_connect();
	*n = (int) idem_spi_read("SELECT relay_id, epoch, relay, replay_at, replay_events, replay_seq FROM %s.relays"
							 " WHERE replay_at IS NOT NULL AND replay_events IS NOT NULL AND replay_seq IS NOT NULL"
							 " AND relay_id IS NOT NULL AND epoch IS NOT NULL AND relay IS NOT NULL", 0, NULL, NULL);
	replays = MemoryContextAlloc(caller, sizeof(Replay) * Max(*n, 1));
	for (int i = 0; i < *n; i++)
	{
		HeapTuple	row = SPI_tuptable->vals[i];
		TupleDesc	desc = SPI_tuptable->tupdesc;

		replays[i].relay_id = DatumGetInt32(idem_spi_value(row, desc, 1));
		replays[i].epoch = DatumGetInt64(idem_spi_value(row, desc, 2));
		replays[i].relay = MemoryContextStrdup(caller, idem_spi_text(row, desc, 3));
		replays[i].at = DatumGetTimestampTz(idem_spi_value(row, desc, 4));
		replays[i].events = DatumGetInt64(idem_spi_value(row, desc, 5));
		replays[i].seq = DatumGetInt64(idem_spi_value(row, desc, 6));
	}
	SPI_finish();
	return replays;
}

/*
 * Return a row of a replay, unless nothing is left of what was there when it began.  Of
 * the events after the position those that were enqueued since are left out, by their
 * numbers.
 */
static void
put_replay(ReturnSetInfo *rsinfo, const Replay *replay, const IdemLag *lag, int64 last_seq)
{
	Datum		values[REPLAY_COLUMNS];
	bool		nulls[REPLAY_COLUMNS] = {false};
	int64		left = lag->events - Max(last_seq - replay->seq, 0);

	if (lag->events == 0 || lag->oldest > replay->at)
		return;
	left = Max(left, 1);
	values[0] = CStringGetTextDatum(replay->relay);
	values[1] = Int64GetDatum(Max(replay->events - left, 0));
	values[2] = Int64GetDatum(Max(replay->events, left));
	values[3] = TimestampTzGetDatum(replay->at);
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* relay_replays() -> setof (relay, done, total, since) */
Datum
idem_relay_replays_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	int			n;
	Replay	   *replays = read_replays(&n);
	HTAB	   *rows;
	int64		last_seq;

	InitMaterializedSRF(fcinfo, 0);
	if (n == 0)
		PG_RETURN_NULL();
	rows = idem_position_all_last();
	last_seq = idem_outbox_last_seq();
	for (int i = 0; i < n; i++)
	{
		const IdemPositionRow *row = idem_position_of(rows, replays[i].relay_id, replays[i].epoch);
		const IdemPosition *position = row != NULL ? &row->pos : NULL;
		IdemLag		lag;

		if (position == NULL)
			continue;
		idem_reader_lags(&position, &lag, 1);
		put_replay(rsinfo, &replays[i], &lag, last_seq);
	}
	PG_RETURN_NULL();
}

/*
 * A restore brings events before it brings what is remembered of them: a relay that
 * runs would send them again.  A restore has many statements, so a row that waits
 * already stays as it is.
 */
void
idem_relay_hold_for_restore(void)
{
	uint64		n;

	SPI_connect();
	n = idem_spi_run_latest("UPDATE %s.relays SET incarnation = '' WHERE incarnation <> ''", 0, NULL, NULL);
	SPI_finish();
	if (n > 0)
		idem_relay_config_changed();
}

/*
 * Refuse parked events of a dump where the outbox has given out numbers.  A
 * parked event is known by its number.  If a later event got the same number,
 * the relay would take that event for parked and pass it.
 */
static void
check_restore(void)
{
	static IdemRelRef relays = IDEM_RELREF("relays");
	ResourceOwner saved;

	if (!idem_number_hold_for_restore())
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot restore events into \"relay_parked\": the outbox is in use"),
				 errdetail("The events of a dump keep their numbers, which other events have here already or will get."),
				 errhint("Restore the whole dump into a new database. Without the data of the extension's tables, events that were handled would be handled again, and events that were not sent would not be sent.")));
	saved = idem_txn_owner_enter();
	LockRelationOid(idem_relref_oid(&relays), ShareRowExclusiveLock);
	idem_txn_owner_leave(saved);
	idem_relay_hold_for_restore();
}

/*
 * Refuse a parked event whose relay_id is here that of another relay, which would get
 * the event.  A relay that is not here yet is restored later, or never: relay_create
 * gives no relay an id that parked events have, and relay_adopt looks again.
 */
static void
check_relay(const TriggerData *trigger)
{
	static IdemSpiStatement other =
	IDEM_SPI_STATEMENT("SELECT 1 FROM %s.relays WHERE relay_id = $1 AND created_at IS DISTINCT FROM $2");
	static const char *const columns[] = {"relay_id", "relay_created_at"};
	TupleDesc	desc = RelationGetDescr(trigger->tg_relation);
	Oid			types[2] = {INT4OID, TIMESTAMPTZOID};
	Datum		values[2];
	char		nulls[2] = {' ', ' '};
	uint64		n;

	for (int i = 0; i < lengthof(values); i++)
	{
		bool		isnull;

		values[i] = heap_getattr(trigger->tg_trigtuple, SPI_fnumber(desc, columns[i]), desc, &isnull);
		if (isnull)
			nulls[i] = 'n';
	}
	SPI_connect();
	n = idem_spi_run_saved(&other, lengthof(types), types, values, nulls);
	SPI_finish();
	if (n > 0)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot restore events into \"relay_parked\": the relay with relay_id %d is another one here",
						DatumGetInt32(values[0])),
				 errdetail("It was not created when the relay of the dump was, and would be sent that relay's events."),
				 errhint("Restore the dump before relays are created, or drop the relays first.")));
}

/*
 * Trigger before insert on relay_parked.  Rows that a worker or relay_replay
 * parks pass unchanged.  All other rows come from a dump, and get a new
 * parked_id.  The sequence of parked_id is not part of a dump: the dump's
 * setval would set back the sequence of a database in use.
 */
Datum
idem_relay_parked_restore_fn(PG_FUNCTION_ARGS)
{
	static IdemRelRef parked = IDEM_RELREF("relay_parked");
	static IdemRelRef sequence = IDEM_RELREF("relay_parked_parked_id_seq");
	TriggerData *trigger = idem_require_insert_trigger(fcinfo, "relay_parked_restore");
	int			column = 1;
	Datum		value;
	bool		isnull = false;

	(void) idem_require_table(fcinfo, "relay_parked_restore", &parked, 1);
	if (idem_parked_is_parking())
		return PointerGetDatum(trigger->tg_trigtuple);
	if (fcinfo->flinfo->fn_extra == NULL)
	{
		check_restore();
		fcinfo->flinfo->fn_extra = trigger->tg_trigger; /* once per statement */
	}
	check_relay(trigger);
	value = Int64GetDatum(nextval_internal(idem_relref_oid(&sequence), false));
	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple,
													 RelationGetDescr(trigger->tg_relation),
													 1, &column, &value, &isnull));
}
