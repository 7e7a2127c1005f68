/*-------------------------------------------------------------------------
 *
 * hunt.h
 *		Finds the event that a sink program dies of, or cannot commit.
 *
 * A state machine that knows nothing but numbers of events: it is told what
 * happened, and says how the relay goes on.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/hunt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_HUNT_H
#define IDEM_RELAY_STREAM_HUNT_H

/* All zero: no hunt. */
typedef struct IdemHunt
{
	bool		progressed;		/* a batch settled since the program started */
	int			deaths;			/* in a row, no batch settled in between */
	int			suspects;		/* events to come, one of them kills; 0: no
								 * hunt */
	int			range;			/* the suspects at the last death */
	int			step;			/* batches settled since the last death; 0:
								 * the answered ones come first, see prefix */
	int			prefix;			/* events that were answered at that death */
} IdemHunt;

/* What was in flight when the program ended. */
typedef struct IdemHuntDeath
{
	int			in_flight;		/* events, at least one */
	int			prefix;			/* of the oldest batch, already answered in
								 * order; 0 if all of it was */
	bool		sure;			/* the sink says that one of them is at fault */
	bool		exclusive;		/* the only one was sent alone, since it
								 * killed a program before */
} IdemHuntDeath;

typedef enum IdemHuntAction
{
	IDEM_HUNT_WAIT,				/* open the breaker, as for any outage */
	IDEM_HUNT_AGAIN,			/* start the program again at once */
	IDEM_HUNT_FOUND				/* the same; the only event in flight is at
								 * fault: park it as refused */
} IdemHuntAction;

extern IdemHuntAction idem_hunt_died(IdemHunt *hunt, const IdemHuntDeath *death);

/* A program was started. */
extern void idem_hunt_started(IdemHunt *hunt);

/* A batch of n events was settled. */
extern void idem_hunt_settled(IdemHunt *hunt, int n);

/* One batch at a time?  Of how many events at most? */
extern bool idem_hunt_is_on(const IdemHunt *hunt);
extern int	idem_hunt_limit(const IdemHunt *hunt, int max_batch_events);

#endif							/* IDEM_RELAY_STREAM_HUNT_H */
