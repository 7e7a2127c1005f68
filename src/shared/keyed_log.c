/*-------------------------------------------------------------------------
 *
 * keyed_log.c
 *		Appended rows that are looked up by key, in tables that take turns.
 *
 * Of the rows of one digest and one kind the row with the highest number counts,
 * whichever table it is in.  Each table has an index (digest, kind, number DESC),
 * so a look-up reads at most one entry per table and kind, however many rows there
 * are, and one entry of each table that does not know the digest.
 *
 * The current table is the table that has the newest marker; without markers it
 * is the first table.  A writer locks the table that it found current the last time, and
 * looks.  If another table is current, the writer goes on with that one.  So nobody writes to a table that is not current, except
 * transactions that had locked the table while it was current.
 *
 * The tables take turns in steps, each in a transaction of its own:
 * 1. If the current table has grown and another table is empty: a marker is put
 *    into the empty table, which thereby becomes current.
 * 2. If another table has rows, and nobody who writes to it is left: a pass over
 *    the table begins.  From here on the table does not change.
 * 3. The pass copies the needed rows of a few pages into the table that was
 *    current when the pass began, unless they are there already.  The rows keep
 *    their numbers.
 * 4. After the last page: the table is emptied in place, if the marker that the
 *    copies' table had at the beginning of the pass still stands there.
 *
 * Invariant: when a table is emptied, every row of it that is needed stands
 * committed in another table.  A row that is not needed in one step is not needed
 * later: a newer row counts, or the user has said so.  The copies still stand in
 * step 4, because a table is only emptied after it has lost its turn, and gets a
 * new marker before it is written to again.
 *
 * A tombstone says that nothing is known of a key.  It hides older rows of the
 * key that other tables have.  It is dropped with its table when no other table
 * has an older row.  An older row of the tombstone's own table is not copied,
 * because the tombstone is newer.
 *
 * A crash between the steps leaves several tables with rows, which reads the
 * same: a copy has the number of its original.  A crash inside a step leaves rows
 * that never committed, or a table without rows whose index has entries, or no
 * blocks at all (empty.c).  Readers pass over a table without blocks; such a table
 * is emptied again before its turn.  A pinned xmin horizon changes nothing: only
 * rows of aborted transactions are ever dead.
 *
 * A dump has the rows of all tables, markers included.  So a restored log goes on
 * where it was.
 *
 * LOCKING: to append: RowExclusiveLock on the current table and its indexes, to the
 * end of the transaction, owned by the subtransaction (txn_owner.h); then
 * AccessShareLock as a look-up takes it.  To look up: AccessShareLock on all tables in
 * their order, taken before the first row is read and kept for the call, then on the
 * indexes of those that have rows.
 * If a table were locked after another one was read, a turn in between could hide
 * both a row and its copy.  Maintenance takes ShareUpdateExclusiveLock on the sequence, by
 * which there is one maintainer; AccessShareLock on all tables; ShareLock on a table to find that no writer is
 * left; and the locks of idem_empty_in_place.  All of them are conditional.
 *
 * MEMORY: a look-up leaves the tuples in the caller's context.  Maintenance needs
 * memory for one row at a time.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/index.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "nodes/execnodes.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/durable.h"
#include "shared/empty.h"
#include "shared/keyed_log.h"
#include "shared/txn_owner.h"

/* Columns of the index */
enum
{
	KEY_DIGEST = 1, KEY_KIND, KEY_NUMBER
};

/* Reading */

/*
 * The tables of a log, locked to read them.  Rows are read by SnapshotSelf: what is
 * committed at the moment counts, and what the transaction itself wrote.  A row
 * that was committed before the tables were locked is found, since nobody can empty
 * its table.  In SERIALIZABLE such reads leave no predicate locks, which would make
 * transactions of different keys fail.
 */
