/*-------------------------------------------------------------------------
 *
 * position.c
 *		The log of positions: appended rows in two tables that take turns.
 *
 * A position is never updated.  Rows are numbered by a sequence, and the last
 * row of a relay is the one with the highest number, whichever table it is in.
 * The shorter of the two that has rows is current: every process finds that out
 * for itself, each time, so that none keeps the longer one alive.  When the
 * current table has grown, a row is put into the other, which thereby becomes
 * current; the next maintenance copies what is still needed over, under
 * its own numbers since a sink may name them; the one after that empties the
 * table that is not current in place.  A crash between any two leaves both
 * tables filled, which reads the same, and so does a writer that still appends
 * to the former table: a table is emptied only if, under its exclusive lock,
 * every needed row of it stands in the other.  A pinned xmin horizon changes
 * nothing: no tuple is ever dead.
 *
 * Rows needed: the last few of each relay in its last epoch, those that were
 * written to a sink while that epoch's move was not committed, and the ticks
 * that some relay has not passed; of dropped relays none.
 *
 * There is no index.  The tables are read when a worker starts a relay or an
 * operator asks; the number of rows is bounded by the take-over.
 *
 * LOCKING: RowExclusiveLock on the table written, to the end of the
 * transaction, owned by the subtransaction (txn_owner.h); emptying takes what
 * idem_empty_in_place takes, conditionally.
 *
 * MEMORY: rows are allocated in the caller's context; an assigned position has
 * its snapshots in the context that is named.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "commands/sequence.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "relay/position.h"
#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/txn_owner.h"

/* Rows are about 100 bytes; a take-over every few megabytes. */
#ifdef IDEMPOTENCY_FAULT_POINTS
#define LOG_MAX_BLOCKS 1		/* take-overs have fault points in them */
#else
#define LOG_MAX_BLOCKS 512
#endif

/*
 * Rows of a relay that a sink storing positions may still name: one for each
 * difference that can be in flight, and the one before.  PASSED rows are not
 * counted, since the sink never hears of them: they would push the others out
 * while nothing is sent.  Rows before a NAMED one are not counted either: while
 * a sink fails, each start of its program adds some.
 */
#define LOG_KEEP_ROWS 8

enum
{
	ATT_ID, ATT_EPOCH, ATT_LIFE, ATT_NAMED, ATT_K, ATT_AT, ATT_RELAY, ATT_KIND,
	ATT_FRESH, ATT_DONE, ATT_CUR, NATTS
};

static IdemRelRef log_ref[2] = {IDEM_RELREF("relay_log_0"), IDEM_RELREF("relay_log_1")};
static IdemRelRef log_id_ref = IDEM_RELREF("relay_log_id");

typedef bool (*row_predicate) (const IdemPositionRow *row, const void *arg);

static void
snap_assign(MemoryContext cxt, IdemSnap **dst, const IdemSnap *src)
{
	MemoryContext old = MemoryContextSwitchTo(cxt);
	IdemSnap   *copy = src ? idem_snap_copy(src) : NULL;

	MemoryContextSwitchTo(old);
	if (*dst)
		pfree(*dst);
	*dst = copy;
}

void
idem_position_assign(MemoryContext cxt, IdemPosition *dst, const IdemPosition *src)
{
	if (dst == src)
		return;
	snap_assign(cxt, &dst->done, src->done);
	snap_assign(cxt, &dst->cur, src->cur);
	dst->k = src->k;
}

static IdemPositionRow *
row_from_tuple(HeapTuple tup, TupleDesc desc)
{
	Datum		values[NATTS];
	bool		nulls[NATTS];
	IdemPositionRow *row = palloc0(sizeof(*row));

	heap_deform_tuple(tup, desc, values, nulls);
	row->id = DatumGetInt64(values[ATT_ID]);
	row->relay_id = DatumGetInt32(values[ATT_RELAY]);
	row->epoch = DatumGetInt64(values[ATT_EPOCH]);
	row->kind = (IdemPositionKind) DatumGetChar(values[ATT_KIND]);
	row->fresh = (IdemPositionFresh) DatumGetChar(values[ATT_FRESH]);
	row->life = DatumGetInt64(values[ATT_LIFE]);
	row->named = DatumGetInt64(values[ATT_NAMED]);
	row->at = DatumGetTimestampTz(values[ATT_AT]);
	row->pos.k = DatumGetInt64(values[ATT_K]);
	row->pos.done = (IdemSnap *) PG_DETOAST_DATUM_COPY(values[ATT_DONE]);
	if (!nulls[ATT_CUR])
		row->pos.cur = (IdemSnap *) PG_DETOAST_DATUM_COPY(values[ATT_CUR]);
	return row;
}

