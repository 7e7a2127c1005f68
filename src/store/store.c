/*-------------------------------------------------------------------------
 *
 * store.c
 *		The dedup store: which events were completed?
 *
 * New entries go to the current segment of the open ring (ring.c).  A packer
 * copies closed segments into runs (pack.c).  The store's state says which
 * segments have to be probed; all other entries are in runs (runs.c).
 *
 * Invariant: a probe that its caller makes under the event's lock finds the
 * newest committed entry of the event, wherever it stands.  The steps, which
 * test/model walks:
 *
 * 1. Read the state, and lock the current segment; repeat until the state says
 *	  that the locked segment is current.  While we hold that lock, the segment
 *	  is not packed.
 * 2. Probe every segment that the state does not except.
 * 3. Search the runs, by the end marks that belong to the state or to a later
 *	  one.
 * 4. Read the state again; if it has changed, begin anew.  What is copied is
 *	  removed only after a change of the state.  If it has not changed, it is still
 *	  what the next probe would read in step 1, so that probe does not read it.
 *
 * A transaction may replace a row of its own by another one and commit, while
 * a probe is between a row's key and the row, or between two segments.  The
 * probe has seen a dead row then, and looks once more: whoever
 * wrote that row has ended by now.  While the caller holds the event's lock,
 * nobody else begins to write rows of the event.
 *
 * A crash leaves the committed rows, and runs.
 *
 * LOCKING: in this order:
 *		store_state			RowExclusiveLock to write, AccessShareLock to read
 *		segments			RowExclusiveLock on the current one, or on the one
 *							whose row is deleted; AccessShareLock on those that
 *							are probed
 *		slots				AccessShareLock
 * A store that was opened for writing keeps its RowExclusiveLocks; they belong to
 * the subtransaction (txn_owner.h), and fall with its rows at ROLLBACK TO, or at
 * the end of the transaction.  All other locks are given back when the store is
 * closed.  Rows of an event are written under the event's advisory lock
 * (claim/lock.c).
 *
 * A store is opened, used and closed in one subtransaction.
 *
 * MEMORY: what a store needs is in the context that is current when it is
 * opened.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/store.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/relation.h"
#include "access/table.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/predicate.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "shared/catalog.h"
#include "shared/cell.h"
#include "shared/fault.h"
#include "shared/txn_owner.h"
#include "shared/uptime.h"
#include "store/pack.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/runs.h"
#include "store/setting.h"
#include "store/state.h"
#include "store/store.h"

struct IdemStore
{
	MemoryContext context;
	ResourceOwner owner;		/* of all that the store holds open */
	bool		for_write;
	bool		by_one_snapshot;	/* all look-ups are those of one
									 * statement's view */
	Relation	state_rel;
	Buffer		state_page;		/* pinned; only if for_write, whose lock no
								 * ALTER SEQUENCE passes */
	IdemStoreState state;
	IdemRingSegment *segments[IDEM_STORE_SEGMENTS]; /* NULL: not open */
	bool		writable[IDEM_STORE_SEGMENTS];	/* open with RowExclusiveLock */
	IdemRunSearch *search;		/* NULL: none begun; of "search_state" */
	int64		search_state;
};

/* From here on everything belongs to the store's owner. */
static ResourceOwner
enter(IdemStore *store)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = store->owner;
	return saved;
}

/* The open segment; it is opened, or opened again for writing, if need be. */
static IdemRingSegment *
get_segment(IdemStore *store, int number, bool for_write)
{
	if (store->segments[number] != NULL && for_write && !store->writable[number])
	{
		idem_ring_close(store->segments[number]);
		store->segments[number] = NULL;
	}
	if (store->segments[number] == NULL)
	{
		store->segments[number] = idem_ring_open(number, for_write ? RowExclusiveLock : AccessShareLock,
												 store->context);
		store->writable[number] = for_write;
	}
	return store->segments[number];
}

/* Lock a segment to write to it. */
static void
lock_segment(IdemStore *store, int number)
{
	if (store->writable[number])
		return;
	(void) get_segment(store, number, true);
	IDEM_FAULT_POINT("store-segment-locked");
}

