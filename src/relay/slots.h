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
 * Ask for (or release) the workers of this database's function relays.  Their
 * workers look at "wanted" without the lock, so one that stays wanted is never
 * cleared.
 */
extern void idem_slots_request_functions(List *configs);

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
