/*-------------------------------------------------------------------------
 *
 * worker_slots.h
 *		Which workers run: slots, requests for them, and commands that hold them.
 *
 * Liveness only: after a crash everything here is rebuilt from tables or starts
 * empty, and no verdict depends on it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker_slots.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_WORKER_SLOTS_H
#define IDEM_RELAY_WORKER_SLOTS_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "nodes/pg_list.h"
#include "port/atomics.h"

#include "shared/clock.h"

/* How the slots are shared, in slot_shares.c, and who has them, in worker_slots.c */

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
	Oid			owner;			/* whose handlers the function relay's process
								 * runs; outlives the relay */
	bool		waits;			/* in the slot of a database's own worker: a
								 * function relay of the database waits for a
								 * slot */
	IdemClock	served_at;		/* in the same slot: when a function relay of
								 * the database was last given a slot; first
								 * as "since" */
	bool		at_rest;		/* in the same slot: the worker says that it
								 * has nothing to do */

	/* outlives the occupation, and is read without the lock */
	int			procno;			/* of the process, for its latch; -1: none */
	pg_atomic_uint32 wake;		/* 1: something committed since the worker
								 * last looked */
	pg_atomic_uint32 config;	/* rises when relays of the database change */
	pg_atomic_uint64 committed_at;	/* time of the first such commit */
	pg_atomic_uint64 turn_at;	/* IdemClock: when its worker took a turn last */
} IdemWorkerSlot;

/* What the databases want of the slots, in shared memory. */
typedef struct IdemSlotDemand
{
	int			databases_waiting;	/* databases with relays and without a
									 * slot */
	bool		no_process;		/* max_worker_processes were used up at the
								 * launcher's last try */
	int			room;			/* slots for which there are processes, as far
								 * as is known */
	IdemClock	asked_at;		/* when the own worker of a database was last
								 * asked to give way; 0: never */
} IdemSlotDemand;

