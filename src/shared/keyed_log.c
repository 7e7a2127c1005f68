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
 * The current table is the table that has the newest marker, or that alone has rows;
 * without markers it is the first table.  A writer locks the table that it found
 * current the last time, and looks.  If another table is current, the writer goes on
 * with that one.  So nobody writes to a table that is not current, except transactions
 * that had locked the table while it was current.
 *
 * The tables take turns in steps, each in a transaction of its own:
 * 1. If the current table has grown and another table is empty: a marker is put
 *    into the empty table, which thereby becomes current.
 * 2. If another table has rows, and nobody who writes to it is left: a pass over
 *    the table begins.  From here on only a restore changes the table.
 * 3. The pass copies the needed rows of a few pages into the table that was
 *    current when the pass began, unless they are there already.  The rows keep
 *    their numbers.
 * 4. After the last page, and after the dumps that need the table: the pages that have
 *    changed meanwhile are looked at again, and the table is emptied in place.
 * If the table that is copied to is not current any more, since another process has
 * taken steps meanwhile, the pass begins anew.
 *
 * Invariant: when a table is emptied, every row of it that is needed stands
 * committed in another table.  A row that is not needed in one step is not needed
 * later: a newer row counts, or the user has said so.  The copies still stand in
 * step 4, because they are in the current table, which is not emptied.
 *
 * A tombstone is a row that must not go before all older rows of its key: it says that
 * nothing is known of the key, or that what is known may be forgotten.  It is dropped
 * with its table when no other table has an older row.  Several parts of a key that are
 * tombstones stay as long as the oldest of them stands in another table, so they do not
 * go one without the other.  An older row of the tombstone's own table is not copied,
 * because the tombstone is newer.
 *
 * What is known may be forgotten from some time on.  A newer row of another kind may take
 * that back while the time comes, and commit after the look of the pass.  So the pass
 * looks at the time first, and then for rows that are being written; who writes such a
 * row looks at the time when the row is there, and fails if he is late.
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
 * LOCKING: to append: RowExclusiveLock on the current table and its indexes, owned by
 * the subtransaction (txn_owner.h), and kept to its end if a row was appended; then
 * AccessShareLock on the others as a look-up takes it.  To look up: AccessShareLock on
 * all tables in their order, taken before the first row is read and kept for the call,
 * then on the indexes of those that have rows.  If a table were locked after another one was read, a turn in between could hide
 * both a row and its copy.  Maintenance: keyed_turn.c.
 *
 * MEMORY: a look-up leaves the tuples in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_log.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/heaptoast.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xlog.h"
#include "catalog/pg_index.h"
#include "funcapi.h"
#include "miscadmin.h"
#include "storage/lmgr.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/fmgrprotos.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/guard.h"
#include "shared/keyed_log.h"
#include "shared/keyed_read.h"
#include "shared/lock_wait.h"
#include "shared/table.h"
#include "shared/txn_owner.h"
#include "shared/worker.h"

/* Rows */

const IdemIndexForm idem_keyed_index = {
	.text = "(digest, kind, number DESC)", .n = 3,
	.columns = {IDEM_KEYED_DIGEST, IDEM_KEYED_KIND, IDEM_KEYED_NUMBER},
	.options = {0, 0, INDOPTION_DESC | INDOPTION_NULLS_FIRST},
	.compare = {F_UUID_CMP, F_BTCHARCMP, F_BTINT8CMP}
};

void
idem_keyed_form_begin(const IdemKeyedLog *log, IdemKeyedColumns *row, int64 number,
					  const pg_uuid_t *digest, char kind)
{
	memset(row->nulls, true, sizeof(row->nulls));
	idem_keyed_form_set(row, IDEM_KEYED_NUMBER - 1, Int64GetDatum(number));
	idem_keyed_form_set(row, IDEM_KEYED_DIGEST - 1, UUIDPGetDatum(digest));
	idem_keyed_form_set(row, IDEM_KEYED_KIND - 1, CharGetDatum(kind));
	if (log->at != 0)
		idem_keyed_form_set(row, log->at - 1, TimestampTzGetDatum(GetCurrentTimestamp()));
}

void
idem_keyed_form_set_text(IdemKeyedColumns *row, int column, const char *s, int len)
{
	if (s != NULL)
		idem_keyed_form_set(row, column, PointerGetDatum(cstring_to_text_with_len(s, len)));
}

void
idem_keyed_form_take_apart(const IdemKeyedLog *log, TupleDesc desc, HeapTuple tuple, IdemKeyedColumns *row)
{
	idem_table_take_apart(desc, log->tables[0].form->ncolumns, tuple, row->values, row->nulls);
}

