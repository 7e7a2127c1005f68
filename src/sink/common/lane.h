/*-------------------------------------------------------------------------
 *
 * lane.h
 *		Events on their way one by one: of each key one at a time, of all batches
 *		together.
 *
 * For programs whose target answers each message by itself.  The program sends what is
 * ready, says how each message ended, and has the batches answered that are done.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/lane.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_LANE_H
#define IDEM_SINK_LANE_H

#include "sink/common/batch.h"

/* The events of a key that are not done, see lane.c. */
typedef struct IdemLane IdemLane;

/* Where an event of a batch stands. */
typedef struct IdemPlace
{
	IdemBatchEvent *event;
	IdemLane   *lane;			/* NULL without key order */
	struct IdemPlace *next;		/* in the lane */
	struct IdemPlace *before;	/* in the list of the ready ones, or one of
								 * the program's */
	struct IdemPlace *after;

	/* for the program */
	uint64_t	bytes;			/* of the message in flight */
	int64_t		sent_at;
} IdemPlace;

/* Places in their order; empty: both NULL. */
typedef struct IdemPlaces
{
	IdemPlace  *first;
	IdemPlace  *last;
} IdemPlaces;

typedef struct IdemLanes
{
	IdemIntake *in;				/* its key order is off: lanes keep it */
	bool		key_order;
	uint64_t	begun;			/* the last batch that was put into lanes */
	uint64_t	passed;			/* all events that are in no lane yet stand
								 * behind so many SETTLEs */
	IdemLane  **slots;			/* lanes by hash */
	size_t		n_blocked;		/* lanes without events that are blocked */
	IdemPlaces	ready;			/* may be sent */
} IdemLanes;

static inline void
idem_places_append(IdemPlaces *list, IdemPlace *place)
{
	place->before = list->last;
	place->after = NULL;
	*(list->last != NULL ? &list->last->after : &list->first) = place;
	list->last = place;
}

static inline void
idem_places_remove(IdemPlaces *list, IdemPlace *place)
{
	*(place->before != NULL ? &place->before->after : &list->first) = place->after;
	*(place->after != NULL ? &place->after->before : &list->last) = place->before;
}

/* Begin, before the first frame.  The intake has its sink. */
extern void idem_lanes_start(IdemLanes *lanes, IdemIntake *in, bool key_order);

/* Take the frames that are there; put the events of complete batches into their lanes. */
extern void idem_lanes_take(IdemLanes *lanes);

/*
 * The event is done; NULL of sqlstate: it is acked.  The next one of its key is ready.
 * The caller has taken the place out of its list.
 */
extern void idem_lanes_end(IdemLanes *lanes, IdemPlace *place, IdemProtoOutcome outcome, const char *sqlstate,
						   const char *message);

/* Answer the batches that are done, in any order; free them in their order. */
extern void idem_lanes_answer(IdemLanes *lanes);

/*
 * Before the program fails, answer the batches that have refused events: their other
 * events are unknown.
 */
extern void idem_lanes_give_up(IdemLanes *lanes);

#endif							/* IDEM_SINK_LANE_H */
