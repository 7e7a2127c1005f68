/*-------------------------------------------------------------------------
 *
 * keys.c
 *		The keys of a difference of snapshots, in order of seq, bounded.
 *
 * A difference is what the snapshot "cur" sees and "done" does not.  The index
 * of a segment is in order of (xid, seq), the events are wanted in order of
 * seq, there may be a hundred million of them, and memory for 170,000 keys.
 *
 * The difference is held as a set of ranges of index entries, each with the
 * least seq in it that is still wanted.  A fill walks the ranges in order of
 * that seq and keeps the smallest keys in a heap whose top is the largest;
 * it ends at the first range that begins above the top of a full heap.  A walk
 * through a large range cuts it into ranges of RANGE_ENTRIES entries; those
 * with something left are what the next fill works on.  Numbers and transaction
 * ids rise together, by and large, so an entry is read about twice whatever
 * the size of the difference.  Within one transaction entries are in order:
 * the walk leaves it, with a range for its rest, as soon as the heap is full
 * and its top is passed.
 *
 * Invariant: every entry of the difference with seq > k that has not been
 * given out is among the keys or in a range whose min_seq is not above it.
 * That the difference does not change is what makes this work: every
 * transaction in it has ended, so the index has all its entries and gets no
 * more.
 *
 * Entries of aborted transactions and subtransactions are keys too; whoever
 * fetches the rows finds out.
 *
 * LOCKING: none of its own; segments are opened by the caller.
 *
 * MEMORY: all in the context given; at most MAX_KEYS keys (4 MB) and MAX_RANGES
 * ranges (0.5 MB) and eight for each transaction that was running at "done".
 * A large buffer of keys is given back when the difference is exhausted.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/keys.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "outbox/keys.h"

#define MIN_KEYS		1024
#define KEEP_KEYS		16384	/* a larger buffer is given back */
#define MAX_KEYS		((int) (4 * 1024 * 1024 / sizeof(IdemKey)))
#define MAX_RANGES		8192
#define RANGE_ENTRIES	4096

/*
 * Unwanted entries of one transaction after which the walk jumps over them.  A
 * jump reads a leaf page, which costs as much as walking through a few hundred
 * entries, and may leave a range behind, so it must be worth it.
 */
#define MAX_RUN			2048

/* Entries of a segment from (xid_lo, seq_lo) to (xid_hi, seq_hi), inclusive. */
typedef struct KeyRange
{
	uint64		xid_lo;
	int64		seq_lo;
	uint64		xid_hi;
	int64		seq_hi;
	int64		min_seq;		/* nothing wanted in it is below; 0 = unknown */
	int64		max_seq;		/* nothing in it is above */
	int			segment;
} KeyRange;

typedef struct RangeList
{
	KeyRange   *ranges;
	int			n;
	int			size;
} RangeList;

struct IdemKeys
{
	MemoryContext context;
	const IdemSnap *done;
	const IdemSnap *cur;

	IdemKey    *keys;			/* ascending, or a heap during a fill */
	int			nkeys;
	int			size;
	int			next;			/* the one to be given out */
	int64		base;			/* keys held are the first above it */

	bool		started;		/* ranges hold the rest of the difference */
	bool		more;			/* not all of it is among the keys */
	bool		full;			/* during a fill: keys is a heap */
	RangeList	todo;
	RangeList	left;			/* during a fill: for the next one */
};

/* A walk through one range. */
typedef struct Walk
{
	IdemKeys   *keys;
	const IdemSegment *segment;
	const KeyRange *range;
	int			room;			/* ranges that may be added to the list */
	bool		emitted;		/* at least one was */

	uint64		xid;			/* where to continue */
	int64		seq;

	KeyRange	piece;			/* being put together */
	int			piece_entries;
	uint64		run_xid;		/* transaction of the entries looked at */
	bool		run_visible;
	int			run;			/* its unwanted entries in a row */
} Walk;

typedef enum WalkResult
{
	WALK_EXHAUSTED,				/* the scan has ended */
	WALK_END,					/* the range has ended */
	WALK_JUMP					/* go on at (xid, seq) */
} WalkResult;

#define ST_SORT sort_keys
#define ST_ELEMENT_TYPE IdemKey
#define ST_COMPARE(a, b) ((a)->seq < (b)->seq ? -1 : (a)->seq > (b)->seq)
#define ST_SCOPE static
#define ST_DEFINE
#define ST_CHECK_FOR_INTERRUPTS
#include "lib/sort_template.h"