typedef struct Reader
{
	const IdemKeyedLog *log;
	Relation	heaps[IDEM_KEYED_MAX_TABLES];
	Relation	indexes[IDEM_KEYED_MAX_TABLES]; /* NULL: the table has no rows */
	TupleTableSlot *slots[IDEM_KEYED_MAX_TABLES];	/* made when a row is read */
} Reader;

/* Lock a table or an index to read it. */
static bool
lock_to_read(Oid oid, bool waits)
{
	if (!waits)
		return ConditionalLockRelationOid(oid, AccessShareLock);
	LockRelationOid(oid, AccessShareLock);
	return true;
}

/* Give back what is open of the first n tables. */
static void
close_tables(Reader *reader, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (reader->slots[i] != NULL)
			ExecDropSingleTupleTableSlot(reader->slots[i]);
		if (reader->indexes[i] != NULL)
			index_close(reader->indexes[i], AccessShareLock);
		table_close(reader->heaps[i], AccessShareLock);
	}
}

/* Lock table n; false if its lock is not free. */
static bool
open_table(Reader *reader, int n, bool waits)
{
	Oid			heap = idem_relref_oid(&reader->log->tables[n]);

	if (!lock_to_read(heap, waits))
		return false;
	reader->heaps[n] = table_open(heap, NoLock);
	reader->indexes[n] = NULL;
	reader->slots[n] = NULL;
	return true;
}

/*
 * Lock the index of table n, if the table has rows; false if its lock is not free.  A
 * table without blocks has none, and its index may be what a crash left.
 */
static bool
open_index(Reader *reader, int n, bool waits)
{
	Oid			index = idem_relref_oid(&reader->log->indexes[n]);

	if (RelationGetNumberOfBlocks(reader->heaps[n]) == 0)
		return true;
	if (!lock_to_read(index, waits))
		return false;
	reader->indexes[n] = index_open(index, NoLock);
	return true;
}

/*
 * Lock all tables before any of them is read.  Returns false, and keeps no lock, if a
 * lock is not free and the caller does not wait.
 */
static bool
reader_open(Reader *reader, const IdemKeyedLog *log, bool waits)
{
	reader->log = log;
	for (int n = 0; n < log->ntables; n++)
	{
		if (!open_table(reader, n, waits))
		{
			close_tables(reader, n);
			return false;
		}
	}
	for (int n = 0; n < log->ntables; n++)
	{
		if (!open_index(reader, n, waits))
		{
			close_tables(reader, log->ntables);
			return false;
		}
	}
	return true;
}

static void
reader_close(Reader *reader)
{
	close_tables(reader, reader->log->ntables);
}

/* The number of a row in a slot. */
static int64
number_of(TupleTableSlot *slot)
{
	bool		isnull;

	return DatumGetInt64(slot_getattr(slot, IDEM_KEYED_NUMBER, &isnull));
}

/* The slot for the rows of a table. */
static TupleTableSlot *
slot_of(Reader *reader, int table)
{
	if (reader->slots[table] == NULL)
		reader->slots[table] = table_slot_create(reader->heaps[table], NULL);
	return reader->slots[table];
}

/* Fetch the first row of one table that the first n keys fit, in the index's order. */
static bool
fetch_first(Reader *reader, int table, ScanKey keys, int n)
{
	IndexScanDesc scan;
	bool		found;

	scan = idem_compat_index_beginscan(reader->heaps[table], reader->indexes[table],
									   SnapshotSelf, n);
	index_rescan(scan, keys, n, NULL, 0);
	found = index_getnext_slot(scan, ForwardScanDirection, slot_of(reader, table));
	index_endscan(scan);
	return found;
}

/*
 * Let the row in the slot of a table go, whose buffer belongs to the current resource
 * owner.
 */
static void
let_go(Reader *reader, int table)
{
	if (reader->slots[table] != NULL)
		ExecClearTuple(reader->slots[table]);
}

/*
 * Fetch the newest row of a digest and kind from one table, of the rows whose
 * number is below a limit.  Returns false if there is none.
 */
