/*-------------------------------------------------------------------------
 *
 * cursor_fn.c
 *		SQL functions by which tests drive the cursor of a relay.
 *
 * A cursor and a reader stay with the session, as a relay's worker has them.  Where a
 * difference may end is up to the test: the module has its own idem_difference_take
 * instead of the worker's (relay/difference_end.c).
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/cursor_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/pg_type.h"
#include "fmgr.h"
#include "funcapi.h"
#include "utils/array.h"
#include "utils/builtins.h"
#include "utils/memutils.h"

#include "compat.h"
#include "outbox/reader.h"
#include "relay/position/walk.h"
#include "relay/position/position.h"
#include "relay/difference_end.h"

PG_FUNCTION_INFO_V1(idem_test_cursor_start_fn);
PG_FUNCTION_INFO_V1(idem_test_cursor_batch_fn);
PG_FUNCTION_INFO_V1(idem_test_cursor_position_fn);
PG_FUNCTION_INFO_V1(idem_test_cursor_tick_fn);

static IdemWalk walk;
static IdemReader *reader = NULL;
static IdemSnap *known = NULL;	/* a difference ends there; NULL: at the
								 * active snapshot */

/* What the worker's own does, for a configuration that was read at "known". */
IdemSnap *
idem_difference_take(bool *newest)
{
	*newest = known == NULL;
	return *newest ? idem_snap_current() : idem_snap_copy(known);
}

static IdemSnap *
snap_arg(FunctionCallInfo fcinfo, int argno)
{
	return PG_ARGISNULL(argno) ? NULL : (IdemSnap *) PG_GETARG_VARLENA_P(argno);
}

/* test_cursor_start(base pg_snapshot, target pg_snapshot, seq bigint) -> void: at a stored position */
Datum
idem_test_cursor_start_fn(PG_FUNCTION_ARGS)
{
	IdemPosition pos = {snap_arg(fcinfo, 0), snap_arg(fcinfo, 1), PG_GETARG_INT64(2)};

	if (reader == NULL)
		reader = idem_reader_create(TopMemoryContext);
	walk.cxt = TopMemoryContext;
	idem_walk_stand(&walk, &pos);
	idem_walk_start(&walk);
	PG_RETURN_VOID();
}

/* Read at most max events from where the walk stands, and move it there. */
static ArrayType *
read_batch(int max)
{
	ArrayBuildState *ids = initArrayResult(TEXTOID, CurrentMemoryContext, false);
	int64		last_seq = walk.read.seq;
	bool		ended = false;
	IdemEvent	event;

	idem_reader_seek(reader, &walk.read);
	for (int i = 0; i < max; i++)
	{
		ended = !idem_reader_next(reader, &event);
		if (ended)
			break;
		last_seq = event.seq;
		ids = accumArrayResult(ids, PointerGetDatum(cstring_to_text_with_len(event.aggregate_id.data,
																			 event.aggregate_id.len)),
							   false, TEXTOID, CurrentMemoryContext);
	}
	idem_reader_suspend(reader);
	idem_walk_read(&walk, ended, last_seq);
	return DatumGetArrayTypeP(makeArrayResult(ids, CurrentMemoryContext));
}

/*
 * test_cursor_batch(max int, known pg_snapshot) -> (events text[], newest bool,
 * catching_up bool): the aggregate ids of the next max events of the difference, or of
 * the next one.  events: null if nothing is new.  newest: null if the difference had
 * begun before.  known: where a difference that begins may end, if that is not null.
 */
Datum
idem_test_cursor_batch_fn(PG_FUNCTION_ARGS)
{
	bool		begins = walk.read.target == NULL;
	bool		begun = true;
	bool		newest = false;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	known = snap_arg(fcinfo, 1);
	if (begins)
		begun = idem_walk_begin(&walk, &newest);
	nulls[0] = !begun;
	if (begun)
		values[0] = PointerGetDatum(read_batch(PG_GETARG_INT32(0)));
	nulls[1] = !begins;
	values[1] = BoolGetDatum(newest);
	values[2] = BoolGetDatum(walk.catching_up);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* test_cursor_position() -> (base pg_snapshot, target pg_snapshot, seq bigint) */
Datum
idem_test_cursor_position_fn(PG_FUNCTION_ARGS)
{
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false};

	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "return type must be a row type");
	values[0] = PointerGetDatum(walk.read.base);
	nulls[1] = walk.read.target == NULL;
	values[1] = PointerGetDatum(walk.read.target);
	values[2] = Int64GetDatum(walk.read.seq);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}

/* test_cursor_tick() -> void: as upkeep does while a backlog grows */
Datum
idem_test_cursor_tick_fn(PG_FUNCTION_ARGS)
{
	IdemPositionRow row = {.relay_id = IDEM_TICK_RELAY, .kind = IDEM_POSITION_TICK,
	.fresh = IDEM_FRESH_CONFIRMED,.pos.base = idem_snap_current()};

	(void) idem_position_append(&row);
	PG_RETURN_VOID();
}
