/*-------------------------------------------------------------------------
 *
 * shmem.c
 *		Shared state of launcher, workers, committing backends and stat_relay.
 *
 * See shmem.h for what is kept and under which lock.  A crash of any process
 * that touched shared memory makes the postmaster build all of it anew; the
 * launcher then fills it from the catalogs.
 *
 * MEMORY: one segment of fixed size, set by idempotency.max_workers and
 * idempotency.max_relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/shmem.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/guc.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "relay/shmem.h"

/* How long DDL waits for a worker to go before it proceeds regardless. */
#define HOLD_WAIT_MS 8000

IdemRelayShmem *idem_relay_shmem = NULL;
IdemWorkerSlot *idem_worker_slots = NULL;
IdemRelayEntry *idem_relay_entries = NULL;
int			idem_relay_max_workers = 16;
int			idem_relay_max_relays = 64;

static shmem_request_hook_type prev_shmem_request_hook = NULL;
static shmem_startup_hook_type prev_shmem_startup_hook = NULL;

static Size
shmem_size(void)
{
	Size		size = MAXALIGN(sizeof(IdemRelayShmem));

	size = add_size(size, mul_size(idem_relay_max_workers, sizeof(IdemWorkerSlot)));
	size = MAXALIGN(size);
	return add_size(size, mul_size(idem_relay_max_relays, sizeof(IdemRelayEntry)));
}

static void
shmem_request(void)
{
	if (prev_shmem_request_hook)
		prev_shmem_request_hook();
	RequestAddinShmemSpace(shmem_size());
	RequestNamedLWLockTranche("idempotency", 1);
}

static void
init_segment(void)
{
	memset(idem_relay_shmem, 0, shmem_size());
	idem_relay_shmem->lock = &(GetNamedLWLockTranche("idempotency"))->lock;
	idem_relay_shmem->launcher_procno = -1;
	pg_atomic_init_u32(&idem_relay_shmem->launcher_wake, 0);
	pg_atomic_init_u32(&idem_relay_shmem->config_prepared, 0);
	idem_relay_shmem->nworkers = idem_relay_max_workers;
	idem_relay_shmem->nrelays = idem_relay_max_relays;
	for (int i = 0; i < idem_relay_max_workers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		slot->procno = -1;
		pg_atomic_init_u32(&slot->wake, 0);
		pg_atomic_init_u32(&slot->config, 0);
		pg_atomic_init_u64(&slot->committed_at, 0);
	}
	for (int i = 0; i < idem_relay_max_relays; i++)
		SpinLockInit(&idem_relay_entries[i].mutex);
}

static void
shmem_startup(void)
{
	bool		found;
	char	   *base;

	if (prev_shmem_startup_hook)
		prev_shmem_startup_hook();

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	base = ShmemInitStruct("idempotency", shmem_size(), &found);
	idem_relay_shmem = (IdemRelayShmem *) base;
	base += MAXALIGN(sizeof(IdemRelayShmem));
	idem_worker_slots = (IdemWorkerSlot *) base;
	base += MAXALIGN(mul_size(idem_relay_max_workers, sizeof(IdemWorkerSlot)));
	idem_relay_entries = (IdemRelayEntry *) base;
	if (!found)
		init_segment();
	LWLockRelease(AddinShmemInitLock);
}

void
idem_shmem_init(void)
{
	DefineCustomIntVariable("idempotency.max_workers",
							"Processes that all relays of the cluster may use.",
							"One per database that has relays, and one more per function relay.",
							&idem_relay_max_workers,
							16, 1, 1024, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	DefineCustomIntVariable("idempotency.max_relays",
							"Relays of the cluster that stat_relay has room for.",
							"Further ones run as well.",
							&idem_relay_max_relays,
							64, 1, 4096, PGC_POSTMASTER, 0, NULL, NULL, NULL);
	prev_shmem_request_hook = shmem_request_hook;
	shmem_request_hook = shmem_request;
	prev_shmem_startup_hook = shmem_startup_hook;
	shmem_startup_hook = shmem_startup;
}

static void
set_latch_of(int procno)
{
	if (procno >= 0)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/*
 * Called in commit callbacks: raises nothing, allocates nothing, reads no
 * catalog.  The slots are looked at without the lock: a slot that changes
 * hands at this moment gets at worst a wake-up too many, and a worker that
 * attaches at this moment drains the log first in any case.
 */
void
idem_wake_database(Oid dboid, bool config_changed)
{
	if (idem_relay_shmem == NULL)
		return;
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (((volatile IdemWorkerSlot *) slot)->dboid != dboid)
			continue;
		if (config_changed)
			pg_atomic_fetch_add_u32(&slot->config, 1);
		if (pg_atomic_exchange_u32(&slot->wake, 1) == 0)
		{
			pg_atomic_write_u64(&slot->committed_at,
								(uint64) GetCurrentTimestamp());
			set_latch_of(((volatile IdemWorkerSlot *) slot)->procno);
		}
		else if (config_changed)
			set_latch_of(((volatile IdemWorkerSlot *) slot)->procno);
	}
}

void
idem_config_prepared(void)
{
	if (idem_relay_shmem != NULL)
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

IdemWorkerSlot *
idem_worker_slot_find(Oid dboid, int relay_id)
{
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid == dboid && slot->relay_id == relay_id)
			return slot;
	}
	return NULL;
}

