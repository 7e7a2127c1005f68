/*-------------------------------------------------------------------------
 *
 * shmem.h
 *		Shared state of launcher, workers, committing backends and stat_relay.
 *
 * Liveness only: after a crash everything here is rebuilt from tables or starts
 * empty, and no verdict depends on it.  It holds process numbers, and no
 * pointer into the memory of a process.
 *
 * LOCKING: IdemRelayShmem->lock guards the array of workers, the holds, and the
 * ownership of relay entries.  "wake" and "config" of a slot, and the array of
 * changers, are atomics that a committing backend touches without the lock.  An
 * entry's figures are guarded by the entry's spinlock, the witness's reason by
 * a spinlock of its own.  Order: the lock, then a spinlock.  No other lock is
 * taken while either is held.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/shmem.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_SHMEM_H
#define IDEM_RELAY_SHMEM_H

#include "postgres.h"

#include "access/transam.h"
#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/s_lock.h"
#include "storage/spin.h"
#include "utils/uuid.h"

#include "shared/clock.h"

#define IDEM_ERROR_LEN 256

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

typedef enum IdemRelayState
{
	IDEM_RELAY_STARTING,
	IDEM_RELAY_STREAMING,
	IDEM_RELAY_IDLE,			/* nothing to send, and no process for it */
	IDEM_RELAY_OUTAGE,			/* breaker open */
	IDEM_RELAY_PAUSED,
	IDEM_RELAY_HALTED,			/* on_dead = stop, or max_lag_size */
	IDEM_RELAY_UNADOPTED,
	IDEM_RELAY_DIVERGED,
	IDEM_RELAY_FENCED,
	IDEM_RELAY_MISCONFIGURED,	/* server, mapping, function or privilege */
	IDEM_RELAY_UNWITNESSED		/* idempotency.publish_witness does not allow
								 * it */
} IdemRelayState;

typedef enum IdemRelayWait
{
	IDEM_WAIT_NOTHING,
	IDEM_WAIT_EVENTS,
	IDEM_WAIT_SINK,				/* for results or credit */
	IDEM_WAIT_FUNCTION,			/* the handler is at work on an event */
	IDEM_WAIT_BACKOFF,
	IDEM_WAIT_LOCK,				/* a transaction has locked the relay's rows */
	IDEM_WAIT_PROGRAM_END,		/* the former program was killed and is not
								 * reaped */
	IDEM_WAIT_RETRY,			/* a parked event is to be tried again later */
	IDEM_WAIT_SYNC_STANDBY,
	IDEM_WAIT_OPERATOR,
	IDEM_WAIT_PARKED_ROOM,		/* too many parked events */
	IDEM_WAIT_WITNESS,			/* for a yes of idempotency.publish_witness */
	IDEM_WAIT_PROGRAM,			/* for its turn to start a program */
	IDEM_WAIT_WORKER,			/* for one of the database's function workers */
	IDEM_WAIT_SLOT,				/* all idempotency.max_workers slots are in
								 * use */
	IDEM_WAIT_PROCESS			/* all max_worker_processes are in use */
} IdemRelayWait;

/* What a relay's last failures mean for its next tries. */
typedef struct IdemBreaker
{
	int			failures;		/* failures in a row */
	IdemClock	not_before;		/* end of the backoff; 0: none */
	int			stepwise;		/* batches still to be tried one at a time:
								 * one of them may have raised the last error */
} IdemBreaker;

/* An event that alone made a commit fail, and that is to be parked untried. */
typedef struct IdemSuspect
{
	bool		is_set;
	pg_uuid_t	event_id;
	char		sqlstate[6];	/* of that failure */
} IdemSuspect;

/*
 * What the next worker of a function relay needs to know.  The relay's worker
 * writes it.  While the relay has no worker, the database's worker writes it.
 * The process that frees the relay's slot adds how the relay's workers ended.
 */
typedef struct IdemFunctionKept
{
	IdemBreaker breaker;
	IdemSuspect suspect;		/* the message of its failure is last_error */
	bool		passed_crash;	/* it has passed the events in flight at the
								 * crash */
	int			ends;			/* ends of its workers in a row that nobody
								 * asked for */
	bool		ended_in_handler;	/* its last worker ended in a handler, and
									 * no event has committed since */
	bool		unserved;		/* its slot was freed before a process had it */
} IdemFunctionKept;

