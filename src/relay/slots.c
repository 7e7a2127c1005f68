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
 * Slots are shared out: each database with relays gets the one for its own worker
 * first.  A slot for a function relay is occupied by the worker of the database,
 * and given back by the process that has it, when it ends.  One whose process ended
 * without giving it back is started again by the launcher, unless others wait: then
 * the launcher frees it, and the relay comes back to the database's worker.  What
 * the launcher knows of a relay's workers outlives the slot, in the relay's entry.
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
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "relay/config.h"
#include "relay/report.h"
#include "relay/slots.h"

/* How often the log is told that there are too few slots. */
#define COMPLAIN_MS 60000

int			idem_max_function_workers = 4;

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

static IdemRelayEntry *
find_entry(Oid dboid, int relay_id)
{
	for (int i = 0; i < idem_relay_shmem->nrelays; i++)
	{
		IdemRelayEntry *entry = &idem_relay_entries[i];

		if (entry->dboid == dboid && entry->relay_id == relay_id)
			return entry;
	}
	return NULL;
}

/* Into a function relay's entry, as its slot is freed. */
static void
keep_ends(const IdemWorkerSlot *slot)
{
	IdemRelayEntry *entry = find_entry(slot->dboid, slot->relay_id);

	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	/* A worker that gave way has not failed. */
	entry->kept.ends = slot->wanted || slot->ended_in_handler ? slot->failures : 0;
	entry->kept.ended_in_handler = slot->ended_in_handler;
	entry->kept.unserved = slot->wanted && !slot->started;
	if (slot->wanted)
		entry->kept.not_before = Max(entry->kept.not_before, slot->not_before);
	SpinLockRelease(&entry->mutex);
}

/* And back, into the relay's next slot. */
static void
recall_ends(IdemWorkerSlot *slot)
{
	IdemRelayEntry *entry = find_entry(slot->dboid, slot->relay_id);

	if (entry == NULL)
		return;
	slot->entry = entry - idem_relay_entries;
	SpinLockAcquire(&entry->mutex);
	slot->failures = entry->kept.ends;
	slot->ended_in_handler = entry->kept.ended_in_handler;
	SpinLockRelease(&entry->mutex);
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
 * The slot's process has ended.  The worker of the database takes the relay back
 * that had the slot, and relays of any database may wait for a slot.
 */
void
idem_worker_slot_free(IdemWorkerSlot *slot)
{
	Oid			dboid = slot->dboid;

	/* What is known of a function relay outlives its turns in a worker. */
	if (OidIsValid(dboid) && slot->relay_id == 0)
		idem_relay_entries_forget(dboid);
	else if (OidIsValid(dboid))
		keep_ends(slot);
	slot->dboid = InvalidOid;
	slot->relay_id = 0;
	slot->wanted = false;
	slot->generation++;
	idem_wake_database(dboid);
	idem_wake_workers();
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
	wanted = slot != NULL;
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

static bool
is_relay(List *configs, int relay_id)
{
	ListCell   *lc;

	foreach(lc, configs)
	{
		if (((IdemRelayConfig *) lfirst(lc))->relay_id == relay_id)
			return true;
	}
	return false;
}

/*
 * Under the lock: entries of relays that were dropped while the database had no
 * worker.
 */
static void
forget_dropped(List *configs)
{
	for (int i = 0; i < idem_relay_shmem->nrelays; i++)
	{
		IdemRelayEntry *entry = &idem_relay_entries[i];

		if (entry->dboid != MyDatabaseId || entry->pid != 0 ||
			is_relay(configs, entry->relay_id))
			continue;
		entry->dboid = InvalidOid;
		entry->relay_id = 0;
	}
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
	forget_dropped(configs);
	LWLockRelease(idem_relay_shmem->lock);
}

/*
 * Who has how many slots.  Under the lock.  The databases of all slots for functions
 * are sorted, so that the cost is that of one pass, however many there are.
 */
typedef struct SlotCounts
{
	int			free;
	int			mine;			/* for functions of this database */
	Oid			richest;		/* the database with most of those; */
	int			most;			/* so many */
	int			nfunctions;		/* slots for functions, */
	Oid		   *functions;		/* the databases of them, sorted */
} SlotCounts;

/*
 * A place for as many as there are slots, allocated once and before the lock is taken:
 * an error of it would leave nothing half done.
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

static int
compare_oids(const void *a, const void *b)
{
	Oid			x = *(const Oid *) a;
	Oid			y = *(const Oid *) b;

	return x < y ? -1 : x > y;
}

/* The first of them that is not below. */
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

static int
count_functions(const SlotCounts *c, Oid dboid)
{
	return lower_bound(c, dboid + 1) - lower_bound(c, dboid);
}

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
 * How many databases come before this one, which has waited for a slot: those whose
 * function relays wait and that have fewer, or as many and had their turn before.
 * Else a slot would be whose worker is woken first, mostly of the database that it
 * was of.
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

/* Has the function relay of a slot nothing to do just now? */
static bool
is_idle(const IdemWorkerSlot *slot)
{
	IdemRelayEntry *entry = slot->entry < 0 ? NULL : &idem_relay_entries[slot->entry];
	IdemRelayWait waiting;

	if (entry == NULL || entry->dboid != slot->dboid || entry->relay_id != slot->relay_id)
		return false;
	SpinLockAcquire(&entry->mutex);
	waiting = entry->waiting;
	SpinLockRelease(&entry->mutex);
	return waiting == IDEM_WAIT_EVENTS || waiting == IDEM_WAIT_BACKOFF ||
		waiting == IDEM_WAIT_RETRY;
}

/*
 * Was the slot's worker asked to give way, and is it about to?  One that does not
 * come to it, since its handler waits, is not on its way out.
 */
static bool
is_leaving(const IdemWorkerSlot *slot, IdemClock now)
{
	return slot->yield && now < idem_clock_plus_ms(slot->yield_at, 2 * IDEM_SLICE_MS);
}

/* Is it better to ask the one: idle, or longer there? */
static bool
goes_before(const IdemWorkerSlot *a, bool a_idle, const IdemWorkerSlot *b, bool b_idle)
{
	return a_idle != b_idle ? a_idle : a->since < b->since;
}

/* The one to be asked next; NULL if all were. */
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
 * Under the lock: ask so many function workers of a database to give way.  Each is
 * asked once, so all requests of a slot's life cost one pass.
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

/* Say it once per COMPLAIN_MS: each turn of the loop finds the same. */
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
 * Each database with relays has its worker before any has one for functions;
 * of the rest a database gets another as long as the richest one has more.  A slot
 * is of use with a process only: where the launcher gets none, no slot is free.
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
	/* Whoever has all that it may have does not wait for those of others. */
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

/* One entry per backend, so commands that hold the same database do not collide. */
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
