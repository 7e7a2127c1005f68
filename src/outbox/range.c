/*-------------------------------------------------------------------------
 *
 * range.c
 *		The places of the events of a difference of snapshots, in order of seq.
 *
 * A range is the index entries of all transactions that the snapshot "target"
 * sees and "base" does not see, with a seq above a bound.  The index of a
 * segment is in order of (xid, seq); the events are wanted in order of seq.  A
 * range may have a hundred million entries; the memory has room for 170,000.
 *
 * A range is cut into pieces.  Each piece has the least wanted seq in it.  A
 * fill walks the pieces in order of that seq, and keeps the places with the
 * smallest seqs in a heap whose top is the largest.  The fill ends at the
 * first piece that begins above the top of a full heap.  A walk through a
 * large piece cuts it into pieces of PIECE_ENTRIES entries.  The next fill
 * works on the pieces that have wanted entries left.  Numbers and transaction
 * ids mostly rise together, so in a range of any size each entry is read about
 * twice.  Within one transaction the entries are in order of seq.  As soon as
 * the heap is full and its top is passed, the walk leaves the transaction,
 * with a piece for the transaction's rest.
 *
 * Invariant: every entry of the range that has not been given out is among the
 * places, or in a piece whose min_seq is not above the entry's seq.  The
 * invariant depends on ranges that do not change: every transaction in a range
 * has ended, so the index has all its entries and gets no more.
 *
 * Entries of aborted transactions and subtransactions are in the range, too.
 * The caller notices them when it fetches their rows.
 *
 * LOCKING: none of its own.  The caller opens the segments.
 *
 * MEMORY: all in the context that idem_range_create is given: at most
 * MAX_PLACES places (4 MB), MAX_PIECES pieces (0.5 MB), and eight pieces for
 * each transaction that was running at "base".  The end of the range frees a
 * large buffer of places.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/range.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/rel.h"

#include "outbox/range.h"

#define MIN_PLACES		1024
#define KEEP_PLACES		16384	/* a larger buffer is freed at the end of a
								 * range */
#define MAX_PLACES		((int) (4 * 1024 * 1024 / sizeof(IdemPlace)))
#define MAX_PIECES		8192
#define PIECE_ENTRIES	4096

/*
 * After this many unwanted entries of one transaction the walk jumps over the
 * rest.  A jump reads a leaf page, which costs as much as a walk through a few
 * hundred entries, and may leave a piece behind.
 */
#define MAX_SKIPPED			2048

/*
 * The entries of a segment from (xid_lo, seq_lo) to (xid_hi, seq_hi),
 * inclusive.
 */
typedef struct Piece
{
	uint64		xid_lo;
	int64		seq_lo;
	uint64		xid_hi;
	int64		seq_hi;
	int64		min_seq;		/* no wanted entry has a smaller seq; 0 =
								 * unknown */
	int64		max_seq;		/* no entry has a larger seq */
	int			segment;
} Piece;

typedef struct PieceList
{
	Piece	   *pieces;
	int			n;
	int			size;
} PieceList;

struct IdemRange
{
	MemoryContext context;
	const IdemSnap *base;
	const IdemSnap *target;

	IdemPlace  *places;			/* in order of seq; during a fill perhaps a
								 * heap */
	int			nplaces;
	int			size;
	int			next;			/* index of the place that is given out next */
	int64		after;			/* the places are the first ones whose seq is
								 * above this */

	bool		started;		/* "pending" has the rest of the range */
	bool		more;			/* the range goes on after the places held */
	bool		full;			/* during a fill: "places" is a heap */
	PieceList	pending;
	PieceList	later;			/* during a fill: the pieces for the next fill */
};

