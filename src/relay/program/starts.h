/*-------------------------------------------------------------------------
 *
 * starts.h
 *		Which relay of a worker may start its program now.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/program/starts.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROGRAM_STARTS_H
#define IDEM_RELAY_PROGRAM_STARTS_H

#include "postgres.h"

#include "lib/ilist.h"

#include "shared/clock.h"

/* The GUCs idempotency.max_sink_programs and ..._max_sink_starts. */
extern int	idem_max_sink_programs;
extern int	idem_max_sink_starts;

/* A relay's place in the queue; embedded in it, all zero at first. */
typedef struct IdemStartTicket
{
	dlist_node	node;
	bool		queued;
	bool		granted;		/* a start is granted and not used yet */
	bool		failing;		/* its last program came to nothing */
	bool		trying;			/* its present program started as that of a
								 * failing relay */
} IdemStartTicket;

/*
 * May the relay start its program?  If not, the relay waits in the queue, and
 * asks again in each of its turns. looking: the relay may have nothing to
 * send, and starts its program to look whether all is well.
 */
extern bool idem_start_ask(IdemStartTicket *ticket, bool failing, bool looking);

/*
 * The relay does not want to start a program any more, or its program is ready
 * or has ended.
 */
extern void idem_start_withdraw(IdemStartTicket *ticket);

/* Grant the starts that may be granted now.  True if a relay got one. */
extern bool idem_start_serve(void);

/* How many programs of others must end for the relays that wait. */
extern int	idem_start_lacking_room(void);

/* When to call idem_start_serve again; 0: no need. */
extern IdemClock idem_start_next_time(void);

/*
 * How many programs may run at a time; the limit of descriptors is considered.
 */
extern int	idem_start_room(void);

#endif							/* IDEM_RELAY_PROGRAM_STARTS_H */
