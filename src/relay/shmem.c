/*-------------------------------------------------------------------------
 *
 * shmem.c
 *		Shared state of launcher, workers, committing backends and stat_relay.
 *
 * shmem.h says what is kept and under which lock.  If a process crashes that
 * touched shared memory, the postmaster builds all of it anew, and the launcher
 * fills it from the catalogs.
 *
 * MEMORY: one segment of fixed size, set by idempotency.max_workers and the number of
 * backends.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/shmem.h"

IdemRelayShmem *idem_relay_shmem = NULL;
IdemWorkerSlot *idem_worker_slots = NULL;
Oid		   *idem_worker_holds = NULL;
pg_atomic_uint64 *idem_config_changers = NULL;
int			idem_relay_max_workers = 16;

Size
idem_relay_shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(IdemRelayShmem));

	size = add_size(size, mul_size(idem_relay_max_workers, sizeof(IdemWorkerSlot)));
	size = MAXALIGN(size);
	size = add_size(size, mul_size(MaxBackends, sizeof(Oid)));
	size = MAXALIGN(size);
	return add_size(size, mul_size(MaxBackends, sizeof(pg_atomic_uint64)));
}

/*
 * Does this start count as one after a crash?  Yes after an end other than a
 * clean shutdown.  Yes in a standby, which may be promoted because the primary
 * did not survive an event.  Yes in a recovery to an earlier time: the targets
 * may be ahead of that time.  Asked before recovery begins, also when the
 * postmaster starts over after a crash.
 */
static bool
is_after_crash(void)
{
	ControlFileData *control;
	bool		crc_ok;

	control = get_controlfile(DataDir, &crc_ok);
	return !crc_ok || control->state != DB_SHUTDOWNED ||
		access(STANDBY_SIGNAL_FILE, F_OK) == 0 || access(RECOVERY_SIGNAL_FILE, F_OK) == 0;
}

/*
 * Initialise the segment, under AddinShmemInitLock, in the one process that
 * did not find it.
 */
static void
init_segment(void)
{
	memset(idem_relay_shmem, 0, idem_relay_shmem_size());
	idem_relay_shmem->lock = &GetNamedLWLockTranche("idempotency")[IDEM_LOCK_SLOTS].lock;
	idem_relay_shmem->launcher_procno = -1;
	pg_atomic_init_u32(&idem_relay_shmem->launcher_wake, 0);
	pg_atomic_init_u32(&idem_relay_shmem->config_prepared, 0);
	pg_atomic_init_u32(&idem_relay_shmem->config_prepares, 0);
	pg_atomic_init_u32(&idem_relay_shmem->news, 0);
	pg_atomic_init_u64(&idem_relay_shmem->witness_until, 0);
	SpinLockInit(&idem_relay_shmem->witness_mutex);
	idem_relay_shmem->after_crash = is_after_crash();
	idem_relay_shmem->nworkers = idem_relay_max_workers;
	for (int i = 0; i < idem_relay_max_workers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		slot->procno = -1;
		pg_atomic_init_u32(&slot->wake, 0);
		pg_atomic_init_u32(&slot->config, 0);
		pg_atomic_init_u64(&slot->committed_at, 0);
	}
	for (int i = 0; i < MaxBackends; i++)
		pg_atomic_init_u64(&idem_config_changers[i], 0);
}

void
idem_relay_shmem_attach(void *segment, bool found)
{
	char	   *base = segment;

	idem_relay_shmem = (IdemRelayShmem *) base;
	base += MAXALIGN(sizeof(IdemRelayShmem));
	idem_worker_slots = (IdemWorkerSlot *) base;
	base += MAXALIGN(mul_size(idem_relay_max_workers, sizeof(IdemWorkerSlot)));
	idem_worker_holds = (Oid *) base;
	base += MAXALIGN(mul_size(MaxBackends, sizeof(Oid)));
	idem_config_changers = (pg_atomic_uint64 *) base;
	if (!found)
		init_segment();
}

