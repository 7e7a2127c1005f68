/*-------------------------------------------------------------------------
 *
 * lane.c
 *		The order of each key: one lane per key, whose first event is on its way.
 *
 * The broker may refuse a message and take the next one.  So the next event of a key
 * is sent when the one before it is done.  An event that is not acked blocks its lane:
 * the events that stand before its SETTLE in the stream are skipped.
 *
 * INVARIANT
 *		Of a lane's events the first one is in p->ready or p->flight, and no other.
 *		A lane exists while it has events, or its block may still concern an event
 *		that is to come.
 *
 * MEMORY
 *		A lane owns its name.  There are not more lanes with events than the credit
 *		has messages; lanes that are only blocked end with the next SETTLE.  The
 *		places of a batch are one array, which deliver.c frees.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/lane.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/mqtt/sink.h"

struct MSinkLane
{
	MSinkLane  *next;			/* in its slot */
	uint64_t	hash;
	MSinkPlace *first;			/* events that are not done */
	MSinkPlace *last;
	uint64_t	last_batch;		/* the last event that was not acked; 0: none */
	uint32_t	last_index;
	uint64_t	ended;			/* number of the SETTLE that settled that
								 * event; 0: none did */
	size_t		len;
	char		name[];			/* aggregate_type, NUL, aggregate_id */
};

/* Write the name of the event's key; the caller frees it. */
static char *
name_of(const IdemBatchEvent *e, size_t *len)
{
	uint32_t	type = e->aggregate_type.len;
	char	   *name;

	*len = (size_t) type + 1 + e->aggregate_id.len;
	name = idem_sink_alloc(*len);
	memcpy(name, idem_batch_at(e, e->aggregate_type), type);
	name[type] = '\0';
	memcpy(name + type + 1, idem_batch_at(e, e->aggregate_id), e->aggregate_id.len);
	return name;
}

/* The lane of the event's key. */
static MSinkLane *
lane_of(MSink *p, const IdemBatchEvent *e)
{
	uint64_t	hash = UINT64_C(0xcbf29ce484222325);	/* FNV-1a */
	size_t		len;
	char	   *name = name_of(e, &len);
	MSinkLane **slot;
	MSinkLane  *lane;

	for (size_t i = 0; i < len; i++)
		hash = (hash ^ (unsigned char) name[i]) * UINT64_C(0x100000001b3);
	slot = &p->lanes[hash % MSINK_LANE_SLOTS];
	for (lane = *slot; lane != NULL; lane = lane->next)
		if (lane->hash == hash && lane->len == len && memcmp(lane->name, name, len) == 0)
			break;
	if (lane == NULL)
	{
		lane = idem_sink_alloc(sizeof(*lane) + len);
		memset(lane, 0, sizeof(*lane));
		lane->hash = hash;
		lane->len = len;
		memcpy(lane->name, name, len);
		lane->next = *slot;
		*slot = lane;
	}
	else if (lane->first == NULL)
		p->n_blocked--;
	free(name);
	return lane;
}

static void
free_lane(MSink *p, MSinkLane *lane)
{
	MSinkLane **at = &p->lanes[lane->hash % MSINK_LANE_SLOTS];

	while (*at != lane)
		at = &(*at)->next;
	*at = lane->next;
	free(lane);
}

/* The event was not acked.  A lane's events are decided in their order. */
static void
block(MSinkLane *lane, const IdemBatchEvent *e)
{
	lane->last_batch = e->batch->number;
	lane->last_index = e->index;
	lane->ended = 0;
}

/* Note the outcome.  The event is not in flight any more. */
static void
decide(MSink *p, MSinkPlace *place, IdemProtoOutcome outcome, const char *sqlstate, const char *message)
{
	IdemBatchEvent *e = place->event;

	e->batch->open--;
	if (sqlstate == NULL)
	{
		e->delivered = true;
		return;
	}
	idem_intake_decide(&p->in, e, outcome, sqlstate, message);
	if (place->lane != NULL)
		block(place->lane, e);
}

/* Are events behind so many SETTLEs skipped? */
static bool
is_blocked(const MSinkLane *lane, uint64_t settles)
{
	return lane->last_batch != 0 && (lane->ended == 0 || lane->ended > settles);
}

/* Make the lane's first event ready; skip those that are blocked. */
static void
advance(MSink *p, MSinkLane *lane)
{
	while (lane->first != NULL && is_blocked(lane, lane->first->event->settles))
	{
		MSinkPlace *place = lane->first;

		lane->first = place->next;
		decide(p, place, IDEM_PROTO_SKIPPED, "00000", NULL);
	}
	if (lane->first != NULL)
		msink_append(&p->ready, lane->first);
	else if (is_blocked(lane, p->passed))
		p->n_blocked++;
	else
		free_lane(p, lane);
}

void
msink_begin_batch(MSink *p, IdemBatch *b)
{
	MSinkPlace *places = idem_sink_alloc(b->count * sizeof(MSinkPlace));

	memset(places, 0, b->count * sizeof(MSinkPlace));
	b->open = b->count;
	for (uint32_t i = 0; i < b->count; i++)
	{
		MSinkPlace *place = &places[i];
		MSinkLane  *lane;

		place->event = &b->events[i];
		place->event->target = place;
		if (!p->key_order)
		{
			msink_append(&p->ready, place);
			continue;
		}
		lane = place->lane = lane_of(p, place->event);
		if (lane->first != NULL)
		{
			lane->last->next = place;
			lane->last = place;
			continue;
		}
		lane->first = lane->last = place;
		advance(p, lane);
	}
}

void
msink_end_event(MSink *p, MSinkPlace *place, IdemProtoOutcome outcome, const char *sqlstate, const char *message)
{
	MSinkLane  *lane = place->lane;

	decide(p, place, outcome, sqlstate, message);
	if (lane == NULL)
		return;
	lane->first = place->next;
	advance(p, lane);
}

void
msink_settle(void *arg, const IdemProtoSettle *settle, uint64_t number)
{
	MSink	   *p = arg;

	for (size_t i = 0; i < MSINK_LANE_SLOTS; i++)
	{
		for (MSinkLane *lane = p->lanes[i]; lane != NULL; lane = lane->next)
		{
			if (lane->ended == 0 && lane->last_batch == settle->batch &&
				lane->last_index >= settle->first && lane->last_index <= settle->last)
				lane->ended = number;
		}
	}
}

void
msink_end_blocks(MSink *p, uint64_t passed)
{
	if (p->passed == passed)
		return;
	p->passed = passed;
	for (size_t i = 0; i < MSINK_LANE_SLOTS && p->n_blocked > 0; i++)
	{
		MSinkLane  *next;

		for (MSinkLane *lane = p->lanes[i]; lane != NULL; lane = next)
		{
			next = lane->next;
			if (lane->first != NULL || is_blocked(lane, p->passed))
				continue;
			free_lane(p, lane);
			p->n_blocked--;
		}
	}
}
