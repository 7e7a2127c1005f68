/*-------------------------------------------------------------------------
 *
 * relays.h
 *		The relays of a worker: which of them have turns.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/relays.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_RELAYS_H
#define IDEM_RELAY_PROCESS_RELAYS_H

#include "postgres.h"

#include "nodes/pg_list.h"
#include "storage/latch.h"

#include "shared/clock.h"

/*
 * Take over the configurations of all relays of this worker: relays may have
 * changed, come or gone. function: all of them are function relays.
 */
extern void idem_relays_configure(List *configs, bool function);

/*
 * In a transaction, after the first look at the configuration: let relays rest
 * that have nothing in flight.
 */
extern void idem_relays_begin_with_rest(void);

/* A transaction committed at that time; 0: the time is not known. */
extern void idem_relays_woken(TimestampTz stamp);

/* The witness's answer has changed: give each relay a turn, to look at it. */
extern void idem_relays_activate_all(void);

/*
 * Give each active relay a turn.  True if a relay wants another turn at once.
 * *failed: a relay raised an error.
 */
extern bool idem_relays_run(MemoryContext error_cxt, bool *failed);

/* When to run them next if nothing happens earlier; 0: no need. */
extern IdemClock idem_relays_next_time(void);

/*
 * In the worker of a function relay: may the process end and leave the relay
 * to a later worker?  *idle: the relay has nothing to do now.
 */
extern bool idem_relays_may_leave(bool *idle);

/* Write rows for positions that have moved in memory only. */
extern void idem_relays_persist(void);

/*
 * For the worker's wait: ..._max_events is the room that the set needs,
 * ..._add_events adds the descriptors of the programs, and ..._signature is a
 * number that changes when the set must be built anew.
 */
extern int	idem_relays_max_events(void);
extern void idem_relays_add_events(WaitEventSet *set);
extern uint64 idem_relays_signature(void);

#endif							/* IDEM_RELAY_PROCESS_RELAYS_H */