void
idem_shmem_init(void)
{
	DefineCustomIntVariable("idempotency.max_workers",
							"Processes that all relays of the cluster may use.",
							"One per database that has relays, and one more per function relay with something to do.",
							&idem_relay_max_workers,
							16, 1, 1024, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_relays",
							"Relays that the databases of the cluster may have together.",
							NULL,
							&idem_relay_max_relays,
							1024, 1, 4096, PGC_POSTMASTER, 0, NULL, NULL, NULL);
}

/*
 * Set the latch of a process.  A stale number wakes another process for
 * nothing.
 */
static void
set_latch_of(int procno)
{
	if (procno >= 0)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/*
 * Wake all workers of a database.  Called in commit callbacks: raises nothing,
 * allocates nothing, reads no catalog.  The slots are read without the lock.
 * A slot that changes hands at this moment gets at worst a wake-up too many,
 * and a worker that attaches at this moment reads the outbox first in any
 * case.
 */
static void
wake_database(Oid dboid, bool config_changed)
{
	TimestampTz now;

	if (idem_relay_shmem == NULL)
		return;

	/*
	 * Take the time before the exchange: after the exchange other backends
	 * rely on the stored time.
	 */
	now = GetCurrentTimestamp();
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (((volatile IdemWorkerSlot *) slot)->dboid != dboid)
			continue;
		if (config_changed)
			pg_atomic_fetch_add_u32(&slot->config, 1);
		if (pg_atomic_exchange_u32(&slot->wake, 1) == 0)
		{
			pg_atomic_write_u64(&slot->committed_at, (uint64) now);
			set_latch_of(((volatile IdemWorkerSlot *) slot)->procno);
		}
		else if (config_changed)
			set_latch_of(((volatile IdemWorkerSlot *) slot)->procno);
	}
}

void
idem_wake_database(Oid dboid)
{
	wake_database(dboid, false);
}

void
idem_wake_database_config(Oid dboid)
{
	wake_database(dboid, true);
}

void
idem_wake_slot(IdemWorkerSlot *slot)
{
	set_latch_of(slot->procno);
}

void
idem_wake_workers(void)
{
	pg_atomic_fetch_add_u32(&idem_relay_shmem->news, 1);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
		set_latch_of(((volatile IdemWorkerSlot *) &idem_worker_slots[i])->procno);
}

void
idem_config_committing(FullTransactionId xid)
{
	if (idem_relay_shmem != NULL && FullTransactionIdIsValid(xid))
		pg_atomic_write_u64(&idem_config_changers[IDEM_MY_PROCNO], U64FromFullTransactionId(xid));
}

/*
 * Remove the entry after the counter has risen: a reader that finds no entry
 * looks at the counter next.
 */
void
idem_config_committed(void)
{
	if (idem_relay_shmem == NULL)
		return;
	pg_memory_barrier();
	pg_atomic_write_u64(&idem_config_changers[IDEM_MY_PROCNO], 0);
}

void
idem_config_prepared(void)
{
	if (idem_relay_shmem == NULL)
		return;
	pg_atomic_fetch_add_u32(&idem_relay_shmem->config_prepares, 1);
	pg_atomic_fetch_add_u32(&idem_relay_shmem->config_prepared, 1);
}

bool
idem_config_was_prepared(void)
{
	uint32		n;

	if (idem_relay_shmem == NULL)
		return false;
	n = pg_atomic_read_u32(&idem_relay_shmem->config_prepared);
	while (n > 0)
	{
		if (pg_atomic_compare_exchange_u32(&idem_relay_shmem->config_prepared, &n, n - 1))
			return true;
	}
	return false;
}

void
idem_wake_launcher(void)
{
	if (idem_relay_shmem == NULL)
		return;
	pg_atomic_write_u32(&idem_relay_shmem->launcher_wake, 1);
	set_latch_of(((volatile IdemRelayShmem *) idem_relay_shmem)->launcher_procno);
}