static bool
fetch_newest(Reader *reader, int table, const pg_uuid_t *digest, char kind, int64 below)
{
	ScanKeyData keys[3];

	if (reader->indexes[table] == NULL)
		return false;
	ScanKeyInit(&keys[0], KEY_DIGEST, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(digest));
	ScanKeyInit(&keys[1], KEY_KIND, BTEqualStrategyNumber, F_CHAREQ, CharGetDatum(kind));
	ScanKeyInit(&keys[2], KEY_NUMBER, BTLessStrategyNumber, F_INT8LT, Int64GetDatum(below));
	return fetch_first(reader, table, keys, lengthof(keys));
}

/*
 * Fetch the newest row of the least kind that a digest has in one table.  Returns false
 * if the table has no row of the digest.
 */
static bool
fetch_least_kind(Reader *reader, int table, const pg_uuid_t *digest)
{
	ScanKeyData key;

	if (reader->indexes[table] == NULL)
		return false;
	ScanKeyInit(&key, KEY_DIGEST, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(digest));
	return fetch_first(reader, table, &key, 1);
}

/* Does the transaction's snapshot see the row, or did the transaction write it? */
static bool
is_in_snapshot(Relation heap, TupleTableSlot *slot, HeapTuple tuple)
{
	return !IsolationUsesXactSnapshot() ||
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)) ||
		table_tuple_satisfies_snapshot(heap, slot, GetTransactionSnapshot());
}

/* Take the row in the slot if it is the newest so far, or a copy of that. */
static void
take_newer(IdemKeyedRow *row, const Reader *reader, int table, TupleTableSlot *slot)
{
	int64		number = number_of(slot);

	if (number < row->number)
		return;
	if (number > row->number)
	{
		if (row->tuple != NULL)
			heap_freetuple(row->tuple);
		row->number = number;
		row->tuple = ExecCopySlotHeapTuple(slot);
		row->tables = 0;
		row->in_snapshot = false;
	}
	row->tables |= 1 << table;
	row->in_snapshot |= is_in_snapshot(reader->heaps[table], slot, row->tuple);
}

/* Get the newest row of a digest and kind from all tables. */
static void
find_newest(Reader *reader, const pg_uuid_t *digest, char kind, IdemKeyedRow *row)
{
	memset(row, 0, sizeof(*row));
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (fetch_newest(reader, n, digest, kind, PG_INT64_MAX))
			take_newer(row, reader, n, reader->slots[n]);
		let_go(reader, n);
	}
}

/* The kind of a row in a slot. */
static char
kind_of(TupleTableSlot *slot)
{
	bool		isnull;

	return DatumGetChar(slot_getattr(slot, IDEM_KEYED_KIND, &isnull));
}

/* Take newer rows of a key from one table. */
static void
find_parts_in(Reader *reader, int table, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	const char *kinds = reader->log->kinds;
	char		least;

	if (!fetch_least_kind(reader, table, digest))
		return;
	least = kind_of(reader->slots[table]);
	for (int k = 0; kinds[k] != '\0'; k++)
	{
		if (kinds[k] == least)
			take_newer(&rows[k], reader, table, reader->slots[table]);
	}
	for (int k = 0; kinds[k] != '\0'; k++)
	{
		if (kinds[k] > least && fetch_newest(reader, table, digest, kinds[k], PG_INT64_MAX))
			take_newer(&rows[k], reader, table, reader->slots[table]);
	}
	let_go(reader, table);
}

/* Get the newest row of each kind of a key. */
static void
find_parts(Reader *reader, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	memset(rows, 0, strlen(reader->log->kinds) * sizeof(IdemKeyedRow));
	for (int n = 0; n < reader->log->ntables; n++)
		find_parts_in(reader, n, digest, rows);
}

/* Give back the tuples of the rows. */
static void
free_parts(const Reader *reader, IdemKeyedRow *rows)
{
	for (int k = 0; reader->log->kinds[k] != '\0'; k++)
	{
		if (rows[k].tuple != NULL)
			heap_freetuple(rows[k].tuple);
	}
}