static void
row_free(IdemPositionRow *row)
{
	if (row == NULL)
		return;
	pfree(row->pos.done);
	if (row->pos.cur)
		pfree(row->pos.cur);
	pfree(row);
}

/*
 * Visit every row of one table.  Only the id and relay are looked at before
 * the callback decides, so that a scan does not detoast what nobody wants.
 */
static void
scan_log(int n, void (*visit) (HeapTuple, TupleDesc, void *), void *arg)
{
	Relation	rel = table_open(idem_relref_oid(&log_ref[n]), AccessShareLock);
	Snapshot	snapshot = RegisterSnapshot(GetLatestSnapshot());
	TableScanDesc scan = idem_compat_table_beginscan(rel, snapshot);
	HeapTuple	tup;

	while ((tup = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		CHECK_FOR_INTERRUPTS();
		visit(tup, RelationGetDescr(rel), arg);
	}
	table_endscan(scan);
	UnregisterSnapshot(snapshot);
	table_close(rel, AccessShareLock);
}

/* The best row of those that pass, highest or lowest id. */
typedef struct BestRow
{
	row_predicate passes;
	const void *arg;
	bool		lowest;
	int			relay_id;
	IdemPositionRow *best;
} BestRow;

static void
visit_best(HeapTuple tup, TupleDesc desc, void *arg)
{
	BestRow    *b = arg;
	IdemPositionRow *row;
	bool		isnull;
	int64		id = DatumGetInt64(heap_getattr(tup, ATT_ID + 1, desc, &isnull));

	if (DatumGetInt32(heap_getattr(tup, ATT_RELAY + 1, desc, &isnull)) != b->relay_id)
		return;
	if (b->best && (b->lowest ? id >= b->best->id : id <= b->best->id))
		return;
	row = row_from_tuple(tup, desc);
	if (b->passes(row, b->arg))
	{
		row_free(b->best);
		b->best = row;
	}
	else
		row_free(row);
}

static IdemPositionRow *
find_best(int relay_id, row_predicate passes, const void *arg, bool lowest)
{
	BestRow		b = {passes, arg, lowest, relay_id, NULL};

	scan_log(0, visit_best, &b);
	scan_log(1, visit_best, &b);
	return b.best;
}

static bool
is_of_epoch(const IdemPositionRow *row, const void *arg)
{
	return row->epoch == *(const int64 *) arg;
}

IdemPositionRow *
idem_position_last(int relay_id, int64 epoch)
{
	return find_best(relay_id, is_of_epoch, &epoch, false);
}

/* What a sink says of the row that it has stored. */
typedef struct StoredName
{
	int64		id;
	int64		life;
} StoredName;

static bool
has_name(const IdemPositionRow *row, const void *arg)
{
	const StoredName *name = arg;

	return row->kind == IDEM_POSITION_SENT && row->id == name->id &&
		row->life == name->life;
}

IdemPositionRow *
idem_position_sent(int relay_id, int64 id, int64 life)
{
	StoredName	name = {id, life};

	return find_best(relay_id, has_name, &name, false);
}

static bool
is_repeated(const IdemPositionRow *row, const void *arg)
{
	return row->kind == IDEM_POSITION_REPEATED && is_of_epoch(row, arg);
}

IdemPositionRow *
idem_position_repeated(int relay_id, int64 epoch)
{
	return find_best(relay_id, is_repeated, &epoch, false);
}

static bool
is_not_after(const IdemPositionRow *row, const void *arg)
{
	return row->at <= *(const TimestampTz *) arg;
}

IdemPositionRow *
idem_position_tick_before(TimestampTz at)
{
	return find_best(IDEM_TICK_RELAY, is_not_after, &at, false);
}

/* Snapshots of one log are ordered, so xmax and then the xips decide. */
bool
idem_position_sees_more(const IdemSnap *snap, const IdemSnap *than)
{
	if (FullTransactionIdEquals(snap->xmax, than->xmax))
		return snap->nxip < than->nxip;
	return FullTransactionIdFollows(snap->xmax, than->xmax);
}

static bool
sees_more(const IdemPositionRow *row, const void *arg)
{
	return idem_position_sees_more(row->pos.done, arg);
}

IdemPositionRow *
idem_position_tick_after(const IdemSnap *snap)
{
	return find_best(IDEM_TICK_RELAY, sees_more, snap, true);
}

/* The last row of each relay and epoch, and the last tick. */
static void
visit_last(HeapTuple tup, TupleDesc desc, void *arg)
{
	List	  **rows = arg;
	ListCell   *lc;
	bool		isnull;
	int64		id = DatumGetInt64(heap_getattr(tup, ATT_ID + 1, desc, &isnull));
	int			relay_id = DatumGetInt32(heap_getattr(tup, ATT_RELAY + 1, desc, &isnull));
	int64		epoch = DatumGetInt64(heap_getattr(tup, ATT_EPOCH + 1, desc, &isnull));

	foreach(lc, *rows)
	{
		IdemPositionRow *row = lfirst(lc);

		if (row->relay_id != relay_id || row->epoch > epoch)
			continue;
		if (row->epoch < epoch || row->id < id)
		{
			lfirst(lc) = row_from_tuple(tup, desc);
			row_free(row);
		}
		return;
	}
	*rows = lappend(*rows, row_from_tuple(tup, desc));
}

List *
idem_position_all_last(void)
{
	List	   *rows = NIL;

	scan_log(0, visit_last, &rows);
	scan_log(1, visit_last, &rows);
	return rows;
}

static BlockNumber
log_blocks(int n)
{
	Relation	rel = table_open(idem_relref_oid(&log_ref[n]), AccessShareLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);

	table_close(rel, AccessShareLock);
	return blocks;
}

/* The shorter of the two that has rows is written to; cheap enough for each row. */
static int
find_current_log(void)
{
	BlockNumber blocks[2] = {log_blocks(0), log_blocks(1)};

	if (blocks[1] == 0)
		return 0;
	return blocks[0] == 0 || blocks[1] < blocks[0] ? 1 : 0;
}

static void
insert_row(int n, const IdemPositionRow *row)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	rel = table_open(idem_relref_oid(&log_ref[n]), RowExclusiveLock);
	Datum		values[NATTS];
	bool		nulls[NATTS] = {false};
	HeapTuple	tup;

	values[ATT_ID] = Int64GetDatum(row->id);
	values[ATT_EPOCH] = Int64GetDatum(row->epoch);
	values[ATT_LIFE] = Int64GetDatum(row->life);
	values[ATT_NAMED] = Int64GetDatum(row->named);
	values[ATT_K] = Int64GetDatum(row->pos.k);
	values[ATT_AT] = TimestampTzGetDatum(row->at);
	values[ATT_RELAY] = Int32GetDatum(row->relay_id);
	values[ATT_KIND] = CharGetDatum((char) row->kind);
	values[ATT_FRESH] = CharGetDatum((char) row->fresh);
	values[ATT_DONE] = PointerGetDatum(row->pos.done);
	values[ATT_CUR] = PointerGetDatum(row->pos.cur);
	nulls[ATT_CUR] = row->pos.cur == NULL;
	tup = heap_form_tuple(RelationGetDescr(rel), values, nulls);
	simple_heap_insert(rel, tup);
	heap_freetuple(tup);
	table_close(rel, NoLock);
	idem_txn_owner_leave(saved);
}