#define ST_SORT sort_ranges
#define ST_ELEMENT_TYPE KeyRange
#define ST_COMPARE(a, b) \
	((a)->min_seq < (b)->min_seq ? -1 : (a)->min_seq > (b)->min_seq)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * Ranges
 */

static void
add_range(IdemKeys *keys, RangeList *list, const KeyRange *range)
{
	if (list->n == list->size)
	{
		int			size = Max(list->size * 2, 64);

		if (list->ranges == NULL)
			list->ranges = MemoryContextAlloc(keys->context, size * sizeof(KeyRange));
		else
			list->ranges = repalloc(list->ranges, size * sizeof(KeyRange));
		list->size = size;
	}
	list->ranges[list->n++] = *range;
}

static void
add_xids(IdemKeys *keys, int segment, uint64 lo, uint64 hi)
{
	KeyRange	range = {
		.xid_lo = lo,
		.xid_hi = hi,
		.seq_hi = PG_INT64_MAX,
		.max_seq = PG_INT64_MAX,
		.segment = segment
	};

	if (lo <= hi)
		add_range(keys, &keys->todo, &range);
}

/* The whole difference: a range after "done", and its stragglers that ended. */
static void
make_ranges(IdemKeys *keys, IdemSegmentOpener opener, void *arg)
{
	const IdemSnap *done = keys->done;
	const IdemSnap *cur = keys->cur;

	keys->todo.n = 0;
	for (int s = 0; s < IDEM_OUTBOX_SEGMENTS; s++)
	{
		if (idem_segment_is_empty(opener(arg, s)))
			continue;
		add_xids(keys, s, U64FromFullTransactionId(done->xmax),
				 U64FromFullTransactionId(cur->xmax) - 1);
		for (uint32 i = 0; i < done->nxip; i++)
		{
			uint64		xid = U64FromFullTransactionId(done->xip[i]);

			if (idem_snap_sees(cur, done->xip[i]))
				add_xids(keys, s, xid, xid);
		}
	}
}

/*
 * The heap of keys: the largest on top
 */

static void
sift_down(IdemKey *heap, int n, int i)
{
	IdemKey		key = heap[i];

	for (;;)
	{
		int			child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && heap[child + 1].seq > heap[child].seq)
			child++;
		if (heap[child].seq <= key.seq)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = key;
}

static void
grow_keys(IdemKeys *keys)
{
	int			size = Min(Max(keys->size * 2, MIN_KEYS), MAX_KEYS);

	if (keys->keys == NULL)
		keys->keys = MemoryContextAlloc(keys->context, size * sizeof(IdemKey));
	else
		keys->keys = repalloc(keys->keys, size * sizeof(IdemKey));
	keys->size = size;
}

/* Keep a key; in a full heap, in place of the largest. */
static void
add_key(IdemKeys *keys, const IdemEntry *entry, int segment)
{
	IdemKey    *key;

	if (keys->full)
	{
		key = &keys->keys[0];
		keys->more = true;
	}
	else
	{
		if (keys->nkeys == keys->size)
			grow_keys(keys);
		key = &keys->keys[keys->nkeys++];
	}
	key->seq = entry->seq;
	key->xid = entry->xid;
	key->tid = entry->tid;
	key->segment = segment;

	if (keys->full)
		sift_down(keys->keys, keys->nkeys, 0);
	else if (keys->nkeys == MAX_KEYS)
	{
		for (int i = keys->nkeys / 2 - 1; i >= 0; i--)
			sift_down(keys->keys, keys->nkeys, i);
		keys->full = true;
	}
}

/*
 * Walking through a range
 */

/* Hand the piece over, or make it part of the last if there is no room. */
static void
emit_piece(Walk *walk)
{
	RangeList  *left = &walk->keys->left;

	if (walk->piece_entries == 0)
		return;
	if (walk->emitted && walk->room <= 0)
	{
		KeyRange   *last = &left->ranges[left->n - 1];

		last->xid_hi = walk->piece.xid_hi;
		last->seq_hi = walk->piece.seq_hi;
		last->min_seq = Min(last->min_seq, walk->piece.min_seq);
		last->max_seq = Max(last->max_seq, walk->piece.max_seq);
	}
	else
	{
		add_range(walk->keys, left, &walk->piece);
		walk->room--;
		walk->emitted = true;
	}
	walk->piece_entries = 0;
}

