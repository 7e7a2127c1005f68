/*-------------------------------------------------------------------------
 *
 * worker_slots.c
 *		Which workers run: slots, requests for them, and commands that hold them.
 *
 * A slot is a worker's place: for the own worker of a database, which serves all of its
 * program relays, or for a worker of one function relay.
 *
 * A worker is a session of its database, and serving interrupts does not make
 * it leave.  So a command that needs the database empty holds its workers down
 * while the command runs.  A hold is noted per backend, with its database:
 * several commands do not release each other's holds, and slots that are
 * occupied during a hold are held as well.
 *
 * Slots are shared out.  Each database with relays gets the slot of its own
 * worker first; where there are too few, databases take turns.  The worker of a database
 * occupies a slot for a function relay;
 * the process that has the slot gives it back when it ends.  If a process ends
 * without giving its slot back, the launcher starts another process there,
 * unless other relays wait for a slot.  Then the launcher frees the slot, and
 * the relay goes back to the database's worker.  The launcher's knowledge of a
 * relay's workers outlives the slot, in the relay's entry.
 *
 * What a crash leaves: nothing, since shared memory is built anew, and the launcher fills
 * it from the catalogs.  A backend that ends by an error or FATAL releases its hold as it
 * ends.  The memory has process numbers, and no pointer into the memory of a process.
 *
 * LOCKING: a lock guards slots and holds; nobody waits, scans or starts a process under it.
 * Order: this lock, the lock of report.c, an entry's spinlock, and no lock below that.
 * "wake", "config" and "news" are atomics, which a committing backend touches without the
 * lock, as it reads dboid and procno; a worker reads its own slot without it.
 *
 * MEMORY: an array in shared memory, of idempotency.max_workers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker_slots.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/config.h"
#include "relay/report.h"
#include "relay/worker_slots.h"
#include "shared/worker.h"

/* The longest delay before the worker of a slot is started again. */
#define MAX_RESTART_MS 10000

/* After so many ends in a row a database's own worker leaves its slot to others. */
#define MAX_STARTS 3

/* The launcher tries again each second while processes are lacking. */
#define LATELY_MS 3000

typedef struct SlotsShmem
{
	int			launcher_procno;	/* -1: no launcher */
	pg_atomic_uint32 launcher_wake;
	pg_atomic_uint32 news;		/* rises when all workers are to look again */
	bool		after_crash;	/* see idem_starts_after_crash */
	pg_atomic_uint64 lacked_at; /* when max_worker_processes were used up last */
	IdemSlotDemand demand;
	IdemWorkerSlot slots[FLEXIBLE_ARRAY_MEMBER];
} SlotsShmem;

static SlotsShmem *shared = NULL;	/* NULL: the library is not preloaded */
static IdemSlots all;
static LWLock *lock = NULL;

/* By process number: the database whose workers the process's command holds down. */
static Oid *holds = NULL;

/* The slot that this process is the worker of. */
static IdemWorkerSlot *my_slot = NULL;
static uint32 my_generation = 0;

int			idem_relay_max_workers = 16;

/* Shared memory */

Size
idem_slots_shmem_size(void)
{
	Size		size = offsetof(SlotsShmem, slots);

	size = add_size(size, mul_size(idem_relay_max_workers, sizeof(IdemWorkerSlot)));
	return add_size(size, mul_size(MaxBackends, sizeof(Oid)));
}

/* Were max_worker_processes used up at the launcher's last try? */
static bool
lacked_process_lately(void)
{
	IdemClock	lacked_at = pg_atomic_read_u64(&shared->lacked_at);

	return lacked_at != 0 && idem_clock() < idem_clock_plus_ms(lacked_at, LATELY_MS);
}

void
idem_slots_shmem_attach(void *segment, bool found)
{
	shared = segment;
	all.slot = shared->slots;
	all.n = idem_relay_max_workers;
	all.demand = &shared->demand;
	holds = (Oid *) &shared->slots[all.n];
	idem_singleton_relays_lack_processes = lacked_process_lately;
	lock = &GetNamedLWLockTranche("idempotency")[IDEM_LOCK_SLOTS].lock;
	if (found)
		return;
	memset(segment, 0, idem_slots_shmem_size());
	shared->launcher_procno = -1;
	pg_atomic_init_u32(&shared->launcher_wake, 0);
	pg_atomic_init_u32(&shared->news, 0);
	pg_atomic_init_u64(&shared->lacked_at, 0);
	shared->after_crash = idem_starts_after_crash();
	shared->demand.room = all.n;
	for (int i = 0; i < all.n; i++)
	{
		all.slot[i].procno = -1;
		pg_atomic_init_u32(&all.slot[i].wake, 0);
		pg_atomic_init_u32(&all.slot[i].config, 0);
		pg_atomic_init_u64(&all.slot[i].committed_at, 0);
		pg_atomic_init_u64(&all.slot[i].turn_at, 0);
	}
}

