/*-------------------------------------------------------------------------
 *
 * position.c
 *		The log of positions: what its rows mean, and which of them are needed.
 *
 * A position is never updated; state_log.c has the algorithm.  A relay's last
 * row is the row with the highest id in the relay's highest epoch.
 *
 * These rows are needed: of each relay the last few of its last epoch, and until
 * the sink has named one of them, those that it was sent in epochs before; and the ticks that some relay has not passed.  No row of a
 * dropped relay is needed.  A row keeps its id when it is copied, since a sink
 * may name the row.
 *
 * The log has no index; README.md says why.
 *
 * After a crash: as state_log.c says.
 *
 * LOCKING: as state_log.c says.
 *
 * MEMORY: rows are allocated in the caller's context.  An assigned position has
 * its snapshots in the given context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/position.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/transam.h"
#include "utils/hsearch.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/position/position.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/sound.h"
#include "shared/state_log.h"
#include "shared/table.h"

/* A row has about 100 bytes, so the tables take turns every few megabytes. */
#ifdef IDEMPOTENCY_FAULT_POINTS
#define LOG_MAX_BLOCKS 1		/* turns have fault points in them */
#else
#define LOG_MAX_BLOCKS 512
#endif

/*
 * How many rows of a relay are kept because a sink that stores positions may
 * still name them: one for each difference that can be in flight, and the one
 * before.  PASSED rows are not counted, since the sink never hears of them;
 * counted, they would push the others out while nothing is sent.  Rows before a
 * NAMED row are not counted either: while a sink fails, each start of its
 * program adds some.
 */
#define LOG_KEEP_ROWS 8

/* Of how many epochs before the relay's last one such rows are kept. */
#define LOG_KEEP_EPOCHS 8

enum
{
	ATT_ID, ATT_EPOCH, ATT_LIFE, ATT_NAMED, ATT_K, ATT_SEQ, ATT_AT, ATT_RELAY, ATT_KIND,
	ATT_FRESH, ATT_BASE, ATT_TARGET, NATTS
};

static const IdemColumn columns[NATTS] = {
	[ATT_ID] = {INT8OID, true},
	[ATT_EPOCH] = {INT8OID, true},
	[ATT_LIFE] = {INT8OID, true},
	[ATT_NAMED] = {INT8OID, true},
	[ATT_K] = {INT8OID, true},
	[ATT_SEQ] = {INT8OID, true},
	[ATT_AT] = {TIMESTAMPTZOID, true},
	[ATT_RELAY] = {INT4OID, true},
	[ATT_KIND] = {CHAROID, true},
	[ATT_FRESH] = {CHAROID, true},
	[ATT_BASE] = {PG_SNAPSHOTOID, true},
	[ATT_TARGET] = {PG_SNAPSHOTOID, false}
};

static const IdemTableForm form = {
	.columns = columns, .ncolumns = NATTS
};

static IdemRelRef log_tables[] = {
	IDEM_TABLEREF("relay_log_0", &form), IDEM_TABLEREF("relay_log_1", &form)
};
static IdemRelRef log_id = IDEM_RELREF("relay_log_id");
static const IdemStateLog position_log;

/* The letters of IdemPositionKind and of IdemPositionFresh */
#define KINDS	"msrpnqte"
#define FRESHS	"nmsab"

typedef bool (*row_predicate) (const IdemPositionRow *row, const void *arg);

void
idem_position_assign(MemoryContext cxt, IdemPosition *dst, const IdemPosition *src)
{
	if (dst == src)
		return;
	idem_snap_assign(cxt, &dst->base, src->base);
	idem_snap_assign(cxt, &dst->target, src->target);
	dst->seq = src->seq;
}

/*
 * Take a row apart; its snapshots are those of the tuple, perhaps toasted.  Is it a row that
 * a relay could have appended?  The constraint of the tables says the same.
 */
