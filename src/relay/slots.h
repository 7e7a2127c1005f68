/*-------------------------------------------------------------------------
 *
 * slots.h
 *		Which workers run: slots, requests for them, and commands that hold them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/slots.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_SLOTS_H
#define IDEM_RELAY_SLOTS_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "relay/shmem.h"

/* Find or occupy a worker slot.  Caller holds the lock exclusively. */
extern IdemWorkerSlot *idem_worker_slot_find(Oid dboid, int relay_id);
extern IdemWorkerSlot *idem_worker_slot_occupy(Oid dboid, int relay_id);
extern void idem_worker_slot_free(IdemWorkerSlot *slot);

/*
 * A function relay with something to do does not give way sooner.  One that was
 * asked and is still there after two of these does not hold the next one up.
 */
#define IDEM_SLICE_MS 1000

/* The GUC idempotency.max_function_workers: of a database, at a time. */
extern int	idem_max_function_workers;

/*
 * Release the workers of relays of this database that are no more, or not to
 * functions.  Their workers look at "wanted" without the lock.  What processes that
 * have ended left of dropped relays in stat_relay is forgotten.
 */
extern void idem_slots_release_functions(List *configs);

typedef enum IdemSlotAnswer
{
	IDEM_SLOT_GIVEN,
	IDEM_SLOT_TAKEN,			/* other relays of the database have them */
	IDEM_SLOT_NONE_LEFT,		/* other databases have them */
	IDEM_SLOT_NO_PROCESS		/* or max_worker_processes are used up */
} IdemSlotAnswer;

/*
 * Give a function relay of this database a worker; nwaiting relays wait for one.
 * If there is none, others are asked to give way.
 */
extern IdemSlotAnswer idem_slots_give_function(int relay_id, int nwaiting);

/* No function relay of this database waits, or may have a worker if there is one. */
extern void idem_slots_wait_no_more(void);

/* So many function relays of this database wait: ask others to give way. */
extern void idem_slots_ask_functions_to_yield(int n);

/* Under the lock: a database waits for its own worker, for want of a slot or a process. */
extern void idem_slots_yield_to_database(Oid *room);

/* For the above, before the lock is taken: allocated once. */
extern Oid *idem_slots_counting_room(void);

/* Has a relay of this database a worker of its own, or is it to have one? */
extern bool idem_slots_have_function(int relay_id);

/*
 * Under the lock, as this process ends: its handler had that event.  stat_relay
 * says so, and the launcher's delay grows, until ..._worked.
 */
extern void idem_slots_ended_in_handler(IdemWorkerSlot *slot, const char *event);

/* The worker of a function relay has committed the outcome of an event. */
extern void idem_slots_function_worked(int relay_id);

/*
 * Keep the workers of a database down until ..._release, and wait until they
 * are gone.  Holds of several backends add up.  A backend has one hold: who
 * takes another meanwhile gives the former one, ..._current_hold, to
 * ..._release, which must be called however the command ends.
 */
extern void idem_workers_hold(Oid dboid);
extern Oid	idem_workers_current_hold(void);
extern void idem_workers_release(Oid former);

/* Does any backend hold them?  Caller holds the lock. */
extern bool idem_workers_held(Oid dboid);

#endif							/* IDEM_RELAY_SLOTS_H */