bool
idem_slots_exist(void)
{
	return shared != NULL;
}

bool
idem_slots_after_crash(void)
{
	return shared->after_crash;
}

/* Waking */

/*
 * Wake all workers of a database.  Called in commit callbacks: raises nothing,
 * allocates nothing, reads no catalog.  The slots are read without the lock.
 * A slot that changes hands at this moment gets at worst a wake-up too many,
 * and a worker that attaches at this moment reads the outbox first in any
 * case.
 */
void
idem_wake_database(Oid dboid, bool config_changed)
{
	TimestampTz now;

	if (shared == NULL)
		return;

	/*
	 * Take the time before the exchange: after the exchange other backends
	 * rely on the stored time.
	 */
	now = GetCurrentTimestamp();
	for (int i = 0; i < all.n; i++)
	{
		IdemWorkerSlot *slot = &all.slot[i];

		if (((volatile IdemWorkerSlot *) slot)->dboid != dboid)
			continue;
		if (config_changed)
			pg_atomic_fetch_add_u32(&slot->config, 1);
		if (pg_atomic_exchange_u32(&slot->wake, 1) == 0)
			pg_atomic_write_u64(&slot->committed_at, (uint64) now);
		else if (!config_changed)
			continue;
		idem_shares_wake(((volatile IdemWorkerSlot *) slot)->procno);
	}
}

void
idem_wake_workers(void)
{
	pg_atomic_fetch_add_u32(&shared->news, 1);
	for (int i = 0; i < all.n; i++)
		idem_shares_wake(((volatile IdemWorkerSlot *) &all.slot[i])->procno);
}

void
idem_wake_launcher(void)
{
	if (shared == NULL)
		return;
	pg_atomic_write_u32(&shared->launcher_wake, 1);
	idem_shares_wake(((volatile SlotsShmem *) shared)->launcher_procno);
}

/* Slots */

/* Under the lock, LW_SHARED at least: a free one is of no database and relay 0. */
static IdemWorkerSlot *
find_slot(Oid dboid, int relay_id)
{
	for (int i = 0; i < all.n; i++)
	{
		if (all.slot[i].dboid == dboid && all.slot[i].relay_id == relay_id)
			return &all.slot[i];
	}
	return NULL;
}

/* Under the lock, exclusively. */
static IdemWorkerSlot *
occupy(Oid dboid, int relay_id)
{
	IdemWorkerSlot *slot = find_slot(InvalidOid, 0);
	uint32		generation;

	if (slot == NULL)
		return NULL;
	generation = slot->generation + 1;
	memset(slot, 0, offsetof(IdemWorkerSlot, procno));
	slot->dboid = dboid;
	slot->relay_id = relay_id;
	slot->generation = generation;
	slot->wanted = true;
	slot->since = slot->served_at = idem_clock();
	slot->entry = -1;
	if (relay_id != 0)
	{
		IdemFunctionEnds ends;

		slot->entry = idem_relay_ends_recall(dboid, relay_id, &ends);
		slot->failures = ends.ends;
		slot->ended_in_handler = ends.ended_in_handler;
	}
	pg_atomic_write_u32(&slot->wake, 1);
	return slot;
}

/*
 * Under the lock, exclusively: free a slot whose process has ended, or that
 * never had a process.  The worker of the database is woken, to take the
 * function relay of the slot back.  All workers are woken, since relays of any
 * database may wait for a slot.
 */
static void
free_slot(IdemWorkerSlot *slot)
{
	Oid			dboid = slot->dboid;

	/* A function relay's entry outlives the slots of the relay. */
	if (OidIsValid(dboid) && slot->relay_id != 0)
	{
		IdemFunctionEnds ends = {
			/* A worker that gave way has not failed. */
			.ends = slot->wanted || slot->ended_in_handler ? slot->failures : 0,
			.ended_in_handler = slot->ended_in_handler,
			.unserved = slot->wanted && !slot->started
		};

		idem_relay_ends_keep(dboid, slot->relay_id, &ends, slot->wanted ? slot->not_before : 0);
	}
	slot->dboid = InvalidOid;
	slot->relay_id = 0;
	slot->wanted = false;
	slot->generation++;
	idem_wake_database(dboid, false);
	idem_wake_workers();
}