static int64
next_id(void)
{
	return nextval_internal(idem_relref_oid(&log_id_ref), false);
}

int64
idem_position_append(const IdemPositionRow *row)
{
	IdemPositionRow numbered = *row;

	numbered.id = next_id();
	numbered.at = GetCurrentTimestamp();

	/* Another process may switch just now; the row is found wherever it is. */
	insert_row(find_current_log(), &numbered);
	return numbered.id;
}

/* What maintenance needs to know of a row, for all rows of both tables. */
typedef struct LightRow
{
	int64		id;
	int64		epoch;
	int			relay_id;
	int			log;
	IdemPositionKind kind;
	IdemPositionFresh fresh;
	int64		named;
	bool		needed;
} LightRow;

typedef struct LightRows
{
	LightRow   *rows;
	int			n;
	int			allocated;
	int			log;
} LightRows;

static void
visit_light(HeapTuple tup, TupleDesc desc, void *arg)
{
	LightRows  *l = arg;
	LightRow   *row;
	bool		isnull;

	if (l->n == l->allocated)
	{
		l->allocated *= 2;
		l->rows = repalloc_huge(l->rows, sizeof(LightRow) * l->allocated);
	}
	row = &l->rows[l->n++];
	row->id = DatumGetInt64(heap_getattr(tup, ATT_ID + 1, desc, &isnull));
	row->epoch = DatumGetInt64(heap_getattr(tup, ATT_EPOCH + 1, desc, &isnull));
	row->relay_id = DatumGetInt32(heap_getattr(tup, ATT_RELAY + 1, desc, &isnull));
	row->log = l->log;
	row->kind = (IdemPositionKind) DatumGetChar(heap_getattr(tup, ATT_KIND + 1, desc, &isnull));
	row->fresh = (IdemPositionFresh) DatumGetChar(heap_getattr(tup, ATT_FRESH + 1, desc, &isnull));
	row->named = DatumGetInt64(heap_getattr(tup, ATT_NAMED + 1, desc, &isnull));
	row->needed = false;
}