/* A walk through one piece. */
typedef struct Walk
{
	IdemRange  *range;
	const IdemSegment *segment;
	const Piece *piece;
	int			room;			/* how many pieces may be added to "later" */
	bool		emitted;		/* the walk has added a piece to "later" */

	uint64		xid;			/* the walk continues at (xid, seq) */
	int64		seq;

	Piece		rest;			/* the piece that is being put together for
								 * "later" */
	int			rest_entries;
	uint64		current_xid;	/* transaction of the entry that is looked at */
	bool		current_seen;	/* "target" sees current_xid */
	int			skipped;		/* unwanted entries of current_xid, one after
								 * the other */
} Walk;

typedef enum WalkResult
{
	WALK_NEXT,					/* go on with the next entry */
	WALK_EXHAUSTED,				/* the scan has no more entries */
	WALK_END,					/* the piece has ended */
	WALK_JUMP					/* go on at (xid, seq) */
} WalkResult;

#define ST_SORT sort_places
#define ST_ELEMENT_TYPE IdemPlace
#define ST_COMPARE(a, b) ((a)->seq < (b)->seq ? -1 : (a)->seq > (b)->seq)
#define ST_SCOPE static
#define ST_DEFINE
#define ST_CHECK_FOR_INTERRUPTS
#include "lib/sort_template.h"

#define ST_SORT sort_pieces
#define ST_ELEMENT_TYPE Piece
#define ST_COMPARE(a, b) \
	((a)->min_seq < (b)->min_seq ? -1 : (a)->min_seq > (b)->min_seq)
#define ST_SCOPE static
#define ST_DEFINE
#include "lib/sort_template.h"

/*
 * Pieces
 */

/* Append a copy of the piece. */
static void
add_piece(IdemRange *range, PieceList *list, const Piece *piece)
{
	if (list->n == list->size)
	{
		int			size = Max(list->size * 2, 64);

		if (list->pieces == NULL)
			list->pieces = MemoryContextAlloc(range->context, size * sizeof(Piece));
		else
			list->pieces = repalloc(list->pieces, size * sizeof(Piece));
		list->size = size;
	}
	list->pieces[list->n++] = *piece;
}

/* Append a piece of whole transactions, unless there are none. */
static void
add_xids(IdemRange *range, int segment, uint64 lo, uint64 hi)
{
	Piece		piece = {
		.xid_lo = lo,
		.xid_hi = hi,
		.seq_hi = PG_INT64_MAX,
		.max_seq = PG_INT64_MAX,
		.segment = segment
	};

	if (lo <= hi)
		add_piece(range, &range->pending, &piece);
}

/*
 * Cut the range into pieces: the transactions that began after "base", and
 * those that were running at "base" and have ended at "target".
 */
static void
cut_pieces(IdemRange *range, IdemSegmentOpener opener, void *arg)
{
	const IdemSnap *base = range->base;
	const IdemSnap *target = range->target;

	range->pending.n = 0;
	for (int s = 0; s < IDEM_OUTBOX_SEGMENTS; s++)
	{
		if (idem_segment_is_empty(opener(arg, s)))
			continue;
		add_xids(range, s, U64FromFullTransactionId(base->xmax),
				 U64FromFullTransactionId(target->xmax) - 1);
		for (uint32 i = 0; i < base->nxip; i++)
		{
			uint64		xid = U64FromFullTransactionId(base->xip[i]);

			if (idem_snap_sees(target, base->xip[i]))
				add_xids(range, s, xid, xid);
		}
	}
}

/*
 * The heap of places: the largest seq on top
 */

/* Let place i sink to where it belongs in the heap. */
static void
sift_down(IdemPlace *heap, int n, int i)
{
	IdemPlace	place = heap[i];

	for (;;)
	{
		int			child = 2 * i + 1;

		if (child >= n)
			break;
		if (child + 1 < n && heap[child + 1].seq > heap[child].seq)
			child++;
		if (heap[child].seq <= place.seq)
			break;
		heap[i] = heap[child];
		i = child;
	}
	heap[i] = place;
}