/*
 * The same of a slot that had a worker.  The launcher may have looked at the databases while
 * the slot was still the database's: it looks again.
 */
static void
free_used_slot(IdemWorkerSlot *slot)
{
	bool		function = slot->relay_id != 0;

	free_slot(slot);
	if (!function)
		idem_wake_launcher();
}

IdemSlotState
idem_slots_state(int relay_id)
{
	IdemWorkerSlot *slot;
	IdemSlotState state;

	LWLockAcquire(lock, LW_SHARED);
	slot = find_slot(MyDatabaseId, relay_id);
	state = slot == NULL ? IDEM_SLOT_NOT_THERE : slot->pid != 0 ? IDEM_SLOT_RUNS :
		slot->starting ? IDEM_SLOT_STARTS : IDEM_SLOT_WAITS;
	LWLockRelease(lock);
	return state;
}

TimestampTz
idem_slots_hung_since(int relay_id)
{
	TimestampTz since;

	LWLockAcquire(lock, LW_SHARED);
	since = idem_shares_hung_since(&all, relay_id);
	LWLockRelease(lock);
	return since;
}

/* The launcher's part */

/*
 * As the launcher ends: backends must not wake the process that has its number
 * next.
 */
static void
launcher_detach(int code, Datum arg)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->launcher_procno = -1;
	LWLockRelease(lock);
}

void
idem_slots_launcher_attach(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->launcher_procno = IDEM_MY_PROCNO;

	/*
	 * This launcher has no handles for workers that a former launcher
	 * started. They detach by themselves; until then their slots stay taken.
	 */
	for (int i = 0; i < all.n; i++)
		all.slot[i].starting = false;
	LWLockRelease(lock);
	pg_atomic_write_u32(&shared->launcher_wake, 1);
	before_shmem_exit(launcher_detach, (Datum) 0);
}

bool
idem_slots_launcher_is_poked(void)
{
	return pg_atomic_read_u32(&shared->launcher_wake) != 0;
}

bool
idem_slots_launcher_take_poke(void)
{
	return pg_atomic_exchange_u32(&shared->launcher_wake, 0) != 0;
}

List *
idem_slots_reconcile(List *databases)
{
	Oid		   *room = idem_shares_room(&all);
	List	   *left_out = list_copy(databases);
	ListCell   *lc;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < all.n; i++)
	{
		if (OidIsValid(all.slot[i].dboid) && !list_member_oid(databases, all.slot[i].dboid))
			all.slot[i].wanted = false;
	}
	foreach(lc, left_out)
	{
		IdemWorkerSlot *slot = find_slot(lfirst_oid(lc), 0);

		if (slot == NULL && idem_shares_admit_database(&all, room))
			slot = occupy(lfirst_oid(lc), 0);
		if (slot == NULL)
			continue;
		if (!slot->yield)
			slot->wanted = true;
		left_out = foreach_delete_current(left_out, lc);
	}
	shared->demand.databases_waiting = list_length(left_out);
	if (left_out != NIL)
		idem_shares_yield_to_database(&all, room);
	idem_relay_entries_forget_others(databases);
	LWLockRelease(lock);
	return left_out;
}

bool
idem_slot_is_detached(int slotno)
{
	bool		detached;

	LWLockAcquire(lock, LW_SHARED);
	detached = all.slot[slotno].pid == 0 && !all.slot[slotno].starting;
	LWLockRelease(lock);
	return detached;
}

bool
idem_slot_worker_gone(int slotno, Oid *failing)
{
	IdemWorkerSlot *slot = &all.slot[slotno];
	Oid		   *room = idem_shares_room(&all);
	bool		others_wait;

	*failing = InvalidOid;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	slot->starting = false;
	others_wait = shared->demand.databases_waiting > 0 ||
		!idem_shares_admit_database(&all, room);
	if (slot->wanted && slot->relay_id == 0 && slot->failures >= MAX_STARTS && others_wait)
	{
		*failing = slot->dboid;
		slot->wanted = false;
	}
	if (slot->wanted)
	{
		int			delay = Min(MAX_RESTART_MS, 50 << Min(slot->failures, 10));

		slot->failures++;
		slot->not_before = idem_clock_plus_ms(idem_clock(), delay);
	}
	if (!slot->wanted && slot->pid == 0)
		free_used_slot(slot);
	LWLockRelease(lock);
	return others_wait;
}

/* Under the lock: does a command of any backend hold the workers of the database? */
static bool
is_held(Oid dboid)
{
	for (int i = 0; i < MaxBackends; i++)
	{
		if (holds[i] == dboid)
			return true;
	}
	return false;
}