/* By relay, then newest first; of equal numbers the copy in table 1 first. */
static int
compare_light(const void *a, const void *b)
{
	const LightRow *x = a;
	const LightRow *y = b;

	if (x->relay_id != y->relay_id)
		return x->relay_id < y->relay_id ? -1 : 1;
	if (x->epoch != y->epoch)
		return x->epoch > y->epoch ? -1 : 1;
	if (x->id != y->id)
		return x->id > y->id ? -1 : 1;
	return y->log - x->log;
}

/* What has been seen of a relay, from its newest row on. */
typedef struct Seen
{
	int64		last;			/* its newest row */
	int64		epoch;			/* of that */
	IdemPositionFresh fresh;	/* of that */
	int			kept;			/* rows that the sink may name */
	int			kept_before;	/* of epochs before */
	int64		named;			/* by it, or 0; no other is needed then */
} Seen;

/*
 * The number of an epoch is drawn when an operator moves the position, and
 * workers hear of it at his commit.  Rows that they write in between have
 * higher numbers, and the sink may name one until it has named one of the epoch.
 * Another server may lead to the same target, which names one of the rows before.
 */
static bool
is_needed_before(Seen *seen, const LightRow *row)
{
	return seen->named == 0 && row->kind == IDEM_POSITION_SENT &&
		(row->id > seen->epoch || seen->fresh == IDEM_FRESH_SERVER) &&
		seen->kept_before++ < LOG_KEEP_ROWS;
}

static bool
is_row_needed(Seen *seen, const LightRow *row)
{
	if (row->epoch != seen->epoch)
		return is_needed_before(seen, row);
	if (seen->named != 0)
		return row->id == seen->named;
	if (seen->kept == LOG_KEEP_ROWS)
		return false;
	if (row->kind == IDEM_POSITION_NAMED || row->kind == IDEM_POSITION_REPEATED)
	{
		seen->named = row->named;
		return true;
	}
	if (row->kind == IDEM_POSITION_PASSED)
		return row->id == seen->last;
	seen->kept++;
	return true;
}

/*
 * Mark the last row of each relay in its last epoch, and the last ones that a
 * sink may name.  Ticks are all marked; copy_missing leaves out those that
 * every relay has passed.
 */
static void
mark_needed(LightRows *l, List *relays)
{
	Seen		seen = {0};
	bool		exists = false;

	for (int i = 0; i < l->n; i++)
	{
		LightRow   *row = &l->rows[i];
		LightRow   *prev = i > 0 ? &l->rows[i - 1] : NULL;

		if (prev == NULL || prev->relay_id != row->relay_id)
		{
			memset(&seen, 0, sizeof(seen));
			seen.last = row->id;
			seen.epoch = row->epoch;
			seen.fresh = row->fresh;
			exists = list_member_int(relays, row->relay_id);
		}
		if (row->relay_id == IDEM_TICK_RELAY)
			row->needed = true;
		else if (prev != NULL && prev->relay_id == row->relay_id && prev->id == row->id)
			row->needed = prev->needed;
		else
			row->needed = exists && is_row_needed(&seen, row);
	}
}