/*
 * Read the state; true if it has changed since it was read last.  A store for
 * writing locks the current segment first: what has this lock is current, or was
 * closed after the lock was taken.  Where somebody else set the number, it tells
 * nothing of what happened meanwhile.
 */
static bool
read_state(IdemStore *store)
{
	IdemStoreState before = store->state;

	do
	{
		if (store->for_write)
			lock_segment(store, idem_store_state_guess(store->state_page));
		store->state = store->for_write ? idem_store_state_look(store->state_page) :
			idem_store_state(store->state_rel);
	} while (store->for_write && !store->writable[store->state.current]);
	return store->state.value != before.value || store->state.sealed != before.sealed;
}

/*
 * Seal the state if nobody is restoring rows.  A transaction that restores rows
 * itself, and then claims, holds the packer's lock and must not seal: its rows
 * come with its commit.
 */
static void
seal_state(IdemStore *store)
{
	if (CheckRelationLockedByMe(store->state_rel, ShareUpdateExclusiveLock, false))
		return;
	(void) idem_store_seal();
	(void) read_state(store);
}

IdemStore *
idem_store_open(bool for_write)
{
	static Buffer recent_page = InvalidBuffer;
	IdemStore  *store = palloc0(sizeof(IdemStore));
	ResourceOwner saved;

	store->context = CurrentMemoryContext;
	store->owner = for_write ? CurTransactionResourceOwner : CurrentResourceOwner;
	store->for_write = for_write;
	saved = enter(store);
	store->state_rel = relation_open(idem_store_state_oid(),
									 for_write ? RowExclusiveLock : AccessShareLock);
	if (for_write)
		store->state_page = idem_cell_pin_recent(store->state_rel, &recent_page);
	(void) read_state(store);
	if (for_write && !store->state.sealed)
		seal_state(store);
	idem_txn_owner_leave(saved);
	return store;
}

/* End a search; its slots are given back. */
static void
end_search(IdemStore *store)
{
	if (store->search != NULL)
		idem_runs_end(store->search);
	store->search = NULL;
}

void
idem_store_close(IdemStore *store)
{
	ResourceOwner saved = enter(store);

	end_search(store);
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (store->segments[i] != NULL)
			idem_ring_close(store->segments[i]);
	}
	if (store->for_write)
		ReleaseBuffer(store->state_page);
	relation_close(store->state_rel, store->for_write ? NoLock : AccessShareLock);
	idem_txn_owner_leave(saved);
	pfree(store);
}

/* Reading */

/* Begin to search the runs that belong to the state that was read last. */
static void
begin_search(IdemStore *store)
{
	if (store->search != NULL && store->search_state != store->state.value)
		end_search(store);
	if (store->search == NULL || !store->state.sealed)
	{
		end_search(store);
		store->search = idem_runs_begin(&store->state, store->context);
		store->search_state = store->state.value;
	}
}

/* Search the runs that belong to the state that was read last. */
static void
search_runs(IdemStore *store, const pg_uuid_t *digest, Snapshot snapshot, bool detail, IdemFinding *found)
{
	begin_search(store);
	idem_runs_search(store->search, digest, snapshot, false, detail, found);
}

/* Nothing is found yet. */
static void
reset_finding(IdemFinding *found)
{
	memset(found, 0, sizeof(*found));
	found->row.in_snapshot = true;
	found->segment = -1;
}

/* What the finding means.  Error XX001 if the store did not write the row that decides. */
static IdemRowStatus
status_of(const IdemFinding *found)
{
	if (OidIsValid(found->unsound))
		idem_report_row(ERROR, found->unsound, &found->tid,
						"Find out whether the event was processed, and delete the row: without it, the event counts as what was known before, or as never seen.");
	if (found->row.turn == 0 || found->state == IDEM_ENTRY_FORGOTTEN)
		return IDEM_ROW_NONE;
	return found->state == IDEM_ENTRY_KEPT ? IDEM_ROW_PROCESSING : IDEM_ROW_COMPLETED;
}

