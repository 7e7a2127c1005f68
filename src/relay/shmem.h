/*-------------------------------------------------------------------------
 *
 * shmem.h
 *		Shared state of launcher, workers, committing backends and stat_relay.
 *
 * Liveness only: after a crash everything here is rebuilt from tables or starts
 * empty, and no verdict depends on it.  It holds process numbers, and no
 * pointer into the memory of a process.
 *
 * LOCKING: IdemRelayShmem->lock guards the array of workers and the holds.  "wake" and
 * "config" of a slot, and the array of changers, are atomics that a committing backend
 * touches without the lock.  The witness's reason has a spinlock of its own.  Order: the
 * lock, then the locks of report.c.  No other lock is taken while either is held.
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
#include "storage/spin.h"

#include "relay/report.h"
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
} IdemRelayShmem;

/*
 * NULL unless the library was preloaded.  The arrays follow the header in the
 * segment.  Each process has addresses of its own for them.
 */
extern IdemRelayShmem *idem_relay_shmem;
extern IdemWorkerSlot *idem_worker_slots;

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

#endif							/* IDEM_RELAY_SHMEM_H */