static void
extend_piece(Walk *walk, const IdemEntry *entry)
{
	KeyRange   *piece = &walk->piece;

	if (walk->piece_entries == 0)
	{
		piece->xid_lo = entry->xid;
		piece->seq_lo = entry->seq;
		piece->min_seq = piece->max_seq = entry->seq;
		piece->segment = walk->segment->number;
	}
	piece->xid_hi = entry->xid;
	piece->seq_hi = entry->seq;
	piece->min_seq = Min(piece->min_seq, entry->seq);
	piece->max_seq = Max(piece->max_seq, entry->seq);
	if (++walk->piece_entries >= RANGE_ENTRIES)
		emit_piece(walk);
}

/* The rest of a transaction is not for this fill: one range, and past it. */
static WalkResult
leave_rest(Walk *walk, const IdemEntry *entry)
{
	bool		last = entry->xid == walk->range->xid_hi;
	int64		seq_hi = last ? walk->range->seq_hi : PG_INT64_MAX;

	emit_piece(walk);
	walk->piece.xid_lo = walk->piece.xid_hi = entry->xid;
	walk->piece.seq_lo = walk->piece.min_seq = entry->seq;
	walk->piece.seq_hi = walk->piece.max_seq = seq_hi;
	walk->piece.segment = walk->segment->number;
	walk->piece_entries = 1;
	emit_piece(walk);

	walk->xid = entry->xid + 1;
	walk->seq = 0;
	return last ? WALK_END : WALK_JUMP;
}

/* Entries of one transaction that are not wanted: walk on, or jump. */
static WalkResult
pass_by(Walk *walk, uint64 xid, int64 seq)
{
	if (++walk->run <= MAX_RUN)
		return WALK_EXHAUSTED;
	walk->run = 0;
	walk->xid = xid;
	walk->seq = seq;
	return xid > walk->range->xid_hi ? WALK_END : WALK_JUMP;
}

/* What becomes of one entry; WALK_EXHAUSTED means: go on with the next. */
static WalkResult
walk_entry(Walk *walk, const IdemEntry *entry)
{
	IdemKeys   *keys = walk->keys;

	if (entry->xid != walk->run_xid)
	{
		FullTransactionId xid = FullTransactionIdFromU64(entry->xid);

		walk->run_xid = entry->xid;
		walk->run_visible = idem_snap_sees(keys->cur, xid);
		walk->run = 0;
	}
	if (!walk->run_visible)
		return pass_by(walk, entry->xid + 1, 0);
	if (entry->seq <= keys->base)
		return pass_by(walk, entry->xid, keys->base + 1);
	if (keys->full && entry->seq > keys->keys[0].seq)
	{
		keys->more = true;
		if (++walk->run > MAX_RUN)
		{
			walk->run = 0;
			return leave_rest(walk, entry);
		}
		extend_piece(walk, entry);
		return WALK_EXHAUSTED;
	}
	walk->run = 0;
	extend_piece(walk, entry);
	add_key(keys, entry, walk->segment->number);
	return WALK_EXHAUSTED;
}

static WalkResult
walk_scan(Walk *walk, IndexScanDesc scan)
{
	const KeyRange *range = walk->range;
	IdemEntry	entry;

	while (idem_segment_next(scan, ForwardScanDirection, &entry))
	{
		WalkResult	result;

		CHECK_FOR_INTERRUPTS();
		if (entry.xid > range->xid_hi ||
			(entry.xid == range->xid_hi && entry.seq > range->seq_hi))
			return WALK_END;
		result = walk_entry(walk, &entry);
		if (result != WALK_EXHAUSTED)
			return result;
	}
	return WALK_EXHAUSTED;
}

/* From where the walk stands: first within its transaction, then after it. */
static WalkResult
walk_from(Walk *walk, IndexScanDesc scan)
{
	ScanKeyData keys[2];

	if (walk->seq > 0)
	{
		WalkResult	result;

		idem_key_xid(&keys[0], BTEqualStrategyNumber, walk->xid);
		idem_key_seq(&keys[1], BTGreaterEqualStrategyNumber,
					 Max(walk->seq, walk->keys->base + 1));
		index_rescan(scan, keys, 2, NULL, 0);
		result = walk_scan(walk, scan);
		if (result != WALK_EXHAUSTED)
			return result;
		walk->xid++;
		walk->seq = 0;
	}
	if (walk->xid > walk->range->xid_hi)
		return WALK_END;

	/* The second key is always there: scans of the same shape are cheap. */
	idem_key_xid(&keys[0], BTGreaterEqualStrategyNumber, walk->xid);
	idem_key_xid(&keys[1], BTLessEqualStrategyNumber, walk->range->xid_hi);
	index_rescan(scan, keys, 2, NULL, 0);
	return walk_scan(walk, scan);
}

