/*-------------------------------------------------------------------------
 *
 * hunt.h
 *		Finds the event that a sink program dies of, or cannot commit.
 *
 * A state machine that knows only numbers of events.  The stream reports
 * starts, deaths and settled batches; the hunt says how the relay goes on.
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
	bool		progressed;		/* a batch was settled since the program
								 * started */
	int			deaths;			/* deaths in a row, with no batch settled in
								 * between */
	int			suspects;		/* events still to be sent, one of which kills
								 * the program; 0: no hunt */
	int			range;			/* number of suspects at the last death */
	int			step;			/* batches settled since the last death; step
								 * 0 sends the answered events, see prefix */
	int			prefix;			/* events of the oldest batch that were
								 * answered at the last death */
} IdemHunt;

/* The events in flight when the program ended. */
typedef struct IdemHuntDeath
{
	int			in_flight;		/* number of events, at least one */
	int			prefix;			/* events at the head of the oldest batch that
								 * were answered; 0 if the whole batch was */
	bool		sure;			/* the sink says that one of the events is at
								 * fault */
	bool		exclusive;		/* the only event in flight was sent alone,
								 * because it killed a program before */
} IdemHuntDeath;

typedef enum IdemHuntAction
{
	IDEM_HUNT_WAIT,				/* open the breaker, as for any outage */
	IDEM_HUNT_AGAIN,			/* start the program again at once */
	IDEM_HUNT_FOUND				/* the only event in flight is at fault: start
								 * the program again at once, then park the
								 * event as refused */
} IdemHuntAction;

extern IdemHuntAction idem_hunt_died(IdemHunt *hunt, const IdemHuntDeath *death);

/* The stream has started a program. */
extern void idem_hunt_started(IdemHunt *hunt);

/* A batch of n events was settled. */
extern void idem_hunt_settled(IdemHunt *hunt, int n);

/*
 * Does a hunt go on?  Then the stream sends one batch at a time.  ..._limit:
 * how many events the next batch may have, hunt or not.
 */
extern bool idem_hunt_is_on(const IdemHunt *hunt);
extern int	idem_hunt_limit(const IdemHunt *hunt, int max_batch_events);

#endif							/* IDEM_RELAY_STREAM_HUNT_H */
