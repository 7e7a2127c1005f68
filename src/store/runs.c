/*-------------------------------------------------------------------------
 *
 * runs.c
 *		All runs of the store: the list that a session keeps, and the search.
 *
 * A session remembers the end marks that it has read, and the number of the
 * store's state at which it began to read them.  Every change of the runs
 * changes the state, after the new end mark and before a slot is emptied.  So a
 * session reads the state first, and then, if its number is another one, the
 * marks.  Who searches reads the state once more after the search, and begins
 * anew if it has changed (store.c).
 *
 * A run counts from its end mark on.  A run that was merged into another one
 * no longer counts, but stays until its slot is emptied.  A snapshot that does
 * not see the merge looks into it (idem_runs_search with a snapshot): there it finds just
 * the entries that it may see.
 *
 * The same entry may stand in several places that a snapshot sees: in a segment,
 * in its run, in the run that it was merged into.  Each of the older copies may be removed
 * while the snapshot lives, and the newest may not.  So the newest copy is the one that a
 * statement can rely on from its first row to its last (idem_runs_search_copies).
 *
 * A crash leaves nothing here.
 *
 * LOCKING: AccessShareLock on slots, one after the other while the marks are
 * read; for a search on all slots that have runs, until the search ends.
 *
 * MEMORY: the list is in a context of its own below TopMemoryContext, and is
 * made anew whenever it is outdated: about 300 bytes for each run.  A search is
 * in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/runs.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "storage/bufmgr.h"
#include "storage/lockdefs.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "shared/xid.h"
#include "store/filter.h"
#include "store/runs.h"

typedef struct KnownRun
{
	IdemRun		run;
	const IdemRun *replaced_by; /* the first run that it was merged into;
								 * NULL: none */
} KnownRun;

/* The runs of one slot: a restore may have added any number to its own. */
typedef struct SlotRuns
{
	int			slot;
	int			nruns;
	int			size;			/* of the array */
	KnownRun   *runs;
	IdemFilters filters;
} SlotRuns;

/* The list that the session keeps. */
typedef struct RunList
{
	MemoryContext context;
	Oid			store;			/* OID of store_state, which tells one
								 * installation of the extension from the next */
	int64		state;			/* the number of the state */
	int			nslots;
	SlotRuns   *slots[IDEM_STORE_SLOTS];
} RunList;

static RunList *kept_list = NULL;

struct IdemRunSearch
{
	MemoryContext context;
	FullTransactionId next_xid; /* if a snapshot is asked: read after it was
								 * taken */
	bool		copies;			/* of several copies search the newest one */
	IdemSlot   *slots[IDEM_STORE_SLOTS];	/* NULL: not open */
};

/* The context that is built up, and what is known of the slot being read. */
typedef struct Reading
{
	RunList    *list;
	SlotRuns   *current;
} Reading;

/* Callback: note a run. */
static void
add_run(const IdemRun *run, void *arg)
{
	Reading    *reading = arg;
	SlotRuns   *slot;

	if (reading->current == NULL)
	{
		reading->current = MemoryContextAllocZero(reading->list->context, sizeof(SlotRuns));
		reading->current->slot = run->slot;
		reading->list->slots[reading->list->nslots++] = reading->current;
	}
	slot = reading->current;
	if (slot->nruns == slot->size)
	{
		slot->size += IDEM_SLOT_RUNS;
		slot->runs = slot->nruns == 0 ?
			MemoryContextAlloc(reading->list->context, slot->size * sizeof(KnownRun)) :
			repalloc(slot->runs, slot->size * sizeof(KnownRun));
	}
	slot->runs[slot->nruns].run = *run;
	slot->runs[slot->nruns++].replaced_by = NULL;
}

/*
 * The level of the slot's filters.  Runs that a restore added may be of any
 * level, and have no filter.
 */
static int
filter_level(const SlotRuns *slot)
{
	for (int i = 0; i < slot->nruns; i++)
	{
		if (slot->runs[i].run.column >= 0)
			return slot->runs[i].run.level;
	}
	return -1;
}

