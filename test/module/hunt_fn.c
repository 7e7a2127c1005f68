/*-------------------------------------------------------------------------
 *
 * hunt_fn.c
 *		A SQL function by which tests run the hunt for an event that kills.
 *
 * The function simulates a sink program that dies of one event.  The program
 * gets batches as the relay sends them: several in flight without a hunt, one
 * at a time during a hunt.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/module/hunt_fn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "fmgr.h"
#include "funcapi.h"

#include "compat.h"
#include "relay/stream/hunt.h"

/*
 * More deaths than any hunt may need.  A hunt with more deaths would never
 * end.
 */
#define MAX_DEATHS 1000

PG_FUNCTION_INFO_V1(idem_test_hunt_fn);

typedef struct Simulation
{
	IdemHunt	hunt;
	int			n;				/* number of events */
	int			killer;			/* index of the event that kills; -1: none,
								 * -2: each event kills */
	int			limit;			/* most events of a batch */
	int			window;			/* batches in flight */
	bool		in_order;		/* the program answers event by event */
	bool		sure;			/* the sink says that an event of the batch is
								 * at fault */
	int			passed;			/* events settled */
	int			deaths;
	int			openings;		/* of the breaker */
}			Simulation;

/*
 * Set *in_flight to the events in flight when the program works on the oldest
 * batch; return the size of that batch.
 */
static int
send_batches(Simulation * s, int *in_flight)
{
	int			first = 0;
	int			batches = idem_hunt_is_on(&s->hunt) ? 1 : s->window;

	*in_flight = 0;
	for (int i = 0; i < batches && s->passed + *in_flight < s->n; i++)
	{
		int			size = Min(idem_hunt_limit(&s->hunt, s->limit), s->n - s->passed - *in_flight);

		if (i == 0)
			first = size;
		*in_flight += size;
	}
	return first;
}

/* Simulate one start of the program; true if the program died. */
static bool
live(Simulation * s, IdemHuntDeath *death)
{
	idem_hunt_started(&s->hunt);
	while (s->passed < s->n)
	{
		int			in_flight;
		int			size = send_batches(s, &in_flight);
		bool		kills = s->killer == -2 ||
		(s->killer >= s->passed && s->killer < s->passed + size);

		if (kills)
		{
			death->in_flight = s->sure ? size : in_flight;
			death->prefix = s->in_order && s->killer >= 0 ? s->killer - s->passed : 0;
			death->sure = s->sure;
			return true;
		}
		idem_hunt_settled(&s->hunt, size);
		s->passed += size;
	}
	return false;
}

/*
 * test_hunt(n, killer, batch limit, window, in_order, sure, OUT found, OUT
 * deaths, OUT openings)
 */
Datum
idem_test_hunt_fn(PG_FUNCTION_ARGS)
{
	Simulation	s = {.n = PG_GETARG_INT32(0), .killer = PG_GETARG_INT32(1),
		.limit = PG_GETARG_INT32(2), .window = PG_GETARG_INT32(3),
	.in_order = PG_GETARG_BOOL(4), .sure = PG_GETARG_BOOL(5)};
	IdemHuntDeath death = {0};
	int			found = -1;
	TupleDesc	desc;
	Datum		values[3];
	bool		nulls[3] = {false, false, false};

	while (found < 0 && s.deaths < MAX_DEATHS && live(&s, &death))
	{
		IdemHuntAction action = idem_hunt_died(&s.hunt, &death);

		s.deaths++;
		s.openings += action == IDEM_HUNT_WAIT;
		if (action == IDEM_HUNT_FOUND)
			found = s.passed;
	}
	if (get_call_result_type(fcinfo, NULL, &desc) != TYPEFUNC_COMPOSITE)
		elog(ERROR, "a row is expected");
	values[0] = Int32GetDatum(found);
	values[1] = Int32GetDatum(s.deaths);
	values[2] = Int32GetDatum(s.openings);
	PG_RETURN_DATUM(HeapTupleGetDatum(heap_form_tuple(BlessTupleDesc(desc), values, nulls)));
}
