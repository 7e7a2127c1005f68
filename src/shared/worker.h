/*-------------------------------------------------------------------------
 *
 * worker.h
 *		What background workers have in common.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_WORKER_H
#define IDEM_SHARED_WORKER_H

#include "postgres.h"

#include "miscadmin.h"
#include "postmaster/bgworker.h"
#include "storage/procsignal.h"

/*
 * What such a worker does.  The value is the fourth field of the advisory lock that the
 * worker holds, which pg_locks shows as objsubid.  SQL functions use 1 and 2, private
 * locks of claims 0x4944 (claim/lock.c).
 */
typedef enum IdemSingleton
{
	IDEM_SINGLETON_LOGS = 0x494c,	/* shortens the keyed logs */
	IDEM_SINGLETON_PACKER = 0x4950	/* packs the dedup store */
} IdemSingleton;

/* Is the worker of this database at work?  Not on a standby. */
extern bool idem_singleton_is_at_work(IdemSingleton kind);

/* Is such a worker to be started?  Not while relays lack processes and a worker of the cluster has the turn. */
extern bool idem_singleton_is_needed(IdemSingleton kind);

/* Be that worker, as long as this process lives; false if another process is. */
extern bool idem_singleton_become(IdemSingleton kind);

/*
 * While relays lack processes, one worker of these kinds has the turn, of all databases.  Does this
 * process lack it?  Then it ends at once, whatever it does.
 */
extern bool idem_singleton_lacks_turn(void);

/* The same, or has it had the turn for long enough?  Then it ends after its step. */
extern bool idem_singleton_turn_is_over(void);

/* Says whether relays lack processes; NULL: nobody knows. */
extern bool (*idem_singleton_relays_lack_processes) (void);

/*
 * Fill in what registering a background worker of this library takes: it starts when
 * the server accepts writes, and is not started again when it ends.
 */
extern void idem_singleton_describe(BackgroundWorker *worker, const char *function, const char *type);

/*
 * Override settings that users may have set for the database: they must not
 * bind a worker.  Call it once, after the worker has connected.
 */
extern void idem_forced_settings(void);

/* The same for a worker that maintains tables, and runs nobody's code. */
extern void idem_forced_maintenance(void);

/* Did the server end otherwise than by a clean shutdown?  For shared memory, as it is set up. */
extern bool idem_starts_after_crash(void);

/*
 * CHECK_FOR_INTERRUPTS of a worker's loop.  A cancel or a timeout that is raised there, or in
 * code that the worker calls, leaves a barrier of another process pending without another
 * interrupt: DROP DATABASE would wait for this worker until one came.
 */
static inline void
idem_check_interrupts(void)
{
	if (ProcSignalBarrierPending)
		InterruptPending = true;
	CHECK_FOR_INTERRUPTS();
}

/* Sleep for so long, unless the latch is set, and serve interrupts: any process may. */
extern void idem_pause(long ms);

/*
 * Begin a transaction, with an active snapshot.  Its end switches back to the
 * memory context that is current now.
 */
extern void idem_txn_begin(void);

/*
 * Commit the transaction.  Workers run with synchronous_commit = local, so no
 * standby is waited for.  "synchronous" makes the commit wait for the disk
 * whatever the setting is.
 */
extern void idem_txn_commit(bool synchronous);

#endif							/* IDEM_SHARED_WORKER_H */