/* All slots; n is idempotency.max_workers. */
typedef struct IdemSlots
{
	IdemWorkerSlot *slot;
	int			n;
	IdemSlotDemand *demand;
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

/* The same for the own worker of a database that has something to do. */
#define IDEM_STAY_MS 5000

/* The GUC idempotency.max_function_workers: per database, at a time. */
extern int	idem_max_function_workers;

/*
 * Room for one OID per slot.  It is allocated once, and before the lock is
 * taken: an error of the allocation then leaves nothing half done.
 */
extern Oid *idem_shares_room(const IdemSlots *all);

/*
 * May a function relay of this database have a free slot; nwaiting relays wait for one?
 * If not, others are asked to give way.  own: the slot of the database's own worker.
 */
extern IdemSlotAnswer idem_shares_decide(const IdemSlots *all, IdemWorkerSlot *own, Oid *room,
										 int nwaiting);

/* May another database have a slot for its own worker, if a slot is free? */
extern bool idem_shares_admit_database(const IdemSlots *all, Oid *room);

/*
 * A function relay of the richest database, or another database's own worker, is to give
 * way to a database's own worker.  Functions that were asked and cannot leave count as
 * nobody's: then an own worker is asked.
 */
extern void idem_shares_yield_to_database(const IdemSlots *all, Oid *room);

/* The launcher got a process, or did not: note for how many slots there are processes. */
extern void idem_shares_note_room(const IdemSlots *all, bool got);

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

/* As idem_slots_hung_since. */
extern TimestampTz idem_shares_hung_since(const IdemSlots *all, int relay_id);

/* Has a slot with a process, and its worker has taken no turn for long? */
extern bool idem_shares_is_hung(IdemWorkerSlot *slot);

/* Wake a process.  A stale number wakes another process for nothing. */
extern void idem_shares_wake(int procno);

/* The GUC idempotency.max_workers: the number of slots. */
extern int	idem_relay_max_workers;

extern Size idem_slots_shmem_size(void);
extern void idem_slots_shmem_attach(void *segment, bool found);

/* Was the library preloaded?  Else no process of relays runs. */
extern bool idem_slots_exist(void);

/* Did the server end otherwise than by a clean shutdown, or is it a standby's successor? */
extern bool idem_slots_after_crash(void);

/*
 * Wake the workers of a database to look at the outbox; config: also to read the
 * configuration again.  Safe in a commit callback.
 */
extern void idem_wake_database(Oid dboid, bool config);

/*
 * Wake all workers, to look again at what they may do.  "news" rises before
 * the latches are set, because a wait for a lock resets a latch.
 */
extern void idem_wake_workers(void);

/* Wake the launcher, to look for databases again; safe in a commit callback. */
extern void idem_wake_launcher(void);

/* The slot of this database's own worker (relay_id 0), or of a function relay */
typedef enum IdemSlotState
{
	IDEM_SLOT_NOT_THERE,
	IDEM_SLOT_WAITS,			/* for the launcher to start its worker */
	IDEM_SLOT_STARTS,
	IDEM_SLOT_RUNS
} IdemSlotState;

extern IdemSlotState idem_slots_state(int relay_id);

/*
 * Since when has the worker that serves the relay taken no turn?  0: it has, lately, or
 * there is none.  A worker that has nothing to do takes one each 5 s.
 */
extern TimestampTz idem_slots_hung_since(int relay_id);

/* What to do about a worker that hangs. */
#define IDEM_HUNG_REMEDY \
	"End the transaction that pg_blocking_pids() names for the relay's process, pid of stat_relay. If there is none, ps -o stat,wchan says what the process does: T is stopped, and goes on by SIGCONT; D waits for a disk or a file system."

/* For the launcher; slots have numbers from 0 to idem_relay_max_workers - 1. */

/* From ..._attach on backends can poke this process; the first poke is there already. */
extern void idem_slots_launcher_attach(void);
extern bool idem_slots_launcher_is_poked(void);
extern bool idem_slots_launcher_take_poke(void);

/*
 * These databases have relays: each gets a slot for its own worker, in this order, as far
 * as there are slots.  Returns those that have none.
 */
extern List *idem_slots_reconcile(List *databases);

/* Has the slot no worker, and is none about to start? */
extern bool idem_slot_is_detached(int slotno);

/*
 * The slot's worker has ended: set when it may get a worker again, or free it.  True if a
 * database waits for a slot.  *failing: the database whose own worker cannot start, and
 * whose slot others get; InvalidOid: none.
 */
extern bool idem_slot_worker_gone(int slotno, Oid *failing);

typedef struct IdemSlotStart
{
	Oid			dboid;
	int			relay_id;
	bool		pending;		/* a worker is wanted, but not just now */
} IdemSlotStart;

/*
 * Is a worker of the slot to be started now?  Then it counts as starting.  function: look
 * at slots of function relays only, else of databases' own workers only; unused: the
 * former worker was reaped.
 */
extern bool idem_slot_start(int slotno, bool function, bool unused, IdemClock now,
							IdemSlotStart *start);

/*
 * All max_worker_processes are in use, until they are tried again.  The slot is given back:
 * a function relay waits for its turn in the worker of its database, a database in the
 * launcher, and others are asked to give way to the database.
 */
extern void idem_slot_has_no_process(int slotno, bool function);
extern void idem_slot_has_process(void);

/* Were there fewer processes than slots, when there was none for a slot last? */
extern bool idem_slots_outnumber_processes(void);
extern bool idem_slots_lack_process(void);

/* Is there a launcher? */
extern bool idem_slots_have_launcher(void);
extern void idem_slots_try_processes(void);

/* For a worker, about its own slot */

/*
 * Take the slot.  False if the slot is free, or has a worker already: a launcher that
 * died had asked for one worker, and the next launcher for another.
 */
extern bool idem_slot_attach(int slotno, Oid *dboid, int *relay_id);

/*
 * The process ends: give up the slot and the entries.  event: what the handler has in
 * hand, or NULL; the launcher's delay then grows until an event has passed.
 * keep_functions: the entries of function relays stay, as they do if the slot is wanted.
 */
extern void idem_slot_detach(const char *event, bool keep_functions);

/*
 * The worker has come to its database, and has not failed.  event_passed: the worker of
 * a function relay has committed the outcome of its first event.
 */
extern void idem_slot_went_well(bool event_passed);

/* Has the server crashed, and is this the first call since then? */
extern bool idem_slot_pass_crash(void);

/* The launcher is to start no further worker there. */
extern void idem_slot_resign(void);

/* The worker takes a turn, or is done with one of its relays. */
extern void idem_slot_takes_turn(void);

/* A function relay's worker is about to run handlers of this owner. */
extern void idem_slot_serves(Oid owner);

/* The worker of a database has nothing to do, or has something to do again. */
extern void idem_slot_rests(bool at_rest);

/*
 * What other processes ask of this worker.  They set these and then its latch; it reads
 * them without the lock, and looks again.
 */
typedef struct IdemSlotAsked
{
	bool		end;
	bool		yield;			/* give way: other relays wait */
	bool		in_turn;		/* databases wait for a slot: they take turns */
	bool		woken;			/* something has committed */
	uint32		config;			/* rises when relays of the database change */
	uint32		news;			/* rises when all workers are to look again */
} IdemSlotAsked;

extern IdemSlotAsked idem_slot_asked(void);

/* Not woken any more; returns the time of the first commit since the last call. */
extern TimestampTz idem_slot_take_wakeup(void);

/* Slots for function relays, for the database's own worker */

/*
 * Release the workers of relays that are gone or are no function relays any
 * more. configs: the relays of this database.  Also frees the entries of this database
 * that no process has and whose relays are gone.
 */
extern void idem_slots_release_functions(List *configs);

/* A slot for a function of this database, also if its relay was dropped while its handler runs. */
typedef struct IdemFunctionSlot
{
	int			relay_id;
	Oid			owner;			/* of the handlers that its process runs */
	pid_t		pid;			/* 0: it has none yet */
	bool		hung;			/* it has been in a handler for long */
} IdemFunctionSlot;

extern IdemFunctionSlot *idem_slots_functions(int *n);	/* palloc'd */

/*
 * Give a function relay of this database a slot for a worker; nwaiting relays
 * wait for one.  If none is free, ask other relays to give way.
 */
extern IdemSlotAnswer idem_slots_give_function(int relay_id, Oid owner, int nwaiting);

/*
 * Note that this database waits for no slot: no function relay waits, or none
 * of the n that wait may have a worker.  Then others of this database are asked to
 * give way.
 */
extern void idem_slots_wait_no_more(int n);

/*
 * Keep the workers of a database down until ..._release; ..._terminate asks those that run to end,
 * and returns how many still do.  Holds of several backends add up.  A backend has one hold.  To
 * nest, save ..._current_hold and pass it to ..._release, on error too.
 * ..._release must be called however the command ends.
 */
extern void idem_workers_hold(Oid dboid);
extern int	idem_workers_terminate(Oid dboid);
extern Oid	idem_workers_current_hold(void);
extern void idem_workers_release(Oid former);

/* Of wake.c: wakes the workers of a database at commits that concern them */

/* The hook of enqueue; installed at preload only. */
extern void idem_wake_enqueued(void);

/*
 * The current transaction changed relays: at its commit the database's workers
 * read the configuration again.
 */
extern void idem_relay_config_changed(void);

/*
 * At the commit of the current transaction the launcher looks for databases
 * with relays again.
 */
extern void idem_wake_launcher_at_commit(void);

/*
 * The current transaction is about to commit, has committed, was prepared, has aborted.
 * Not in these calls, but when the invalidation messages of a commit are sent, workers
 * and launcher hear of changed relays.
 */
extern void idem_wake_committing(void);
extern void idem_wake_committed(void);
extern void idem_wake_prepared(void);
extern void idem_wake_aborted(void);

/*
 * Called after COMMIT PREPARED: wake the workers, since this session does not
 * know whether the prepared transaction enqueued or changed relays.
 */
extern void idem_wake_committed_prepared(void);

/* May this transaction's end be that of a prepared one that a subscription applies? */
extern bool idem_wake_applies_prepared(void);

#endif							/* IDEM_RELAY_WORKER_SLOTS_H */
