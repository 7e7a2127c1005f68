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
#include "shared/rows.h"
#include "shared/txn_owner.h"
#include "shared/uptime.h"
#include "store/pack.h"
#include "store/retention.h"
#include "store/ring.h"
#include "store/runs.h"
#include "store/setting.h"
#include "store/state.h"
#include "store/store.h"

StaticAssertDecl(IDEM_STORE_CHUNK <= IDEM_RING_CHUNK, "a chunk of the store is one of the ring");

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

/* What was found of an event so far. */
typedef struct Finding
{
	IdemRow		row;
	char		state;			/* of the entry that decides */
	bool		dead_rows;		/* a segment has rows of it that nobody sees */
	int			segment;		/* of the row that decides; -1: it is in a run */
	int64		run;			/* that run; 0: none */
	ItemPointerData tid;
	bool		has_result;		/* of a run; result is set then */
	Datum		result;
	Oid			unsound;		/* the table of the row, if the store did not
								 * write it */
} Finding;

/* From here on everything belongs to the store's owner. */
static ResourceOwner
enter(IdemStore *store)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = store->owner;
	return saved;
}

static void
leave(ResourceOwner saved)
{
	CurrentResourceOwner = saved;
}

/* The state as it is now. */
static IdemStoreState
look_at_state(const IdemStore *store)
{
	return store->for_write ? idem_store_state_look(store->state_page) :
		idem_store_state(store->state_rel);
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
		store->state = look_at_state(store);
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
	(void) idem_store_seal(store->state_rel);
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
	leave(saved);
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
	leave(saved);
	pfree(store);
}

/* Reading */

/* Take over what a segment has, unless something with a higher turn was found. */
static void
add_ring_finding(Finding *found, int segment, const IdemRingFinding *ring)
{
	found->dead_rows = found->dead_rows || ring->dead_rows;
	if (!ring->found || (ring->turn <= found->row.turn && !(ring->unsound && found->row.turn == 0)))
		return;
	found->unsound = ring->unsound ? idem_store_segment_oid(segment) : InvalidOid;
	found->segment = segment;
	found->tid = ring->tid;
	found->state = ring->state;
	found->row = (IdemRow)
	{
		.turn = ring->turn,
			.class = ring->class,
			.own = ring->own,
			.in_snapshot = ring->in_snapshot,
			.claimed_at = ring->claimed_at,
			.completed_at = ring->completed_at,
			.completed_latest = ring->completed_at,
			.commit_lsn = ring->commit_lsn
	};
}

/*
 * Take over what the runs have, unless something with a higher turn was found.
 * An entry that is both in a run and in a segment is taken from the segment,
 * which has its times.
 */
static void
add_runs_finding(Finding *found, const IdemRunsFinding *runs)
{
	const IdemEventEntry *entry = &runs->entry;

	bool		unsound = runs->found && !idem_entry_is_sound(entry->turn, entry->state);

	if (!runs->found || (entry->turn <= found->row.turn && !(unsound && found->row.turn == 0)))
		return;
	found->unsound = unsound ? idem_slot_oid(runs->slot) : InvalidOid;
	found->tid = entry->tid;
	found->segment = -1;
	found->run = runs->run;
	found->state = entry->state;
	found->has_result = entry->has_detail && entry->result != 0;
	found->result = entry->result;
	found->row = (IdemRow)
	{
		.turn = entry->turn,
			.class = runs->class,
			.expires = runs->expires,
			.in_snapshot = runs->in_snapshot,
			.claimed_at = entry->has_detail ? entry->claimed_at : runs->oldest,
			.completed_at = entry->has_detail ? entry->completed_at : runs->oldest,
			.completed_latest = entry->has_detail ? entry->completed_at : runs->newest,
			.commit_lsn = runs->lsn
	};
}

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
search_runs(IdemStore *store, const pg_uuid_t *digest, Snapshot snapshot, bool detail, Finding *found)
{
	IdemRunsFinding runs;

	begin_search(store);
	idem_runs_search(store->search, digest, snapshot, detail, &runs);
	add_runs_finding(found, &runs);
}

/* Nothing is found yet. */
static void
reset_finding(Finding *found)
{
	memset(found, 0, sizeof(*found));
	found->row.in_snapshot = true;
	found->segment = -1;
}

/* What the finding means.  Error XX001 if the store did not write the row that decides. */
static IdemRowStatus
status_of(const Finding *found)
{
	if (OidIsValid(found->unsound))
		idem_report_row(ERROR, found->unsound, &found->tid,
						"Find out whether the event was processed, and delete the row: without it, the event counts as what was known before, or as never seen.");
	if (found->row.turn == 0 || found->state == IDEM_ENTRY_FORGOTTEN)
		return IDEM_ROW_NONE;
	return found->state == IDEM_ENTRY_KEPT ? IDEM_ROW_PROCESSING : IDEM_ROW_COMPLETED;
}

/* Probe the segments; false if another transaction is writing the event. */
static bool
probe_segments(IdemStore *store, const pg_uuid_t *digest, Finding *found)
{
	IdemRingFinding ring;

	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (store->state.unprobed & (1 << i))
			continue;
		idem_ring_probe(get_segment(store, i, false), digest, &ring);
		if (ring.busy)
		{
			found->row.busy_xid = ring.busy_xid;
			return false;
		}
		add_ring_finding(found, i, &ring);
	}
	return true;
}

