/*-------------------------------------------------------------------------
 *
 * lane.c
 *		The order of each key: one lane per key, whose first event is on its way.
 *
 * The target may refuse a message and take the next one.  So the next event of a key
 * is sent when the one before it is done.  An event that is not acked blocks its lane:
 * the events that stand before its SETTLE in the stream are skipped.
 *
 * INVARIANT
 *		Of a lane's events the first one is ready or sent, and no other.  A lane exists
 *		while it has events, or its block may still concern an event that is to come.
 *
 *		A refusal is told to the relay, also if the program fails before its batch is
 *		done.  Otherwise an event that the target refuses, and ends the connection for,
 *		would be sent for ever.
 *
 * MEMORY
 *		A lane owns its name.  There are not more lanes with events than the credit
 *		has messages; lanes that are only blocked end with the next SETTLE.  The
 *		places of a batch are one array, which is freed with it.  LOCKING: none; only
 *		the main thread comes here.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/lane.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/lane.h"

#define SLOTS	8192			/* about the events that the credit allows */

struct IdemLane
{
	IdemLane   *next;			/* in its slot */
	uint64_t	hash;
	IdemPlace  *first;			/* events that are not done */
	IdemPlace  *last;
	uint64_t	last_batch;		/* the last event that was not acked; 0: none */
	uint32_t	last_index;
	uint64_t	ended;			/* number of the SETTLE that settled that
								 * event; 0: none did */
	size_t		len;
	char		name[];			/* of the key */
};

static IdemLane **
slot_of(const IdemLanes *lanes, uint64_t hash)
{
	return &lanes->slots[(hash >> 1) % SLOTS];
}

/* The lane of the event's key. */
static IdemLane *
lane_of(IdemLanes *lanes, const IdemBatchEvent *e)
{
	uint64_t	hash = idem_key_hash(e);
	IdemLane  **slot = slot_of(lanes, hash);
	IdemLane   *lane;

	for (lane = *slot; lane != NULL; lane = lane->next)
		if (lane->hash == hash && idem_key_is(e, lane->name, lane->len))
			break;
	if (lane == NULL)
	{
		size_t		len = idem_key_len(e);

		lane = idem_sink_alloc(sizeof(*lane) + len);
		memset(lane, 0, sizeof(*lane));
		lane->hash = hash;
		lane->len = len;
		idem_key_write(e, lane->name);
		lane->next = *slot;
		*slot = lane;
	}
	else if (lane->first == NULL)
		lanes->n_blocked--;
	return lane;
}

static void
free_lane(IdemLanes *lanes, IdemLane *lane)
{
	IdemLane  **at = slot_of(lanes, lane->hash);

	while (*at != lane)
		at = &(*at)->next;
	*at = lane->next;
	free(lane);
}

/* The event was not acked.  A lane's events are decided in their order. */
static void
block(IdemLane *lane, const IdemBatchEvent *e)
{
	lane->last_batch = e->batch->number;
	lane->last_index = e->index;
	lane->ended = 0;
}

/* Note the outcome.  The event is not in flight any more. */
static void
decide(IdemLanes *lanes, IdemPlace *place, IdemProtoOutcome outcome, const char *sqlstate, const char *message)
{
	IdemBatchEvent *e = place->event;

	e->batch->open--;
	if (sqlstate == NULL)
	{
		e->delivered = true;
		return;
	}
	idem_intake_decide(lanes->in, e, outcome, sqlstate, message);
	if (place->lane != NULL)
		block(place->lane, e);
}

/* Are events behind so many SETTLEs skipped? */
static bool
is_blocked(const IdemLane *lane, uint64_t settles)
{
	return lane->last_batch != 0 && (lane->ended == 0 || lane->ended > settles);
}

/* Make the lane's first event ready; skip those that are blocked. */
static void
advance(IdemLanes *lanes, IdemLane *lane)
{
	while (lane->first != NULL && is_blocked(lane, lane->first->event->settles))
	{
		IdemPlace  *place = lane->first;

		lane->first = place->next;
		decide(lanes, place, IDEM_PROTO_SKIPPED, "00000", NULL);
	}
	if (lane->first != NULL)
		idem_places_append(&lanes->ready, lane->first);
	else if (is_blocked(lane, lanes->passed))
		lanes->n_blocked++;
	else
		free_lane(lanes, lane);
}

