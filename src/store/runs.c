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
 * statement can rely on from its first row to its last (idem_runs_search with "copies").
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

/* The runs of one slot: a restore may have added any number to its own. */
typedef struct SlotRuns
{
	int			slot;
	int			first;			/* in the set */
	int			nruns;
	IdemFilters filters;
} SlotRuns;

/* The list that the session keeps. */
typedef struct RunList
{
	IdemRunSet	set;
	Oid			store;			/* OID of store_state, which tells one
								 * installation of the extension from the next */
	int64		state;			/* the number of the state */
	int			nslots;			/* that have runs */
	SlotRuns	slots[IDEM_STORE_SLOTS];
} RunList;

static RunList *kept_list = NULL;

struct IdemRunSearch
{
	MemoryContext context;
	FullTransactionId next_xid; /* if a snapshot is asked: read after it was
								 * taken */
	IdemSlot   *slots[IDEM_STORE_SLOTS];	/* NULL: not open */
};

/* Read the marks and filters of one slot. */
static void
read_slot(RunList *list, int number)
{
	SlotRuns   *runs = &list->slots[list->nslots];
	int			level = -1;
	IdemSlot	slot;

	runs->slot = number;
	runs->first = list->set.n;
	idem_slot_open(&slot, number, AccessShareLock);
	if (RelationGetNumberOfBlocks(slot.heap) > 0)
		idem_run_read_marks(&slot, &list->set);
	runs->nruns = list->set.n - runs->first;

	/* runs that a restore added may be of any level, and have no filter */
	for (int i = runs->first; i < list->set.n && level < 0; i++)
	{
		if (list->set.runs[i].column >= 0)
			level = list->set.runs[i].level;
	}
	if (level >= 0)
		idem_filter_load(&slot, level, &runs->filters);
	idem_slot_close(&slot, AccessShareLock);
	if (runs->nruns > 0)
		list->nslots++;
}

/* Read all end marks. */
static RunList *
read_list(const IdemStoreState *state)
{
	MemoryContext context = AllocSetContextCreate(CurrentMemoryContext, "idempotency runs",
												  ALLOCSET_SMALL_SIZES);
	RunList    *list = MemoryContextAllocZero(context, sizeof(RunList));

	list->set.context = context;
	list->store = idem_store_state_oid();
	list->state = state->value;
	for (int i = 0; i < Min(state->slots, IDEM_STORE_SLOTS); i++)
		read_slot(list, i);
	idem_run_find_replaced(&list->set);
	MemoryContextSetParent(context, TopMemoryContext);
	return list;
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
			MemoryContextDelete(kept_list->set.context);
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
counts(const IdemRunSearch *search, const IdemRun *run, Snapshot snapshot, bool copies)
{
	if (snapshot == NULL)
		return run->replaced_by == NULL;
	if (!copies)
		return is_run_visible(search, run, snapshot);
	return is_packer_visible(search, run, snapshot) &&
		(run->replaced_by == NULL || !is_packer_visible(search, run->replaced_by, snapshot));
}

/* Look into one run; a higher turn than the one found before decides. */
static void
search_run(const IdemRunSearch *search, const IdemRun *run, const pg_uuid_t *digest, bool detail,
		   IdemFinding *finding)
{
	IdemEventEntry entry;

	if (!idem_run_search(search->slots[run->slot], run, digest, detail, &entry) ||
		(finding->found && finding->row.turn >= entry.turn))
		return;
	finding->found = true;
	finding->segment = -1;
	finding->run = run->number;
	finding->state = entry.state;
	finding->tid = entry.tid;
	finding->unsound = idem_entry_is_sound(entry.turn, entry.state) ? InvalidOid : idem_slot_oid(run->slot);
	finding->has_result = entry.has_detail && entry.result != 0;
	finding->result = entry.result;
	finding->row = (IdemRow)
	{
		.turn = entry.turn,
			.class = run->class,
			.expires = idem_run_end(run),
			.in_snapshot = !IsolationUsesXactSnapshot() ||
			is_run_visible(search, run, GetTransactionSnapshot()),
			.claimed_at = entry.has_detail ? entry.claimed_at : run->oldest,
			.completed_at = entry.has_detail ? entry.completed_at : run->oldest,
			.completed_latest = entry.has_detail ? entry.completed_at : run->newest,
			.commit_lsn = run->lsn
	};
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
			Snapshot snapshot, bool copies, bool detail, IdemFinding *finding)
{
	IdemSlot   *slot = get_slot(search, runs->slot);
	const IdemRun *first = &kept_list->set.runs[runs->first];
	uint32		columns = 0;
	uint32		candidates;

	for (const IdemRun *run = first; run < first + runs->nruns; run++)
	{
		if (run->column >= 0 && counts(search, run, snapshot, copies))
			columns |= (uint32) 1 << run->column;
	}
	candidates = columns == 0 ? 0 : idem_filter_ask(slot, &runs->filters, columns, digest);
	for (const IdemRun *run = first; run < first + runs->nruns; run++)
	{
		if ((run->column < 0 || (candidates & ((uint32) 1 << run->column))) &&
			counts(search, run, snapshot, copies))
			search_run(search, run, digest, detail, finding);
	}
}

/*
 * A search that began later, in a function that the same statement calls, may
 * have read the list anew.  A newer list is as good: whoever searches looks at
 * the state once more.
 */
void
idem_runs_search(IdemRunSearch *search, const pg_uuid_t *digest, Snapshot snapshot, bool copies,
				 bool detail, IdemFinding *finding)
{
	if ((snapshot != NULL || IsolationUsesXactSnapshot()) && kept_list->nslots > 0)
		search->next_xid = ReadNextFullTransactionId();
	for (int i = 0; i < kept_list->nslots; i++)
		search_slot(search, &kept_list->slots[i], digest, snapshot, copies, detail, finding);
}