/* Steps 1 to 4; false if another transaction is writing the event. */
static bool
probe(IdemStore *store, const pg_uuid_t *digest, IdemFinding *found)
{
	do
	{
		CHECK_FOR_INTERRUPTS();
		reset_finding(found);
		IDEM_FAULT_POINT("store-state-read");
		for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
		{
			if (!(store->state.unprobed & (1 << i)))
				idem_ring_probe(get_segment(store, i, false), digest, found);
			if (found->busy)
				return false;
		}
		IDEM_FAULT_POINT("store-segments-probed");
		search_runs(store, digest, NULL, false, found);
		IDEM_FAULT_POINT("store-runs-searched");
	} while (read_state(store));
	return true;
}

/*
 * A page number that stands for the event among the predicate locks of
 * store_state.  The segments' own predicate locks do not suffice: an event that
 * is written later may go to a segment that did not exist for the reader.
 */
static BlockNumber
predicate_page(const pg_uuid_t *digest)
{
	BlockNumber page;

	memcpy(&page, digest->data, sizeof(page));
	return page & ~((BlockNumber) 1 << 31);
}

/*
 * Look for the event in segments, by a snapshot that is active.  old: the snapshot
 * may be older than a packing, so every segment is looked into: no segment that it
 * could see rows of is emptied while it lives.
 */
static void
look_up_in_segments(IdemStore *store, const pg_uuid_t *digest, bool old, IdemFinding *found)
{
	bool		again;

	reset_finding(found);
	if (IsolationIsSerializable())
		PredicateLockPage(store->state_rel, predicate_page(digest), GetActiveSnapshot());
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (!old && (store->state.unprobed & (1 << i)))
			continue;
		again = store->by_one_snapshot && store->segments[i] != NULL;
		idem_ring_look_up(get_segment(store, i, false), digest, GetActiveSnapshot(), again, found);
	}
}

/*
 * Look at the event until the state does not change meanwhile: by the
 * transaction's snapshot, or by a new one.
 */
static void
look_up(IdemStore *store, const pg_uuid_t *digest, bool detail, IdemFinding *found)
{
	bool		old = IsolationUsesXactSnapshot();

	do
	{
		CHECK_FOR_INTERRUPTS();
		PushCopiedSnapshot(old ? GetTransactionSnapshot() : GetLatestSnapshot());
		UpdateActiveSnapshotCommandId();
		look_up_in_segments(store, digest, old, found);
		search_runs(store, digest, old ? GetActiveSnapshot() : NULL, detail, found);
		PopActiveSnapshot();
	} while (read_state(store));
}

/*
 * Does the transaction's snapshot see the event at this turn, which a run has?  A
 * run is visible only as a whole, and may have the event beside others that are
 * newer than the snapshot.  But then the segment or the run that the entry came
 * from is there as long as the snapshot.
 */
static bool
snapshot_sees(IdemStore *store, const pg_uuid_t *digest, int16 turn)
{
	IdemFinding found;

	look_up(store, digest, false, &found);
	return found.row.turn == turn;
}

void
idem_store_probe(IdemStore *store, const pg_uuid_t *digest, IdemRow *row)
{
	ResourceOwner saved = enter(store);
	IdemFinding found;
	bool		free = probe(store, digest, &found);

	if (free && found.dead_rows)
		free = probe(store, digest, &found);
	if (free && !found.row.in_snapshot && found.segment < 0)
		found.row.in_snapshot = snapshot_sees(store, digest, found.row.turn);
	idem_txn_owner_leave(saved);
	*row = found.row;
	row->status = free ? status_of(&found) : IDEM_ROW_BUSY;
}

/*
 * On a standby an old snapshot does not keep the primary from emptying segments,
 * unless it is told of it (hot_standby_feedback).  So an event that is not found
 * may be in a run that the snapshot does not see, and may have been there for it
 * before: that is no answer.
 */
static void
check_unseen(IdemStore *store, const pg_uuid_t *digest)
{
	IdemFinding found;

	reset_finding(&found);
	search_runs(store, digest, NULL, false, &found);
	if (found.row.turn > 0)
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access because the event was packed after this transaction took its snapshot"),
				 errhint("Retry the transaction.")));
}

