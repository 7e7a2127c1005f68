/*-------------------------------------------------------------------------
 *
 * keyed_read.c
 *		Reads the tables of a keyed log.
 *
 * A reader has all tables and their indexes locked before it looks at the first row
 * (keyed_log.c says why).  What it finds of a key is the newest row, whichever table
 * has it; a copy counts as its original.
 *
 * A reader may have a snapshot.  Rows are fetched by SnapshotSelf all the same, and what
 * the snapshot does not see is passed over.  A fetch by the snapshot itself would leave
 * predicate locks in SERIALIZABLE.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: AccessShareLock on all tables and indexes in their order, while a reader is
 * open; on a TOAST table while its length is read.  To write: before that RowExclusiveLock on one table, and with the others on its
 * index; they stay to the end of the transaction if rows were appended.
 *
 * MEMORY: the tuples that it returns, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_read.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/relscan.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/fmgroids.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/guard.h"
#include "shared/keyed_read.h"
#include "shared/lock_wait.h"
#include "shared/xid.h"

/* Columns of the index */
enum
{
	KEY_DIGEST = 1, KEY_KIND, KEY_NUMBER
};

/* The lock of a table and of its index. */
static LOCKMODE
lock_mode(const IdemKeyedReader *reader, int n)
{
	return n == reader->writes_to ? RowExclusiveLock : AccessShareLock;
}

/* Take the lock of table n on the table or on its index. */
static bool
lock(const IdemKeyedReader *reader, int n, Oid oid, bool waits)
{
	if (!waits)
		return ConditionalLockRelationOid(oid, lock_mode(reader, n));
	idem_lock_table(oid, lock_mode(reader, n));
	return true;
}

/* Give back what is open of the first n tables. */
static void
close_tables(IdemKeyedReader *reader, int n)
{
	for (int i = 0; i < n; i++)
	{
		LOCKMODE	mode = i == reader->writes_to && reader->written ? NoLock : lock_mode(reader, i);

		if (reader->slots[i] != NULL)
			ExecDropSingleTupleTableSlot(reader->slots[i]);
		if (reader->indexes[i] != NULL)
			index_close(reader->indexes[i], mode);
		table_close(reader->heaps[i], mode);
	}
}

/* Open table n, and lock it unless it is locked to write; false if its lock is not free. */
static bool
open_table(IdemKeyedReader *reader, int n, bool waits)
{
	Oid			heap = idem_relref_oid(&reader->log->tables[n]);

	if (n != reader->writes_to && !lock(reader, n, heap, waits))
		return false;
	reader->heaps[n] = table_open(heap, NoLock);
	idem_guard_table(&reader->log->tables[n], reader->heaps[n],
					 n == reader->writes_to ? IDEM_GUARD_WRITE : IDEM_GUARD_READ);
	reader->indexes[n] = NULL;
	reader->slots[n] = NULL;
	return true;
}

/*
 * Lock the index of table n, if the table has rows; false if its lock is not free.  A
 * table without blocks has none, and its index may be what a crash left.
 */
static bool
open_index(IdemKeyedReader *reader, int n, bool waits)
{
	Oid			index = idem_relref_oid(&reader->log->indexes[n]);

	if (reader->indexes[n] != NULL || RelationGetNumberOfBlocks(reader->heaps[n]) == 0)
		return true;
	if (!lock(reader, n, index, waits))
		return false;
	reader->indexes[n] = index_open(index, NoLock);
	return true;
}

/* Who writes waits. */
bool
idem_keyed_reader_open_tables(IdemKeyedReader *reader, const IdemKeyedLog *log, int writes_to, bool waits)
{
	reader->log = log;
	reader->snapshot = NULL;
	reader->writes_to = writes_to;
	reader->written = false;
	if (writes_to >= 0)
		(void) lock(reader, writes_to, idem_relref_oid(&log->tables[writes_to]), true);
	for (int n = 0; n < log->ntables; n++)
	{
		if (!open_table(reader, n, waits))
		{
			close_tables(reader, n);
			return false;
		}
	}
	return true;
}