struct IdemKeyedAccess
{
	IdemKeyedReader reader;
	bool		keys_locked;	/* each key that is looked up was locked
								 * before the tables */
};

/* The columns of a row's own table.  Another one may have other columns behind its own. */
static TupleDesc
desc_of(const IdemKeyedReader *reader, HeapTuple tuple)
{
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (RelationGetRelid(reader->heaps[n]) == tuple->t_tableOid)
			return RelationGetDescr(reader->heaps[n]);
	}
	elog(ERROR, "row is of none of the tables of its log");
}

/* A value that is stored out of line may go with its table: fetch it. */
static void
flatten(IdemKeyedReader *reader, IdemKeyedRow *rows)
{
	for (int k = 0; reader->log->kinds[k] != '\0'; k++)
	{
		HeapTuple	tuple = rows[k].tuple;

		if (tuple == NULL || !HeapTupleHasExternal(tuple))
			continue;
		rows[k].tuple = toast_flatten_tuple(tuple, desc_of(reader, tuple));
		heap_freetuple(tuple);
	}
}

/* Reading */

void
idem_keyed_log_look_up(const IdemKeyedLog *log, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	IdemKeyedReader reader;

	(void) idem_keyed_reader_open(&reader, log, true);
	idem_keyed_find_parts(&reader, digest, rows);
	flatten(&reader, rows);
	idem_keyed_reader_close(&reader);
}

/* Take the number and the time of a row, if the number is the greatest so far. */
static void
take_greater(const IdemKeyedLog *log, TupleDesc desc, HeapTuple tuple, int64 *greatest, TimestampTz *at)
{
	bool		isnull;
	int64		number = DatumGetInt64(heap_getattr(tuple, IDEM_KEYED_NUMBER, desc, &isnull));
	Datum		written;

	if (isnull || number <= *greatest || number >= IDEM_KEYED_END)
		return;
	*greatest = number;
	written = heap_getattr(tuple, log->at, desc, &isnull);
	*at = isnull ? 0 : DatumGetTimestampTz(written);
}

void
idem_keyed_log_greatest(const IdemKeyedLog *log, int64 *greatest, TimestampTz *at)
{
	for (int n = 0; n < log->ntables; n++)
	{
		Relation	rel = table_open(idem_relref_oid(&log->tables[n]), AccessShareLock);
		TableScanDesc scan;
		HeapTuple	tuple;

		idem_guard_table(&log->tables[n], rel, IDEM_GUARD_READ);
		scan = idem_compat_table_beginscan(rel, SnapshotAny);
		while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
		{
			CHECK_FOR_INTERRUPTS();
			take_greater(log, RelationGetDescr(rel), tuple, greatest, at);
		}
		table_endscan(scan);
		table_close(rel, AccessShareLock);
	}
}

TupleDesc
idem_keyed_log_desc(const IdemKeyedLog *log)
{
	Relation	rel = table_open(idem_relref_oid(&log->tables[0]), AccessShareLock);
	TupleDesc	desc = CreateTupleDescCopy(RelationGetDescr(rel));

	table_close(rel, AccessShareLock);
	return desc;
}

/* Reading and writing */

IdemKeyedAccess *
idem_keyed_access_open(const IdemKeyedLog *log, IdemKeyedUse use)
{
	IdemKeyedAccess *access = palloc(sizeof(IdemKeyedAccess));
	ResourceOwner saved = idem_txn_owner_enter();

	/* each look-up asks which tables have rows, so that is not asked here */
	if (use == IDEM_KEYED_TO_READ)
		(void) idem_keyed_reader_open_tables(&access->reader, log, -1, true);
	else
		idem_keyed_reader_open_to_write(&access->reader, log);
	access->keys_locked = use == IDEM_KEYED_OF_LOCKED;
	idem_txn_owner_leave(saved);
	return access;
}

void
idem_keyed_access_close(IdemKeyedAccess *access)
{
	ResourceOwner saved = idem_txn_owner_enter();

	idem_keyed_reader_close(&access->reader);
	idem_txn_owner_leave(saved);
	pfree(access);
}

TupleDesc
idem_keyed_access_desc(const IdemKeyedAccess *access)
{
	return RelationGetDescr(access->reader.heaps[0]);
}