/*
 * Under the lock: may this slot's worker be started now?  A slot that is not
 * wanted is freed.  So is the slot of a worker that was asked
 * to give way and ended without freeing it: others would wait for the slot
 * through the launcher's delay.
 */
static bool
is_startable(IdemWorkerSlot *slot, IdemClock now)
{
	if (!OidIsValid(slot->dboid) || slot->pid != 0 || slot->starting)
		return false;
	if (!slot->wanted || (slot->started && slot->yield))
	{
		free_used_slot(slot);
		return false;
	}
	return !is_held(slot->dboid) && slot->not_before <= now;
}

bool
idem_slot_start(int slotno, bool function, bool unused, IdemClock now, IdemSlotStart *start)
{
	IdemWorkerSlot *slot = &all.slot[slotno];
	bool		starts = false;

	start->pending = false;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	start->dboid = slot->dboid;
	start->relay_id = slot->relay_id;
	if ((slot->relay_id != 0) == function)
	{
		starts = unused && is_startable(slot, now);
		start->pending = !starts && OidIsValid(slot->dboid) && slot->wanted && slot->pid == 0;
	}
	if (starts)
		slot->starting = true;
	LWLockRelease(lock);
	return starts;
}

bool
idem_slots_outnumber_processes(void)
{
	return shared->demand.room < all.n;
}

bool
idem_slots_have_launcher(void)
{
	return ((volatile SlotsShmem *) shared)->launcher_procno >= 0;
}

bool
idem_slots_lack_process(void)
{
	return shared->demand.no_process;
}

void
idem_slots_try_processes(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->demand.no_process = false;
	LWLockRelease(lock);
}

void
idem_slot_has_no_process(int slotno, bool function)
{
	IdemWorkerSlot *slot = &all.slot[slotno];
	Oid		   *room = idem_shares_room(&all);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	shared->demand.no_process = true;
	pg_atomic_write_u64(&shared->lacked_at, idem_clock());
	slot->starting = false;
	if (slot->pid == 0)
		free_slot(slot);
	idem_shares_note_room(&all, false);
	if (!function)
	{
		shared->demand.databases_waiting++;
		idem_shares_yield_to_database(&all, room);
	}
	LWLockRelease(lock);
}

void
idem_slot_has_process(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	idem_shares_note_room(&all, true);
	LWLockRelease(lock);
}

/* A worker's part, about its own slot */

bool
idem_slot_attach(int slotno, Oid *dboid, int *relay_id)
{
	bool		ok;

	my_slot = &all.slot[slotno];
	LWLockAcquire(lock, LW_EXCLUSIVE);
	ok = OidIsValid(my_slot->dboid) && my_slot->wanted && my_slot->pid == 0 &&
		!is_held(my_slot->dboid);
	my_slot->starting = false;
	if (ok)
	{
		my_slot->pid = MyProcPid;
		my_slot->procno = IDEM_MY_PROCNO;
		my_slot->started = true;
		idem_slot_takes_turn();
		my_generation = my_slot->generation;
		*relay_id = my_slot->relay_id;
		*dboid = my_slot->dboid;
	}
	LWLockRelease(lock);
	return ok;
}

void
idem_slot_detach(const char *event, bool keep_functions)
{
	char		message[IDEM_ERROR_LEN];
	bool		failed;

	if (event != NULL)
		snprintf(message, sizeof(message),
				 "the worker was ended while the handler had event %s", event);
	LWLockAcquire(lock, LW_EXCLUSIVE);
	failed = event != NULL && my_slot->pid == MyProcPid && my_slot->wanted;
	if (failed)
		my_slot->ended_in_handler = true;
	if (my_slot->pid == MyProcPid)
	{
		my_slot->pid = 0;
		my_slot->procno = -1;
	}
	idem_relay_entries_leave(failed ? message : NULL, keep_functions || my_slot->wanted);
	LWLockRelease(lock);
	idem_wake_launcher();
}

void
idem_slot_went_well(bool event_passed)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (event_passed)
		my_slot->ended_in_handler = false;
	if (!my_slot->ended_in_handler)
		my_slot->failures = 0;
	LWLockRelease(lock);
}

bool
idem_slot_pass_crash(void)
{
	bool		first;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	first = shared->after_crash && !my_slot->passed_crash;
	my_slot->passed_crash = true;
	LWLockRelease(lock);
	return first;
}

void
idem_slot_resign(void)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (my_slot->generation == my_generation)
		my_slot->wanted = false;
	LWLockRelease(lock);
}

