/*-------------------------------------------------------------------------
 *
 * rest.h
 *		Relays that have nothing to send: one look at the log for all of them.
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
#include "relay/position/position.h"
#include "shared/clock.h"

/* Relays that stand at one snapshot. */
typedef struct IdemRestGroup IdemRestGroup;

/* A relay, as far as resting is concerned; embedded in what runs it. */
typedef struct IdemRester
{
	dlist_node	node;			/* of its group, or of those that rose */
	IdemRestGroup *group;		/* NULL: it does not rest */
	const IdemRelayConfig *config;	/* not to be changed while it rests */
	IdemClock	due;			/* a parked event is due then; 0: no such one */

	/* what a row about its position says */
	IdemPositionKind kind;
	IdemPositionFresh fresh;
	int64		named;
	int64		k;
} IdemRester;

/*
 * The GUC idempotency.sink_idle_timeout: milliseconds after which a relay with
 * nothing to do rests, and its program or worker ends; 0: never.
 */
extern int	idem_sink_idle_timeout_ms;

/*
 * Let a relay rest that has delivered all that "base" sees and is for it.  The
 * log is looked at from there before anything else is taken for granted.  far:
 * much may have come since, so it is worth to cut the log at ticks.
 */
extern void idem_rest_join(IdemRester *rester, const IdemSnap *base, bool far);

/*
 * End the rest of a relay, if it rests.  Returns where it stands, in the current
 * context; NULL if it did not rest.
 */
extern IdemSnap *idem_rest_leave(IdemRester *rester);

/* Something committed, or relays were read again. */
extern void idem_rest_woken(void);

/*
 * Look at what is new in the log, or at a part of it.  True if there is more to
 * look at.  Relays that may have something to send rise; ..._take_risen gives
 * them one by one, and *base, in the current context, where each stands.
 */
extern bool idem_rest_look(void);
extern IdemRester *idem_rest_take_risen(IdemSnap **base);

/* In a transaction: when are parked events due of one that rests; NULL: of all? */
extern void idem_rest_look_at_parked(IdemRester *only);

/* When to look again if nothing happens before; 0: no need. */
extern IdemClock idem_rest_next_time(void);

/* Write down where all of them stand, in one transaction. */
extern void idem_rest_persist(void);

/* After an error, of this code, in a look: what was open is closed. */
extern void idem_rest_reset(int sqlerrcode);

/* How many relays rest, and how often the log was looked at for them. */
extern int	idem_rest_count(void);

#endif							/* IDEM_RELAY_POSITION_REST_H */