void
idem_keyed_access_look_up(IdemKeyedAccess *access, const pg_uuid_t *digest, IdemKeyedRow *rows)
{
	ResourceOwner saved = idem_txn_owner_enter();

	/*
	 * a row of a locked key is older than the opening, or the access itself
	 * has appended it
	 */
	if (!access->keys_locked || access->reader.written)
		(void) idem_keyed_reader_open_indexes(&access->reader, true);
	idem_keyed_find_parts(&access->reader, digest, rows);
	idem_keyed_refuse_unsound(access->reader.log, rows);
	flatten(&access->reader, rows);
	idem_txn_owner_leave(saved);
}

bool
idem_keyed_access_append(IdemKeyedAccess *access, const IdemKeyedColumns *row)
{
	IdemKeyedReader *reader = &access->reader;
	Relation	heap = reader->heaps[reader->writes_to];
	ResourceOwner saved;
	HeapTuple	tuple;
	bool		large;
	bool		is_long;

	idem_check_no_script(reader->log->what);
	saved = idem_txn_owner_enter();
	tuple = idem_table_form_row(RelationGetDescr(heap), IDEM_KEYED_MAX_COLUMNS, row->values, row->nulls);
	large = tuple->t_len > TOAST_TUPLE_THRESHOLD;
	reader->written = true;
	idem_table_append_row(heap, tuple);
	is_long = (large && idem_keyed_is_long(reader->log, heap)) ||
		(ItemPointerGetBlockNumber(&tuple->t_self) >= reader->log->max_blocks &&
		 ItemPointerGetOffsetNumber(&tuple->t_self) == FirstOffsetNumber);
	heap_freetuple(tuple);
	idem_txn_owner_leave(saved);
	return is_long;
}

/*
 * What a log costs, and what keeps it from being shortened.
 *
 * LOCKING: AccessShareLock on the tables and indexes of the log, given back before the
 * function returns; the maintainer's lock is tried and given back.
 */

/*
 * Which tables have lost their turn and still have rows?  Bits by number.  May be
 * outdated at once.
 */
static uint32
former_tables(const IdemKeyedLog *log)
{
	IdemKeyedReader reader;
	int64		marker;
	int			current;
	uint32		former = 0;

	(void) idem_keyed_reader_open(&reader, log, true);
	current = idem_keyed_find_current(&reader, &marker);
	for (int n = 0; n < log->ntables; n++)
	{
		if (n != current && reader.indexes[n] != NULL)
			former |= 1 << n;
	}
	idem_keyed_reader_close(&reader);
	return former;
}

/* The bytes that a function of the server says of all tables of the log. */
static int64
sum_of(const IdemKeyedLog *log, PGFunction bytes_of)
{
	int64		sum = 0;

	for (int n = 0; n < log->ntables; n++)
	{
		Oid			oid = idem_relref_oid(&log->tables[n]);

		sum += DatumGetInt64(DirectFunctionCall1(bytes_of, ObjectIdGetDatum(oid)));
	}
	return sum;
}

/* Who holds one of these tables by a lock that a lock of this mode conflicts with? */
static const char *
tables_holder(const IdemKeyedLog *log, uint32 tables, LOCKMODE mode, const char *session)
{
	const char *holder = NULL;

	for (int n = 0; n < log->ntables && holder == NULL; n++)
	{
		if (tables & (1 << n))
			holder = idem_holder(idem_relref_oid(&log->tables[n]), mode, session);
	}
	return holder;
}

/*
 * What keeps the tables that have lost their turn from being emptied?  NULL: nothing
 * does.  A worker that is at work reads them, so then only writers hold it up.
 */
static const char *
log_holder(const IdemKeyedLog *log)
{
	uint32		former = former_tables(log);
	const char *holder;

	if (former == 0 || RecoveryInProgress())
		return NULL;
	holder = tables_holder(log, former, ShareLock, "writer");
	if (holder != NULL || idem_singleton_is_at_work(IDEM_SINGLETON_LOGS))
		return holder;
	holder = tables_holder(log, former, AccessExclusiveLock, "reader");
	return holder != NULL ? holder : "no worker";
}

Datum
idem_keyed_stat(FunctionCallInfo fcinfo, const IdemKeyedLog *log)
{
	TupleDesc	desc;
	const char *holder = log_holder(log);
	Datum		values[3];
	bool		nulls[3] = {false, false, holder == NULL};

	desc = idem_row_type(fcinfo, lengthof(values));
	values[0] = Int64GetDatum(sum_of(log, pg_table_size));
	values[1] = Int64GetDatum(sum_of(log, pg_indexes_size));
	if (holder != NULL)
		values[2] = CStringGetTextDatum(holder);
	return HeapTupleGetDatum(heap_form_tuple(desc, values, nulls));
}