void
idem_keyed_log_look_up(const IdemKeyedLog *log, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	Reader		reader;

	(void) reader_open(&reader, log, true);
	find_parts(&reader, digest, rows);
	for (int k = 0; log->kinds[k] != '\0'; k++)
	{
		/* a value that is stored out of line may go with its table */
		if (rows[k].tuple != NULL && HeapTupleHasExternal(rows[k].tuple))
			rows[k].tuple = toast_flatten_tuple(rows[k].tuple, RelationGetDescr(reader.heaps[0]));
	}
	reader_close(&reader);
}

/* The length of table n, in blocks. */
static BlockNumber
table_blocks(const IdemKeyedLog *log, int n)
{
	Relation	rel = table_open(idem_relref_oid(&log->tables[n]), AccessShareLock);
	BlockNumber blocks = RelationGetNumberOfBlocks(rel);

	table_close(rel, AccessShareLock);
	return blocks;
}

/* The current table; *marker: number of its marker, 0 without one. */
static int
find_current(Reader *reader, int64 *marker)
{
	pg_uuid_t	digest = {{0}};
	IdemKeyedRow row;

	find_newest(reader, &digest, IDEM_KEYED_MARKER, &row);
	*marker = row.number;
	if (row.tuple == NULL)
		return 0;
	heap_freetuple(row.tuple);
	return pg_leftmost_one_pos32(row.tables);
}

/* The current table, by a look of its own. */
static int
look_for_current(const IdemKeyedLog *log)
{
	Reader		reader;
	int64		marker;
	int			current;

	(void) reader_open(&reader, log, true);
	current = find_current(&reader, &marker);
	reader_close(&reader);
	return current;
}

TupleDesc
idem_keyed_log_desc(const IdemKeyedLog *log)
{
	Relation	rel = table_open(idem_relref_oid(&log->tables[0]), AccessShareLock);
	TupleDesc	desc = CreateTupleDescCopy(RelationGetDescr(rel));

	table_close(rel, AccessShareLock);
	return desc;
}

/* Writing */

/*
 * Insert the entry of a row, which is in the heap already, into one index.  Error
 * 0A000 for an index that somebody added and that would need the executor.
 */
static void
insert_index_entry(Relation heap, Oid indexid, TupleTableSlot *slot)
{
	Relation	index = index_open(indexid, RowExclusiveLock);
	IndexInfo  *info = BuildIndexInfo(index);
	Datum		values[INDEX_MAX_KEYS];
	bool		nulls[INDEX_MAX_KEYS];

	if (info->ii_Expressions != NIL || info->ii_Predicate != NIL || info->ii_ExclusionOps != NULL)
		ereport(ERROR,
				(errcode(ERRCODE_FEATURE_NOT_SUPPORTED),
				 errmsg("index \"%s\" on \"%s.%s\" is not supported",
						RelationGetRelationName(index), IDEM_DATA_SCHEMA_NAME,
						RelationGetRelationName(heap)),
				 errdetail("Rows of this table are written without the executor, which would maintain it."),
				 errhint("Drop the index.")));
	FormIndexDatum(info, slot, NULL, values, nulls);
	index_insert(index, values, nulls, &slot->tts_tid, heap,
				 info->ii_Unique ? UNIQUE_CHECK_YES : UNIQUE_CHECK_NO, false, info);
	idem_compat_index_insert_cleanup(index, info);
	index_close(index, NoLock);
	pfree(info);
}

/*
 * Insert a tuple into a table and its indexes, and free the tuple.  Returns where
 * it stands.
 */
static ItemPointerData
insert_tuple(Relation heap, HeapTuple tuple)
{
	TupleTableSlot *slot = MakeSingleTupleTableSlot(RelationGetDescr(heap), &TTSOpsHeapTuple);
	List	   *indexes = RelationGetIndexList(heap);
	ItemPointerData tid;
	ListCell   *lc;

	ExecStoreHeapTuple(tuple, slot, true);
	table_tuple_insert(heap, slot, GetCurrentCommandId(true), 0, NULL);
	foreach(lc, indexes)
		insert_index_entry(heap, lfirst_oid(lc), slot);
	list_free(indexes);
	tid = slot->tts_tid;
	ExecDropSingleTupleTableSlot(slot);
	return tid;
}