/* Double the buffer of places, up to MAX_PLACES. */
static void
grow_places(IdemRange *range)
{
	int			size = Min(Max(range->size * 2, MIN_PLACES), MAX_PLACES);

	if (range->places == NULL)
		range->places = MemoryContextAlloc(range->context, size * sizeof(IdemPlace));
	else
		range->places = repalloc(range->places, size * sizeof(IdemPlace));
	range->size = size;
}

/* Keep the entry's place; in a full heap it replaces the largest. */
static void
add_place(IdemRange *range, const IdemEntry *entry, int segment)
{
	IdemPlace  *place;

	if (range->full)
	{
		place = &range->places[0];
		range->more = true;
	}
	else
	{
		if (range->nplaces == range->size)
			grow_places(range);
		place = &range->places[range->nplaces++];
	}
	place->seq = entry->seq;
	place->xid = entry->xid;
	place->tid = entry->tid;
	place->segment = segment;

	if (range->full)
		sift_down(range->places, range->nplaces, 0);
	else if (range->nplaces == MAX_PLACES)
	{
		for (int i = range->nplaces / 2 - 1; i >= 0; i--)
			sift_down(range->places, range->nplaces, i);
		range->full = true;
	}
}

/*
 * Walking through a piece
 */

/*
 * Leave the rest as a piece for the next fill.  If no piece may be added, make
 * the rest part of the last piece.
 */
static void
emit_rest(Walk *walk)
{
	PieceList  *later = &walk->range->later;

	if (walk->rest_entries == 0)
		return;
	if (walk->emitted && walk->room <= 0)
	{
		Piece	   *last = &later->pieces[later->n - 1];

		last->xid_hi = walk->rest.xid_hi;
		last->seq_hi = walk->rest.seq_hi;
		last->min_seq = Min(last->min_seq, walk->rest.min_seq);
		last->max_seq = Max(last->max_seq, walk->rest.max_seq);
	}
	else
	{
		add_piece(walk->range, later, &walk->rest);
		walk->room--;
		walk->emitted = true;
	}
	walk->rest_entries = 0;
}

/* Add the entry to the rest; once the rest is large, make it a piece. */
static void
extend_rest(Walk *walk, const IdemEntry *entry)
{
	Piece	   *rest = &walk->rest;

	if (walk->rest_entries == 0)
	{
		rest->xid_lo = entry->xid;
		rest->seq_lo = entry->seq;
		rest->min_seq = rest->max_seq = entry->seq;
		rest->segment = walk->segment->number;
	}
	rest->xid_hi = entry->xid;
	rest->seq_hi = entry->seq;
	rest->min_seq = Min(rest->min_seq, entry->seq);
	rest->max_seq = Max(rest->max_seq, entry->seq);
	if (++walk->rest_entries >= PIECE_ENTRIES)
		emit_rest(walk);
}

/* Leave a transaction, from the entry on, to the next fill, as one piece. */
static WalkResult
leave_transaction(Walk *walk, const IdemEntry *entry)
{
	bool		last = entry->xid == walk->piece->xid_hi;
	int64		seq_hi = last ? walk->piece->seq_hi : PG_INT64_MAX;

	emit_rest(walk);
	walk->rest.xid_lo = walk->rest.xid_hi = entry->xid;
	walk->rest.seq_lo = walk->rest.min_seq = entry->seq;
	walk->rest.seq_hi = walk->rest.max_seq = seq_hi;
	walk->rest.segment = walk->segment->number;
	walk->rest_entries = 1;
	emit_rest(walk);

	walk->xid = entry->xid + 1;
	walk->seq = 0;
	return last ? WALK_END : WALK_JUMP;
}

/* Pass over an unwanted entry; after many in a row, jump to (xid, seq). */
static WalkResult
pass_by(Walk *walk, uint64 xid, int64 seq)
{
	if (++walk->skipped <= MAX_SKIPPED)
		return WALK_NEXT;
	walk->skipped = 0;
	walk->xid = xid;
	walk->seq = seq;
	return xid > walk->piece->xid_hi ? WALK_END : WALK_JUMP;
}