/* Read the marks and filters of one slot. */
static void
read_slot(Reading *reading, int number)
{
	IdemSlot	slot;

	reading->current = NULL;
	idem_slot_open(&slot, number, AccessShareLock);
	if (RelationGetNumberOfBlocks(slot.heap) > 0)
		idem_run_read_marks(&slot, add_run, reading);
	if (reading->current != NULL && filter_level(reading->current) >= 0)
		idem_filter_load(&slot, filter_level(reading->current), &reading->current->filters);
	idem_slot_close(&slot, AccessShareLock);
}

/*
 * Note which run of the slot the run was merged into.  After a crash there may be
 * several; who sees any of them sees the first.
 */
static void
find_replacement(KnownRun *known, const SlotRuns *slot)
{
	for (int i = 0; i < slot->nruns; i++)
	{
		const IdemRun *other = &slot->runs[i].run;

		if (idem_run_was_merged_into(&known->run, other) &&
			(known->replaced_by == NULL ||
			 FullTransactionIdPrecedes(other->packer, known->replaced_by->packer)))
			known->replaced_by = other;
	}
}

/* Find out which runs were replaced by others. */
static void
find_replaced(RunList *list)
{
	for (int i = 0; i < list->nslots; i++)
	{
		SlotRuns   *slot = list->slots[i];

		for (int j = 0; j < slot->nruns; j++)
		{
			for (int k = 0; k < list->nslots; k++)
				find_replacement(&slot->runs[j], list->slots[k]);
		}
	}
}

/* Read all end marks. */
static RunList *
read_list(const IdemStoreState *state)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idempotency runs",
												  ALLOCSET_SMALL_SIZES);
	Reading		reading = {.list = MemoryContextAllocZero(context, sizeof(RunList))};

	reading.list->context = context;
	reading.list->store = idem_store_state_oid();
	reading.list->state = state->value;
	for (int i = 0; i < Min(state->slots, IDEM_STORE_SLOTS); i++)
		read_slot(&reading, i);
	find_replaced(reading.list);
	MemoryContextSetParent(context, TopMemoryContext);
	return reading.list;
}

/* Is the list that the session keeps the one of this state? */
static bool
is_up_to_date(const IdemStoreState *state)
{
	return kept_list != NULL && state->sealed && kept_list->state == state->value &&
		kept_list->store == idem_store_state_oid();
}

IdemRunSearch *
idem_runs_begin(const IdemStoreState *state, MemoryContext context)
{
	IdemRunSearch *search = MemoryContextAllocZero(context, sizeof(IdemRunSearch));

	search->context = context;
	if (!is_up_to_date(state))
	{
		RunList    *list = read_list(state);

		if (kept_list != NULL)
			MemoryContextDelete(kept_list->context);
		kept_list = list;
	}
	return search;
}

void
idem_runs_end(IdemRunSearch *search)
{
	for (int i = 0; i < IDEM_STORE_SLOTS; i++)
	{
		if (search->slots[i] == NULL)
			continue;
		idem_slot_close(search->slots[i], AccessShareLock);
		pfree(search->slots[i]);
	}
	pfree(search);
}

/* Does the snapshot see the transaction that wrote the run?  Nobody did after a restore. */
static bool
is_packer_visible(const IdemRunSearch *search, const IdemRun *run, Snapshot snapshot)
{
	FullTransactionId xmin = idem_xid_widen(snapshot->xmin, search->next_xid);

	return U64FromFullTransactionId(run->packer) == 0 ||
		FullTransactionIdPrecedes(run->packer, xmin) ||
		!XidInMVCCSnapshot(XidFromFullTransactionId(run->packer), snapshot);
}

/*
 * Does the snapshot see all of the run?  It does if it saw all
 * transactions whose entries the run has end, or the packer, which began after
 * them.  The last xid alone is not enough: a long transaction would keep the
 * answer from becoming true.
 */
static bool
is_run_visible(const IdemRunSearch *search, const IdemRun *run, Snapshot snapshot)
{
	FullTransactionId xmin = idem_xid_widen(snapshot->xmin, search->next_xid);

	return FullTransactionIdPrecedes(run->last_xid, xmin) ||
		is_packer_visible(search, run, snapshot);
}

