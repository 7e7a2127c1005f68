/*-------------------------------------------------------------------------
 *
 * relay_stat_fn.c
 *		SQL functions behind the views stat_relay and dead_letters, and the
 *		trigger that receives parked events from a dump.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/relay_stat_fn.c
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
#include "utils/acl.h"
#include "utils/builtins.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"

#include "outbox/number.h"
#include "outbox/reader.h"
#include "relay/parked.h"
#include "relay/position.h"
#include "relay/report.h"
#include "relay/shmem.h"
#include "relay/spi.h"
#include "shared/args.h"
#include "shared/catalog.h"

PG_FUNCTION_INFO_V1(idem_stat_relay_source_fn);
PG_FUNCTION_INFO_V1(idem_dead_letters_source_fn);
PG_FUNCTION_INFO_V1(idem_relay_status_fn);
PG_FUNCTION_INFO_V1(idem_relay_lag_fn);
PG_FUNCTION_INFO_V1(idem_relay_parked_restore_fn);

#define STATUS_COLUMNS 10

/*
 * The rows of a view, read for whoever may call its function.  The names of the
 * server and the anchor are those of the same snapshot as the rows.
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
						" (SELECT pg_catalog.count(*) FROM %s.relay_parked p"
						"   WHERE p.relay_id = r.relay_id AND p.state = 'dead')"
						" FROM %s.relays r"
						" LEFT JOIN pg_catalog.pg_class c"
						"   ON c.relname = ('relay_' || r.relay_id)::name AND c.relkind = 'f'"
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

/* The rate is brought up to date with each batch; without any it fades. */
static double
rate_now(const IdemRelayEntry *e)
{
	double		idle = e->rate_at == 0 ? 0 :
	(double) (GetCurrentTimestamp() - e->rate_at) / USECS_PER_SEC;

	return e->rate * IDEM_RATE_TAU / (IDEM_RATE_TAU + Max(idle, 0));
}

/*
 * Error text may quote what is in an event or a target, so it is for those who
 * may read the dead letters, where the same text stands.
 */
static bool
may_read_errors(void)
{
	static IdemRelRef dead_letters = IDEM_VIEWREF("dead_letters");

	return pg_class_aclcheck(idem_relref_oid(&dead_letters), GetUserId(),
							 ACL_SELECT) == ACLCHECK_OK;
}

static void
put_entry(ReturnSetInfo *rsinfo, const IdemRelayEntry *e, bool with_error)
{
	Datum		values[STATUS_COLUMNS];
	bool		nulls[STATUS_COLUMNS] = {false};
	const char *waiting = idem_wait_name(e->waiting);

	values[0] = Int32GetDatum(e->relay_id);
	values[1] = CStringGetTextDatum(idem_state_name(e->state));
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
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* Relays whose worker could not be started for want of a process slot. */
static void
put_no_slot(ReturnSetInfo *rsinfo, int relay_id)
{
	Datum		values[STATUS_COLUMNS] = {0};
	bool		nulls[STATUS_COLUMNS];

	memset(nulls, true, sizeof(nulls));
	nulls[0] = nulls[1] = nulls[2] = false;
	values[0] = Int32GetDatum(relay_id);
	values[1] = CStringGetTextDatum("not running");
	values[2] = CStringGetTextDatum("worker slot (max_worker_processes)");
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

Datum
idem_relay_status_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	bool		with_error;

	InitMaterializedSRF(fcinfo, 0);
	if (idem_relay_shmem == NULL)
		PG_RETURN_VOID();
	with_error = may_read_errors();
	LWLockAcquire(idem_relay_shmem->lock, LW_SHARED);
	for (int i = 0; i < idem_relay_shmem->nrelays; i++)
	{
		IdemRelayEntry copy;

		if (idem_relay_entries[i].dboid != MyDatabaseId)
			continue;
		SpinLockAcquire(&idem_relay_entries[i].mutex);
		memcpy(&copy, &idem_relay_entries[i], sizeof(copy));
		SpinLockRelease(&idem_relay_entries[i].mutex);
		put_entry(rsinfo, &copy, with_error);
	}
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid == MyDatabaseId && slot->relay_id != 0 && slot->no_slot)
			put_no_slot(rsinfo, slot->relay_id);
	}
	LWLockRelease(idem_relay_shmem->lock);
	PG_RETURN_VOID();
}

