/*-------------------------------------------------------------------------
 *
 * slot_shares.c
 *		How many worker slots each database has, who gives way to whom, and which
 *		worker hangs.
 *
 * A free slot goes to the database with fewest slots.  If none is free, relays give
 * way: those that have nothing to do first, then those that have had their slot
 * longest.  worker_slots.c decides when somebody is asked.
 *
 * A function relay that was asked and has not left in time is stuck: its handler runs, for
 * a day perhaps.  Its slot counts for its database, and for nobody who looks for somebody
 * to ask: the databases share out the other slots as if there were no more.
 *
 * While function relays wait, databases' own workers leave one slot to functions, however
 * many databases there are.  Then the databases take turns in the other slots, so that
 * each comes to the slot for functions as well.
 *
 * LOCKING: the caller holds the lock of the slots, exclusively; to ask for a worker that
 * hangs a shared lock is enough.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/slot_shares.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/report.h"
#include "relay/worker_slots.h"

/* A database's own worker that was asked to give way counts as leaving for so long. */
#define OWN_LEAVES_MS (IDEM_STAY_MS + 3 * IDEM_SLICE_MS)

/*
 * A worker without a turn for so long hangs.  An idle one has a turn at each maintenance,
 * and a busy one says after each relay that it goes on.
 */
#define HUNG_MS 10000

/* How often the server log says that slots are too few. */
#define COMPLAIN_MS 60000

/*
 * How many slots each database has.  The databases of all slots for functions
 * are sorted, so counting costs one pass however many databases there are.
 */
typedef struct Counts
{
	int			free;
	int			own;			/* slots of databases' own workers */
	int			mine;			/* slots for functions of this database */
	Oid			richest;		/* the database with most slots for functions,
								 * less those that are stuck */
	int			most;			/* the number of these slots */
	int			nfunctions;		/* slots for functions of all databases, less
								 * those that are stuck */
	Oid		   *functions;		/* the databases of these slots, sorted */
	int			nstuck;			/* slots of functions that are stuck */
	Oid		   *stuck;			/* the databases of these slots, sorted */
	int			own_limit;		/* so many databases may have their own worker
								 * while function relays wait */
} Counts;

int			idem_max_function_workers = 4;

void
idem_shares_wake(int procno)
{
	if (procno >= 0)
		SetLatch(&GetPGProcByNumber(procno)->procLatch);
}

/* Order OIDs, for qsort. */
static int
compare_oids(const void *a, const void *b)
{
	Oid			x = *(const Oid *) a;
	Oid			y = *(const Oid *) b;

	return x < y ? -1 : x > y;
}