/*
 * Leave an entry above the top of a full heap to the next fill.  After many in
 * a row, leave the rest of its transaction.
 */
static WalkResult
postpone(Walk *walk, const IdemEntry *entry)
{
	walk->range->more = true;
	if (++walk->skipped > MAX_SKIPPED)
	{
		walk->skipped = 0;
		return leave_transaction(walk, entry);
	}
	extend_rest(walk, entry);
	return WALK_NEXT;
}

/* Keep the entry's place, leave the entry to the next fill, or pass over it. */
static WalkResult
walk_entry(Walk *walk, const IdemEntry *entry)
{
	IdemRange  *range = walk->range;

	if (entry->xid != walk->current_xid)
	{
		FullTransactionId xid = FullTransactionIdFromU64(entry->xid);

		walk->current_xid = entry->xid;
		walk->current_seen = idem_snap_sees(range->target, xid);
		walk->skipped = 0;
	}
	if (!walk->current_seen)
		return pass_by(walk, entry->xid + 1, 0);
	if (entry->seq <= range->after)
		return pass_by(walk, entry->xid, range->after + 1);
	if (range->full && entry->seq > range->places[0].seq)
		return postpone(walk, entry);
	walk->skipped = 0;
	extend_rest(walk, entry);
	add_place(range, entry, walk->segment->number);
	return WALK_NEXT;
}

/* Walk through the entries that the scan finds, up to the end of the piece. */
static WalkResult
walk_scan(Walk *walk, IndexScanDesc scan)
{
	const Piece *piece = walk->piece;
	IdemEntry	entry;

	while (idem_segment_next(scan, ForwardScanDirection, &entry))
	{
		WalkResult	result;

		CHECK_FOR_INTERRUPTS();
		if (entry.xid > piece->xid_hi ||
			(entry.xid == piece->xid_hi && entry.seq > piece->seq_hi))
			return WALK_END;
		result = walk_entry(walk, &entry);
		if (result != WALK_NEXT)
			return result;
	}
	return WALK_EXHAUSTED;
}

/*
 * Scan from (xid, seq) of the walk: first the rest of that transaction, then
 * the transactions after it.
 */
static WalkResult
walk_from(Walk *walk, IndexScanDesc scan)
{
	ScanKeyData keys[2];

	if (walk->seq > 0)
	{
		WalkResult	result;

		idem_scankey_xid(&keys[0], BTEqualStrategyNumber, walk->xid);
		idem_scankey_seq(&keys[1], BTGreaterEqualStrategyNumber,
						 Max(walk->seq, walk->range->after + 1));
		index_rescan(scan, keys, 2, NULL, 0);
		result = walk_scan(walk, scan);
		if (result != WALK_EXHAUSTED)
			return result;
		walk->xid++;
		walk->seq = 0;
	}
	if (walk->xid > walk->piece->xid_hi)
		return WALK_END;

	/*
	 * The second key is given even where it is not needed: scans of the same
	 * shape are cheap.
	 */
	idem_scankey_xid(&keys[0], BTGreaterEqualStrategyNumber, walk->xid);
	idem_scankey_xid(&keys[1], BTLessEqualStrategyNumber, walk->piece->xid_hi);
	index_rescan(scan, keys, 2, NULL, 0);
	return walk_scan(walk, scan);
}

/* Walk a piece to its end.  The entries that stay wanted go to "later". */
static void
walk_piece(IdemRange *range, const IdemSegment *segment, const Piece *piece,
		   int room)
{
	IndexScanDesc scan;
	Walk		walk = {
		.range = range,
		.segment = segment,
		.piece = piece,
		.room = room,
		.xid = piece->xid_lo,
		.seq = piece->seq_lo
	};

	if (idem_segment_is_empty(segment))
		return;
	scan = idem_segment_beginscan(segment, 2);
	while (walk_from(&walk, scan) == WALK_JUMP)
		CHECK_FOR_INTERRUPTS();
	index_endscan(scan);
	emit_rest(&walk);
}

