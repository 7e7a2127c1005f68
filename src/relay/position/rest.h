/*-------------------------------------------------------------------------
 *
 * rest.h
 *		Relays that have nothing to send: one look at the outbox for all of them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/rest.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_REST_H
#define IDEM_RELAY_POSITION_REST_H

#include "postgres.h"

#include "lib/ilist.h"

#include "relay/config.h"
#include "relay/position/walk.h"
#include "shared/clock.h"

/* A group of relays that stand at one snapshot. */
typedef struct IdemRestGroup IdemRestGroup;

/*
 * A relay, as far as its rest is concerned; embedded in a stream or a delegate.
 */
typedef struct IdemRester
{
	dlist_node	node;			/* in its group's members, or among those that
								 * rose */
	IdemRestGroup *group;		/* NULL: it does not rest */
	const IdemRelayConfig *config;	/* not to be changed while the relay rests */
	IdemClock	due;			/* when a parked event is due; 0: none is */

	const IdemWalk *walk;		/* what a row of the log of positions says of
								 * the relay; not to be changed either */
} IdemRester;

/*
 * The GUC idempotency.sink_idle_timeout: after so many milliseconds a relay
 * with nothing to do rests, and its program or worker ends; 0: never.
 */
extern int	idem_sink_idle_timeout_ms;

/*
 * Let a relay rest that has delivered all events for it that "base" sees.  The
 * next round looks at the outbox from there on.  far: many events may have come
 * since, so it is worth cutting the outbox at ticks.
 */
extern void idem_rest_join(IdemRester *rester, const IdemSnap *base, bool far);

/*
 * End the rest of a relay, if it rests.  Returns the snapshot at which it
 * stands, in the current context; NULL if it did not rest.
 */
extern IdemSnap *idem_rest_leave(IdemRester *rester);

/*
 * Some transaction committed, or the relays were read again: begin another
 * round.
 */
extern void idem_rest_woken(void);

/*
 * Look at what is new in the outbox, or at a part of it.  True if there is more
 * to look at.  Relays that may have something to send rise.  ..._take_risen
 * gives them one by one, with the snapshot at which each stands in *base, in
 * the current context.
 */
extern bool idem_rest_look(void);
extern IdemRester *idem_rest_take_risen(IdemSnap **base);

/*
 * Find out when parked events of a resting relay are due; NULL: of all resting
 * relays.  In a transaction.
 */
extern void idem_rest_look_at_parked(IdemRester *only);

/* When to look again if nothing happens before; 0: no need. */
extern IdemClock idem_rest_next_time(void);

/* Write the positions of all resting relays that moved, in one transaction. */
extern void idem_rest_persist(void);

/*
 * After an error with this code in a look: close what was open, and look again
 * later.
 */
extern void idem_rest_reset(int sqlerrcode);

#endif							/* IDEM_RELAY_POSITION_REST_H */
