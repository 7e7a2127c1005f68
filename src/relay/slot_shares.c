/*-------------------------------------------------------------------------
 *
 * slot_shares.c
 *		How many worker slots each database has, and who gives way to whom.
 *
 * A free slot goes to the database with fewest slots.  If none is free, relays give
 * way: those that have nothing to do first, then those that have had their slot
 * longest.  worker_slots.c decides when somebody is asked.
 *
 * LOCKING: the caller holds the lock of the slots, exclusively.
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

#include "relay/report.h"
#include "relay/worker_slots.h"

/* How often the server log says that slots are too few. */
#define COMPLAIN_MS 60000

/*
 * How many slots each database has.  The databases of all slots for functions
 * are sorted, so counting costs one pass however many databases there are.
 */
typedef struct Counts
{
	int			free;
	int			mine;			/* slots for functions of this database */
	Oid			richest;		/* the database with most slots for functions */
	int			most;			/* the number of its slots for functions */
	int			nfunctions;		/* slots for functions of all databases */
	Oid		   *functions;		/* the databases of these slots, sorted */
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

/* The first place in c->functions whose OID is not below dboid. */
static int
lower_bound(const Counts *c, Oid dboid)
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
count_functions(const Counts *c, Oid dboid)
{
	return lower_bound(c, dboid + 1) - lower_bound(c, dboid);
}

static void
count_slots(const IdemSlots *all, Counts *c, Oid *room)
{
	int			run = 0;

	memset(c, 0, sizeof(*c));
	c->functions = room;
	for (int i = 0; i < all->n; i++)
	{
		const IdemWorkerSlot *slot = &all->slot[i];

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

		if (slot->relay_id != 0 || !OidIsValid(slot->dboid) || slot == own ||
			!slot->waits || slot->pid == 0)
			continue;
		has = count_functions(c, slot->dboid);
		n += has < c->mine || (has == c->mine && slot->served_at < own->served_at);
	}
	return n;
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
		idle = slot->entry >= 0 &&
			idem_relay_entry_is_idle(slot->entry, slot->dboid, slot->relay_id);
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
 * Each database with relays gets its own worker before any gets a slot for a
 * function.  A free slot goes to the database that comes first
 * (count_before_me).  If no slot is free, the richest database is asked to
 * give one up if it has at least two more than this one, or if it has one and
 * this one has none: then they take turns.  A slot is useful with a process
 * only: where the launcher gets no process, no slot counts as free.
 */
IdemSlotAnswer
idem_shares_decide(const IdemSlots *all, IdemWorkerSlot *own, Oid *room, int nwaiting,
				   bool no_process, int databases_waiting)
{
	IdemSlotAnswer answer = IDEM_SLOT_GIVEN;
	Counts		c;

	count_slots(all, &c, room);
	if (c.mine >= idem_max_function_workers)
	{
		answer = IDEM_SLOT_TAKEN;
		idem_shares_ask_to_yield(all, MyDatabaseId, nwaiting);
	}
	else if (no_process || c.free <= databases_waiting + count_before_me(all, &c, own))
	{
		answer = c.mine > 0 ? IDEM_SLOT_TAKEN :
			no_process ? IDEM_SLOT_NO_PROCESS : IDEM_SLOT_NONE_LEFT;
		if (c.most > c.mine + 1)
			idem_shares_ask_to_yield(all, c.richest, 1);
		if (c.mine > 0)
			idem_shares_ask_to_yield(all, MyDatabaseId, nwaiting);
		else if (c.most == 1)
			idem_shares_ask_to_yield(all, c.richest, 1);
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

void
idem_shares_yield_to_database(const IdemSlots *all, Oid *room)
{
	Counts		c;

	count_slots(all, &c, room);
	if (c.most > 0)
		idem_shares_ask_to_yield(all, c.richest, 1);
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