static int64
epoch_of(int relay_id)
{
	Oid			types[1] = {INT4OID};
	Datum		values[1] = {Int32GetDatum(relay_id)};
	int64		epoch = -1;

	SPI_connect();
	if (idem_spi_read("SELECT epoch FROM %s.relays WHERE relay_id = $1", 1, types, values) == 1)
		epoch = DatumGetInt64(idem_spi_value(SPI_tuptable->vals[0], SPI_tuptable->tupdesc, 1));
	SPI_finish();
	return epoch;
}

/* "xmax" of what is delivered, and how far into the difference after it. */
static char *
position_text(const IdemPosition *pos)
{
	if (pos->cur == NULL)
		return psprintf(UINT64_FORMAT, U64FromFullTransactionId(pos->done->xmax));
	return psprintf(UINT64_FORMAT ".." UINT64_FORMAT "/" INT64_FORMAT,
					U64FromFullTransactionId(pos->done->xmax),
					U64FromFullTransactionId(pos->cur->xmax), pos->k);
}

Datum
idem_relay_lag_fn(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[4] = {0};
	bool		nulls[4] = {true, true, true, true};
	IdemPositionRow *row;
	int			relay_id;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	idem_require_arg(fcinfo, 0, "relay_id");
	relay_id = PG_GETARG_INT32(0);
	row = idem_position_last(relay_id, epoch_of(relay_id));
	if (row != NULL)
	{
		IdemLag		lag;
		Interval   *age = palloc0(sizeof(Interval));

		idem_reader_lag(&row->pos, &lag);
		if (lag.oldest != 0)
			age->time = Max(0, GetCurrentTimestamp() - lag.oldest);
		memset(nulls, false, sizeof(nulls));
		values[0] = CStringGetTextDatum(position_text(&row->pos));
		values[1] = Int64GetDatum(lag.events);
		values[2] = IntervalPGetDatum(age);
		values[3] = Int64GetDatum(lag.bytes);
	}
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * A parked event is known by its number.  One of a dump is taken only where no
 * number has been given out: elsewhere an event that gets the number later would
 * be passed over, as parked.
 */
static void
check_restore(void)
{
	if (idem_number_hold_for_restore())
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("cannot restore events into \"relay_parked\": the outbox is in use"),
			 errdetail("The events of a dump keep their numbers, which other events have here already or will get."),
			 errhint("Restore the dump into a new database, or leave the data of the extension's tables out.")));
}

/*
 * Rows that a worker or relay_replay parks pass.  Others come from a dump, and are
 * numbered anew: the sequence is not part of a dump, whose setval would set that of
 * a database in use back.
 */
Datum
idem_relay_parked_restore_fn(PG_FUNCTION_ARGS)
{
	static IdemRelRef sequence = IDEM_RELREF("relay_parked_parked_id_seq");
	TriggerData *trigger = (TriggerData *) fcinfo->context;
	int			column = 1;
	Datum		value;
	bool		isnull = false;

	if (!CALLED_AS_TRIGGER(fcinfo) ||
		!TRIGGER_FIRED_BEFORE(trigger->tg_event) ||
		!TRIGGER_FIRED_BY_INSERT(trigger->tg_event) ||
		!TRIGGER_FIRED_FOR_ROW(trigger->tg_event))
		ereport(ERROR,
				(errcode(ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED),
				 errmsg("function \"relay_parked_restore\" must be fired before insert for each row")));
	if (idem_parked_is_parking())
		return PointerGetDatum(trigger->tg_trigtuple);
	if (fcinfo->flinfo->fn_extra == NULL)
	{
		check_restore();
		fcinfo->flinfo->fn_extra = trigger->tg_trigger; /* once per statement */
	}
	value = Int64GetDatum(nextval_internal(idem_relref_oid(&sequence), false));
	return PointerGetDatum(heap_modify_tuple_by_cols(trigger->tg_trigtuple,
													 RelationGetDescr(trigger->tg_relation),
													 1, &column, &value, &isnull));
}