/*
 * Open the current table for writing.  A table that is not current when it is locked is
 * given back: a pass over that table may have begun.  So the first one that is locked
 * need only be likely.
 */
static Relation
open_current(const IdemKeyedLog *log)
{
	static int	guess = 0;
	int			current = guess % log->ntables;

	for (;;)
	{
		Relation	rel = table_open(idem_relref_oid(&log->tables[current]), RowExclusiveLock);
		int			now = look_for_current(log);

		guess = now;
		if (now == current)
			return rel;
		table_close(rel, RowExclusiveLock);
		current = now;
		CHECK_FOR_INTERRUPTS();
	}
}

bool
idem_keyed_log_append(const IdemKeyedLog *log, HeapTuple tuple)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	rel = open_current(log);
	ItemPointerData tid = insert_tuple(rel, tuple);

	table_close(rel, NoLock);
	idem_txn_owner_leave(saved);
	return ItemPointerGetBlockNumber(&tid) >= log->max_blocks &&
		ItemPointerGetOffsetNumber(&tid) == FirstOffsetNumber;
}

/* Taking turns */

/* Has another table than "from" a row of the part that is older than "number"? */
static bool
hides_older_row(Reader *reader, int from, const pg_uuid_t *digest, char kind, int64 number)
{
	bool		found = false;

	for (int n = 0; n < reader->log->ntables && !found; n++)
	{
		found = n != from && fetch_newest(reader, n, digest, kind, number);
		let_go(reader, n);
	}
	return found;
}

/* The place of a kind among the log's kinds; -1: it is none of them. */
static int
kind_index(const IdemKeyedLog *log, char kind)
{
	const char *at = kind == '\0' ? NULL : strchr(log->kinds, kind);

	return at == NULL ? -1 : at - log->kinds;
}

/* Must the part, whose newest row is in table "from", be copied? */
static bool
is_needed(Reader *reader, int from, const pg_uuid_t *digest, char kind)
{
	const IdemKeyedLog *log = reader->log;
	IdemKeyedRow rows[IDEM_KEYED_MAX_KINDS];
	IdemKeyedNeed need[IDEM_KEYED_MAX_KINDS] = {IDEM_KEYED_SPENT};
	int			k = kind_index(log, kind);
	bool		needed;

	find_parts(reader, digest, rows);
	log->judge(RelationGetDescr(reader->heaps[from]), rows, need);
	needed = need[k] == IDEM_KEYED_NEEDED ||
		(need[k] == IDEM_KEYED_TOMBSTONE &&
		 hides_older_row(reader, from, digest, kind, rows[k].number));
	free_parts(reader, rows);
	return needed;
}

/* Copy the row in the slot, if it is needed and not in table "to". */
static void
copy_if_needed(Reader *reader, IdemKeyedPass *pass, Relation to, TupleTableSlot *slot)
{
	bool		isnull;
	pg_uuid_t	digest = *DatumGetUUIDP(slot_getattr(slot, IDEM_KEYED_DIGEST, &isnull));
	char		kind = DatumGetChar(slot_getattr(slot, IDEM_KEYED_KIND, &isnull));
	IdemKeyedRow newest;

	if (kind_index(reader->log, kind) < 0)
		return;					/* a marker */
	find_newest(reader, &digest, kind, &newest);
	if (newest.tuple != NULL)
		heap_freetuple(newest.tuple);
	if (newest.number != number_of(slot) || (newest.tables & (1 << pass->to)) != 0)
		return;
	if (is_needed(reader, pass->from, &digest, kind))
	{
		HeapTuple	copy = ExecCopySlotHeapTuple(slot);

		pass->copied += copy->t_len;
		(void) insert_tuple(to, copy);
	}
}

