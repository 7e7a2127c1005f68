/*-------------------------------------------------------------------------
 *
 * slots.c
 *		Which workers run: slots, requests for them, and commands that hold them.
 *
 * A worker is a session of its database, and serving interrupts does not make
 * it leave.  So a command that needs the database empty holds its workers down
 * while the command runs.  A hold is noted per backend, with its database:
 * several commands do not release each other's holds, and slots that are
 * occupied during a hold are held as well.
 *
 * Slots are shared out.  Each database with relays gets the slot of its own
 * worker first.  The worker of a database occupies a slot for a function relay;
 * the process that has the slot gives it back when it ends.  If a process ends
 * without giving its slot back, the launcher starts another process there,
 * unless other relays wait for a slot.  Then the launcher frees the slot, and
 * the relay goes back to the database's worker.  The launcher's knowledge of a
 * relay's workers outlives the slot, in the relay's entry.
 *
 * What a crash leaves: nothing, since shared memory is built anew.  A backend
 * that ends by an error or FATAL releases its hold as it ends.
 *
 * LOCKING: the lock of shmem.h, never held across a wait.  Callers of functions
 * marked "under the lock" hold it.
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
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "relay/config.h"
#include "relay/report.h"
#include "relay/slots.h"

/* How often the server log says that slots are too few. */
#define COMPLAIN_MS 60000

int			idem_max_function_workers = 4;

/* How long DDL waits for workers to end before it proceeds regardless. */
#define HOLD_WAIT_MS 8000

/* Under the lock, LW_SHARED at least. */
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

/*
 * Under the lock: before a function relay's slot is freed, copy to the relay's
 * entry how its workers ended.
 */
static void
keep_ends(const IdemWorkerSlot *slot)
{
	IdemFunctionEnds ends = {
		/* A worker that gave way has not failed. */
		.ends = slot->wanted || slot->ended_in_handler ? slot->failures : 0,
		.ended_in_handler = slot->ended_in_handler,
		.unserved = slot->wanted && !slot->started
	};

	idem_relay_ends_keep(slot->dboid, slot->relay_id, &ends, slot->wanted ? slot->not_before : 0);
}

/*
 * Under the lock: copy from the relay's entry to the relay's next slot how its
 * workers ended.
 */
static void
recall_ends(IdemWorkerSlot *slot)
{
	IdemFunctionEnds ends;

	slot->entry = idem_relay_ends_recall(slot->dboid, slot->relay_id, &ends);
	slot->failures = ends.ends;
	slot->ended_in_handler = ends.ended_in_handler;
}

/* Under the lock, exclusively. */
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
	slot->failures = 0;
	slot->not_before = 0;
	slot->passed_crash = false;
	slot->ended_in_handler = false;
	slot->yield = false;
	slot->started = false;
	slot->since = idem_clock();
	slot->entry = -1;
	slot->waits = false;
	slot->served_at = 0;
	if (relay_id != 0)
		recall_ends(slot);
	pg_atomic_write_u32(&slot->wake, 1);
	return slot;
}

/*
 * Under the lock, exclusively: free a slot whose process has ended, or that
 * never had a process.  The worker of the database is woken, to take the
 * function relay of the slot back.  All workers are woken, since relays of any
 * database may wait for a slot.
 */
void
idem_worker_slot_free(IdemWorkerSlot *slot)
{
	Oid			dboid = slot->dboid;

	/*
	 * The entries of a database's relays go with the slot of the database's
	 * own worker.  A function relay's entry outlives the slots of the relay.
	 */
	if (OidIsValid(dboid) && slot->relay_id == 0)
		idem_relay_entries_forget(dboid, NIL);
	else if (OidIsValid(dboid))
		keep_ends(slot);
	slot->dboid = InvalidOid;
	slot->relay_id = 0;
	slot->wanted = false;
	slot->generation++;
	idem_wake_database(dboid);
	idem_wake_workers();
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
	wanted = slot != NULL;
	LWLockRelease(idem_relay_shmem->lock);
	return wanted;
}

/*
 * Is it a function relay as far as is known?  A relay of unknown kind stays
 * with the worker that has it.
 */
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
idem_slots_release_functions(List *configs)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid == MyDatabaseId && slot->relay_id != 0 &&
			!may_be_function_relay(configs, slot->relay_id))
			slot->wanted = false;
	}
	LWLockRelease(idem_relay_shmem->lock);
	idem_relay_entries_forget(MyDatabaseId, configs);
}

/*
 * How many slots each database has.  The databases of all slots for functions
 * are sorted, so counting costs one pass however many databases there are.
 */
