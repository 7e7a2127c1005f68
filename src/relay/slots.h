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

/*
 * Find, occupy or free a worker slot.  The caller holds the lock: for ..._find
 * LW_SHARED is enough, the others need it exclusively.  ..._occupy returns
 * NULL if no slot is free.
 */
extern IdemWorkerSlot *idem_worker_slot_find(Oid dboid, int relay_id);
extern IdemWorkerSlot *idem_worker_slot_occupy(Oid dboid, int relay_id);
extern void idem_worker_slot_free(IdemWorkerSlot *slot);

/*
 * A relay with something to do keeps its slot, or its program, at least this
 * long; a program that is not ready by then is ended if others wait.  A relay
 * that was asked to give way and still has its slot or program after two slices
 * does not count as leaving: the next one is asked as well.
 */
#define IDEM_SLICE_MS 1000

/* The GUC idempotency.max_function_workers: per database, at a time. */
extern int	idem_max_function_workers;

/*
 * Release the workers of relays that are gone or are no function relays any
 * more. configs: the relays of this database.  Those workers look at "wanted"
 * without the lock.  Also frees the entries of this database that no process
 * has and whose relays are gone.
 */
extern void idem_slots_release_functions(List *configs);

typedef enum IdemSlotAnswer
{
	IDEM_SLOT_GIVEN,
	IDEM_SLOT_TAKEN,			/* other relays of this database have the
								 * slots */
	IDEM_SLOT_NONE_LEFT,		/* other databases have the slots */
	IDEM_SLOT_NO_PROCESS		/* max_worker_processes are used up */
} IdemSlotAnswer;

/*
 * Give a function relay of this database a slot for a worker; nwaiting relays
 * wait for one.  If none is free, ask other relays to give way.
 */
extern IdemSlotAnswer idem_slots_give_function(int relay_id, int nwaiting);

/*
 * Note that this database waits for no slot: no function relay waits, or none
 * of those that wait may have a worker.
 */
extern void idem_slots_wait_no_more(void);

/*
 * n function relays of this database wait: ask others of this database to give
 * way.
 */
extern void idem_slots_ask_functions_to_yield(int n);

/*
 * Under the lock: a database waits for its own worker, for want of a slot or a
 * process.  Ask a function relay of the richest database to give way.
 */
extern void idem_slots_yield_to_database(Oid *room);

/*
 * The room for idem_slots_yield_to_database.  Call it before taking the lock;
 * it is allocated once.
 */
extern Oid *idem_slots_counting_room(void);

/* Has a function relay of this database a slot? */
extern bool idem_slots_have_function(int relay_id);

/* The worker of a function relay has committed the outcome of an event. */
extern void idem_slots_function_worked(int relay_id);

/*
 * Keep the workers of a database down until ..._release, and wait until they
 * have ended.  Holds of several backends add up.  A backend has one hold.  To
 * nest, save ..._current_hold and pass it to ..._release, on error too.
 * ..._release must be called however the command ends.
 */
extern void idem_workers_hold(Oid dboid);
extern Oid	idem_workers_current_hold(void);
extern void idem_workers_release(Oid former);

/*
 * Does any backend hold the workers of the database?  The caller holds the
 * lock.
 */
extern bool idem_workers_held(Oid dboid);

#endif							/* IDEM_RELAY_SLOTS_H */