static bool
is_needed(const LightRows *l, int64 id, int64 epoch, int relay_id, int log)
{
	LightRow	key = {.id = id, .epoch = epoch, .relay_id = relay_id, .log = log};
	LightRow   *found = bsearch(&key, l->rows, l->n, sizeof(LightRow), compare_light);

	return found != NULL && found->needed;
}

typedef struct MissingRows
{
	LightRows  *light;
	int			from;
	List	   *relays;			/* the ids of those that exist */
	List	   *last;			/* where they and others stand, for ticks */
	List	   *missing;
} MissingRows;

static bool
tick_is_ahead_of_some(const IdemPositionRow *tick, const MissingRows *m)
{
	ListCell   *lc;

	foreach(lc, m->last)
	{
		IdemPositionRow *row = lfirst(lc);

		if (list_member_int(m->relays, row->relay_id) && sees_more(tick, row->pos.done))
			return true;
	}
	return false;
}

static void
visit_missing(HeapTuple tup, TupleDesc desc, void *arg)
{
	MissingRows *m = arg;
	bool		isnull;
	int64		id = DatumGetInt64(heap_getattr(tup, ATT_ID + 1, desc, &isnull));
	int			relay_id = DatumGetInt32(heap_getattr(tup, ATT_RELAY + 1, desc, &isnull));
	int64		epoch = DatumGetInt64(heap_getattr(tup, ATT_EPOCH + 1, desc, &isnull));
	IdemPositionRow *row;

	if (!is_needed(m->light, id, epoch, relay_id, m->from))
		return;
	row = row_from_tuple(tup, desc);
	if (relay_id == IDEM_TICK_RELAY && !tick_is_ahead_of_some(row, m))
	{
		row_free(row);
		return;
	}
	m->missing = lappend(m->missing, row);
}

/* A needed row that has its copy in the other table is not needed here. */
static void
unmark_copied(LightRows *l, int from)
{
	for (int i = 0; i + 1 < l->n; i++)
	{
		LightRow   *a = &l->rows[i];
		LightRow   *b = &l->rows[i + 1];

		if (a->relay_id == b->relay_id && a->id == b->id)
			(a->log == from ? a : b)->needed = false;
	}
}

/*
 * Copy what is needed of "from" and not in "to" yet.  Returns whether there
 * was any.  The caller's lock keeps "from" as it is.
 */
static bool
copy_missing(int from, int to, List *relays)
{
	LightRows	light = {NULL, 0, 1024};
	MissingRows m = {&light, from, relays, NIL, NIL};
	ListCell   *lc;

	light.rows = palloc(sizeof(LightRow) * light.allocated);
	for (light.log = 0; light.log < 2; light.log++)
		scan_log(light.log, visit_light, &light);
	qsort(light.rows, light.n, sizeof(LightRow), compare_light);
	mark_needed(&light, relays);
	unmark_copied(&light, from);
	m.last = idem_position_all_last();
	scan_log(from, visit_missing, &m);
	foreach(lc, m.missing)
	{
		IdemPositionRow *row = lfirst(lc);

		insert_row(to, row);
		IDEM_FAULT_POINT("log-row-copied");
	}
	pfree(light.rows);
	return m.missing != NIL;
}

/*
 * Any row makes an empty table the shorter one; a tick of the newest snapshot
 * serves.
 */
static void
make_current(int n)
{
	IdemPositionRow marker = {.id = next_id(), .relay_id = IDEM_TICK_RELAY,
		.kind = IDEM_POSITION_TICK, .fresh = IDEM_FRESH_NOT,
	.at = GetCurrentTimestamp()};

	marker.pos.done = idem_snap_current();
	insert_row(n, &marker);
}

void
idem_position_maintain(List *(*get_relays) (void))
{
	int			cur = find_current_log();
	int			other = 1 - cur;
	Oid			other_oid = idem_relref_oid(&log_ref[other]);

	if (log_blocks(other) == 0)
	{
		if (log_blocks(cur) > LOG_MAX_BLOCKS)
		{
			make_current(other);
			IDEM_FAULT_POINT("log-switched");
		}
		return;
	}

	/* No writer may be under way in what is going to be emptied. */
	if (!ConditionalLockRelationOid(other_oid, AccessExclusiveLock))
		return;
	if (!copy_missing(other, cur, get_relays()))
		(void) idem_empty_in_place(other_oid);
}
