/*-------------------------------------------------------------------------
 *
 * pace_fn.c
 *		A SQL function by which tests run a relay's pace against a target with a limit.
 *
 * The target allows so many events a second, by a bucket of tokens or by a count that
 * begins anew each second.  Time is simulated, a millisecond a step.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/pace_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"
#include "miscadmin.h"

#include "compat.h"
#include "relay/engine/pace.h"

/* A relay sends no more than so many events before it has answers. */
#define MOST 64

PG_FUNCTION_INFO_V1(idem_test_pace_fn);

/* How the target refuses. */
typedef enum Manner
{
	ASKS_AND_NAMES,				/* 429 with Retry-After */
	ASKS,						/* 429 */
	NAMES,						/* 503 with Retry-After */
	BUSY						/* it has no limit; one event of a hundred is
								 * refused with 503 and Retry-After */
}			Manner;

typedef struct World
{
	IdemPace	pace;
	Manner		manner;
	bool		window;			/* the count begins anew each second */
	double		rate;
	double		burst;			/* of the bucket */
	int			latency;		/* ms */
	int			lifted;			/* the limit ends behind so many events; 0: it
								 * stays */
	int			ms;				/* since the start */
	double		tokens;
	int			filled;			/* ms */
	int			accepted;
	int			refused;
	int			held;			/* ms; the lane of a target that asks is held */
}			World;

static IdemClock
now_of(const World * w)
{
	return idem_clock_plus_ms(INT64CONST(1000000000), w->ms);
}

/* Does the target accept an event now? */
static bool
accepts(World * w, int number)
{
	if (w->manner == BUSY)
		return number % 100 != 0;
	if (w->lifted > 0 && w->accepted >= w->lifted)
		return true;
	if (!w->window)
		w->tokens = Min(w->burst, w->tokens + (w->ms - w->filled) * w->rate / 1000);
	else if (w->ms / 1000 != w->filled / 1000)
		w->tokens = w->rate;
	w->filled = w->ms;
	if (w->tokens < 1)
		return false;
	w->tokens -= 1;
	return true;
}

/* An event arrives, and its answer does. */
static void
answer(World * w, int number, bool accepted, int in_flight)
{
	static const IdemPaceAnswer refusals[] = {IDEM_PACE_ASKED, IDEM_PACE_ASKED, IDEM_PACE_NAMED, IDEM_PACE_NAMED};

	w->accepted += accepted;
	w->refused += !accepted;
	if (!accepted && (w->manner == ASKS || w->manner == ASKS_AND_NAMES))
		w->held = w->ms + 1000;
	idem_pace_answered(&w->pace, now_of(w), accepted ? IDEM_PACE_ACCEPTED : refusals[w->manner], number,
					   w->manner == ASKS ? 0 : 1000, in_flight);
}

/*
 * test_pace(manner, window, rate, burst, latency, lifted, events, OUT percent refused, OUT percent of the rate, OUT limited)
 */
Datum
idem_test_pace_fn(PG_FUNCTION_ARGS)
{
	World		w = {.manner = PG_GETARG_INT32(0), .window = PG_GETARG_BOOL(1), .rate = PG_GETARG_INT32(2),
	.burst = PG_GETARG_INT32(3), .latency = PG_GETARG_INT32(4), .lifted = PG_GETARG_INT32(5)};
	int			events = PG_GETARG_INT32(6);
	struct
	{
		int			due;
		bool		accepted;
		int			number;
	}			flying[MOST];
	int			n = 0;
	int			number = 0;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	w.tokens = w.window ? w.rate : w.burst;
	for (; w.accepted < events && w.ms < 100000000; w.ms++)
	{
		int			room;

		CHECK_FOR_INTERRUPTS();
		while (n > 0 && flying[0].due <= w.ms)
		{
			answer(&w, flying[0].number, flying[0].accepted, n);
			memmove(flying, flying + 1, --n * sizeof(flying[0]));
		}
		room = Min(idem_pace_room(&w.pace, now_of(&w)), MOST - n);
		if (room == 0 || w.ms < w.held)
			continue;
		idem_pace_sent(&w.pace, now_of(&w), room);
		for (; room > 0; room--)
		{
			number++;
			flying[n].number = number;
			flying[n].due = w.ms + w.latency;
			flying[n++].accepted = accepts(&w, number);
		}
	}
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "a row is expected");
	values[0] = Float8GetDatum(100.0 * w.refused / (w.refused + w.accepted));
	values[1] = Float8GetDatum(100.0 * w.accepted / (w.rate * w.ms / 1000));
	values[2] = BoolGetDatum(w.pace.rate > 0);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
