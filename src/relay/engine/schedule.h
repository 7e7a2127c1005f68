/*-------------------------------------------------------------------------
 *
 * schedule.h
 *		Which relay of a worker gets a program, or a worker of its own, next.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/engine/schedule.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ENGINE_SCHEDULE_H
#define IDEM_RELAY_ENGINE_SCHEDULE_H

#include "postgres.h"

#include "relay/engine/courier.h"

/* The GUCs idempotency.max_sink_programs and ..._max_sink_starts. */
extern int	idem_max_sink_programs;
extern int	idem_max_sink_starts;

/*
 * May the relay start its program?  If not, the relay waits in the queue, and
 * asks again in each of its turns. failing: its last program came to nothing.
 * looking: the relay may have nothing to send, and starts its program to look
 * whether all is well.
 */
extern bool idem_schedule_ask_program(IdemTicket *ticket, bool failing, bool looking);

/*
 * Let a function relay wait for a worker of its own.  first: before all others,
 * since its slot was freed before a process had it.
 */
extern void idem_schedule_ask_worker(IdemRelay *relay, bool first);

/*
 * The relay does not want to start a program or a worker any more, or its
 * program is ready or has ended.
 */
extern void idem_schedule_withdraw(IdemTicket *ticket);

/*
 * A function relay came to this worker.  ..._worker_given: a slot names the
 * relay, so its own worker has it from now on, and it is away.
 * ..._worker_ended: the slot is free again.  ..._remove: a relay ends.
 */
extern void idem_schedule_add_function(IdemRelay *relay);
extern void idem_schedule_worker_given(IdemRelay *relay);
extern void idem_schedule_worker_ended(IdemRelay *relay);
extern void idem_schedule_remove(IdemRelay *relay);

/* Grant the starts of programs that may be granted now.  True if a relay got one. */
extern bool idem_schedule_programs(void);

/* How many programs of others must end for the relays that wait. */
extern int	idem_schedule_lacking_room(void);

/*
 * Give workers to the function relays that wait, in their order, and ask other
 * relays to give way.
 */
extern void idem_schedule_workers(void);

/* When to call these again; 0: no need. */
extern IdemClock idem_schedule_next_time(void);

#endif							/* IDEM_RELAY_ENGINE_SCHEDULE_H */