typedef struct SlotCounts
{
	int			free;
	int			mine;			/* slots for functions of this database */
	Oid			richest;		/* the database with most slots for functions */
	int			most;			/* the number of its slots for functions */
	int			nfunctions;		/* slots for functions of all databases */
	Oid		   *functions;		/* the databases of these slots, sorted */
} SlotCounts;

/*
 * Room for one OID per slot.  It is allocated once, and before the lock is
 * taken: an error of the allocation then leaves nothing half done.
 */
Oid *
idem_slots_counting_room(void)
{
	static Oid *room = NULL;

	if (room == NULL)
		room = MemoryContextAlloc(TopMemoryContext,
								  sizeof(Oid) * idem_relay_shmem->nworkers);
	return room;
}

/* Order OIDs, for qsort. */
static int
compare_oids(const void *a, const void *b)
{
	Oid			x = *(const Oid *) a;
	Oid			y = *(const Oid *) b;

	return x < y ? -1 : x > y;
}

/* The first place in c->functions whose OID is not below dboid. */
static int
lower_bound(const SlotCounts *c, Oid dboid)
{
	int			low = 0;
	int			high = c->nfunctions;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (c->functions[middle] < dboid)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* The number of slots for functions of a database. */
static int
count_functions(const SlotCounts *c, Oid dboid)
{
	return lower_bound(c, dboid + 1) - lower_bound(c, dboid);
}

/* Under the lock: fill in the counts. */
static void
count_slots(SlotCounts *c, Oid *room)
{
	int			run = 0;

	memset(c, 0, sizeof(*c));
	c->functions = room;
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		const IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (!OidIsValid(slot->dboid))
			c->free++;
		else if (slot->relay_id != 0)
			c->functions[c->nfunctions++] = slot->dboid;
	}
	qsort(c->functions, c->nfunctions, sizeof(Oid), compare_oids);
	for (int i = 0; i < c->nfunctions; i++)
	{
		run = i > 0 && c->functions[i] == c->functions[i - 1] ? run + 1 : 1;
		if (run > c->most)
		{
			c->most = run;
			c->richest = c->functions[i];
		}
	}
	c->mine = count_functions(c, MyDatabaseId);
}

/*
 * Under the lock: how many databases come before this one, whose function
 * relays wait for a slot.  A database comes first if its function relays wait
 * as well and it has fewer slots, or as many slots and an earlier last turn.
 * Without this order a freed slot would go to the worker that is woken first,
 * mostly that of the slot's former database.
 */
static int
count_before_me(const SlotCounts *c, const IdemWorkerSlot *own)
{
	int			n = 0;

	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		const IdemWorkerSlot *slot = &idem_worker_slots[i];
		int			has;

		if (slot->relay_id != 0 || !OidIsValid(slot->dboid) || slot == own ||
			!slot->waits || slot->pid == 0)
			continue;
		has = count_functions(c, slot->dboid);
		n += has < c->mine || (has == c->mine && own != NULL && slot->served_at < own->served_at);
	}
	return n;
}

/* Under the lock: has the function relay of a slot nothing to do just now? */
static bool
is_idle(const IdemWorkerSlot *slot)
{
	return slot->entry >= 0 &&
		idem_relay_entry_is_idle(slot->entry, slot->dboid, slot->relay_id);
}

/*
 * Was the slot's worker asked to give way, and not long ago?  A worker that
 * has not given way in time, since its handler waits, does not count as
 * leaving.
 */
static bool
is_leaving(const IdemWorkerSlot *slot, IdemClock now)
{
	return slot->yield && now < idem_clock_plus_ms(slot->yield_at, 2 * IDEM_SLICE_MS);
}

/*
 * Is it better to ask slot a than slot b to give way?  Idle relays go first,
 * then those that have had their slot longest.
 */
static bool
goes_before(const IdemWorkerSlot *a, bool a_idle, const IdemWorkerSlot *b, bool b_idle)
{
	return a_idle != b_idle ? a_idle : a->since < b->since;
}

/*
 * Under the lock: the slot of the database to ask next.  NULL if all were
 * asked.
 */
static IdemWorkerSlot *
choose_yielder(Oid dboid)
{
	IdemWorkerSlot *best = NULL;
	bool		best_idle = false;

	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];
		bool		idle;

		if (slot->dboid != dboid || slot->relay_id == 0 || slot->yield)
			continue;
		idle = is_idle(slot);
		if (best != NULL && !goes_before(slot, idle, best, best_idle))
			continue;
		best = slot;
		best_idle = idle;
	}
	return best;
}

