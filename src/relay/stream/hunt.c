/*-------------------------------------------------------------------------
 *
 * hunt.c
 *		Finds the event that a sink program dies of, or cannot commit.
 *
 * A program that dies, or hangs past the deadline, with events in flight may die
 * of one of them.  The first death may be anyone's doing and is an outage; from
 * the second one on without a batch settled in between, the events that were in
 * flight are suspects, and are sent again in small batches, one at a time: first
 * those of the oldest batch that were answered; then the next event alone, which
 * is the one for programs that answer in order; then the rest by the 32nd part of
 * the events that were in flight.  When the program dies again, the events in
 * flight then are the suspects.  When it dies of one event alone, that event is
 * parked as refused: the death counts as an attempt, and later attempts of the
 * event are made alone, so that each costs one death and nobody else.
 *
 * As long as the suspects become fewer the program starts again at once: of N
 * events the killer is found in about log32(N) deaths.  Otherwise, and for the
 * first two deaths, the breaker opens as for any outage.  So a program that dies
 * of everything parks one event per two openings of the breaker, no more.
 * When the suspects have passed, the hunt is over without a find.
 *
 * A program may also say that a batch cannot be committed for one of its events,
 * and not know which.  Then there is no doubt, and the hunt begins at once.
 *
 * A crash of the server forgets the hunt; the event is still in the log.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/hunt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/stream/hunt.h"
#include "shared/fault.h"

/* Each death leaves at most this part of the suspects, and one event. */
#define HUNT_PARTS 32

/* The killer is found, or all suspects have passed. */
static void
end_hunt(IdemHunt *hunt)
{
	hunt->suspects = 0;
	hunt->deaths = 0;
}

IdemHuntAction
idem_hunt_died(IdemHunt *hunt, const IdemHuntDeath *death)
{
	bool		fewer;

	if (death->in_flight == 1 && (death->sure || death->exclusive || hunt->suspects > 0))
	{
		end_hunt(hunt);
		return IDEM_HUNT_FOUND;
	}
	hunt->deaths = hunt->progressed ? 1 : hunt->deaths + 1;
	if (hunt->suspects == 0 && hunt->deaths < 2 && !death->sure)
		return IDEM_HUNT_WAIT;

	IDEM_FAULT_POINT("relay-bisect");
	fewer = hunt->suspects > 0 && death->in_flight < hunt->range;
	hunt->suspects = hunt->range = death->in_flight;
	hunt->prefix = death->prefix;
	hunt->step = death->prefix > 0 ? 0 : 1;

	/* The death that begins a hunt has narrowed nothing down yet. */
	return fewer ? IDEM_HUNT_AGAIN : IDEM_HUNT_WAIT;
}

void
idem_hunt_started(IdemHunt *hunt)
{
	hunt->progressed = false;
}

void
idem_hunt_settled(IdemHunt *hunt, int n)
{
	hunt->progressed = true;
	hunt->deaths = 0;
	if (hunt->suspects == 0)
		return;
	hunt->step++;
	hunt->suspects -= n;
	if (hunt->suspects <= 0)
		end_hunt(hunt);
}

bool
idem_hunt_is_on(const IdemHunt *hunt)
{
	return hunt->suspects > 0;
}

int
idem_hunt_limit(const IdemHunt *hunt, int max_batch_events)
{
	int			limit;

	if (hunt->suspects == 0)
		return max_batch_events;
	if (hunt->step == 0)
		limit = hunt->prefix;
	else if (hunt->step == 1)
		limit = 1;
	else
		limit = Max(1, hunt->range / HUNT_PARTS);
	return Min(limit, max_batch_events);
}
