/*-------------------------------------------------------------------------
 *
 * shmem.h
 *		Shared state of launcher, workers, committing backends and stat_relay.
 *
 * Liveness only: everything here is rebuilt from tables after a crash, and no
 * verdict depends on it.  It holds process numbers, never pointers.
 *
 * LOCKING: IdemRelayShmem->lock guards the worker array, the holds, and who owns
 * a relay entry.  "wake" and "config" are atomics that a committing backend may touch
 * without it.  An entry's figures are guarded by its spinlock, the witness's
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

#include "datatype/timestamp.h"
#include "port/atomics.h"
#include "storage/lwlock.h"
#include "storage/s_lock.h"
#include "storage/spin.h"

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
	bool		no_slot;		/* no background worker slot was free */
	int			failures;		/* in a row, for the launcher's backoff */
	IdemClock	not_before;		/* do not start before */
	bool		passed_crash;	/* its worker has passed what was in flight */
	bool		ended_in_handler;	/* its last worker did; no event has
									 * committed since */
	pg_atomic_uint32 wake;		/* commits since the worker last looked */
	pg_atomic_uint32 config;	/* rises when relays of the database change */
	pg_atomic_uint64 committed_at;	/* stamp of the first of those commits */
} IdemWorkerSlot;

typedef enum IdemRelayState
{
	IDEM_RELAY_STARTING,
	IDEM_RELAY_STREAMING,
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
	IDEM_WAIT_WITNESS			/* a yes of idempotency.publish_witness */
} IdemRelayWait;

/* What stat_relay shows of one relay. */
typedef struct IdemRelayEntry
{
	Oid			dboid;			/* InvalidOid: free */
	int			relay_id;
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
	bool		after_crash;	/* the server did not end cleanly before */
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

extern int	idem_relay_max_workers;
extern int	idem_relay_max_relays;

extern void idem_shmem_init(void);

/* Wake the workers of a database; safe in a commit callback. */
extern void idem_wake_database(Oid dboid, bool config_changed);

/*
 * A transaction that changes relays was prepared; safe in a commit callback.
 * The other says, and forgets, that one was.  Which one is committed nobody
 * knows, so this may be wrong; workers look by themselves now and then.
 */
extern void idem_config_prepared(void);
extern bool idem_config_was_prepared(void);

/* Wake all workers, to look again at what they may do. */
extern void idem_wake_workers(void);

/* Wake the launcher, to look for databases again; safe in a commit callback. */
extern void idem_wake_launcher(void);

/* Take (or find again) the entry of a relay; NULL if all are taken. */
extern IdemRelayEntry *idem_relay_entry_take(Oid dboid, int relay_id);
extern void idem_relay_entry_release(IdemRelayEntry *entry);

/* Under the lock: give up what a process that has ended left of a relay's entry. */
extern void idem_relay_entry_forget(Oid dboid, int relay_id);

#endif							/* IDEM_RELAY_SHMEM_H */