/*
 * Filling the buffer
 */

/*
 * Drop the pieces that have no entry above "top", the largest seq among the
 * places.
 */
static void
drop_finished(PieceList *list, int64 top)
{
	int			n = 0;

	for (int i = 0; i < list->n; i++)
	{
		if (list->pieces[i].max_seq > top)
			list->pieces[n++] = list->pieces[i];
	}
	list->n = n;
}

/* Fill the buffer with the places that come next. */
static void
fill(IdemRange *range, IdemSegmentOpener opener, void *arg)
{
	PieceList  *pending = &range->pending;
	PieceList	swap;

	range->nplaces = range->next = 0;
	range->full = range->more = false;
	range->later.n = 0;
	sort_pieces(pending->pieces, pending->n);
	for (int i = 0; i < pending->n; i++)
	{
		const Piece *piece = &pending->pieces[i];
		int			waiting = pending->n - i - 1;

		if (range->full && piece->min_seq > range->places[0].seq)
		{
			range->more = true;
			add_piece(range, &range->later, piece);
		}
		else
			walk_piece(range, opener(arg, piece->segment), piece,
					   MAX_PIECES - range->later.n - waiting);
	}

	if (range->more)
		drop_finished(&range->later, range->places[0].seq);
	else
		range->later.n = 0;
	swap = range->pending;
	range->pending = range->later;
	range->later = swap;
	sort_places(range->places, range->nplaces);
}

/* Free the memory of the list, and empty it. */
static void
free_pieces(PieceList *list)
{
	if (list->pieces != NULL)
		pfree(list->pieces);
	memset(list, 0, sizeof(*list));
}

/* Free the large buffers of a range that has been given out completely. */
static void
shrink(IdemRange *range)
{
	if (range->size <= KEEP_PLACES)
		return;
	range->after = range->places[range->nplaces - 1].seq;
	pfree(range->places);
	range->places = NULL;
	range->size = range->nplaces = range->next = 0;
	free_pieces(&range->pending);
	free_pieces(&range->later);
}

IdemRange *
idem_range_create(MemoryContext context)
{
	IdemRange  *range = MemoryContextAllocZero(context, sizeof(IdemRange));

	range->context = context;
	return range;
}

void
idem_range_forget(IdemRange *range)
{
	range->started = range->more = false;
	range->nplaces = range->next = 0;
	range->pending.n = range->later.n = 0;
	range->base = range->target = NULL;
}

void
idem_range_start(IdemRange *range, const IdemSnap *base, const IdemSnap *target,
				 int64 seq)
{
	idem_range_forget(range);
	range->base = base;
	range->target = target;
	range->after = seq;
}

void
idem_range_move(IdemRange *range, int64 seq)
{
	int			lo = 0,
				hi = range->nplaces;

	if (!range->started || seq < range->after ||
		(range->more && (range->nplaces == 0 || seq > range->places[range->nplaces - 1].seq)))
	{
		idem_range_start(range, range->base, range->target, seq);
		return;
	}
	while (lo < hi)
	{
		int			mid = lo + (hi - lo) / 2;

		if (range->places[mid].seq <= seq)
			lo = mid + 1;
		else
			hi = mid;
	}
	range->next = lo;
}

const IdemPlace *
idem_range_next(IdemRange *range, IdemSegmentOpener opener, void *arg)
{
	if (!range->started)
	{
		cut_pieces(range, opener, arg);
		fill(range, opener, arg);
		range->started = true;
	}
	while (range->next == range->nplaces)
	{
		if (!range->more)
		{
			if (range->nplaces > 0)
				shrink(range);
			return NULL;
		}
		range->after = range->places[range->nplaces - 1].seq;
		fill(range, opener, arg);
	}
	return &range->places[range->next++];
}

void
idem_range_back(IdemRange *range)
{
	Assert(range->next > 0);
	range->next--;
}
