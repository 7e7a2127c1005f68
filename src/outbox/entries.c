/*-------------------------------------------------------------------------
 *
 * entries.c
 *		Puts the index entries of a chunk of events into leaf pages together.
 *
 * nbtree takes entries one at a time: each descends from the root, is compared
 * with others by function calls, and has a WAL record of its own.  But the
 * entries of a chunk are neighbours, because their transaction is the only one
 * with its xid.  So nbtree finds the page of the first one, and all that belong
 * there and fit follow it, as one change of the page with one generic WAL
 * record.  Everything else is left to nbtree, above all to make room.
 *
 * Invariant: the page is afterwards as nbtree would have left it after the same
 * insertions: line pointers, order, free space.  Nothing but items is changed:
 * no flag of the page, no other page.
 *
 * What a crash leaves: all entries of a record or none, of rows that are in WAL
 * already and whose transaction never committed.
 *
 * LOCKING: an exclusive lock on the buffer of the leaf, taken by nbtree's search
 * as for an insertion; no other buffer is locked when the page is changed.
 *
 * MEMORY: the copy of the page that a generic record needs, about 80 kB, freed
 * with each call; the path of the search, some bytes for each level of the tree,
 * which stays in the current context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/entries.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/generic_xlog.h"
#include "access/itup.h"
#include "access/nbtree.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"
#include "storage/predicate.h"
#include "utils/rel.h"

#include "compat.h"
#include "outbox/entries.h"

/* What is written here is the format of this version. */
StaticAssertDecl(BTREE_VERSION == 4, "leaf pages may have another format");

/* An entry as index_form_tuple makes it, of two values that are not null. */
typedef struct LeafEntry
{
	IndexTupleData head;
	uint64		xid;
	int64		seq;
} LeafEntry;

StaticAssertDecl(offsetof(LeafEntry, xid) == MAXALIGN(sizeof(IndexTupleData)),
				 "the values are where index_form_tuple puts them");
StaticAssertDecl(sizeof(LeafEntry) == MAXALIGN(sizeof(LeafEntry)),
				 "an item takes its aligned size");

#define ROOM_OF_ENTRY	(sizeof(LeafEntry) + sizeof(ItemIdData))

static void
make_item(const IdemEntry *entry, LeafEntry *item)
{
	item->head.t_tid = entry->tid;
	item->head.t_info = sizeof(LeafEntry);	/* no nulls, no variable width */
	item->xid = entry->xid;
	item->seq = entry->seq;
}

static inline IndexTuple
item_at(Page page, OffsetNumber off)
{
	return (IndexTuple) PageGetItem(page, PageGetItemId(page, off));
}

/* Is the item's key less than the entry's, equal, or greater? */
static int
compare_item(Page page, OffsetNumber off, const IdemEntry *entry)
{
	IdemEntry	item;

	/* no event's; NULLs come last */
	if (IndexTupleHasNulls(item_at(page, off)))
		return 1;
	idem_segment_read_entry(item_at(page, off), &item);
	if (item.xid != entry->xid)
		return item.xid < entry->xid ? -1 : 1;
	if (item.seq != entry->seq)
		return item.seq < entry->seq ? -1 : 1;
	return 0;
}

/* The first item that is not less than the entry; one past the last if none. */
static OffsetNumber
find_place(Page page, const IdemEntry *entry)
{
	OffsetNumber low = P_FIRSTDATAKEY(BTPageGetOpaque(page));
	OffsetNumber high = PageGetMaxOffsetNumber(page) + 1;

	/* mostly it is behind all */
	if (high > low && compare_item(page, high - 1, entry) < 0)
		return high;
	while (low < high)
	{
		OffsetNumber mid = low + (high - low) / 2;

		if (compare_item(page, mid, entry) < 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

/*
 * Is the entry before the page's high key?  The high key may lack its seq, and
 * is then less than every entry with its xid.
 */
static bool
before_high_key(Relation index, Page page, const IdemEntry *entry)
{
	IndexTuple	high = item_at(page, P_HIKEY);
	uint64		xid;

	if (BTreeTupleGetNAtts(high, index) >= 2)
		return compare_item(page, P_HIKEY, entry) > 0;
	memcpy(&xid, (char *) high + IndexInfoFindDataOffset(high->t_info), sizeof(xid));
	return BTreeTupleGetNAtts(high, index) == 1 && entry->xid < xid;
}

/*
 * Does the page have something that nbtree does not log: entries marked as
 * dead, or marks of a VACUUM during which it was split?  A standby then differs
 * there, and wal_consistency_checking knows that of nbtree's records only.
 */
static bool
has_unlogged_marks(Page page)
{
	BTPageOpaque opaque = BTPageGetOpaque(page);

	return (opaque->btpo_flags & (BTP_HAS_GARBAGE | BTP_SPLIT_END)) != 0 || opaque->btpo_cycleid != 0;
}

/*
 * How many of the entries may stand on the page, from the returned place on?
 * The page is the one to which the first entry belongs.  Whatever comes next in
 * the index has a later xid, unless somebody wrote a segment by hand.
 */
static int
count_fitting(Relation index, Page page, const IdemEntry *entries, int n, OffsetNumber *place)
{
	Size		room = PageGetExactFreeSpace(page) / ROOM_OF_ENTRY;
	const IdemEntry *last;

	n = Min((Size) n, room);
	if (n == 0 || has_unlogged_marks(page))
		return 0;
	*place = find_place(page, &entries[0]);
	last = &entries[n - 1];
	if (*place <= PageGetMaxOffsetNumber(page) && compare_item(page, *place, last) <= 0)
		return 0;
	if (!P_RIGHTMOST(BTPageGetOpaque(page)) && !before_high_key(index, page, last))
		return 0;
	return n;
}

static void
add_items(Relation index, Buffer buffer, OffsetNumber place, const IdemEntry *entries, int n)
{
	GenericXLogState *state = GenericXLogStart(index);
	Page		page = GenericXLogRegisterBuffer(state, buffer, 0);

	for (int i = 0; i < n; i++)
	{
		LeafEntry	item;

		make_item(&entries[i], &item);
		if (PageAddItem(page, (char *) &item, sizeof(item), place + i, false, false) == InvalidOffsetNumber)
			elog(ERROR, "could not add an entry to index \"%s\"", RelationGetRelationName(index));
	}
	GenericXLogFinish(state);
}

int
idem_entries_put(Relation index, Relation heap, const IdemEntry *entries, int n)
{
	LeafEntry	first;
	BTScanInsert key;
	Buffer		buffer;
	OffsetNumber place;

	make_item(&entries[0], &first);
	key = _bt_mkscankey(index, &first.head);
	idem_compat_bt_search_leaf(index, heap, key, &buffer);
	n = count_fitting(index, BufferGetPage(buffer), entries, n, &place);
	if (n > 0)
	{
		CheckForSerializableConflictIn(index, NULL, BufferGetBlockNumber(buffer));
		add_items(index, buffer, place, entries, n);
	}
	_bt_relbuf(index, buffer);
	pfree(key);
	return n;
}
