/*-------------------------------------------------------------------------
 *
 * view_fn.c
 *		SQL functions behind the views cursors, producers and stat_cursors.
 *
 * Who may read processed_events sees all rows.  Others see the offsets of consumers that
 * they may claim for, and the producers that they may claim under.
 *
 * LOCKING: keyed_scan.c, until the last row was read or the executor ends; stat_cursors
 * as shared/keyed_log.c.
 *
 * MEMORY: one row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/cursor/view_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "claim/consumer.h"
#include "cursor/log.h"
#include "cursor/producer.h"
#include "shared/rows.h"
#include "shared/uptime.h"

PG_FUNCTION_INFO_V1(idem_cursors_source_fn);
PG_FUNCTION_INFO_V1(idem_producers_source_fn);
PG_FUNCTION_INFO_V1(idem_stat_cursors_source_fn);

/* Columns of cursors_source */
enum
{
	CURSOR_CONSUMER, CURSOR_PRODUCER, CURSOR_PRODUCER_ID, CURSOR_TOPIC, CURSOR_PARTITION,
	CURSOR_NEXT_OFFSET, CURSOR_GENERATION, CURSOR_LAST_SEQUENCE, CURSOR_EPOCH, CURSOR_RECORDS,
	CURSOR_SINCE, CURSOR_NCOLS
};

/* Columns of producers_source */
enum
{
	PRODUCER_NAME, PRODUCER_ID, PRODUCER_EPOCH, PRODUCER_GAPLESS, PRODUCER_OWNER, PRODUCER_SINCE,
	PRODUCER_EXPIRES_AT, PRODUCER_NCOLS
};

/* A look at the log. */
typedef struct View
{
	IdemKeyedScan *scan;
	MemoryContext context;		/* of what was looked up for a row */
	bool		sees_all;
	TimestampTz now;
	int64		uptime;			/* by which registrations expire, at that
								 * moment */
} View;

/* Callbacks of IdemRowSource */
static void *
begin_view(TupleDesc desc)
{
	View	   *view = palloc(sizeof(View));

	view->sees_all = idem_consumer_sees_all();
	view->scan = idem_keyed_scan_begin(&idem_cursor_log);
	view->context = AllocSetContextCreate(CurrentMemoryContext, "idempotency cursors", ALLOCSET_SMALL_SIZES);
	view->now = GetCurrentTimestamp();
	view->uptime = idem_uptime_now();
	return view;
}

static void
end_view(void *arg)
{
	View	   *view = arg;

	idem_keyed_scan_end(view->scan);
	MemoryContextDelete(view->context);
}

/* Callbacks IdemCursorWants */
static bool
is_cursor(const IdemOpenCursor *open)
{
	return open->what == IDEM_CURSOR_SEQUENCE || open->what == IDEM_CURSOR_OFFSET;
}

static bool
is_producer(const IdemOpenCursor *open)
{
	return open->what == IDEM_CURSOR_PRODUCER;
}

/* Get the next row that the view shows. */
static bool
next_shown(View *view, IdemCursorWants wants, IdemOpenCursor *open)
{
	while (idem_cursor_scan_next(view->scan, view->context, wants, open))
	{
		if (view->sees_all ||
			(open->what == IDEM_CURSOR_OFFSET ? idem_consumer_value_is_accessible(open->owner) :
			 idem_producer_is_accessible(&open->state)))
			return true;
	}
	return false;
}

/* Fill in what a row of a consumer's offset has. */
static void
set_offset(const IdemOpenCursor *open, Datum *values, bool *nulls)
{
	idem_set_column(values, nulls, CURSOR_CONSUMER, open->owner);
	if (open->state.has_position)
		idem_set_column(values, nulls, CURSOR_NEXT_OFFSET, Int64GetDatum(open->state.position));
	if (open->state.has_epoch)
		idem_set_column(values, nulls, CURSOR_GENERATION, Int64GetDatum(open->state.epoch));
}

/* The same of a producer's sequence. */
static void
set_sequence(const IdemOpenCursor *open, Datum *values, bool *nulls)
{
	if (open->owner != (Datum) 0)
		idem_set_column(values, nulls, CURSOR_PRODUCER, open->owner);
	idem_set_column(values, nulls, CURSOR_PRODUCER_ID, Int64GetDatum(open->state.producer_id));
	idem_set_column(values, nulls, CURSOR_LAST_SEQUENCE, Int64GetDatum(open->state.position));
	idem_set_column(values, nulls, CURSOR_EPOCH, Int64GetDatum(open->state.epoch));
	idem_set_column(values, nulls, CURSOR_RECORDS, Int64GetDatum(open->state.accepted));
}

/* Callbacks of IdemRowSource */
static bool
next_cursor(Datum *values, bool *nulls, void *arg)
{
	IdemOpenCursor open;

	if (!next_shown(arg, is_cursor, &open))
		return false;
	idem_set_column(values, nulls, CURSOR_TOPIC, open.topic);
	idem_set_column(values, nulls, CURSOR_PARTITION, Int32GetDatum(open.partition));
	idem_set_column(values, nulls, CURSOR_SINCE, TimestampTzGetDatum(open.state.at));
	if (open.what == IDEM_CURSOR_OFFSET)
		set_offset(&open, values, nulls);
	else
		set_sequence(&open, values, nulls);
	return true;
}

static bool
next_producer(Datum *values, bool *nulls, void *arg)
{
	const View *view = arg;
	const IdemCursor *state;
	IdemOpenCursor open;

	if (!next_shown(arg, is_producer, &open))
		return false;
	state = &open.state;
	idem_set_column(values, nulls, PRODUCER_NAME, open.owner);
	idem_set_column(values, nulls, PRODUCER_ID, Int64GetDatum(state->producer_id));
	idem_set_column(values, nulls, PRODUCER_EPOCH, Int64GetDatum(state->epoch));
	idem_set_column(values, nulls, PRODUCER_GAPLESS, BoolGetDatum(state->gapless));
	idem_set_column(values, nulls, PRODUCER_OWNER, PointerGetDatum(cstring_to_text(state->role.role)));
	idem_set_column(values, nulls, PRODUCER_SINCE, TimestampTzGetDatum(state->at));
	if (state->kept != 0)
		idem_set_column(values, nulls, PRODUCER_EXPIRES_AT,
						TimestampTzGetDatum(view->now + (state->written + state->kept - view->uptime) * USECS_PER_SEC));
	return true;
}

Datum
idem_cursors_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ncolumns = CURSOR_NCOLS, .begin = begin_view, .end = end_view, .next = next_cursor
	};

	return idem_rows_next(fcinfo, &source);
}

Datum
idem_producers_source_fn(PG_FUNCTION_ARGS)
{
	static const IdemRowSource source = {
		.ncolumns = PRODUCER_NCOLS, .begin = begin_view, .end = end_view, .next = next_producer
	};

	return idem_rows_next(fcinfo, &source);
}

Datum
idem_stat_cursors_source_fn(PG_FUNCTION_ARGS)
{
	return idem_keyed_stat(fcinfo, &idem_cursor_log);
}
