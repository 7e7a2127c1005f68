/*-------------------------------------------------------------------------
 *
 * shmem.h
 *		Shared state of launcher, workers, committing backends and stat_relay.
 *
 * Liveness only: after a crash everything here is rebuilt from tables or starts
 * from nothing, and no verdict depends on it.  It holds process numbers, and no
 * pointer into the memory of a process.
 *
 * LOCKING: IdemRelayShmem->lock guards the worker array, the holds, and who owns
 * a relay entry.  "wake" and "config" of a slot, and the array of changers, are atomics
 * that a committing backend may touch without it.  An entry's figures are guarded by its spinlock, the witness's
 * reason by its own.  Order: the
 * lock, then a spinlock; nothing else is taken below either.
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

/* What one worker process serves: a database's programs, or one function. */
typedef struct IdemWorkerSlot
{
	Oid			dboid;			/* InvalidOid: free */
	int			relay_id;		/* 0: all program relays of the database */
	uint32		generation;		/* rises with each occupation */
	pid_t		pid;			/* 0: no process */
	int			procno;			/* of the process, for its latch; -1: none */
	bool		wanted;			/* the launcher shall keep it running */
	bool		starting;		/* registered, not yet attached */
	int			failures;		/* in a row, for the launcher's backoff */
	IdemClock	not_before;		/* do not start before */
	bool		passed_crash;	/* its worker has passed what was in flight */
	bool		ended_in_handler;	/* its last worker did; no event has
									 * committed since */
	bool		yield;			/* other relays wait for a worker */
	IdemClock	yield_at;		/* when it was asked */
	bool		started;		/* has had a process since it was occupied */
	IdemClock	since;			/* when the slot was occupied */
	int			entry;			/* a function relay's, its number; -1: none */
	bool		waits;			/* a database's own: a function relay waits */
	IdemClock	served_at;		/* and when one was given a slot last */
	pg_atomic_uint32 wake;		/* commits since the worker last looked */
	pg_atomic_uint32 config;	/* rises when relays of the database change */
	pg_atomic_uint64 committed_at;	/* stamp of the first of those commits */
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
	IDEM_WAIT_SINK,				/* results or credit outstanding */
	IDEM_WAIT_FUNCTION,			/* the handler has an event */
	IDEM_WAIT_BACKOFF,
	IDEM_WAIT_LOCK,				/* somebody's transaction has rows of it */
	IDEM_WAIT_PROGRAM_END,		/* the former program was killed, and lives */
	IDEM_WAIT_RETRY,			/* a parked event is to be tried again later */
	IDEM_WAIT_SYNC_STANDBY,
	IDEM_WAIT_OPERATOR,
	IDEM_WAIT_PARKED_ROOM,		/* too many parked events */
	IDEM_WAIT_WITNESS,			/* a yes of idempotency.publish_witness */
	IDEM_WAIT_PROGRAM,			/* its turn to start a program */
	IDEM_WAIT_WORKER,			/* one of the workers of function relays */
	IDEM_WAIT_SLOT,				/* idempotency.max_workers are in use */
	IDEM_WAIT_PROCESS			/* max_worker_processes are in use */
} IdemRelayWait;

/*
 * What is to be known of a function relay when its next worker takes it up.  The
 * relay's worker writes it, the database's worker while there is none, and whoever
 * frees the relay's slot: that knows of workers that ended.
 */
typedef struct IdemFunctionKept
{
	int			failures;		/* of its transactions, in a row */
	IdemClock	not_before;		/* the next try */
	int			single;			/* so many batches of one event to come */
	bool		has_suspect;
	pg_uuid_t	suspect;		/* alone made a commit fail; to be parked */
	char		sqlstate[6];	/* with that; the message is the last error */
	bool		passed_crash;	/* it has passed what the crash left */
	int			ends;			/* of its workers, in a row, unasked; */
	bool		ended_in_handler;	/* the last one, with no event committed
									 * since */
	bool		unserved;		/* its slot was taken back before a process
								 * had it */
} IdemFunctionKept;

/* What stat_relay shows of one relay. */
typedef struct IdemRelayEntry
{
	Oid			dboid;			/* InvalidOid: free */
	int			relay_id;
	bool		function;		/* outlives its worker, and the database's */
	slock_t		mutex;			/* guards what follows */
	IdemRelayState state;
	IdemRelayWait waiting;
	pid_t		pid;
	pid_t		sink_pid;
	int64		sent;
	int64		retried;
	double		rate;			/* events per second, smoothed */
	double		rate_sum;		/* events not in it yet, */
	TimestampTz rate_at;		/* since then */
	IdemRelayState logged;		/* the worker's own: what the log says */
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
	pg_atomic_uint32 config_prepared;	/* prepared transactions that changed
										 * relays, about */
	pg_atomic_uint32 config_prepares;	/* rises with each of them */
	pg_atomic_uint32 news;		/* rises when all workers shall look again */
	bool		after_crash;	/* the server did not end cleanly before */
	int			databases_waiting;	/* have relays and no slot */
	bool		no_process;		/* max_worker_processes were used up at the
								 * launcher's last try */
	pg_atomic_uint64 witness_until; /* witness.c: its yes is valid before */
	slock_t		witness_mutex;	/* guards the next */
	char		witness_reason[IDEM_ERROR_LEN]; /* why there is none */
	int			nworkers;
	int			nrelays;
} IdemRelayShmem;

/*
 * NULL unless the library was preloaded.  The arrays follow the header in
 * the segment; their addresses are each process's own.
 */
extern IdemRelayShmem *idem_relay_shmem;
extern IdemWorkerSlot *idem_worker_slots;
extern IdemRelayEntry *idem_relay_entries;

/* By process number: the database whose workers its command keeps down. */
extern Oid *idem_worker_holds;

/*
 * By process number: the transaction that has changed relays and is about to commit,
 * until "config" has risen; 0: none.
 */
extern pg_atomic_uint64 *idem_config_changers;

extern int	idem_relay_max_workers;
extern int	idem_relay_max_relays;

extern void idem_shmem_init(void);

/*
 * Wake the workers of a database, to look at the log, or to read the
 * configuration again as well; safe in a commit callback.
 */
extern void idem_wake_database(Oid dboid);
extern void idem_wake_database_config(Oid dboid);

/*
 * The current transaction, which has changed relays, is about to commit; the other
 * says that this has come to its end.  Safe in commit callbacks.
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

/* Wake the worker of a slot, to look at it. */
extern void idem_wake_slot(IdemWorkerSlot *slot);

/*
 * Wake all workers, to look again at what they may do.  "news" rises before the
 * latches are set, which a wait for a lock resets.
 */
extern void idem_wake_workers(void);

/* Wake the launcher, to look for databases again; safe in a commit callback. */
extern void idem_wake_launcher(void);

/* Take (or find again) the entry of a relay; NULL if all are taken. */
extern IdemRelayEntry *idem_relay_entry_take(Oid dboid, int relay_id);
extern IdemRelayEntry *idem_relay_entry_take_function(Oid dboid, int relay_id);
extern void idem_relay_entry_release(IdemRelayEntry *entry);

/* The same for one that may be another worker's by now: only if it is nobody's. */
extern void idem_relay_entry_forget(Oid dboid, int relay_id);

/*
 * Under the lock: what processes that have ended left of a database that has no
 * relay any more, or is gone.
 */
extern void idem_relay_entries_forget(Oid dboid);

/*
 * May this database, which has n relays, have another?  Error 53400 if the cluster
 * has as many as idempotency.max_relays says.
 */
extern void idem_relay_entries_check(int64 n);

#endif							/* IDEM_RELAY_SHMEM_H */