/* Steps 1 to 4; false if another transaction is writing the event. */
static bool
probe(IdemStore *store, const pg_uuid_t *digest, Finding *found)
{
	do
	{
		CHECK_FOR_INTERRUPTS();
		reset_finding(found);
		IDEM_FAULT_POINT("store-state-read");
		if (!probe_segments(store, digest, found))
			return false;
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
look_up_in_segments(IdemStore *store, const pg_uuid_t *digest, bool old, Finding *found)
{
	IdemRingFinding ring;
	bool		again;

	reset_finding(found);
	if (IsolationIsSerializable())
		PredicateLockPage(store->state_rel, predicate_page(digest), GetActiveSnapshot());
	for (int i = 0; i < IDEM_STORE_SEGMENTS; i++)
	{
		if (!old && (store->state.unprobed & (1 << i)))
			continue;
		again = store->by_one_snapshot && store->segments[i] != NULL;
		idem_ring_look_up(get_segment(store, i, false), digest, GetActiveSnapshot(), again, &ring);
		add_ring_finding(found, i, &ring);
	}
}

/*
 * Look at the event until the state does not change meanwhile: by the
 * transaction's snapshot, or by a new one.
 */
static void
look_up(IdemStore *store, const pg_uuid_t *digest, bool detail, Finding *found)
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
	Finding		found;

	look_up(store, digest, false, &found);
	return found.row.turn == turn;
}

void
idem_store_probe(IdemStore *store, const pg_uuid_t *digest, IdemRow *row)
{
	ResourceOwner saved = enter(store);
	Finding		found;
	bool		free = probe(store, digest, &found);

	if (free && found.dead_rows)
		free = probe(store, digest, &found);
	if (free && !found.row.in_snapshot && found.segment < 0)
		found.row.in_snapshot = snapshot_sees(store, digest, found.row.turn);
	leave(saved);
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
	Finding		found;

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
	Finding		found;

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
	leave(saved);
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
	leave(saved);
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
	leave(saved);
}

void
idem_store_lock_out_writers(void)
{
	LockRelationOid(idem_store_state_oid(), ShareRowExclusiveLock);
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
	Finding		found;
	IdemRunsFinding copy;

	/* a statement that shows a view has one snapshot */
	do
	{
		CHECK_FOR_INTERRUPTS();
		look_up_in_segments(store, digest, true, &found);
		store->by_one_snapshot = true;
		begin_search(store);
		idem_runs_search_copies(store->search, digest, GetActiveSnapshot(), &copy);
	} while (read_state(store));
	leave(saved);
	if (copy.found && copy.entry.turn >= found.row.turn)
	{
		*run = copy.run;
		return copy.entry.turn;
	}
	*run = 0;
	return found.row.turn;
}

/* Callbacks of IdemRowSource: a store beside the tables of the view. */
static void *
open_for_view(TupleDesc desc)
{
	return idem_store_open(false);
}

static void
close_for_view(void *arg)
{
	idem_store_close(arg);
}

/*
 * Fill in a row as processed_events shows it.  False for a row of one of the
 * extension's own consumers, for a row that something newer, or its copy in a
 * run, took the place of, and for a row that the store did not write: a claim of
 * its event tells of that.
 */
static bool
show_row(TupleTableSlot *slot, Datum *values, bool *nulls, void *arg)
{
	static const int shown[] = {
		IDEM_RING_CONSUMER, IDEM_RING_EVENT_ID, IDEM_RING_CLAIMED_AT, IDEM_RING_COMPLETED_AT,
		IDEM_RING_RESULT
	};
	text	   *consumer;
	int64		run;

	slot_getsomeattrs(slot, IDEM_RING_NATTS);
	if (slot->tts_isnull[IDEM_RING_DIGEST] || slot->tts_isnull[IDEM_RING_CONSUMER] ||
		!idem_entry_is_sound(DatumGetInt16(slot->tts_values[IDEM_RING_TURN]),
							 DatumGetChar(slot->tts_values[IDEM_RING_STATE])))
		return false;
	consumer = DatumGetTextPP(slot->tts_values[IDEM_RING_CONSUMER]);
	if (VARSIZE_ANY_EXHDR(consumer) > 0 && VARDATA_ANY(consumer)[0] == '@')
		return false;
	if (DatumGetChar(slot->tts_values[IDEM_RING_STATE]) == IDEM_ENTRY_FORGOTTEN)
		return false;
	if (idem_store_decider(arg, DatumGetUUIDP(slot->tts_values[IDEM_RING_DIGEST]), &run) >
		DatumGetInt16(slot->tts_values[IDEM_RING_TURN]) || run != 0)
		return false;
	for (int i = 0; i < lengthof(shown); i++)
	{
		values[i] = slot->tts_values[shown[i]];
		nulls[i] = slot->tts_isnull[shown[i]];
	}
	return true;
}

Datum
idem_store_next_row(FunctionCallInfo fcinfo)
{
	static const IdemRowSource source = {
		.ntables = IDEM_STORE_SEGMENTS, .ncolumns = 5, .table = idem_store_segment_ref,
		.begin = open_for_view, .end = close_for_view, .form_row = show_row
	};

	return idem_rows_next(fcinfo, &source);
}