IdemWorkerSlot *
idem_worker_slot_occupy(Oid dboid, int relay_id)
{
	IdemWorkerSlot *slot = idem_worker_slot_find(InvalidOid, 0);

	if (slot == NULL)
		return NULL;
	slot->dboid = dboid;
	slot->relay_id = relay_id;
	slot->generation++;
	slot->pid = 0;
	slot->procno = -1;
	slot->wanted = true;
	slot->starting = false;
	slot->no_slot = false;
	slot->held_by = 0;
	slot->failures = 0;
	slot->not_before = 0;
	pg_atomic_write_u32(&slot->wake, 1);
	return slot;
}

void
idem_worker_slot_free(IdemWorkerSlot *slot)
{
	slot->dboid = InvalidOid;
	slot->relay_id = 0;
	slot->wanted = false;
	slot->generation++;
}

IdemRelayEntry *
idem_relay_entry_take(Oid dboid, int relay_id)
{
	IdemRelayEntry *free_entry = NULL;
	IdemRelayEntry *entry = NULL;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nrelays && entry == NULL; i++)
	{
		IdemRelayEntry *this = &idem_relay_entries[i];

		if (this->dboid == dboid && this->relay_id == relay_id)
			entry = this;
		else if (this->dboid == InvalidOid && free_entry == NULL)
			free_entry = this;
	}
	if (entry == NULL && free_entry != NULL)
	{
		entry = free_entry;
		entry->dboid = dboid;
		entry->relay_id = relay_id;
		entry->sent = entry->retried = 0;
		entry->rate = entry->rate_sum = 0;
		entry->rate_at = 0;
		entry->logged = IDEM_RELAY_STREAMING;
		entry->last_error_at = 0;
		entry->last_error[0] = '\0';
	}
	if (entry != NULL)
	{
		SpinLockAcquire(&entry->mutex);
		entry->state = IDEM_RELAY_STARTING;
		entry->waiting = IDEM_WAIT_NOTHING;
		entry->pid = MyProcPid;
		entry->sink_pid = 0;
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(idem_relay_shmem->lock);
	return entry;
}

void
idem_relay_entry_release(IdemRelayEntry *entry)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	if (entry->pid == MyProcPid)
	{
		entry->dboid = InvalidOid;
		entry->relay_id = 0;
		entry->pid = 0;
	}
	LWLockRelease(idem_relay_shmem->lock);
}

/* Marks the slots of a database as held; returns how many still run. */
static int
hold_and_terminate(Oid dboid)
{
	int			running = 0;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid != dboid)
			continue;
		slot->held_by = MyProcPid;
		if (slot->pid != 0 || slot->starting)
			running++;
		if (slot->pid != 0)
			(void) kill(slot->pid, SIGTERM);
	}
	LWLockRelease(idem_relay_shmem->lock);
	return running;
}

void
idem_workers_hold(Oid dboid)
{
	if (idem_relay_shmem == NULL)
		return;

	/*
	 * A worker ends within milliseconds of SIGTERM unless a handler of a
	 * function relay does not reach an interrupt check; the wait is bounded
	 * so that the command then fails as it would beside any such session.
	 */
	for (int waited = 0; waited < HOLD_WAIT_MS; waited += 10)
	{
		if (hold_and_terminate(dboid) == 0)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10L, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
idem_workers_release(void)
{
	if (idem_relay_shmem == NULL)
		return;
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->held_by == MyProcPid)
			slot->held_by = 0;
	}
	LWLockRelease(idem_relay_shmem->lock);
	idem_wake_launcher();
}
