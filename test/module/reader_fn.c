/*-------------------------------------------------------------------------
 *
 * reader_fn.c
 *		SQL functions by which tests drive the outbox's reader and housekeeping.
 *
 * The tests declare these functions.  The module has the library's own objects
 * linked into it (module.mk), so variables of those objects exist twice in a
 * process.  take_settings copies the variables that are settings.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/reader_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/tuplestore.h"
#include "utils/xid8.h"

#include "compat.h"
#include "outbox/outbox.h"
#include "outbox/reader.h"

#define READ_COLUMNS	9

PG_MODULE_MAGIC;

PG_FUNCTION_INFO_V1(idem_test_snapshot_fn);
PG_FUNCTION_INFO_V1(idem_test_read_fn);
PG_FUNCTION_INFO_V1(idem_test_scan_fn);
PG_FUNCTION_INFO_V1(idem_test_find_fn);
PG_FUNCTION_INFO_V1(idem_test_lag_fn);
PG_FUNCTION_INFO_V1(idem_test_maintain_fn);

/* A snapshot argument; NULL means the snapshot that sees nothing. */
static IdemSnap *
snap_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? idem_snap_empty() :
		(IdemSnap *) PG_GETARG_VARLENA_P(argno);
}

/* test_snapshot() -> pg_snapshot */
Datum
idem_test_snapshot_fn(PG_FUNCTION_ARGS)
{
	PG_RETURN_POINTER(idem_snap_current());
}

/* Make a text value of an event's text. */
static Datum
text_datum(const IdemEventText *txt)
{
	return PointerGetDatum(cstring_to_text_with_len(txt->data, txt->len));
}

/* Add an event to the function's result. */
static void
put_event(ReturnSetInfo *rsinfo, const IdemEvent *event)
{
	Datum		values[READ_COLUMNS];
	bool		nulls[READ_COLUMNS] = {false};

	values[0] = Int64GetDatum(event->seq);
	values[1] = FullTransactionIdGetDatum(event->xid);
	values[2] = UUIDPGetDatum(&event->event_id);
	values[3] = text_datum(&event->aggregate_type);
	values[4] = text_datum(&event->aggregate_id);
	values[5] = text_datum(&event->event_type);
	values[6] = event->payload;
	nulls[6] = !event->is_json;
	values[7] = event->payload;
	nulls[7] = event->is_json;
	values[8] = event->headers;
	nulls[8] = !event->has_headers;
	tuplestore_putvalues(rsinfo->setResult, rsinfo->setDesc, values, nulls);
}

/* The reader of this session, at the place where the last test_read left it. */
static IdemReader *session_reader = NULL;

/* Read up to max events at a position; see idem_test_read_fn. */
static void
read_events(ReturnSetInfo *rsinfo, IdemPosition *pos, int max)
{
	IdemReader *reader = session_reader;
	IdemEvent	event;

	idem_reader_seek(reader, pos);
	for (int i = 0; i < max && idem_reader_next(reader, &event); i++)
	{
		int64		seq = event.seq;

		idem_reader_unget(reader);
		if (!idem_reader_next(reader, &event) || event.seq != seq)
			elog(ERROR, "event %lld was not given again", (long long) seq);
		put_event(rsinfo, &event);
		if (i % 2 == 1)
		{
			idem_reader_suspend(reader);
			pos->seq = seq;
			idem_reader_seek(reader, pos);
		}
	}
	idem_reader_suspend(reader);
}

/*
 * test_read(done pg_snapshot, cur pg_snapshot, k bigint, max int) -> setof
 * (seq, xid, event_id, aggregate_type, aggregate_id, event_type, payload,
 * payload_bytes, headers).
 *
 * Each event is put back once and read again.  After every second event the
 * reader is suspended and sought again.  The reader keeps its places for the
 * next call in the session.
 */
Datum
idem_test_read_fn(PG_FUNCTION_ARGS)
{
	ReturnSetInfo *rsinfo = (ReturnSetInfo *) fcinfo->resultinfo;
	IdemPosition pos = {
		snap_arg(fcinfo, 0),
		PG_ARGISNULL(1) ? NULL : snap_arg(fcinfo, 1),
		PG_GETARG_INT64(2)
	};

	InitMaterializedSRF(fcinfo, 0);
	if (session_reader == NULL)
		session_reader = idem_reader_create(TopMemoryContext);
	PG_TRY();
	{
		read_events(rsinfo, &pos, PG_GETARG_INT32(3));
	}
	PG_CATCH();
	{
		idem_reader_reset(session_reader);
		PG_RE_THROW();
	}
	PG_END_TRY();
	PG_RETURN_NULL();
}

