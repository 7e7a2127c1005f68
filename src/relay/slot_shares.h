/*-------------------------------------------------------------------------
 *
 * slot_shares.h
 *		How many worker slots each database has, and who gives way to whom.
 *
 * For slots.c only, which owns the slots and holds their lock around each call.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/slot_shares.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_SLOT_SHARES_H
#define IDEM_RELAY_SLOT_SHARES_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "port/atomics.h"

#include "shared/clock.h"

/*
 * A worker's place: it serves all program relays of a database, or one
 * function relay.
 */
typedef struct IdemWorkerSlot
{
	Oid			dboid;			/* InvalidOid: free */
	int			relay_id;		/* 0: all program relays of the database */
	uint32		generation;		/* rises with each occupation */
	pid_t		pid;			/* 0: no process */
	int			procno;			/* of the process, for its latch; -1: none */
	bool		wanted;			/* the launcher is to keep the worker running */
	bool		starting;		/* registered, not yet attached */
	int			failures;		/* ends of its worker in a row, for the
								 * backoff */
	IdemClock	not_before;		/* earliest start of the next worker */
	bool		passed_crash;	/* relays have started once since the server's
								 * crash */
	bool		ended_in_handler;	/* its last worker ended in a handler, and
									 * no event has committed since */
	bool		yield;			/* asked to give way: other relays wait */
	IdemClock	yield_at;		/* when it was asked to give way */
	bool		started;		/* has had a process since it was occupied */
	IdemClock	since;			/* when the slot was occupied */
	int			entry;			/* number of the function relay's entry; -1:
								 * none */
	bool		waits;			/* in the slot of a database's own worker: a
								 * function relay of the database waits for a
								 * slot */
	IdemClock	served_at;		/* in the same slot: when a function relay of
								 * the database was last given a slot */
	pg_atomic_uint32 wake;		/* 1: something committed since the worker
								 * last looked */
	pg_atomic_uint32 config;	/* rises when relays of the database change */
	pg_atomic_uint64 committed_at;	/* time of the first such commit */
} IdemWorkerSlot;

/* All slots; n is idempotency.max_workers. */
typedef struct IdemSlots
{
	IdemWorkerSlot *slot;
	int			n;
} IdemSlots;

typedef enum IdemSlotAnswer
{
	IDEM_SLOT_GIVEN,
	IDEM_SLOT_TAKEN,			/* other relays of this database have the
								 * slots */
	IDEM_SLOT_NONE_LEFT,		/* other databases have the slots */
	IDEM_SLOT_NO_PROCESS		/* max_worker_processes are used up */
} IdemSlotAnswer;

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
 * Room for one OID per slot.  It is allocated once, and before the lock is
 * taken: an error of the allocation then leaves nothing half done.
 */
extern Oid *idem_shares_room(const IdemSlots *all);

/*
 * May a function relay of this database have a free slot; nwaiting relays wait for one?
 * If not, others are asked to give way.  own: the slot of the database's own worker, or
 * NULL; databases_waiting: so many databases have none.
 */
extern IdemSlotAnswer idem_shares_decide(const IdemSlots *all, IdemWorkerSlot *own, Oid *room,
										 int nwaiting, bool no_process, int databases_waiting);

/* A function relay of the richest database is to give way to a database's own worker. */
extern void idem_shares_yield_to_database(const IdemSlots *all, Oid *room);

/*
 * Have n function workers of a database give way.  Workers that are leaving count.  Each
 * worker is asked once in the life of its slot.
 */
extern void idem_shares_ask_to_yield(const IdemSlots *all, Oid dboid, int n);

/*
 * Log that there are too few slots for that database, or for functions of this one; once
 * a minute, since each turn of a loop finds the same.
 */
extern void idem_shares_complain(Oid dboid, bool no_process);

/* Wake a process.  A stale number wakes another process for nothing. */
extern void idem_shares_wake(int procno);

#endif							/* IDEM_RELAY_SLOT_SHARES_H */