void
idem_slot_takes_turn(void)
{
	pg_atomic_write_u64(&my_slot->turn_at, (uint64) idem_clock());
}

void
idem_slot_serves(Oid owner)
{
	if (my_slot->owner == owner)
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	if (my_slot->generation == my_generation)
		my_slot->owner = owner;
	LWLockRelease(lock);
}

void
idem_slot_rests(bool at_rest)
{
	if (my_slot->at_rest == at_rest)
		return;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	my_slot->at_rest = at_rest;
	LWLockRelease(lock);
}

IdemSlotAsked
idem_slot_asked(void)
{
	return (IdemSlotAsked)
	{
		.end = !my_slot->wanted || my_slot->generation != my_generation,
			.yield = my_slot->yield,
			.in_turn = shared->demand.databases_waiting > 0,
			.woken = pg_atomic_read_u32(&my_slot->wake) != 0,
			.config = pg_atomic_read_u32(&my_slot->config),
			.news = pg_atomic_read_u32(&shared->news)
	};
}

TimestampTz
idem_slot_take_wakeup(void)
{
	TimestampTz stamp = (TimestampTz) pg_atomic_read_u64(&my_slot->committed_at);

	pg_atomic_write_u32(&my_slot->wake, 0);
	return stamp;
}

/* Slots for function relays */

/* Under the lock, LW_SHARED at least: a function's slot of this database? */
static bool
is_function_of_mine(const IdemWorkerSlot *slot)
{
	return slot->dboid == MyDatabaseId && slot->relay_id != 0;
}

void
idem_slots_release_functions(List *configs)
{
	List	   *functions = idem_relay_function_ids(configs);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < all.n; i++)
	{
		IdemWorkerSlot *slot = &all.slot[i];

		if (is_function_of_mine(slot) && !list_member_int(functions, slot->relay_id))
			slot->wanted = false;
	}
	LWLockRelease(lock);
	idem_relay_entries_forget(MyDatabaseId, idem_relay_ids(configs));
}

IdemFunctionSlot *
idem_slots_functions(int *n)
{
	IdemFunctionSlot *slots = palloc(sizeof(*slots) * all.n);

	*n = 0;
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < all.n; i++)
	{
		IdemWorkerSlot *slot = &all.slot[i];

		if (!is_function_of_mine(slot))
			continue;
		slots[*n].relay_id = slot->relay_id;
		slots[*n].owner = slot->owner;
		slots[*n].pid = slot->pid;
		slots[(*n)++].hung = idem_shares_is_hung(slot);
	}
	LWLockRelease(lock);
	return slots;
}

IdemSlotAnswer
idem_slots_give_function(int relay_id, Oid owner, int nwaiting)
{
	IdemSlotAnswer answer;
	Oid		   *room = idem_shares_room(&all);

	LWLockAcquire(lock, LW_EXCLUSIVE);
	answer = idem_shares_decide(&all, my_slot, room, nwaiting);
	if (answer == IDEM_SLOT_GIVEN)
		occupy(MyDatabaseId, relay_id)->owner = owner;
	LWLockRelease(lock);
	if (answer == IDEM_SLOT_GIVEN)
		idem_wake_launcher();
	else if (answer != IDEM_SLOT_TAKEN)
		idem_shares_complain(InvalidOid, answer == IDEM_SLOT_NO_PROCESS);
	return answer;
}

void
idem_slots_wait_no_more(int n)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	my_slot->waits = false;
	idem_shares_ask_to_yield(&all, MyDatabaseId, n);
	LWLockRelease(lock);
}

/* Holds */

int
idem_workers_terminate(Oid dboid)
{
	int			running = 0;

	if (shared == NULL)
		return 0;
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < all.n; i++)
	{
		IdemWorkerSlot *slot = &all.slot[i];

		if (slot->dboid != dboid)
			continue;
		running += slot->pid != 0 || slot->starting;
		if (slot->pid != 0)
			(void) kill(slot->pid, SIGTERM);
	}
	LWLockRelease(lock);
	return running;
}

Oid
idem_workers_current_hold(void)
{
	return shared ? holds[IDEM_MY_PROCNO] : InvalidOid;
}

void
idem_workers_hold(Oid dboid)
{
	if (shared == NULL)
		return;

	/* An entry per backend: commands on one database do not collide. */
	LWLockAcquire(lock, LW_EXCLUSIVE);
	holds[IDEM_MY_PROCNO] = dboid;
	LWLockRelease(lock);
}

void
idem_workers_release(Oid former)
{
	idem_workers_hold(former);
	idem_wake_launcher();
}