/*
 * test_scan(done pg_snapshot, cur pg_snapshot, batch int) -> (events bigint,
 * first_seq bigint, last_seq bigint, ordered bool, bytes bigint, memory
 * bigint)
 *
 * Read all events of the difference in batches, with a suspension after each
 * batch.  Nothing is kept for the next call.
 */
Datum
idem_test_scan_fn(PG_FUNCTION_ARGS)
{
	IdemPosition pos = {snap_arg(fcinfo, 0), snap_arg(fcinfo, 1), 0};
	int			batch = PG_GETARG_INT32(2);
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "test",
												  ALLOCSET_DEFAULT_SIZES);
	IdemReader *reader = idem_reader_create(context);
	IdemEvent	event;
	int64		events = 0;
	int64		first = 0;
	int64		last = 0;
	int64		bytes = 0;
	Size		memory = 0;
	bool		ordered = true;
	TupleDesc	desc;
	Datum		values[6];
	bool		nulls[6] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");

	idem_reader_seek(reader, &pos);
	while (idem_reader_next(reader, &event))
	{
		if (events++ == 0)
			first = event.seq;
		ordered = ordered && event.seq > last;
		last = event.seq;
		bytes += toast_raw_datum_size(event.payload) - VARHDRSZ;
		if (events % batch == 0)
		{
			memory = Max(memory, MemoryContextMemAllocated(context, true));
			idem_reader_suspend(reader);
			pos.seq = last;
			idem_reader_seek(reader, &pos);
		}
	}
	idem_reader_free(reader);

	values[0] = Int64GetDatum(events);
	values[1] = Int64GetDatum(first);
	values[2] = Int64GetDatum(last);
	values[3] = BoolGetDatum(ordered);
	values[4] = Int64GetDatum(bytes);
	values[5] = Int64GetDatum(memory);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* test_find(event_id uuid) -> (found bool, fetched bool, seq bigint) */
Datum
idem_test_find_fn(PG_FUNCTION_ARGS)
{
	IdemReader *reader = idem_reader_create(CurrentMemoryContext);
	IdemEvent	event;
	IdemEvent	again;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false};
	bool		found;

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	found = idem_reader_find(reader, PG_GETARG_UUID_P(0), &event);
	values[0] = BoolGetDatum(found);
	values[1] = BoolGetDatum(found &&
							 idem_reader_fetch(reader, event.xid, event.seq, &again) &&
							 memcmp(&again.event_id, PG_GETARG_UUID_P(0), UUID_LEN) == 0);
	nulls[2] = !found;
	values[2] = Int64GetDatum(found ? again.seq : 0);
	idem_reader_free(reader);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/*
 * test_lag(done pg_snapshot, cur pg_snapshot, k bigint) -> (events bigint,
 * bytes bigint, oldest timestamptz)
 */
Datum
idem_test_lag_fn(PG_FUNCTION_ARGS)
{
	IdemPosition pos = {
		snap_arg(fcinfo, 0),
		PG_ARGISNULL(1) ? NULL : snap_arg(fcinfo, 1),
		PG_GETARG_INT64(2)
	};
	const IdemPosition *positions[1] = {&pos};
	IdemLag		lag;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	idem_reader_lags(positions, &lag, 1);
	values[0] = Int64GetDatum(lag.events);
	values[1] = Int64GetDatum(lag.bytes);
	nulls[2] = lag.oldest == 0;
	values[2] = TimestampTzGetDatum(lag.oldest);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* The value of an integer setting. */
static int
setting(const char *name)
{
	return pg_strtoint32(GetConfigOption(name, false, false));
}

/*
 * Copy the settings.  SET changes the library's variables only; the module's
 * own variables have the values that were compiled in.
 */
static void
take_settings(void)
{
	idem_outbox_retention = setting("idempotency.outbox_retention");
	idem_outbox_dump_size = setting("idempotency.outbox_dump_size");
	idem_outbox_segment_size = setting("idempotency.outbox_segment_size");
	idem_outbox_rotation_interval = setting("idempotency.outbox_rotation_interval");
}

/* test_maintain(done pg_snapshot[]) -> int */
Datum
idem_test_maintain_fn(PG_FUNCTION_ARGS)
{
	ArrayType  *array = PG_GETARG_ARRAYTYPE_P(0);
	Datum	   *values;
	bool	   *nulls;
	int			n;
	IdemSnap  **done;

	deconstruct_array(array, ARR_ELEMTYPE(array), -1, false, TYPALIGN_DOUBLE,
					  &values, &nulls, &n);
	done = palloc(sizeof(IdemSnap *) * Max(n, 1));
	for (int i = 0; i < n; i++)
		done[i] = (IdemSnap *) PG_DETOAST_DATUM(values[i]);
	take_settings();
	PG_RETURN_INT32(idem_outbox_maintain(done, n));
}