/* May the run have entries that count? */
static bool
counts(const IdemRunSearch *search, const KnownRun *known, Snapshot snapshot)
{
	if (snapshot == NULL)
		return known->replaced_by == NULL;
	if (!search->copies)
		return is_run_visible(search, &known->run, snapshot);
	return is_packer_visible(search, &known->run, snapshot) &&
		(known->replaced_by == NULL || !is_packer_visible(search, known->replaced_by, snapshot));
}

/* Look into one run; a higher turn than the one found before decides. */
static void
search_run(const IdemRunSearch *search, const IdemRun *run, const pg_uuid_t *digest, bool detail,
		   IdemRunsFinding *finding)
{
	IdemEventEntry entry;

	if (!idem_run_search(search->slots[run->slot], run, digest, detail, &entry) ||
		(finding->found && finding->entry.turn >= entry.turn))
		return;
	finding->found = true;
	finding->in_snapshot = !IsolationUsesXactSnapshot() ||
		is_run_visible(search, run, GetTransactionSnapshot());
	finding->entry = entry;
	finding->run = run->number;
	finding->slot = run->slot;
	finding->class = run->class;
	finding->expires = idem_run_end(run);
	finding->oldest = run->oldest;
	finding->newest = run->newest;
	finding->lsn = run->lsn;
}

/* The open slot. */
static IdemSlot *
get_slot(IdemRunSearch *search, int number)
{
	if (search->slots[number] == NULL)
	{
		IdemSlot   *slot = MemoryContextAlloc(search->context, sizeof(IdemSlot));

		idem_slot_open(slot, number, AccessShareLock);
		search->slots[number] = slot;
	}
	return search->slots[number];
}

/* Look into the runs of one slot. */
static void
search_slot(IdemRunSearch *search, const SlotRuns *runs, const pg_uuid_t *digest,
			Snapshot snapshot, bool detail, IdemRunsFinding *finding)
{
	IdemSlot   *slot = get_slot(search, runs->slot);
	uint32		columns = 0;
	uint32		candidates;

	for (int i = 0; i < runs->nruns; i++)
	{
		const KnownRun *known = &runs->runs[i];

		if (known->run.column >= 0 && counts(search, known, snapshot))
			columns |= (uint32) 1 << known->run.column;
	}
	candidates = columns == 0 ? 0 : idem_filter_ask(slot, &runs->filters, columns, digest);
	for (int i = 0; i < runs->nruns; i++)
	{
		const KnownRun *known = &runs->runs[i];
		int			column = known->run.column;

		if (counts(search, known, snapshot) && (column < 0 || (candidates & ((uint32) 1 << column))))
			search_run(search, &known->run, digest, detail, finding);
	}
}

/*
 * A search that began later, in a function that the same statement calls, may
 * have read the list anew.  A newer list is as good: whoever searches looks at
 * the state once more.
 */
static void
search_all(IdemRunSearch *search, const pg_uuid_t *digest, Snapshot snapshot, bool detail,
		   IdemRunsFinding *finding)
{
	memset(finding, 0, sizeof(*finding));
	if ((snapshot != NULL || IsolationUsesXactSnapshot()) && kept_list->nslots > 0)
		search->next_xid = ReadNextFullTransactionId();
	for (int i = 0; i < kept_list->nslots; i++)
		search_slot(search, kept_list->slots[i], digest, snapshot, detail, finding);
}

void
idem_runs_search(IdemRunSearch *search, const pg_uuid_t *digest, Snapshot snapshot, bool detail,
				 IdemRunsFinding *finding)
{
	search->copies = false;
	search_all(search, digest, snapshot, detail, finding);
}

void
idem_runs_search_copies(IdemRunSearch *search, const pg_uuid_t *digest, Snapshot snapshot,
						IdemRunsFinding *finding)
{
	search->copies = true;
	search_all(search, digest, snapshot, false, finding);
}
