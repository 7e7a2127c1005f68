/*-------------------------------------------------------------------------
 *
 * slots.c
 *		Which workers run: slots, requests for them, and commands that hold them.
 *
 * A worker is a session of its database, and serving interrupts does not make it
 * leave.  A command that needs a database empty therefore holds its workers down
 * while it runs.  Holds are noted per backend and by database, so that several
 * commands do not release each other's, and slots that come meanwhile are held
 * as well.
 *
 * What a crash leaves: nothing, shared memory is built anew.  A backend that ends
 * by an error or FATAL releases its hold on the way.
 *
 * LOCKING: the lock of shmem.h, never across a wait.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/slots.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "relay/config.h"
#include "relay/report.h"
#include "relay/slots.h"

/* How long DDL waits for a worker to go before it proceeds regardless. */
#define HOLD_WAIT_MS 8000

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
	slot->failures = 0;
	slot->not_before = 0;
	slot->passed_crash = false;
	slot->ended_in_handler = false;
	pg_atomic_write_u32(&slot->wake, 1);
	return slot;
}

void
idem_worker_slot_free(IdemWorkerSlot *slot)
{
	if (OidIsValid(slot->dboid) && slot->relay_id != 0)
		idem_relay_entry_forget(slot->dboid, slot->relay_id);
	slot->dboid = InvalidOid;
	slot->relay_id = 0;
	slot->wanted = false;
	slot->generation++;
}

/* Under the lock. */
void
idem_slots_ended_in_handler(IdemWorkerSlot *slot, const char *event)
{
	char		message[IDEM_ERROR_LEN];

	slot->ended_in_handler = true;
	snprintf(message, sizeof(message),
			 "the worker was ended while the handler had event %s", event);
	for (int i = 0; i < idem_relay_shmem->nrelays; i++)
	{
		if (idem_relay_entries[i].pid == MyProcPid)
			idem_report_ended(&idem_relay_entries[i], message);
	}
}

void
idem_slots_function_worked(int relay_id)
{
	IdemWorkerSlot *slot;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	slot = idem_worker_slot_find(MyDatabaseId, relay_id);
	if (slot != NULL && slot->ended_in_handler)
	{
		slot->ended_in_handler = false;
		slot->failures = 0;
	}
	LWLockRelease(idem_relay_shmem->lock);
}

bool
idem_slots_have_function(int relay_id)
{
	IdemWorkerSlot *slot;
	bool		wanted;

	LWLockAcquire(idem_relay_shmem->lock, LW_SHARED);
	slot = idem_worker_slot_find(MyDatabaseId, relay_id);
	wanted = slot != NULL && slot->wanted;
	LWLockRelease(idem_relay_shmem->lock);
	return wanted;
}

/* One whose kind is not known stays with the worker that has it. */
static bool
may_be_function_relay(List *configs, int relay_id)
{
	ListCell   *lc;

	foreach(lc, configs)
	{
		IdemRelayConfig *c = lfirst(lc);

		if (c->relay_id == relay_id)
			return c->kind == NULL || idem_relay_is_function(c);
	}
	return false;
}

void
idem_slots_request_functions(List *configs)
{
	bool		poke = false;
	ListCell   *lc;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid == MyDatabaseId && slot->relay_id != 0 &&
			!may_be_function_relay(configs, slot->relay_id))
			slot->wanted = false;
	}
	foreach(lc, configs)
	{
		IdemRelayConfig *c = lfirst(lc);
		IdemWorkerSlot *slot;

		if (!idem_relay_is_function(c))
			continue;
		slot = idem_worker_slot_find(MyDatabaseId, c->relay_id);
		if (slot == NULL)
		{
			slot = idem_worker_slot_occupy(MyDatabaseId, c->relay_id);
			if (slot == NULL)
				ereport(LOG,
						(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						 errmsg("no idempotency worker is left for relay \"%s\"", c->name),
						 errhint("Raise idempotency.max_workers.")));
		}
		if (slot != NULL)
		{
			slot->wanted = true;
			poke |= slot->pid == 0;
		}
	}
	LWLockRelease(idem_relay_shmem->lock);
	if (poke)
		idem_wake_launcher();
}

/* Under the lock: does a command of some backend want the database empty? */
bool
idem_workers_held(Oid dboid)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		if (idem_worker_holds[i] == dboid)
			return true;
	}
	return false;
}

/* Ask the workers of a database to end; returns how many still run. */
static int
terminate_workers(Oid dboid)
{
	int			running = 0;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid != dboid)
			continue;
		if (slot->pid != 0 || slot->starting)
			running++;
		if (slot->pid != 0)
			(void) kill(slot->pid, SIGTERM);
	}
	LWLockRelease(idem_relay_shmem->lock);
	return running;
}

static void
set_my_hold(Oid dboid)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	idem_worker_holds[IDEM_MY_PROCNO] = dboid;
	LWLockRelease(idem_relay_shmem->lock);
}

Oid
idem_workers_current_hold(void)
{
	return idem_relay_shmem ? idem_worker_holds[IDEM_MY_PROCNO] : InvalidOid;
}

void
idem_workers_hold(Oid dboid)
{
	if (idem_relay_shmem == NULL)
		return;
	set_my_hold(dboid);

	/*
	 * A worker ends within milliseconds of SIGTERM unless a handler of a
	 * function relay does not reach an interrupt check; the wait is bounded
	 * so that the command then fails as it would beside any such session.
	 */
	for (int waited = 0; waited < HOLD_WAIT_MS; waited += 10)
	{
		if (terminate_workers(dboid) == 0)
			break;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 10L, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}

void
idem_workers_release(Oid former)
{
	if (idem_relay_shmem == NULL)
		return;
	set_my_hold(former);
	idem_wake_launcher();
}
