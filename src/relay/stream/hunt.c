/*-------------------------------------------------------------------------
 *
 * hunt.c
 *		Finds the event that a sink program dies of, or cannot commit.
 *
 * A program that dies, or hangs past the deadline, with events in flight may
 * die of one of these events.  The first death may have any cause and counts as
 * an outage.  From the second death on, if no batch was settled in between, the
 * events in flight are the suspects.  The suspects are sent again in small
 * batches, one batch at a time:
 *
 * step 0: the answered events at the head of the oldest batch;
 * step 1: the next event alone: the killer, if the program answers in order;
 * step 2 and on: the others, in batches of the 32nd part of the suspects.
 *
 * When the program dies again, the events then in flight become the suspects.
 * When the program dies of one event alone, that event is parked as refused.
 * The death counts as an attempt.  Later attempts of the event are made alone,
 * so that each attempt costs one death and disturbs no other event.
 *
 * As long as each death leaves fewer suspects, the program starts again at
 * once: the killer among N events is found in about log32(N) deaths.
 * Otherwise, and for the first two deaths, the breaker opens as for any outage.
 * So a program that dies of every event parks at most one event per two
 * openings of the breaker.  When all suspects have been settled, the hunt ends
 * without a find.
 *
 * A program may also report that a batch cannot be committed because of one of
 * its events, without knowing which.  Then the hunt begins at once, since an
 * event is certainly at fault.
 *
 * A crash of the server forgets the hunt; the event is still in the outbox.
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

/*
 * From step 2 on a death leaves at most this part of the suspects, or one
 * event.
 */
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

	/* The death that begins a hunt has not made the suspects fewer yet. */
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