/* How many line pointers has the page? */
static OffsetNumber
page_rows(Relation heap, BlockNumber block)
{
	Buffer		buffer = ReadBuffer(heap, block);
	OffsetNumber rows;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	rows = PageIsNew(BufferGetPage(buffer)) ? 0 : PageGetMaxOffsetNumber(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return rows;
}

/* Copy what is needed of one page. */
static void
copy_page(Reader *reader, IdemKeyedPass *pass, Relation to, BlockNumber block)
{
	Relation	from = reader->heaps[pass->from];
	TupleTableSlot *slot = table_slot_create(from, NULL);
	OffsetNumber last = page_rows(from, block);

	for (OffsetNumber off = FirstOffsetNumber; off <= last; off++)
	{
		ItemPointerData tid;

		ItemPointerSet(&tid, block, off);
		if (table_tuple_fetch_row_version(from, &tid, SnapshotSelf, slot))
			copy_if_needed(reader, pass, to, slot);
		ExecClearTuple(slot);
	}
	ExecDropSingleTupleTableSlot(slot);
}

/* Step 3: copy what is needed of the next few pages. */
static void
copy_pages(Reader *reader, IdemKeyedPass *pass, BlockNumber blocks)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	to = table_open(RelationGetRelid(reader->heaps[pass->to]), RowExclusiveLock);
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext, "idempotency keyed log",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	BlockNumber end = Min(blocks, pass->next + reader->log->pass_blocks);

	for (BlockNumber block = pass->next; block < end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		copy_page(reader, pass, to, block);
		MemoryContextReset(cxt);
	}
	pass->next = end;
	if (FullTransactionIdIsValid(GetTopFullTransactionIdIfAny()))
		pass->copier = GetTopFullTransactionIdIfAny();
	MemoryContextSwitchTo(old);
	MemoryContextDelete(cxt);
	table_close(to, NoLock);
	idem_txn_owner_leave(saved);
}

/* Step 2: begin a pass over a table, if nobody who writes to it is left. */
static bool
begin_pass(Reader *reader, IdemKeyedPass *pass, int from, int to, int64 marker)
{
	Oid			oid = RelationGetRelid(reader->heaps[from]);

	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	UnlockRelationOid(oid, ShareLock);
	pass->active = true;
	pass->from = from;
	pass->to = to;
	pass->marker = marker;
	pass->next = 0;
	pass->copied = 0;
	pass->copier = InvalidFullTransactionId;
	return true;
}

/* Does the marker that table "to" had when the pass began still stand there? */
static bool
still_has_marker(Reader *reader, const IdemKeyedPass *pass)
{
	pg_uuid_t	digest = {{0}};
	bool		has = fetch_newest(reader, pass->to, &digest, IDEM_KEYED_MARKER, PG_INT64_MAX) &&
	number_of(reader->slots[pass->to]) == pass->marker;

	let_go(reader, pass->to);
	return has;
}

/*
 * Does what the pass has copied still stand in table "to"?  Not if the last
 * transaction that copied was rolled back, or if the table was emptied.
 */
static bool
is_pass_valid(Reader *reader, const IdemKeyedPass *pass)
{
	if (FullTransactionIdIsValid(pass->copier) && idem_durable_did_abort(pass->copier))
		return false;
	return still_has_marker(reader, pass);
}

/* Put a marker into a table, which becomes current. */
static void
mark(const IdemKeyedLog *log, int n)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	rel = table_open(idem_relref_oid(&log->tables[n]), RowExclusiveLock);

	(void) insert_tuple(rel, log->form_marker(RelationGetDescr(rel), log->draw()));
	table_close(rel, NoLock);
	idem_txn_owner_leave(saved);
}

/*
 * The first table that a crash has left half emptied: without rows, but with other
 * files that are not as new; -1: none.
 */
static int
find_half_empty(Reader *reader)
{
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (reader->indexes[n] == NULL && !idem_empty_is_pristine(reader->heaps[n]))
			return n;
	}
	return -1;
}