static void
walk_range(IdemKeys *keys, const IdemSegment *segment, const KeyRange *range,
		   int room)
{
	IndexScanDesc scan;
	Walk		walk = {
		.keys = keys,
		.segment = segment,
		.range = range,
		.room = room,
		.xid = range->xid_lo,
		.seq = range->seq_lo
	};

	if (idem_segment_is_empty(segment))
		return;
	scan = idem_segment_beginscan(segment, 2);
	while (walk_from(&walk, scan) == WALK_JUMP)
		CHECK_FOR_INTERRUPTS();
	index_endscan(scan);
	emit_piece(&walk);
}

/*
 * Filling the buffer
 */

/* Drop the ranges of which everything is now among the keys. */
static void
drop_finished(RangeList *list, int64 top)
{
	int			n = 0;

	for (int i = 0; i < list->n; i++)
	{
		if (list->ranges[i].max_seq > top)
			list->ranges[n++] = list->ranges[i];
	}
	list->n = n;
}

static void
fill(IdemKeys *keys, IdemSegmentOpener opener, void *arg)
{
	RangeList  *todo = &keys->todo;
	RangeList	swap;

	keys->nkeys = keys->next = 0;
	keys->full = keys->more = false;
	keys->left.n = 0;
	sort_ranges(todo->ranges, todo->n);
	for (int i = 0; i < todo->n; i++)
	{
		const KeyRange *range = &todo->ranges[i];
		int			waiting = todo->n - i - 1;

		if (keys->full && range->min_seq > keys->keys[0].seq)
		{
			keys->more = true;
			add_range(keys, &keys->left, range);
		}
		else
			walk_range(keys, opener(arg, range->segment), range,
					   MAX_RANGES - keys->left.n - waiting);
	}

	if (keys->more)
		drop_finished(&keys->left, keys->keys[0].seq);
	else
		keys->left.n = 0;
	swap = keys->todo;
	keys->todo = keys->left;
	keys->left = swap;
	sort_keys(keys->keys, keys->nkeys);
}

static void
free_ranges(RangeList *list)
{
	if (list->ranges != NULL)
		pfree(list->ranges);
	memset(list, 0, sizeof(*list));
}

/* All keys are given out and no more will come: do not sit on the memory. */
static void
shrink(IdemKeys *keys)
{
	if (keys->size <= KEEP_KEYS)
		return;
	keys->base = keys->keys[keys->nkeys - 1].seq;
	pfree(keys->keys);
	keys->keys = NULL;
	keys->size = keys->nkeys = keys->next = 0;
	free_ranges(&keys->todo);
	free_ranges(&keys->left);
}

IdemKeys *
idem_keys_create(MemoryContext context)
{
	IdemKeys   *keys = MemoryContextAllocZero(context, sizeof(IdemKeys));

	keys->context = context;
	return keys;
}

void
idem_keys_forget(IdemKeys *keys)
{
	keys->started = keys->more = false;
	keys->nkeys = keys->next = 0;
	keys->todo.n = keys->left.n = 0;
	keys->done = keys->cur = NULL;
}

void
idem_keys_start(IdemKeys *keys, const IdemSnap *done, const IdemSnap *cur,
				int64 k)
{
	idem_keys_forget(keys);
	keys->done = done;
	keys->cur = cur;
	keys->base = k;
}

void
idem_keys_move(IdemKeys *keys, int64 k)
{
	int			lo = 0,
				hi = keys->nkeys;

	if (!keys->started || k < keys->base ||
		(keys->more && (keys->nkeys == 0 || k > keys->keys[keys->nkeys - 1].seq)))
	{
		idem_keys_start(keys, keys->done, keys->cur, k);
		return;
	}
	while (lo < hi)
	{
		int			mid = lo + (hi - lo) / 2;

		if (keys->keys[mid].seq <= k)
			lo = mid + 1;
		else
			hi = mid;
	}
	keys->next = lo;
}

const IdemKey *
idem_keys_next(IdemKeys *keys, IdemSegmentOpener opener, void *arg)
{
	if (!keys->started)
	{
		make_ranges(keys, opener, arg);
		fill(keys, opener, arg);
		keys->started = true;
	}
	while (keys->next == keys->nkeys)
	{
		if (!keys->more)
		{
			if (keys->nkeys > 0)
				shrink(keys);
			return NULL;
		}
		keys->base = keys->keys[keys->nkeys - 1].seq;
		fill(keys, opener, arg);
	}
	return &keys->keys[keys->next++];
}

void
idem_keys_back(IdemKeys *keys)
{
	Assert(keys->next > 0);
	keys->next--;
}
