/*-------------------------------------------------------------------------
 *
 * pace.h
 *		How fast a relay may send to a target that asked it to wait.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/engine/pace.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ENGINE_PACE_H
#define IDEM_RELAY_ENGINE_PACE_H

#include "shared/clock.h"

/* What an answer says of the rate. */
typedef enum IdemPaceAnswer
{
	IDEM_PACE_ACCEPTED,
	IDEM_PACE_ASKED,			/* the target takes fewer events: HTTP 429 */
	IDEM_PACE_NAMED,			/* refused until a time that the target names,
								 * which may concern this event alone: HTTP
								 * 503 with Retry-After */
	IDEM_PACE_OTHER
} IdemPaceAnswer;

/* All zero at first: there is no limit. */
/* Keys that are remembered as refused with a time of their own. */
#define IDEM_PACE_LATELY 16

typedef struct IdemPace
{
	double		rate;			/* events per second; 0: no limit */
	double		known;			/* the rate at which the target refused; 0:
								 * not known yet */
	double		tokens;			/* events that may be sent at filled_at */
	IdemClock	filled_at;
	IdemClock	paused_until;
	bool		bound;			/* the last events waited for the pace */

	IdemClock	changed_at;		/* when the rate was lowered */
	int64		accepted;		/* since then */
	int			before;			/* answers to events that were sent before
								 * then, and are still to come */

	/* events accepted in this second, and in the one before */
	IdemClock	second;
	int			now;
	int			last;

	uint64		named_key;		/* of the newest of the NAMED in a row */
	int			named;			/* how many, each of another key than the one
								 * before */
	uint64		named_lately[IDEM_PACE_LATELY]; /* the last keys of NAMED, in
												 * a row or not */
	int			nlately;		/* how many there were */
	IdemClock	noted_at;		/* a target asked to wait to which little was
								 * sent; 0: none did */
} IdemPace;

/* How many events may be sent now; many, if there is no limit. */
extern int	idem_pace_room(IdemPace *pace, IdemClock now);

/* When events may be sent again; 0: they may be now. */
extern IdemClock idem_pace_next(IdemPace *pace, IdemClock now);

extern void idem_pace_sent(IdemPace *pace, IdemClock now, int events);

/*
 * Take an answer to an event of this key.  wait_ms: for how long the target asks, 0 if it
 * does not say.  in_flight: events that have been sent and not answered.
 */
extern void idem_pace_answered(IdemPace *pace, IdemClock now, IdemPaceAnswer answer,
							   uint64 key, int wait_ms, int in_flight);

#endif							/* IDEM_RELAY_ENGINE_PACE_H */