/* A relay's entry, which stat_relay shows. */
typedef struct IdemRelayEntry
{
	Oid			dboid;			/* InvalidOid: free */
	int			relay_id;
	bool		function;		/* a function relay: the entry outlives the
								 * relay's worker and the database's */
	slock_t		mutex;			/* guards the fields below */
	IdemRelayState state;
	IdemRelayWait waiting;
	pid_t		pid;
	pid_t		sink_pid;
	int64		sent;
	int64		retried;
	double		rate;			/* events per second, smoothed */
	double		rate_sum;		/* events that "rate" does not include yet */
	TimestampTz rate_at;		/* the time up to which "rate" is computed */
	IdemRelayState logged;		/* last state in the server log; for the
								 * worker only */
	IdemFunctionKept kept;
	TimestampTz last_error_at;
	char		last_error[IDEM_ERROR_LEN];
} IdemRelayEntry;

typedef struct IdemRelayShmem
{
	LWLock	   *lock;
	pid_t		launcher_pid;
	int			launcher_procno;
	pg_atomic_uint32 launcher_wake;
	pg_atomic_uint32 config_prepared;	/* about the number of prepared
										 * transactions that changed relays */
	pg_atomic_uint32 config_prepares;	/* rises with each such PREPARE */
	pg_atomic_uint32 news;		/* rises when all workers are to look again */
	bool		after_crash;	/* see is_after_crash in shmem.c */
	int			databases_waiting;	/* databases with relays and without a
									 * slot */
	bool		no_process;		/* max_worker_processes were used up at the
								 * launcher's last try */
	pg_atomic_uint64 witness_until; /* the witness's yes is valid until then */
	slock_t		witness_mutex;	/* guards witness_reason */
	char		witness_reason[IDEM_ERROR_LEN]; /* why no yes is valid */
	int			nworkers;
	int			nrelays;
} IdemRelayShmem;

/*
 * NULL unless the library was preloaded.  The arrays follow the header in the
 * segment.  Each process has addresses of its own for them.
 */
extern IdemRelayShmem *idem_relay_shmem;
extern IdemWorkerSlot *idem_worker_slots;
extern IdemRelayEntry *idem_relay_entries;

/*
 * By process number: the database whose workers the process's command holds
 * down.
 */
extern Oid *idem_worker_holds;

/*
 * By process number: the xid of a transaction that changed relays and is about
 * to commit.  The entry stays until "config" has risen; 0: none.
 */
extern pg_atomic_uint64 *idem_config_changers;

extern int	idem_relay_max_workers;
extern int	idem_relay_max_relays;

/* Define the settings that size the memory; at preload only. */
extern void idem_shmem_init(void);

/*
 * The memory: its size, and its place in this process.  Called under
 * AddinShmemInitLock; found: another process has initialised it.
 */
extern Size idem_relay_shmem_size(void);
extern void idem_relay_shmem_attach(void *segment, bool found);

/*
 * Wake the workers of a database to look at the outbox.  ..._config: also to
 * read the configuration again.  Safe in a commit callback.
 */
extern void idem_wake_database(Oid dboid);
extern void idem_wake_database_config(Oid dboid);

/*
 * idem_config_committing: the current transaction, which changed relays, is
 * about to commit. idem_config_committed: the transaction has ended.  Safe in
 * commit callbacks.
 */
extern void idem_config_committing(FullTransactionId xid);
extern void idem_config_committed(void);

/*
 * idem_config_prepared notes that a transaction which changes relays was
 * prepared; it is safe in a commit callback.  idem_config_was_prepared consumes
 * one note.  COMMIT PREPARED cannot identify its transaction, so the answer is
 * approximate; workers read the configuration now and then by themselves.
 */
extern void idem_config_prepared(void);
extern bool idem_config_was_prepared(void);

/* Wake the worker of a slot, to look at its slot. */
extern void idem_wake_slot(IdemWorkerSlot *slot);

/*
 * Wake all workers, to look again at what they may do.  "news" rises before
 * the latches are set, because a wait for a lock resets a latch.
 */
extern void idem_wake_workers(void);

/* Wake the launcher, to look for databases again; safe in a commit callback. */
extern void idem_wake_launcher(void);

/*
 * Take the entry of a relay for this process; the entry may exist already.
 * NULL if all entries are taken.  ..._function marks the entry as a function
 * relay's.  ..._release frees an entry of this process.
 */
extern IdemRelayEntry *idem_relay_entry_take(Oid dboid, int relay_id);
extern IdemRelayEntry *idem_relay_entry_take_function(Oid dboid, int relay_id);
extern void idem_relay_entry_release(IdemRelayEntry *entry);

/* Free the entry of a relay, unless another process has it. */
extern void idem_relay_entry_forget(Oid dboid, int relay_id);

/*
 * Under the lock: free the entries without a process of a database that has no
 * relay any more, or that is gone.
 */
extern void idem_relay_entries_forget(Oid dboid);

/*
 * May this database, which has n relays, have another?  Error 53400 if all
 * databases together have as many relays as idempotency.max_relays allows.
 */
extern void idem_relay_entries_check(int64 n);

#endif							/* IDEM_RELAY_SHMEM_H */