/* The first empty table other than the current one, whose files are as new; -1: none. */
static int
find_empty(Reader *reader, int current)
{
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (n != current && idem_empty_is_pristine(reader->heaps[n]))
			return n;
	}
	return -1;
}

/* What is left to do after the tables are unlocked. */
typedef enum Act
{
	ACT_NOTHING,				/* there was no step to take */
	ACT_DONE,					/* a step was taken */
	ACT_EMPTY,
	ACT_MARK					/* put a marker into a table */
} Act;

/*
 * Begin a pass over any table that has lost its turn.  A current table without a
 * marker gets one first, since the end of the pass looks for it.
 */
static Act
begin_any_pass(Reader *reader, IdemKeyedPass *pass, int current, int64 marker, int *table)
{
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (n == current || reader->indexes[n] == NULL)
			continue;
		*table = current;
		if (marker == 0)
			return ACT_MARK;
		if (begin_pass(reader, pass, n, current, marker))
			return ACT_DONE;
	}
	return ACT_NOTHING;
}

/* Go on with a pass.  *table: to be emptied at its end. */
static Act
continue_pass(Reader *reader, IdemKeyedPass *pass, int *table)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(reader->heaps[pass->from]);

	*table = pass->from;
	if (pass->next >= blocks)
		return ACT_EMPTY;
	copy_pages(reader, pass, blocks);
	return ACT_DONE;
}

/*
 * Has the current table grown, so that it loses its turn?  If most of its rows are
 * needed, a turn would only copy them, so the table may become twice as long.
 */
static bool
has_grown(Reader *reader, const IdemKeyedPass *pass, int current)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(reader->heaps[current]);

	return blocks > reader->log->max_blocks && blocks > 2 * (pass->needed / BLCKSZ);
}

/*
 * Decide on the next step, and take it if it needs no more locks.  *table: to be
 * emptied or marked.
 */
static Act
take_step(Reader *reader, IdemKeyedPass *pass, int *table)
{
	int64		marker;
	int			current = find_current(reader, &marker);
	Act			act;

	*table = find_half_empty(reader);
	if (*table >= 0)
		return ACT_EMPTY;
	if (pass->active)
		pass->active = reader->indexes[pass->from] != NULL && is_pass_valid(reader, pass);
	if (pass->active)
		return continue_pass(reader, pass, table);
	act = begin_any_pass(reader, pass, current, marker, table);
	if (act != ACT_NOTHING)
		return act;
	*table = find_empty(reader, current);
	return *table >= 0 && has_grown(reader, pass, current) ? ACT_MARK : ACT_NOTHING;
}

/*
 * Step 4, or empty what a crash has left half emptied.  False if somebody has the
 * table, or has written to it.
 */
static bool
empty_table(const IdemKeyedLog *log, IdemKeyedPass *pass, int n)
{
	Oid			oid = idem_relref_oid(&log->tables[n]);
	bool		copied = pass->active && pass->from == n;

	if (!ConditionalLockRelationOid(oid, AccessExclusiveLock) ||
		(!copied && table_blocks(log, n) > 0) ||
		!idem_empty_in_place(oid))
		return false;
	if (copied)
	{
		pass->active = false;
		pass->needed = pass->copied;
	}
	return true;
}

bool
idem_keyed_log_maintain(const IdemKeyedLog *log, IdemKeyedPass *pass)
{
	Snapshot	snapshot;
	Reader		reader;
	Act			act;
	int			table;

	if (!ConditionalLockRelationOid(idem_relref_oid(log->sequence), ShareUpdateExclusiveLock))
		return false;
	if (!reader_open(&reader, log, false))
		return false;

	/* values that are stored out of line are read by a snapshot */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	act = take_step(&reader, pass, &table);
	UnregisterSnapshot(snapshot);
	reader_close(&reader);
	if (act == ACT_EMPTY)
		return empty_table(log, pass, table);
	if (act == ACT_MARK)
		mark(log, table);
	return act != ACT_NOTHING;
}
