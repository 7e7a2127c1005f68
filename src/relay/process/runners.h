/*-------------------------------------------------------------------------
 *
 * runners.h
 *		The relays of a worker: which of them have turns.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/runners.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_RUNNERS_H
#define IDEM_RELAY_PROCESS_RUNNERS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "storage/latch.h"

#include "shared/clock.h"

/*
 * Take over the configurations of the relays that this worker has: those that
 * changed, came or went.  function: all of them are to functions.
 */
extern void idem_runners_configure(List *configs, bool function);

/*
 * In a transaction, after the first look at the configuration: relays that have
 * nothing in flight begin with a rest.
 */
extern void idem_runners_begin_with_rest(void);

/* Something committed at that time; 0: not known when. */
extern void idem_runners_woken(TimestampTz stamp);

/* Whether this server may publish has changed: each relay is to look. */
extern void idem_runners_activate_all(void);

/*
 * Let each relay that has something to do have its turn.  True if some wants
 * another at once; *failed, if one raised an error.
 */
extern bool idem_runners_run(MemoryContext error_cxt, bool *failed);

/* When to run them next if nothing happens before; 0: no need. */
extern IdemClock idem_runners_next_time(void);

/*
 * In the worker of a function relay: may it leave the relay to another that comes
 * later?  *idle: there is nothing to do now.
 */
extern bool idem_runners_may_leave(bool *idle);

/* Write down positions that moved without that. */
extern void idem_runners_persist(void);

/*
 * The descriptors of their programs, into a set made with room for them; and a
 * number that changes when the set has to.
 */
extern int	idem_runners_max_events(void);
extern void idem_runners_add_events(WaitEventSet *set);
extern uint64 idem_runners_signature(void);

#endif							/* IDEM_RELAY_PROCESS_RUNNERS_H */