bool
idem_keyed_reader_open_indexes(IdemKeyedReader *reader, bool waits)
{
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (!open_index(reader, n, waits))
		{
			close_tables(reader, reader->log->ntables);
			return false;
		}
	}
	return true;
}

bool
idem_keyed_reader_open(IdemKeyedReader *reader, const IdemKeyedLog *log, bool waits)
{
	return idem_keyed_reader_open_tables(reader, log, -1, waits) && idem_keyed_reader_open_indexes(reader, waits);
}

/*
 * The snapshot is newer than the locks on the tables, or else a row and its copy might
 * both be out of reach.  It is older than the look which tables have rows: a table that
 * gets its first row in between has none that the snapshot sees.
 */
void
idem_keyed_reader_open_as_of_now(IdemKeyedReader *reader, const IdemKeyedLog *log)
{
	(void) idem_keyed_reader_open_tables(reader, log, -1, true);
	reader->snapshot = RegisterSnapshot(GetLatestSnapshot());
	(void) idem_keyed_reader_open_indexes(reader, true);
}

void
idem_keyed_reader_close(IdemKeyedReader *reader)
{
	close_tables(reader, reader->log->ntables);
}

int64
idem_keyed_number(TupleTableSlot *slot)
{
	bool		isnull;
	Datum		value = slot_getattr(slot, IDEM_KEYED_NUMBER, &isnull);

	return isnull ? 0 : DatumGetInt64(value);
}

bool
idem_keyed_is_sound(const IdemKeyedLog *log, TupleTableSlot *slot)
{
	const Datum *values = slot->tts_values;
	const bool *nulls = slot->tts_isnull;
	int64		number;
	char		kind;

	slot_getallattrs(slot);
	if (nulls[IDEM_KEYED_NUMBER - 1] || nulls[IDEM_KEYED_DIGEST - 1] ||
		nulls[IDEM_KEYED_KIND - 1])
		return false;
	number = DatumGetInt64(values[IDEM_KEYED_NUMBER - 1]);
	kind = DatumGetChar(values[IDEM_KEYED_KIND - 1]);
	if (number <= 0 || number >= IDEM_KEYED_END)
		return false;
	return kind == IDEM_KEYED_MARKER ||
		(kind != '\0' && strchr(log->kinds, kind) != NULL &&
		 (log->is_sound == NULL || log->is_sound(values, nulls)));
}

void
idem_keyed_refuse_unsound(const IdemKeyedLog *log, const IdemKeyedRow *rows)
{
	for (int k = 0; log->kinds[k] != '\0'; k++)
	{
		if (rows[k].unsound)
			idem_report_row(ERROR, rows[k].tuple->t_tableOid, &rows[k].tuple->t_self,
							"Look at the row, and delete it: what was written of its key before counts then.");
	}
}

/* The slot for the rows of a table. */
static TupleTableSlot *
slot_of(IdemKeyedReader *reader, int table)
{
	if (reader->slots[table] == NULL)
		reader->slots[table] = table_slot_create(reader->heaps[table], NULL);
	return reader->slots[table];
}

bool
idem_keyed_counts(const IdemKeyedReader *reader, int table, TupleTableSlot *slot)
{
	return reader->snapshot == NULL ||
		table_tuple_satisfies_snapshot(reader->heaps[table], slot, reader->snapshot);
}

/* Fetch the first row of one table that the first n keys fit, in the index's order. */
static bool
fetch_first(IdemKeyedReader *reader, int table, Snapshot snapshot, ScanKey keys, int n)
{
	IndexScanDesc scan;
	bool		found;

	scan = idem_compat_index_beginscan(reader->heaps[table], reader->indexes[table],
									   snapshot, n);
	index_rescan(scan, keys, n, NULL, 0);
	do
	{
		found = index_getnext_slot(scan, ForwardScanDirection, slot_of(reader, table));
	} while (found && !idem_keyed_counts(reader, table, reader->slots[table]));
	index_endscan(scan);
	return found;
}

