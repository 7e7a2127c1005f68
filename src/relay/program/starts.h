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
	bool		granted;		/* and not used yet */
	bool		failing;		/* its last program came to nothing */
	bool		trying;			/* that holds now of the program it has */
} IdemStartTicket;

/*
 * May the relay start its program?  If not it waits in the queue, and is to ask
 * again in each of its turns.  looking: it may have nothing to send, and starts to
 * see whether all is well.
 */
extern bool idem_start_ask(IdemStartTicket *ticket, bool failing, bool looking);

/* It does not want to any more, or its program is ready, or has ended. */
extern void idem_start_withdraw(IdemStartTicket *ticket);

/* Grant what may be granted now; true if some relay got it. */
extern bool idem_start_serve(void);

/* How many relays wait for others to give their programs up. */
extern int	idem_start_lacking_room(void);

/* When to serve again; 0: no need. */
extern IdemClock idem_start_next_time(void);

/* Programs that may run at a time, what descriptors allow considered. */
extern int	idem_start_room(void);

#endif							/* IDEM_RELAY_PROGRAM_STARTS_H */