void
idem_store_look_up(IdemStore *store, const pg_uuid_t *digest, IdemRow *row, Datum *result,
				   bool *has_result)
{
	ResourceOwner saved = enter(store);
	IdemFinding found;

	/* Rows that the current command wrote count, too. */
	CommandCounterIncrement();
	look_up(store, digest, result != NULL, &found);
	if (found.row.turn == 0 && IsolationUsesXactSnapshot() && RecoveryInProgress())
		check_unseen(store, digest);
	*row = found.row;
	row->status = status_of(&found);
	if (result != NULL && row->status != IDEM_ROW_COMPLETED)
		*has_result = false;
	else if (result != NULL && found.segment < 0)
	{
		*has_result = found.has_result;
		*result = found.result;
	}
	else if (result != NULL)
		*has_result = idem_ring_result(store->segments[found.segment], &found.tid, result);
	idem_txn_owner_leave(saved);
}

/* Writing */

/*
 * In SERIALIZABLE: others may have read that the event is not there.  Called when
 * the rows are there: who reads after that finds them, and who read before has
 * locked the event before.
 */
static void
check_readers(IdemStore *store, const IdemNewEntry *entries, int n)
{
	for (int i = 0; i < n && IsolationIsSerializable(); i++)
		CheckForSerializableConflictIn(store->state_rel, NULL, predicate_page(&entries[i].digest));
}

/*
 * A row that begins a page is the occasion to see whether there is work for the
 * packer: the segment is large, or another one waits to be packed.  Entries that
 * expire need a packer now and then, or time stands still.
 */
static void
note_growth(const IdemStore *store, const IdemNewEntry *entries, int n)
{
	uint32		waiting = ~store->state.unprobed & ~((uint32) 1 << store->state.current) &
	((1 << IDEM_STORE_SEGMENTS) - 1);

	for (int i = 0; i < n; i++)
	{
		if (entries[i].class != IDEM_RETENTION_FOR_EVER)
			idem_store_keep_time();
		if (ItemPointerGetOffsetNumber(&entries[i].ref.tid) != FirstOffsetNumber)
			continue;
		if (waiting != 0 ||
			ItemPointerGetBlockNumber(&entries[i].ref.tid) >= idem_claim_segment_size / (BLCKSZ / 1024))
			idem_store_request_maintenance();
	}
}

void
idem_store_insert(IdemStore *store, IdemNewEntry *entries, int n)
{
	ResourceOwner saved = enter(store);

	Assert(n > 0 && n <= IDEM_STORE_CHUNK);
	idem_ring_insert(get_segment(store, store->state.current, true), entries, n);
	check_readers(store, entries, n);
	note_growth(store, entries, n);
	idem_txn_owner_leave(saved);
}

void
idem_store_note_expiry(int64 now, int64 seconds)
{
	idem_uptime_need(now, seconds);
	idem_store_keep_time();
}

void
idem_store_delete(IdemStore *store, const pg_uuid_t *digest, const IdemEntryRef *ref)
{
	ResourceOwner saved = enter(store);

	if (!idem_ring_delete(get_segment(store, ref->segment, true), digest, &ref->tid))
		ereport(ERROR,
				(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
				 errmsg("could not serialize access due to concurrent change of the store of claims"),
				 errhint("Retry the transaction.")));
	idem_txn_owner_leave(saved);
}

Oid
idem_store_lock_oid(void)
{
	return idem_store_state_oid();
}

/* The view of what is in clear */

/*
 * A statement reads segments first and runs later, and the packer may empty a segment
 * in between.  So what counts is the newest copy of an entry that the snapshot sees.
 */
int16
idem_store_decider(IdemStore *store, const pg_uuid_t *digest, int64 *run)
{
	ResourceOwner saved = enter(store);
	IdemFinding found;
	IdemFinding copy;

	/* a statement that shows a view has one snapshot */
	do
	{
		CHECK_FOR_INTERRUPTS();
		look_up_in_segments(store, digest, true, &found);
		store->by_one_snapshot = true;
		reset_finding(&copy);
		begin_search(store);
		idem_runs_search(store->search, digest, GetActiveSnapshot(), true, false, &copy);
	} while (read_state(store));
	idem_txn_owner_leave(saved);
	if (!copy.found || copy.row.turn < found.row.turn)
		copy = found;
	*run = copy.run;
	return copy.row.turn;
}