void
idem_keyed_let_go(IdemKeyedReader *reader, int table)
{
	if (reader->slots[table] != NULL)
		ExecClearTuple(reader->slots[table]);
}

/* The place of a key is by its digest, which is as good as random. */
int64
idem_keyed_hint(const IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest, char kind)
{
	const IdemKeyedHint *hint = &hints->places[digest->data[0] % IDEM_KEYED_HINTS];

	if (hint->index != index || hint->kind != kind ||
		memcmp(&hint->digest, digest, sizeof(*digest)) != 0)
		return 0;
	return hint->number;
}

void
idem_keyed_hint_note(IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest, char kind,
					 int64 number)
{
	IdemKeyedHint *hint = &hints->places[digest->data[0] % IDEM_KEYED_HINTS];

	hint->digest = *digest;
	hint->number = number;
	hint->index = index;
	hint->kind = kind;
}

/*
 * What this session has found.  Nothing depends on it: the row may have gone, or another
 * one of its key may be wanted.
 */
static IdemKeyedHints seen;

/* What is the same in each look for a digest and kind: all but the arguments. */
static ScanKey
newest_keys(void)
{
	static ScanKeyData keys[4];
	static bool made = false;

	if (!made)
	{
		ScanKeyInit(&keys[0], KEY_DIGEST, BTEqualStrategyNumber, F_UUID_EQ, (Datum) 0);
		ScanKeyInit(&keys[1], KEY_KIND, BTEqualStrategyNumber, F_CHAREQ, (Datum) 0);
		ScanKeyInit(&keys[2], KEY_NUMBER, BTLessStrategyNumber, F_INT8LT, (Datum) 0);
		ScanKeyInit(&keys[3], KEY_NUMBER, BTGreaterEqualStrategyNumber, F_INT8GE, (Datum) 0);
		for (int i = 0; i < lengthof(keys); i++)
			keys[i].sk_func.fn_mcxt = TopMemoryContext;
		made = true;
	}
	return keys;
}

/* The same of a digest and kind, and of numbers below a limit: the newest such row. */
static bool
fetch_newest(IdemKeyedReader *reader, int table, Snapshot snapshot, const pg_uuid_t *digest, char kind,
			 int64 below)
{
	ScanKey		keys = newest_keys();
	int64		hint;
	bool		found;
	Oid			index;

	if (reader->indexes[table] == NULL)
		return false;
	index = RelationGetRelid(reader->indexes[table]);
	hint = idem_keyed_hint(&seen, index, digest, kind);
	keys[0].sk_argument = UUIDPGetDatum(digest);
	keys[1].sk_argument = CharGetDatum(kind);
	keys[2].sk_argument = Int64GetDatum(below);
	keys[3].sk_argument = Int64GetDatum(hint);
	found = (hint != 0 && hint < below && fetch_first(reader, table, snapshot, keys, 4)) ||
		fetch_first(reader, table, snapshot, keys, 3);
	if (found && below == IDEM_KEYED_END && snapshot == SnapshotSelf)
		idem_keyed_hint_note(&seen, index, digest, kind, idem_keyed_number(reader->slots[table]));
	return found;
}

bool
idem_keyed_fetch_newest(IdemKeyedReader *reader, int table, const pg_uuid_t *digest, char kind,
						int64 below)
{
	return fetch_newest(reader, table, SnapshotSelf, digest, kind, below);
}