static bool
take_apart(HeapTuple tup, TupleDesc desc, IdemPositionRow *row)
{
	Datum		values[NATTS];
	bool		nulls[NATTS];
	char		kind,
				fresh;

	idem_table_take_apart(desc, NATTS, tup, values, nulls);
	kind = DatumGetChar(values[ATT_KIND]);
	fresh = DatumGetChar(values[ATT_FRESH]);
	row->id = DatumGetInt64(values[ATT_ID]);
	row->relay_id = DatumGetInt32(values[ATT_RELAY]);
	row->epoch = DatumGetInt64(values[ATT_EPOCH]);
	row->kind = (IdemPositionKind) kind;
	row->fresh = (IdemPositionFresh) fresh;
	row->life = DatumGetInt64(values[ATT_LIFE]);
	row->acked_row = DatumGetInt64(values[ATT_NAMED]);
	row->acked_k = DatumGetInt64(values[ATT_K]);
	row->at = DatumGetTimestampTz(values[ATT_AT]);
	row->pos.seq = DatumGetInt64(values[ATT_SEQ]);
	row->pos.base = (IdemSnap *) DatumGetPointer(values[ATT_BASE]);
	row->pos.target = (IdemSnap *) DatumGetPointer(values[ATT_TARGET]);
	for (int i = 0; i < ATT_TARGET; i++)
	{
		if (nulls[i])
			return false;
	}
	return row->id > 0 && row->id < IDEM_SOUND_NUMBER && idem_sound_time(values[ATT_AT], false) &&
		kind != '\0' && strchr(KINDS, kind) != NULL && fresh != '\0' && strchr(FRESHS, fresh) != NULL;
}

/*
 * The same.  A row that is not is passed over, and told of: what was appended before it
 * counts, which is an earlier position, or none.
 */
static bool
counts(HeapTuple tup, TupleDesc desc, IdemPositionRow *row)
{
	if (take_apart(tup, desc, row))
		return true;
	idem_report_row(WARNING, tup->t_tableOid, &tup->t_self,
					"The relay goes on from the position before. Delete the row.");
	return false;
}

/* A copy of a row that was taken apart. */
static IdemPositionRow *
row_copy(const IdemPositionRow *row)
{
	IdemPositionRow *copy = palloc(sizeof(*copy));

	*copy = *row;
	copy->pos.base = (IdemSnap *) PG_DETOAST_DATUM_COPY(PointerGetDatum(row->pos.base));
	if (row->pos.target != NULL)
		copy->pos.target = (IdemSnap *) PG_DETOAST_DATUM_COPY(PointerGetDatum(row->pos.target));
	return copy;
}

static void
row_free(IdemPositionRow *row)
{
	if (row == NULL)
		return;
	pfree(row->pos.base);
	if (row->pos.target)
		pfree(row->pos.target);
	pfree(row);
}

/*
 * A search for the row with the highest or lowest id among those of a relay
 * that pass the predicate.  The visit looks at relay and id first, so that a
 * scan detoasts no rows in vain.
 */
typedef struct BestRow
{
	row_predicate passes;
	const void *arg;
	bool		lowest;
	int			relay_id;
	IdemPositionRow *best;
} BestRow;

/* Take the row if it passes and is better than the best so far. */
static void
visit_best(HeapTuple tup, TupleDesc desc, int table, void *arg)
{
	BestRow    *b = arg;
	IdemPositionRow row;
	IdemPositionRow *copy;
	bool		isnull;
	int64		id = DatumGetInt64(heap_getattr(tup, ATT_ID + 1, desc, &isnull));

	if (DatumGetInt32(heap_getattr(tup, ATT_RELAY + 1, desc, &isnull)) != b->relay_id)
		return;
	if ((b->best && (b->lowest ? id >= b->best->id : id <= b->best->id)) || !counts(tup, desc, &row))
		return;
	copy = row_copy(&row);
	if (b->passes(copy, b->arg))
	{
		row_free(b->best);
		b->best = copy;
	}
	else
		row_free(copy);
}