/*
 * Under the lock: have n function workers of a database give way.  Workers
 * that are leaving count.  Each worker is asked once in the life of its slot.
 */
static void
ask_to_yield(Oid dboid, int n)
{
	IdemClock	now = idem_clock();
	IdemWorkerSlot *slot;

	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
		n -= idem_worker_slots[i].dboid == dboid && idem_worker_slots[i].relay_id != 0 &&
			is_leaving(&idem_worker_slots[i], now);
	for (; n > 0 && (slot = choose_yielder(dboid)) != NULL; n--)
	{
		slot->yield = true;
		slot->yield_at = now;
		idem_wake_slot(slot);
	}
}

/*
 * Log that there are too few slots, once per COMPLAIN_MS: each turn of the
 * loop finds the same.
 */
static void
complain_of_slots(bool no_process)
{
	static IdemClock complain_at = 0;
	IdemClock	now = idem_clock();

	if (now < complain_at)
		return;
	complain_at = idem_clock_plus_ms(now, COMPLAIN_MS);
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no idempotency worker is left for the function relays of this database"),
			 no_process ? errhint("Raise max_worker_processes.") :
			 errhint("Raise idempotency.max_workers.")));
}

/*
 * Each database with relays gets its own worker before any gets a slot for a
 * function.  A free slot goes to the database that comes first
 * (count_before_me).  If no slot is free, the richest database is asked to
 * give one up if it has at least two more than this one, or if it has one and
 * this one has none: then they take turns.  A slot is useful with a process
 * only: where the launcher gets no process, no slot counts as free.
 */
IdemSlotAnswer
idem_slots_give_function(int relay_id, int nwaiting)
{
	IdemSlotAnswer answer = IDEM_SLOT_GIVEN;
	Oid		   *room = idem_slots_counting_room();
	IdemWorkerSlot *own;
	SlotCounts	c;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	own = idem_worker_slot_find(MyDatabaseId, 0);
	count_slots(&c, room);
	if (c.mine >= idem_max_function_workers)
	{
		answer = IDEM_SLOT_TAKEN;
		ask_to_yield(MyDatabaseId, nwaiting);
	}
	else if (idem_relay_shmem->no_process ||
			 c.free <= idem_relay_shmem->databases_waiting + count_before_me(&c, own))
	{
		answer = c.mine > 0 ? IDEM_SLOT_TAKEN :
			idem_relay_shmem->no_process ? IDEM_SLOT_NO_PROCESS : IDEM_SLOT_NONE_LEFT;
		if (c.most > c.mine + 1)
			ask_to_yield(c.richest, 1);
		if (c.mine > 0)
			ask_to_yield(MyDatabaseId, nwaiting);
		else if (c.most == 1)
			ask_to_yield(c.richest, 1);
	}
	else
	{
		(void) idem_worker_slot_occupy(MyDatabaseId, relay_id);
		if (own != NULL)
			own->served_at = idem_clock();
	}

	/*
	 * A database with max_function_workers slots does not wait for slots of
	 * others.
	 */
	if (own != NULL)
		own->waits = answer == IDEM_SLOT_GIVEN ? nwaiting > 1 :
			c.mine < idem_max_function_workers;
	LWLockRelease(idem_relay_shmem->lock);
	if (answer == IDEM_SLOT_GIVEN)
		idem_wake_launcher();
	else if (answer != IDEM_SLOT_TAKEN)
		complain_of_slots(answer == IDEM_SLOT_NO_PROCESS);
	return answer;
}

void
idem_slots_wait_no_more(void)
{
	IdemWorkerSlot *own;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	own = idem_worker_slot_find(MyDatabaseId, 0);
	if (own != NULL)
		own->waits = false;
	LWLockRelease(idem_relay_shmem->lock);
}

void
idem_slots_ask_functions_to_yield(int n)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	ask_to_yield(MyDatabaseId, n);
	LWLockRelease(idem_relay_shmem->lock);
}

void
idem_slots_yield_to_database(Oid *room)
{
	SlotCounts	c;

	count_slots(&c, room);
	if (c.most > 0)
		ask_to_yield(c.richest, 1);
}

/*
 * Under the lock: does a command of any backend hold the workers of the
 * database?
 */
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

/*
 * Note this backend's hold.  Each backend has an entry of its own, so commands
 * that hold the same database do not collide.
 */
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
	 * A worker ends within milliseconds of SIGTERM, unless a function relay's
	 * handler does not reach an interrupt check.  The wait is bounded, so
	 * that the command then fails as it would beside any such session.
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