bool
idem_keyed_fetch_least_kind(IdemKeyedReader *reader, int table, const pg_uuid_t *digest)
{
	ScanKeyData key;

	if (reader->indexes[table] == NULL)
		return false;
	if (reader->log->kinds[1] == '\0')
		return idem_keyed_fetch_newest(reader, table, digest, reader->log->kinds[0], IDEM_KEYED_END);
	ScanKeyInit(&key, KEY_DIGEST, BTEqualStrategyNumber, F_UUID_EQ, UUIDPGetDatum(digest));
	return fetch_first(reader, table, SnapshotSelf, &key, 1);
}

/*
 * Does the snapshot see the transaction that wrote the original of the row?  That one is
 * committed, or the row would not have been copied.  A row that somebody else brought may
 * name any transaction.
 */
static bool
sees_origin(const IdemKeyedLog *log, TupleTableSlot *slot, Snapshot snapshot)
{
	FullTransactionId next = ReadNextFullTransactionId();
	FullTransactionId origin;
	bool		isnull = true;
	Datum		value = log->origin == 0 ? (Datum) 0 : slot_getattr(slot, log->origin, &isnull);

	if (isnull)
		return false;
	origin = DatumGetFullTransactionId(value);
	if (FullTransactionIdPrecedes(origin, idem_xid_widen(snapshot->xmin, next)))
		return true;
	return FullTransactionIdPrecedes(origin, next) &&
		!XidInMVCCSnapshot(XidFromFullTransactionId(origin), snapshot);
}

/*
 * Does the transaction's snapshot see the row or its original, or did the transaction
 * write it?
 */
static bool
is_in_snapshot(const IdemKeyedReader *reader, int table, TupleTableSlot *slot, HeapTuple tuple)
{
	return !IsolationUsesXactSnapshot() ||
		TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetXmin(tuple->t_data)) ||
		table_tuple_satisfies_snapshot(reader->heaps[table], slot, GetTransactionSnapshot()) ||
		sees_origin(reader->log, slot, GetTransactionSnapshot());
}

/* Take the row in the slot if it is the newest so far, or a copy of that. */
static void
take_newer(IdemKeyedRow *row, const IdemKeyedReader *reader, int table, TupleTableSlot *slot)
{
	int64		number = idem_keyed_number(slot);

	if (row->tuple != NULL && number < row->number)
		return;
	if (row->tuple == NULL || number > row->number)
	{
		if (row->tuple != NULL)
			heap_freetuple(row->tuple);
		row->number = number;
		row->tuple = ExecCopySlotHeapTuple(slot);
		row->tables = 0;
		row->in_snapshot = false;
		row->unsound = !idem_keyed_is_sound(reader->log, slot);
	}
	row->tables |= 1 << table;
	row->in_snapshot |= is_in_snapshot(reader, table, slot, row->tuple);
}