/* The first place among n sorted OIDs whose OID is not below dboid. */
static int
lower_bound(const Oid *sorted, int n, Oid dboid)
{
	int			low = 0;
	int			high = n;

	while (low < high)
	{
		int			middle = (low + high) / 2;

		if (sorted[middle] < dboid)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

/* How many of n sorted OIDs are dboid? */
static int
count_oid(const Oid *sorted, int n, Oid dboid)
{
	return lower_bound(sorted, n, dboid + 1) - lower_bound(sorted, n, dboid);
}

/* The number of slots for functions of a database. */
static int
count_functions(const Counts *c, Oid dboid)
{
	return count_oid(c->functions, c->nfunctions, dboid) + count_oid(c->stuck, c->nstuck, dboid);
}

/*
 * Was the slot's worker asked to give way, and not long ago?  A worker that
 * has not given way in time, since its handler waits, does not count as
 * leaving.
 */
static bool
is_leaving(const IdemWorkerSlot *slot, IdemClock now)
{
	return slot->yield &&
		now < idem_clock_plus_ms(slot->yield_at,
								 slot->relay_id == 0 ? OWN_LEAVES_MS : 2 * IDEM_SLICE_MS);
}

/* The slots of functions that are stuck are noted from the end of the room. */
static void
count_slots(const IdemSlots *all, Counts *c, Oid *room)
{
	IdemClock	now = idem_clock();
	int			run = 0;

	memset(c, 0, sizeof(*c));
	c->functions = room;
	c->stuck = room + all->n;
	for (int i = 0; i < all->n; i++)
	{
		const IdemWorkerSlot *slot = &all->slot[i];

		if (!OidIsValid(slot->dboid))
			c->free++;
		else if (slot->relay_id == 0)
			c->own++;
		else if (slot->yield && !is_leaving(slot, now))
		{
			*--c->stuck = slot->dboid;
			c->nstuck++;
		}
		else
			c->functions[c->nfunctions++] = slot->dboid;
	}
	qsort(c->functions, c->nfunctions, sizeof(Oid), compare_oids);
	qsort(c->stuck, c->nstuck, sizeof(Oid), compare_oids);
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
	c->own_limit = Max(1, all->demand->room - c->nstuck - 1);
}

/* Has the own worker of a database the slot, and a process? */
static bool
is_own_worker(const IdemWorkerSlot *slot)
{
	return OidIsValid(slot->dboid) && slot->relay_id == 0 && slot->pid != 0;
}

/*
 * A database comes first if its function relays wait
 * as well and it has fewer slots, or as many slots and an earlier last turn.
 * Without this order a freed slot would go to the worker that is woken first,
 * mostly that of the slot's former database.
 */
static int
count_before_me(const IdemSlots *all, const Counts *c, const IdemWorkerSlot *own)
{
	int			n = 0;

	for (int i = 0; i < all->n; i++)
	{
		const IdemWorkerSlot *slot = &all->slot[i];
		int			has;

		if (!is_own_worker(slot) || slot == own || !slot->waits)
			continue;
		has = count_functions(c, slot->dboid);
		n += has < c->mine || (has == c->mine && slot->served_at < own->served_at);
	}
	return n;
}

/*
 * Does a database with a worker wait for a slot for a function, or such a slot for its
 * first process?  A worker that was asked to give way and has not done so is not waited
 * for.
 */
static bool
functions_wait(const IdemSlots *all)
{
	IdemClock	now = idem_clock();

	for (int i = 0; i < all->n; i++)
	{
		const IdemWorkerSlot *slot = &all->slot[i];

		if (is_own_worker(slot) && slot->waits && (!slot->yield || is_leaving(slot, now)))
			return true;
		if (slot->relay_id != 0 && !slot->started)
			return true;
	}
	return false;
}

/*
 * In which order databases' own workers give way: the lowest first.  A worker for whose
 * functions there was no slot yet stays: otherwise databases would come and go, and none
 * would come to the slot for functions.
 */
static int
own_rank(const IdemWorkerSlot *slot)
{
	if (slot->waits)
		return slot->served_at > slot->since ? 1 : 2;
	return slot->at_rest ? 0 : 1;
}

/* The own worker of a database to ask next; NULL: none has had its time. */
static IdemWorkerSlot *
choose_own_yielder(const IdemSlots *all, IdemClock now)
{
	IdemWorkerSlot *best = NULL;

	for (int i = 0; i < all->n; i++)
	{
		IdemWorkerSlot *slot = &all->slot[i];
		int			rank;

		if (!is_own_worker(slot) || slot->yield ||
			now < idem_clock_plus_ms(slot->since, IDEM_SLICE_MS))
			continue;
		rank = own_rank(slot);
		if (best == NULL || rank < own_rank(best) ||
			(rank == own_rank(best) &&
			 (rank == 2 ? slot->since > best->since : slot->since < best->since)))
			best = slot;
	}
	return best;
}

/*
 * Have the own worker of a database give way.  One leaves at a time, and one is asked per
 * slice: however many databases wait, processes do not come and go faster.
 */
static void
ask_own_to_yield(const IdemSlots *all)
{
	IdemClock	now = idem_clock();
	IdemWorkerSlot *slot;

	if (all->demand->asked_at != 0 &&
		now < idem_clock_plus_ms(all->demand->asked_at, IDEM_SLICE_MS))
		return;
	for (int i = 0; i < all->n; i++)
	{
		if (is_own_worker(&all->slot[i]) && is_leaving(&all->slot[i], now))
			return;
	}
	slot = choose_own_yielder(all, now);
	if (slot == NULL)
		return;
	slot->yield = true;
	slot->yield_at = all->demand->asked_at = now;
	idem_shares_wake(slot->procno);
}

/* Has the function relay of the slot nothing to do? */
static bool
is_idle(const IdemWorkerSlot *slot)
{
	return slot->entry >= 0 &&
		idem_relay_entry_is_idle(slot->entry, slot->dboid, slot->relay_id);
}

/*
 * The slot of the database to ask next: idle relays go first, then those that
 * have had their slot longest.  NULL if all were asked.
 */
static IdemWorkerSlot *
choose_yielder(const IdemSlots *all, Oid dboid)
{
	IdemWorkerSlot *best = NULL;
	bool		best_idle = false;

	for (int i = 0; i < all->n; i++)
	{
		IdemWorkerSlot *slot = &all->slot[i];
		bool		idle;

		if (slot->dboid != dboid || slot->relay_id == 0 || slot->yield)
			continue;
		idle = is_idle(slot);
		if (best != NULL &&
			!(idle != best_idle ? idle : slot->since < best->since))
			continue;
		best = slot;
		best_idle = idle;
	}
	return best;
}

void
idem_shares_ask_to_yield(const IdemSlots *all, Oid dboid, int n)
{
	IdemClock	now = idem_clock();
	IdemWorkerSlot *slot;

	for (int i = 0; i < all->n; i++)
		n -= all->slot[i].dboid == dboid && all->slot[i].relay_id != 0 &&
			is_leaving(&all->slot[i], now);
	for (; n > 0 && (slot = choose_yielder(all, dboid)) != NULL; n--)
	{
		slot->yield = true;
		slot->yield_at = now;
		idem_shares_wake(slot->procno);
	}
}

/*
 * Databases that wait for their own worker come first, up to own_limit.  A free slot goes
 * to the database that comes first (count_before_me).  If no slot is free, the richest
 * database is asked to give one up if it has at least two more than this one, or if it has
 * one and this one has none: then they take turns.  If no function has a slot, the own
 * worker of a database is asked.  A slot is useful with a process only: where the launcher
 * gets no process, no slot counts as free.
 */
IdemSlotAnswer
idem_shares_decide(const IdemSlots *all, IdemWorkerSlot *own, Oid *room, int nwaiting)
{
	IdemSlotAnswer answer = IDEM_SLOT_GIVEN;
	bool		no_process = all->demand->no_process;
	int			databases;
	Counts		c;

	count_slots(all, &c, room);
	databases = Min(all->demand->databases_waiting, Max(0, c.own_limit - c.own));
	if (c.mine >= idem_max_function_workers)
	{
		answer = IDEM_SLOT_TAKEN;
		idem_shares_ask_to_yield(all, MyDatabaseId, nwaiting);
	}
	else if (no_process || c.free <= databases + count_before_me(all, &c, own))
	{
		answer = c.mine > 0 ? IDEM_SLOT_TAKEN :
			no_process ? IDEM_SLOT_NO_PROCESS : IDEM_SLOT_NONE_LEFT;
		if (c.most > c.mine + 1)
			idem_shares_ask_to_yield(all, c.richest, 1);
		if (c.mine > 0)
			idem_shares_ask_to_yield(all, MyDatabaseId, nwaiting);
		else if (c.most == 1)
			idem_shares_ask_to_yield(all, c.richest, 1);
		else if (c.most + c.nstuck == 0)
			ask_own_to_yield(all);
	}
	if (answer == IDEM_SLOT_GIVEN)
		own->served_at = idem_clock();

	/*
	 * A database with max_function_workers slots does not wait for slots of
	 * others.
	 */
	own->waits = answer == IDEM_SLOT_GIVEN ? nwaiting > 1 : c.mine < idem_max_function_workers;
	return answer;
}

bool
idem_shares_admit_database(const IdemSlots *all, Oid *room)
{
	Counts		c;

	if (!functions_wait(all))
		return true;
	count_slots(all, &c, room);
	return c.own < c.own_limit;
}

/* A function relay keeps the last slot for functions while it has something to do. */
void
idem_shares_yield_to_database(const IdemSlots *all, Oid *room)
{
	const IdemWorkerSlot *slot;
	Counts		c;

	count_slots(all, &c, room);
	slot = c.most > 0 ? choose_yielder(all, c.richest) : NULL;
	if (c.most > 0 && (c.own < c.own_limit || (slot != NULL && is_idle(slot))))
		idem_shares_ask_to_yield(all, c.richest, 1);
	else
		ask_own_to_yield(all);
}

/* A process that the launcher got beyond the room that was known shows that there are more. */
void
idem_shares_note_room(const IdemSlots *all, bool got)
{
	int			processes = 0;

	for (int i = 0; i < all->n; i++)
		processes += all->slot[i].pid != 0 || all->slot[i].starting;
	all->demand->room = got ? Max(all->demand->room, processes) : processes;
}

Oid *
idem_shares_room(const IdemSlots *all)
{
	static Oid *room = NULL;

	if (room == NULL)
		room = MemoryContextAlloc(TopMemoryContext,
								  sizeof(Oid) * all->n);
	return room;
}

void
idem_shares_complain(Oid dboid, bool no_process)
{
	static IdemClock complain_at = 0;
	IdemClock	now = idem_clock();

	if (now < complain_at)
		return;
	complain_at = idem_clock_plus_ms(now, COMPLAIN_MS);
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 OidIsValid(dboid) ?
			 errmsg("no idempotency worker is left for database %u", dboid) :
			 errmsg("no idempotency worker is left for the function relays of this database"),
			 no_process ? errhint("Raise max_worker_processes.") :
			 errhint("Raise idempotency.max_workers.")));
}

bool
idem_shares_is_hung(IdemWorkerSlot *slot)
{
	return slot->pid != 0 &&
		idem_clock() >= idem_clock_plus_ms((IdemClock) pg_atomic_read_u64(&slot->turn_at), HUNG_MS);
}

/*
 * A function relay without a worker of its own is served by that of the database.  A
 * clock that is set changes nothing: the age is that of the monotonic clock.
 */
TimestampTz
idem_shares_hung_since(const IdemSlots *all, int relay_id)
{
	IdemClock	now = idem_clock();
	IdemClock	turn_at = now;
	bool		own = false;

	for (int i = 0; i < all->n && !own; i++)
	{
		IdemWorkerSlot *slot = &all->slot[i];

		if (slot->dboid != MyDatabaseId || slot->pid == 0 || (slot->relay_id != relay_id && slot->relay_id != 0))
			continue;
		own = slot->relay_id == relay_id;
		turn_at = (IdemClock) pg_atomic_read_u64(&slot->turn_at);
	}
	return now < idem_clock_plus_ms(turn_at, HUNG_MS) ? 0 : GetCurrentTimestamp() - (now - turn_at);
}