/* Find the row by one scan; NULL if no row passes. */
static IdemPositionRow *
find_best(int relay_id, row_predicate passes, const void *arg, bool lowest)
{
	BestRow		b = {passes, arg, lowest, relay_id, NULL};

	idem_state_log_scan(&position_log, visit_best, &b);
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

/* A search for all rows of IdemSinkRows, in one scan. */
typedef struct LookUp
{
	int			relay_id;
	int64		epoch;
	const IdemPositionName *name;
	IdemSinkRows *sink_rows;
} LookUp;

/* Make a copy of the row *best, unless *best has a higher id. */
static void
take_newer(IdemPositionRow **best, const IdemPositionRow *row)
{
	if (*best != NULL && (*best)->id >= row->id)
		return;
	row_free(*best);
	*best = row_copy(row);
}

/* Take the row if it is one of IdemSinkRows, and the newest so far. */
static void
visit_look_up(HeapTuple tup, TupleDesc desc, int table, void *arg)
{
	const LookUp *l = arg;
	const IdemPositionName *name = l->name;
	IdemSinkRows *sink_rows = l->sink_rows;
	IdemPositionRow row;

	if (!counts(tup, desc, &row))
		return;
	if (row.kind == IDEM_POSITION_EMPTIED)
		take_newer(&sink_rows->emptied, &row);
	if (row.relay_id != l->relay_id)
		return;
	if (row.kind == IDEM_POSITION_SENT)
		take_newer(&sink_rows->newest_sent, &row);
	if (row.kind == IDEM_POSITION_SENT && row.id == name->id && row.life == name->life)
		take_newer(&sink_rows->sent, &row);
	if (row.epoch != l->epoch)
		return;
	take_newer(&sink_rows->last, &row);
	if (row.acked_row != 0)
		take_newer(&sink_rows->naming, &row);
	if (row.kind == IDEM_POSITION_REPEATED)
		take_newer(&sink_rows->repeated, &row);
	else if ((row.kind == IDEM_POSITION_PASSED || row.kind == IDEM_POSITION_SENT) &&
			 row.acked_row != 0 && row.acked_row == name->id && row.acked_k == name->k)
		take_newer(&sink_rows->passed, &row);
}

void
idem_position_look_up(int relay_id, int64 epoch, const IdemPositionName *name,
					  IdemSinkRows *sink_rows)
{
	LookUp		l = {relay_id, epoch, name, sink_rows};

	memset(sink_rows, 0, sizeof(*sink_rows));
	idem_state_log_scan(&position_log, visit_look_up, &l);
}

bool
idem_position_is_possible(const IdemPosition *pos)
{
	FullTransactionId next = ReadNextFullTransactionId();

	return !FullTransactionIdFollows(pos->base->xmax, next) &&
		(pos->target == NULL || !FullTransactionIdFollows(pos->target->xmax, next));
}

/* A tick that the cluster's transaction ids went back behind is none. */
static bool
is_tick(const IdemPositionRow *row)
{
	return row->kind == IDEM_POSITION_TICK && idem_position_is_possible(&row->pos);
}

static bool
is_not_after(const IdemPositionRow *row, const void *arg)
{
	return is_tick(row) && row->at <= *(const TimestampTz *) arg;
}

IdemPositionRow *
idem_position_tick_before(TimestampTz at)
{
	return find_best(IDEM_TICK_RELAY, is_not_after, &at, false);
}

/* Snapshots of one log are ordered: compare xmax, then the number of xips. */
bool
idem_position_sees_more(const IdemSnap *snap, const IdemSnap *than)
{
	if (FullTransactionIdEquals(snap->xmax, than->xmax))
		return snap->nxip < than->nxip;
	return FullTransactionIdFollows(snap->xmax, than->xmax);
}

bool
idem_position_passed(const IdemPosition *pos, FullTransactionId xid, int64 seq)
{
	return idem_snap_sees(pos->base, xid) ||
		(pos->target != NULL && seq <= pos->seq && idem_snap_sees(pos->target, xid));
}

static bool
sees_more(const IdemPositionRow *row, const void *arg)
{
	return is_tick(row) && idem_position_sees_more(row->pos.base, arg);
}

IdemPositionRow *
idem_position_tick_after(const IdemSnap *snap)
{
	return find_best(IDEM_TICK_RELAY, sees_more, snap, true);
}

/* A relay's last row. */
typedef struct LastRow
{
	int			relay_id;		/* hash key */
	IdemPositionRow *row;
} LastRow;

/* Take the row if it is its relay's last row so far. */
static void
visit_last(HeapTuple tup, TupleDesc desc, int table, void *arg)
{
	IdemPositionRow row;
	LastRow    *last;
	bool		found;

	if (!counts(tup, desc, &row))
		return;
	last = hash_search((HTAB *) arg, &row.relay_id, HASH_ENTER, &found);
	if (!found)
		last->row = NULL;
	else if (last->row->epoch > row.epoch || (last->row->epoch == row.epoch && last->row->id >= row.id))
		return;
	row_free(last->row);
	last->row = row_copy(&row);
}

HTAB *
idem_position_all_last(void)
{
	HASHCTL		ctl = {.keysize = sizeof(int), .entrysize = sizeof(LastRow),
	.hcxt = CurrentMemoryContext};
	HTAB	   *rows = hash_create("last positions", 256, &ctl,
								   HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);

	idem_state_log_scan(&position_log, visit_last, rows);
	return rows;
}

const IdemPositionRow *
idem_position_of(HTAB *rows, int relay_id, int64 epoch)
{
	LastRow    *last = hash_search(rows, &relay_id, HASH_FIND, NULL);

	return last != NULL && last->row->epoch == epoch ? last->row : NULL;
}

List *
idem_position_relay_ids(void)
{
	List	   *ids = NIL;
	HASH_SEQ_STATUS scan;
	LastRow    *last;

	hash_seq_init(&scan, idem_position_all_last());
	while ((last = hash_seq_search(&scan)) != NULL)
	{
		if (last->relay_id != IDEM_TICK_RELAY)
			ids = lappend_int(ids, last->relay_id);
	}
	return ids;
}

static HeapTuple
form_row(TupleDesc desc, const IdemPositionRow *row)
{
	Datum		values[NATTS];
	bool		nulls[NATTS] = {false};

	values[ATT_ID] = Int64GetDatum(row->id);
	values[ATT_EPOCH] = Int64GetDatum(row->epoch);
	values[ATT_LIFE] = Int64GetDatum(row->life);
	values[ATT_NAMED] = Int64GetDatum(row->acked_row);
	values[ATT_K] = Int64GetDatum(row->acked_k);
	values[ATT_SEQ] = Int64GetDatum(row->pos.seq);
	values[ATT_AT] = TimestampTzGetDatum(row->at);
	values[ATT_RELAY] = Int32GetDatum(row->relay_id);
	values[ATT_KIND] = CharGetDatum((char) row->kind);
	values[ATT_FRESH] = CharGetDatum((char) row->fresh);
	values[ATT_BASE] = PointerGetDatum(row->pos.base);
	values[ATT_TARGET] = PointerGetDatum(row->pos.target);
	nulls[ATT_TARGET] = row->pos.target == NULL;
	return idem_table_form_row(desc, NATTS, values, nulls);
}

/* Form the tuple of rows[i], with the id that it was given. */
static HeapTuple
form_nth(TupleDesc desc, const void *rows, int i, int64 id)
{
	IdemPositionRow numbered = ((const IdemPositionRow *) rows)[i];

	numbered.id = id;
	return form_row(desc, &numbered);
}

/*
 * The first row of a table, the marker, is a tick of the newest snapshot.  Its time is taken
 * behind the snapshot: what was enqueued later, the snapshot does not see.
 */
static HeapTuple
form_marker(TupleDesc desc, int64 id)
{
	IdemPositionRow marker = {.id = id, .relay_id = IDEM_TICK_RELAY,
	.kind = IDEM_POSITION_TICK, .fresh = IDEM_FRESH_CONFIRMED};

	marker.pos.base = idem_snap_current();
	marker.at = GetCurrentTimestamp();
	return form_row(desc, &marker);
}

int64
idem_position_append(const IdemPositionRow *row)
{
	IdemPositionRow copy = *row;

	idem_position_append_all(&copy, 1);
	return copy.id;
}

void
idem_position_append_all(IdemPositionRow *rows, int n)
{
	TimestampTz now = GetCurrentTimestamp();
	int64	   *ids = palloc(sizeof(int64) * n);

	for (int i = 0; i < n; i++)
		rows[i].at = now;
	idem_state_log_append(&position_log, rows, n, ids);
	for (int i = 0; i < n; i++)
		rows[i].id = ids[i];
	pfree(ids);
}

static bool
is_mark(const IdemPositionRow *row, const void *arg)
{
	return row->kind == IDEM_POSITION_EMPTIED;
}

IdemSnap *
idem_position_note_emptied(const IdemSnap *emptied)
{
	IdemPositionRow *last = find_best(IDEM_TICK_RELAY, is_mark, NULL, false);
	IdemPositionRow mark = {.relay_id = IDEM_TICK_RELAY, .kind = IDEM_POSITION_EMPTIED,
	.fresh = IDEM_FRESH_CONFIRMED};

	mark.pos.base = last != NULL ? idem_snap_union(last->pos.base, emptied) : idem_snap_copy(emptied);
	if (last == NULL || !idem_snap_equal(last->pos.base, mark.pos.base))
		(void) idem_position_append(&mark);
	return mark.pos.base;
}

/* A row, as far as maintenance needs to know it. */
typedef struct Entry
{
	IdemStateRow row;
	int64		epoch;
	int			relay_id;
	IdemPositionKind kind;
	int64		acked_row;
	bool		passed;			/* it is a tick, and every relay has passed it */
	bool		unsound;
} Entry;

/* By relay, then by epoch, the newest first. */
static int
compare_entries(const IdemStateRow *a, const IdemStateRow *b)
{
	const Entry *x = (const Entry *) a;
	const Entry *y = (const Entry *) b;

	if (x->relay_id != y->relay_id)
		return x->relay_id < y->relay_id ? -1 : 1;
	if (x->epoch != y->epoch)
		return x->epoch > y->epoch ? -1 : 1;
	return 0;
}

/*
 * What maintenance has seen of a relay so far; it visits the newest row first.
 */
typedef struct Seen
{
	int			relay_id;
	bool		exists;			/* the relay exists */
	int64		last;			/* id of the relay's newest row */
	int64		epoch;			/* epoch of that row */
	int			kept;			/* rows kept because the sink may name them */
	int64		before;			/* the earlier epoch of the last row visited */
	int			nbefore;		/* earlier epochs so far */
	int			kept_before;	/* rows kept of that epoch */
	int64		moved_row;		/* row that the move which began the epoch
								 * names */
	int64		acked_row;		/* row that the newest naming row names; 0:
								 * none */
	bool		has_naming;		/* the newest naming row was visited */
	bool		ended;			/* a sink that was not set back names no row
								 * before this, but acked_row */
} Seen;

/*
 * Is a row of an earlier epoch needed?  Until the sink has named a row of the new epoch,
 * it may name one that was under way when the operator moved the relay, or that a worker
 * sent before it heard of the move; or the row that it was known to have stored.  Of a
 * row that the log lacks nobody can tell from which history it is.
 */
static bool
is_needed_before(Seen *seen, const Entry *row)
{
	if (seen->acked_row != 0 || row->kind != IDEM_POSITION_SENT)
		return false;
	if (row->epoch != seen->before)
	{
		seen->before = row->epoch;
		seen->nbefore++;
		seen->kept_before = 0;
	}
	return row->row.id == seen->moved_row ||
		(seen->nbefore <= LOG_KEEP_EPOCHS && seen->kept_before++ < LOG_KEEP_ROWS);
}

/*
 * Is a row of the relay needed?  Rows come newest first.  The relay's last row
 * always is.  So is the newest naming row, since it says how far the sink has
 * been; and the row that it names.
 */
static bool
is_row_needed(Seen *seen, const Entry *row)
{
	bool		newest = row->acked_row != 0 && !seen->has_naming;

	if (row->epoch != seen->epoch)
		return is_needed_before(seen, row);
	if (newest)
	{
		seen->has_naming = true;
		if (row->kind != IDEM_POSITION_MOVED)
			seen->acked_row = row->acked_row;
		else
			seen->moved_row = row->acked_row;
	}
	if (newest || row->row.id == seen->acked_row)
	{
		seen->ended |= newest && row->kind != IDEM_POSITION_SENT && row->kind != IDEM_POSITION_MOVED;
		return true;
	}
	if (seen->ended || seen->kept == LOG_KEEP_ROWS)
		return false;
	if (row->kind == IDEM_POSITION_PASSED)
		return row->row.id == seen->last;
	seen->ended = row->kind == IDEM_POSITION_NAMED || row->kind == IDEM_POSITION_REPEATED;
	seen->kept++;
	return true;
}

typedef struct Judge
{
	List	   *(*get_relays) (void);
	List	   *relays;			/* ids of all relays */
	IdemSnap   *hindmost;		/* the "base" that sees the least of all
								 * relays; NULL: there is no relay */
	bool		has_mark;		/* the newest EMPTIED row was visited */
	Seen		seen;
} Judge;

/* The "base" of the relay that is furthest behind. */
static IdemSnap *
find_hindmost(List *relays)
{
	HTAB	   *rows = idem_position_all_last();
	IdemSnap   *hindmost = NULL;
	HASH_SEQ_STATUS scan;
	LastRow    *last;

	hash_seq_init(&scan, rows);
	while ((last = hash_seq_search(&scan)) != NULL)
	{
		if (list_member_int(relays, last->relay_id) &&
			(hindmost == NULL || idem_position_sees_more(hindmost, last->row->pos.base)))
			hindmost = last->row->pos.base;
	}
	return hindmost;
}

/*
 * Before the first row: read the relays, and find the one that is furthest
 * behind.
 */
static void
begin_judging(void *arg)
{
	Judge	   *judge = arg;

	judge->relays = judge->get_relays();
	judge->hindmost = find_hindmost(judge->relays);
}

/* Has every relay passed this tick? */
static bool
is_tick_passed(const IdemPositionRow *row, const IdemSnap *hindmost)
{
	IdemPositionRow *tick;
	bool		passed;

	if (hindmost == NULL)
		return true;
	tick = row_copy(row);
	passed = !sees_more(tick, hindmost);
	row_free(tick);
	return passed;
}

static void
read_entry(HeapTuple tup, TupleDesc desc, IdemStateRow *state_row, void *arg)
{
	const Judge *judge = arg;
	Entry	   *entry = (Entry *) state_row;
	IdemPositionRow row;

	entry->unsound = !counts(tup, desc, &row);
	if (entry->unsound)
		return;
	entry->epoch = row.epoch;
	entry->relay_id = row.relay_id;
	entry->kind = row.kind;
	entry->acked_row = row.acked_row;
	entry->passed = row.kind == IDEM_POSITION_TICK && is_tick_passed(&row, judge->hindmost);
}

/* The callback that says which rows are needed; see the file header. */
static bool
is_needed(const IdemStateRow *row, void *arg)
{
	Judge	   *judge = arg;
	const Entry *entry = (const Entry *) row;

	if (entry->unsound)
		return false;
	if (entry->relay_id == IDEM_TICK_RELAY && entry->kind == IDEM_POSITION_EMPTIED)
	{
		bool		newest = !judge->has_mark;

		judge->has_mark = true;
		return newest;
	}
	if (entry->relay_id == IDEM_TICK_RELAY)
		return !entry->passed;
	if (judge->seen.relay_id != entry->relay_id)
		judge->seen = (Seen)
	{
		.relay_id = entry->relay_id,
			.exists = list_member_int(judge->relays, entry->relay_id),
			.last = row->id,
			.epoch = entry->epoch
	};
	return judge->seen.exists && is_row_needed(&judge->seen, entry);
}

static const IdemStateLog position_log = {
	.tables = log_tables,
	.ntables = lengthof(log_tables),
	.sequence = &log_id,
	.id_column = ATT_ID + 1,
	.max_blocks = LOG_MAX_BLOCKS,
	.form = form_nth,
	.form_marker = form_marker,
	.entry_size = sizeof(Entry),
	.begin = begin_judging,
	.read = read_entry,
	.compare = compare_entries,
	.is_needed = is_needed
};

void
idem_position_maintain(List *(*get_relays) (void))
{
	Judge		judge = {.get_relays = get_relays};

	idem_state_log_maintain(&position_log, &judge);
}

bool
idem_position_has_remains(void)
{
	return idem_state_log_has_remains(&position_log);
}