/* Get the newest row of a digest and kind from all tables. */
static void
find_newest(IdemKeyedReader *reader, const pg_uuid_t *digest, char kind, IdemKeyedRow *row)
{
	memset(row, 0, sizeof(*row));
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (idem_keyed_fetch_newest(reader, n, digest, kind, IDEM_KEYED_END))
			take_newer(row, reader, n, reader->slots[n]);
		idem_keyed_let_go(reader, n);
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
find_parts_in(IdemKeyedReader *reader, int table, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	const char *kinds = reader->log->kinds;
	char		least;

	if (!idem_keyed_fetch_least_kind(reader, table, digest))
		return;
	least = kind_of(reader->slots[table]);
	for (int k = 0; kinds[k] != '\0'; k++)
	{
		if (kinds[k] == least)
			take_newer(&rows[k], reader, table, reader->slots[table]);
	}
	for (int k = 0; kinds[k] != '\0'; k++)
	{
		if (kinds[k] > least && idem_keyed_fetch_newest(reader, table, digest, kinds[k], IDEM_KEYED_END))
			take_newer(&rows[k], reader, table, reader->slots[table]);
	}
	idem_keyed_let_go(reader, table);
}

void
idem_keyed_find_parts(IdemKeyedReader *reader, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	memset(rows, 0, strlen(reader->log->kinds) * sizeof(IdemKeyedRow));
	for (int n = 0; n < reader->log->ntables; n++)
		find_parts_in(reader, n, digest, rows);
}

void
idem_keyed_free_parts(const IdemKeyedReader *reader, IdemKeyedRow *rows)
{
	for (int k = 0; reader->log->kinds[k] != '\0'; k++)
	{
		if (rows[k].tuple != NULL)
			heap_freetuple(rows[k].tuple);
	}
}

bool
idem_keyed_has_newer(IdemKeyedReader *reader, const pg_uuid_t *digest, const IdemKeyedRow *rows)
{
	const char *kinds = reader->log->kinds;
	SnapshotData dirty;
	bool		found = false;

	InitDirtySnapshot(dirty);
	for (int n = 0; n < reader->log->ntables; n++)
	{
		for (int k = 0; kinds[k] != '\0' && !found; k++)
			found = fetch_newest(reader, n, &dirty, digest, kinds[k], IDEM_KEYED_END) &&
				idem_keyed_number(reader->slots[n]) > rows[k].number;
		idem_keyed_let_go(reader, n);
	}
	return found;
}

int
idem_keyed_find_current(IdemKeyedReader *reader, int64 *marker)
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

/* The one table that has rows, 0 if none has; -1: several have. */
static int
only_table(const IdemKeyedReader *reader)
{
	int			only = -1;

	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (reader->indexes[n] == NULL)
			continue;
		if (only >= 0)
			return -1;
		only = n;
	}
	return Max(only, 0);
}

/*
 * While the tables are locked none of them is emptied.  So if one alone has rows, no
 * other one has a marker, and the markers need not be read.  If it has none either,
 * maintenance puts a marker into the first table before it begins a pass.
 */
static int
look_for_current(IdemKeyedReader *reader)
{
	int			only = only_table(reader);
	int64		marker;

	return only >= 0 ? only : idem_keyed_find_current(reader, &marker);
}

/*
 * A table that is not current when it is locked is given back: a pass over that table
 * may have begun.  So the first one that is locked need only be likely.
 */
void
idem_keyed_reader_open_to_write(IdemKeyedReader *reader, const IdemKeyedLog *log)
{
	static int	guess = 0;
	int			locked;

	for (;;)
	{
		locked = guess % log->ntables;
		(void) idem_keyed_reader_open_tables(reader, log, locked, true);
		(void) idem_keyed_reader_open_indexes(reader, true);
		guess = look_for_current(reader);
		if (guess == locked)
			return;
		idem_keyed_reader_close(reader);
		CHECK_FOR_INTERRUPTS();
	}
}

BlockNumber
idem_keyed_length(Relation heap, BlockNumber *values)
{
	Oid			oid = heap->rd_rel->reltoastrelid;

	*values = 0;
	if (OidIsValid(oid))
	{
		Relation	toast = table_open(oid, AccessShareLock);

		*values = RelationGetNumberOfBlocks(toast);
		table_close(toast, AccessShareLock);
	}
	return RelationGetNumberOfBlocks(heap);
}

bool
idem_keyed_is_long(const IdemKeyedLog *log, Relation heap)
{
	BlockNumber values;

	return idem_keyed_length(heap, &values) > log->max_blocks ||
		values / IDEM_KEYED_VALUES > log->max_blocks;
}

OffsetNumber
idem_keyed_page_rows(Relation heap, BlockNumber block)
{
	Buffer		buffer = ReadBuffer(heap, block);
	OffsetNumber rows;

	LockBuffer(buffer, BUFFER_LOCK_SHARE);
	rows = PageIsNew(BufferGetPage(buffer)) ? 0 : PageGetMaxOffsetNumber(BufferGetPage(buffer));
	UnlockReleaseBuffer(buffer);
	return rows;
}