/* Put the events of a complete batch into their lanes. */
static void
begin_batch(IdemLanes *lanes, IdemBatch *b)
{
	b->places = idem_sink_alloc(b->count * sizeof(IdemPlace));
	memset(b->places, 0, b->count * sizeof(IdemPlace));
	b->open = b->count;
	for (uint32_t i = 0; i < b->count; i++)
	{
		IdemPlace  *place = &b->places[i];
		IdemLane   *lane;

		place->event = &b->events[i];
		if (!lanes->key_order)
		{
			idem_places_append(&lanes->ready, place);
			continue;
		}
		lane = place->lane = lane_of(lanes, place->event);
		if (lane->first != NULL)
		{
			lane->last->next = place;
			lane->last = place;
			continue;
		}
		lane->first = lane->last = place;
		advance(lanes, lane);
	}
}

void
idem_lanes_end(IdemLanes *lanes, IdemPlace *place, IdemProtoOutcome outcome, const char *sqlstate, const char *message)
{
	IdemLane   *lane = place->lane;

	decide(lanes, place, outcome, sqlstate, message);
	if (lane == NULL)
		return;
	lane->first = place->next;
	advance(lanes, lane);
}

/* The SETTLE of this number has come: see idem_keys_settle. */
static void
settle(void *arg, const IdemProtoSettle *settled, uint64_t number)
{
	IdemLanes  *lanes = arg;

	for (size_t i = 0; i < SLOTS; i++)
	{
		for (IdemLane *lane = lanes->slots[i]; lane != NULL; lane = lane->next)
		{
			if (lane->ended == 0 && lane->last_batch == settled->batch &&
				lane->last_index >= settled->first && lane->last_index <= settled->last)
				lane->ended = number;
		}
	}
}

/*
 * Free the lanes whose block concerns no event that is to be put into a lane: all of
 * them stand behind so many SETTLEs.
 */
static void
end_blocks(IdemLanes *lanes, uint64_t passed)
{
	if (lanes->passed == passed)
		return;
	lanes->passed = passed;
	for (size_t i = 0; i < SLOTS && lanes->n_blocked > 0; i++)
	{
		IdemLane   *next;

		for (IdemLane *lane = lanes->slots[i]; lane != NULL; lane = next)
		{
			next = lane->next;
			if (lane->first != NULL || is_blocked(lane, passed))
				continue;
			free_lane(lanes, lane);
			lanes->n_blocked--;
		}
	}
}

void
idem_lanes_start(IdemLanes *lanes, IdemIntake *in, bool key_order)
{
	lanes->in = in;
	lanes->key_order = key_order;
	lanes->slots = idem_sink_alloc(SLOTS * sizeof(*lanes->slots));
	memset(lanes->slots, 0, SLOTS * sizeof(*lanes->slots));
	in->key_order = false;
	in->settle = settle;
	in->settle_arg = lanes;
}

void
idem_lanes_take(IdemLanes *lanes)
{
	IdemBatch  *b;

	idem_intake_take(lanes->in);
	for (b = lanes->in->first; b != NULL && b->complete; b = b->next)
		if (b->number > lanes->begun)
		{
			lanes->begun = b->number;
			begin_batch(lanes, b);
		}

	/*
	 * the events of a batch that is not complete may stand before the last
	 * SETTLE
	 */
	end_blocks(lanes, b != NULL ? b->events[0].settles : lanes->in->settles);
}

void
idem_lanes_answer(IdemLanes *lanes)
{
	IdemIntake *in = lanes->in;

	for (IdemBatch *b = in->first; b != NULL && b->number <= lanes->begun; b = b->next)
		if (b->open == 0)
			idem_intake_answer(in, b);
	while (in->first != NULL && in->first->answered)
		idem_intake_drop(in);
}

void
idem_lanes_give_up(IdemLanes *lanes)
{
	IdemIntake *in = lanes->in;

	idem_lanes_answer(lanes);
	for (IdemBatch *b = in->first; b != NULL && b->number <= lanes->begun; b = b->next)
	{
		if (b->answered || idem_batch_count_decided(b) == 0)
			continue;
		for (uint32_t i = 0; i < b->count; i++)
			if (b->events[i].outcome == 0 && !b->events[i].delivered)
				idem_intake_decide(in, &b->events[i], IDEM_PROTO_UNKNOWN, "00000", NULL);
		idem_intake_answer(in, b);
	}
}
