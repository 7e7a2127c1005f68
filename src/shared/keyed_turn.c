/*-------------------------------------------------------------------------
 *
 * keyed_turn.c
 *		The tables of a keyed log take turns.
 *
 * keyed_log.c tells the steps, and why a row that is needed always stands in some
 * table.  What a process knows of a pass is checked before each step, since another
 * process may have taken steps meanwhile: the table that is copied to must still be
 * current, with the marker that it had when the pass began.  A table without rows has no
 * marker, and gets a new one before it is written to again.
 *
 * A look-up reads as of now, and finds a row or its copy.  A dump reads as of its
 * snapshot, and comes to each table when it likes.  So it needs the rows of a former
 * table that its snapshot sees: it does not see their copies, nor what has made a row
 * not needed.  Before a table is emptied, the pass waits for the dumps whose snapshots
 * are older than its end, and looks for rows that a restore has put there meanwhile.  A log that is maintained without dumps has the length that
 * keyed_log.h says, whatever snapshots there are; while a dump runs, the current table
 * grows up to a limit of the user's.
 *
 * A crash: keyed_log.c.
 *
 * LOCKING: ShareUpdateExclusiveLock on the sequence, by which there is one maintainer;
 * AccessShareLock on all tables; ShareLock on a table to find that no writer is left, and
 * again from the last look at it until it is emptied;
 * RowExclusiveLock on the table that is copied to; the locks of idem_empty_in_place.
 * All but that of the table that is copied to are conditional, and that one waits for
 * DDL only.
 *
 * MEMORY: that of one row, and of the list of transactions.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_turn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/transam.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/dump.h"
#include "shared/durable.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/guard.h"
#include "shared/keyed_log.h"
#include "shared/keyed_read.h"
#include "shared/keyed_turn.h"
#include "shared/table.h"
#include "shared/txn_owner.h"
#include "shared/xid.h"

/* Pages by which a table is judged before it loses its turn */
#define MAX_SAMPLES	64

/* Has another table than "from" a row of the key that is older than "number"? */
static bool
hides_older_row(IdemKeyedReader *reader, int from, const pg_uuid_t *digest, int64 number)
{
	bool		found = false;

	for (int n = 0; n < reader->log->ntables && !found; n++)
	{
		if (n == from || !idem_keyed_fetch_least_kind(reader, n, digest))
			continue;			/* mostly: the table does not know the key */
		for (const char *kind = reader->log->kinds; *kind != '\0' && !found; kind++)
			found = idem_keyed_fetch_newest(reader, n, digest, *kind, number);
		idem_keyed_let_go(reader, n);
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

/* Is a row among those of a key that the log did not write? */
static bool
has_unsound(const IdemKeyedLog *log, const IdemKeyedRow *rows)
{
	for (int k = 0; log->kinds[k] != '\0'; k++)
	{
		if (rows[k].unsound)
			return true;
	}
	return false;
}

/* Is a key needed, of which other keys are parts?  Not as a tombstone. */
static bool
is_master_needed(IdemKeyedReader *reader, TupleDesc desc, const pg_uuid_t *digest)
{
	IdemKeyedNeed need[IDEM_KEYED_MAX_KINDS] = {IDEM_KEYED_SPENT};
	IdemKeyedRow rows[IDEM_KEYED_MAX_KINDS];
	bool		needed;

	idem_keyed_find_parts(reader, digest, rows);
	needed = has_unsound(reader->log, rows);
	if (!needed)
	{
		reader->log->judge(desc, rows, need);
		needed = need[0] == IDEM_KEYED_NEEDED ||
			(need[0] == IDEM_KEYED_EXPIRED && idem_keyed_has_newer(reader, digest, rows));
	}
	idem_keyed_free_parts(reader, rows);
	return needed;
}

/*
 * Must part k, whose newest row is in table "from", be copied?  rows: what is newest of
 * the key.  A row that cannot be read stays, so that the key is not taken for a free one.
 */
static bool
is_needed(IdemKeyedReader *reader, int from, const pg_uuid_t *digest, int k, const IdemKeyedRow *rows)
{
	const IdemKeyedLog *log = reader->log;
	TupleDesc	desc = RelationGetDescr(reader->heaps[from]);
	IdemKeyedNeed need[IDEM_KEYED_MAX_KINDS] = {IDEM_KEYED_SPENT};
	pg_uuid_t	master;

	if (has_unsound(log, rows))
		return true;
	log->judge(desc, rows, need);
	if (need[k] == IDEM_KEYED_NEEDED && log->master != NULL && log->master(desc, rows, &master))
		return is_master_needed(reader, desc, &master);
	return need[k] == IDEM_KEYED_NEEDED ||
		(need[k] != IDEM_KEYED_SPENT && hides_older_row(reader, from, digest, rows[k].number)) ||
		(need[k] == IDEM_KEYED_EXPIRED && idem_keyed_has_newer(reader, digest, rows));
}

/* Did a transaction write the row that has ended?  It is committed if SnapshotSelf sees it. */
static bool
is_of_another(TupleTableSlot *slot)
{
	bool		isnull;
	Datum		xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull);

	return !TransactionIdIsCurrentTransactionId(DatumGetTransactionId(xmin));
}

/*
 * Has table "from" a newer row of the same part of the key?  No row leaves that table
 * during a pass, so what was found once need not be looked up again.
 */
static bool
has_newer_row(IdemKeyedReader *reader, IdemKeyedPass *pass, const pg_uuid_t *digest, char kind,
			  int64 number)
{
	int			table = pass->from;
	Oid			index = RelationGetRelid(reader->indexes[table]);
	int64		newest;

	if (idem_keyed_hint(&pass->newest, index, digest, kind) > number)
		return true;
	if (!idem_keyed_fetch_newest(reader, table, digest, kind, IDEM_KEYED_END))
		return false;
	newest = idem_keyed_number(reader->slots[table]);
	if (is_of_another(reader->slots[table]))
		idem_keyed_hint_note(&pass->newest, index, digest, kind, newest);
	idem_keyed_let_go(reader, table);
	return newest > number;
}

/*
 * The copy of the row in the slot.  It says who wrote the original: to a snapshot that is
 * older than the turn, the copy would be a change of the key.
 */
static HeapTuple
form_copy(const IdemKeyedLog *log, TupleDesc desc, TupleTableSlot *slot)
{
	HeapTuple	tuple = idem_table_copy_row(slot, desc);
	HeapTuple	original = ExecFetchSlotHeapTuple(slot, false, NULL);
	int			column = log->origin;
	bool		isnull = false;
	Datum		writer;

	if (column == 0 || !slot_attisnull(slot, column))
		return tuple;
	writer = FullTransactionIdGetDatum(idem_xid_widen(HeapTupleHeaderGetXmin(original->t_data),
													  ReadNextFullTransactionId()));
	return heap_modify_tuple_by_cols(tuple, desc, 1, &column, &writer, &isnull);
}

/*
 * Copy the row in the slot, if it is needed and not in table "to".  Most rows have a newer
 * one in their own table, which is looked at first.
 */
static bool
copy_if_needed(IdemKeyedReader *reader, IdemKeyedPass *pass, Relation to, TupleTableSlot *slot)
{
	bool		no_digest;
	bool		no_kind;
	Datum		value = slot_getattr(slot, IDEM_KEYED_DIGEST, &no_digest);
	char		kind = DatumGetChar(slot_getattr(slot, IDEM_KEYED_KIND, &no_kind));
	int64		number = idem_keyed_number(slot);
	int			k = no_kind ? -1 : kind_index(reader->log, kind);
	IdemKeyedRow rows[IDEM_KEYED_MAX_KINDS];
	pg_uuid_t	digest;
	bool		needed;

	/* a marker, or a row that nobody finds by a key */
	if (k < 0 || no_digest || number == 0 || number >= IDEM_KEYED_END)
		return false;
	digest = *DatumGetUUIDP(value);
	if (has_newer_row(reader, pass, &digest, kind, number))
		return false;
	idem_keyed_find_parts(reader, &digest, rows);
	needed = rows[k].number == number && (rows[k].tables & (1 << pass->to)) == 0 &&
		is_needed(reader, pass->from, &digest, k, rows);
	idem_keyed_free_parts(reader, rows);
	if (needed)
	{
		idem_table_append_row(to, form_copy(reader->log, RelationGetDescr(to), slot));
		IDEM_FAULT_POINT("keyed-row-copied");
	}
	return needed;
}

/* Copy what is needed of one page; false if nothing is. */
static bool
copy_page(IdemKeyedReader *reader, IdemKeyedPass *pass, Relation to, BlockNumber block)
{
	Relation	from = reader->heaps[pass->from];
	TupleTableSlot *slot = table_slot_create(from, NULL);
	OffsetNumber last = idem_keyed_page_rows(from, block);
	bool		copied = false;

	for (OffsetNumber off = FirstOffsetNumber; off <= last; off++)
	{
		ItemPointerData tid;

		ItemPointerSet(&tid, block, off);
		if (table_tuple_fetch_row_version(from, &tid, SnapshotSelf, slot))
			copied |= copy_if_needed(reader, pass, to, slot);
		ExecClearTuple(slot);
	}
	ExecDropSingleTupleTableSlot(slot);
	return copied;
}

/* Has WAL behind "since" changed a page?  A hint bit may have. */
static bool
has_changed(Relation heap, BlockNumber block, XLogRecPtr since)
{
	Buffer		buffer = ReadBuffer(heap, block);
	XLogRecPtr	lsn = BufferGetLSNAtomic(buffer);

	ReleaseBuffer(buffer);
	return lsn > since;
}

/*
 * Copy what is needed of the pages below "end" that WAL behind "since" has changed; false if
 * nothing is.  The pass goes on behind them.
 */
static bool
copy_pages(IdemKeyedReader *reader, IdemKeyedPass *pass, BlockNumber end, XLogRecPtr since)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	to = table_open(RelationGetRelid(reader->heaps[pass->to]), RowExclusiveLock);
	MemoryContext cxt = AllocSetContextCreate(CurrentMemoryContext, "idempotency keyed log",
											  ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	bool		copied = false;

	idem_guard_table(&reader->log->tables[pass->to], to, IDEM_GUARD_WRITE);
	for (BlockNumber block = pass->next; block < end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		if (XLogRecPtrIsInvalid(since) || has_changed(reader->heaps[pass->from], block, since))
			copied |= copy_page(reader, pass, to, block);
		MemoryContextReset(cxt);
	}
	pass->next = end;
	if (FullTransactionIdIsValid(GetTopFullTransactionIdIfAny()))
		pass->copier = GetTopFullTransactionIdIfAny();
	MemoryContextSwitchTo(old);
	MemoryContextDelete(cxt);
	table_close(to, NoLock);
	idem_txn_owner_leave(saved);
	IDEM_FAULT_POINT("keyed-pages-copied");
	return copied;
}

/* Step 2: begin a pass over a table, if nobody who writes to it is left. */
static bool
begin_pass(IdemKeyedReader *reader, IdemKeyedPass *pass, int from, int to, int64 marker)
{
	Oid			oid = RelationGetRelid(reader->heaps[from]);

	if (!ConditionalLockRelationOid(oid, ShareLock))
		return false;
	pass->since = GetXLogInsertRecPtr();
	UnlockRelationOid(oid, ShareLock);
	pass->active = true;
	pass->from = from;
	pass->to = to;
	pass->marker = marker;
	pass->next = 0;
	pass->copier = InvalidFullTransactionId;
	pass->ended = false;
	memset(&pass->newest, 0, sizeof(pass->newest));
	IDEM_FAULT_POINT("keyed-pass-begun");
	return true;
}

/*
 * Does what the pass has copied stand in table "to", and may it copy there?  Not if the
 * last transaction that copied was rolled back, or if another process has put a marker
 * into another table meanwhile.  When table "to" has lost its turn, another pass may have
 * gone past the page that a copy would come to.
 */
static bool
is_pass_valid(IdemKeyedReader *reader, const IdemKeyedPass *pass, int64 marker)
{
	if (FullTransactionIdIsValid(pass->copier) && idem_durable_did_abort(pass->copier))
		return false;
	return reader->indexes[pass->from] != NULL && marker == pass->marker;
}

/* Put a marker into a table, which becomes current. */
static void
mark(const IdemKeyedLog *log, int n)
{
	ResourceOwner saved = idem_txn_owner_enter();
	Relation	rel = table_open(idem_relref_oid(&log->tables[n]), RowExclusiveLock);
	pg_uuid_t	digest = {{0}};
	IdemKeyedColumns row;

	idem_guard_table(&log->tables[n], rel, IDEM_GUARD_WRITE);
	idem_keyed_form_begin(log, &row, log->draw(), &digest, IDEM_KEYED_MARKER);
	idem_table_append_row(rel, idem_table_form_row(RelationGetDescr(rel), IDEM_KEYED_MAX_COLUMNS,
												   row.values, row.nulls));
	table_close(rel, NoLock);
	idem_txn_owner_leave(saved);
	IDEM_FAULT_POINT("keyed-marked");
}

/*
 * The first table that a crash has left half emptied: without rows, but with other
 * files that are not as new; -1: none.
 */
static int
find_half_empty(IdemKeyedReader *reader)
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
find_empty(IdemKeyedReader *reader, int current)
{
	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (n != current && idem_empty_is_pristine(reader->heaps[n]))
			return n;
	}
	return -1;
}

/*
 * Begin a pass over any table that has lost its turn; unless "read", over one that
 * nobody reads.  A current table without a marker gets one first, since the end of the
 * pass looks for it.
 */
static IdemKeyedStep
begin_any_pass(IdemKeyedReader *reader, IdemKeyedPass *pass, int current, int64 marker, bool read,
			   int *table)
{
	IdemKeyedStep step = IDEM_KEYED_NONE;

	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (n == current || reader->indexes[n] == NULL)
			continue;
		*table = current;
		if (marker == 0)
			return IDEM_KEYED_TO_MARK;
		if ((read || !idem_empty_is_held(RelationGetRelid(reader->heaps[n]))) && begin_pass(reader, pass, n, current, marker))
			return IDEM_KEYED_TAKEN;
		step = IDEM_KEYED_BUSY;
	}
	return step;
}

/* The length of all tables of the log, in blocks, with what they have out of line. */
static uint64
log_blocks(IdemKeyedReader *reader)
{
	uint64		blocks = 0;

	for (int n = 0; n < reader->log->ntables; n++)
	{
		BlockNumber values;

		blocks += idem_keyed_length(reader->heaps[n], &values);
		blocks += values;
	}
	return blocks;
}

/* Note at the end of a pass which snapshots need the table that the pass is over. */
static void
end_pass(IdemKeyedPass *pass)
{
	if (pass->ended)
		return;
	pass->ended = true;
	idem_dump_mark(&pass->mark);
}

/*
 * Must the table be kept for somebody who reads as of a former time?  The snapshot of
 * a dump may be older than the copies, and than what made a row not needed.
 */
static bool
is_awaited(IdemKeyedReader *reader, const IdemKeyedPass *pass)
{
	BlockNumber limit = reader->log->dump_blocks != NULL ? *reader->log->dump_blocks : 0;

	if (limit == 0 || !idem_dump_is_older(&pass->mark))
		return false;
	if (log_blocks(reader) <= limit)
		return true;
	ereport(LOG,
			(errmsg("table \"%s.%s\" is emptied while a dump of the database runs",
					IDEM_DATA_SCHEMA_NAME,
					RelationGetRelationName(reader->heaps[pass->from])),
			 errdetail("The dump may lack rows that were moved to another table meanwhile."),
			 errhint("Dump the database again, or let the log become longer during a dump.")));
	return false;
}

/*
 * The last look at a table before it is emptied.  The log's writers leave it alone since the
 * pass began, but a restore may have put rows on any page.  So writers are kept out, and the
 * pages that have changed are looked at once more.  What is copied has to be committed before the
 * table is emptied; until then the pass has not ended.
 */
static IdemKeyedStep
look_again(IdemKeyedReader *reader, IdemKeyedPass *pass)
{
	Relation	from = reader->heaps[pass->from];
	Oid			oid = RelationGetRelid(from);
	XLogRecPtr	since = pass->since;

	if (idem_empty_is_held(oid) || !ConditionalLockRelationOid(oid, ShareLock))
		return IDEM_KEYED_BUSY;

	/* after an error the pass goes over all pages again */
	pass->since = GetXLogInsertRecPtr();
	pass->next = 0;
	pass->ended = false;
	if (copy_pages(reader, pass, RelationGetNumberOfBlocks(from), since))
		return IDEM_KEYED_TAKEN;
	pass->ended = true;
	return IDEM_KEYED_TO_EMPTY;
}

/* Go on with a pass.  *table: to be emptied at its end. */
static IdemKeyedStep
continue_pass(IdemKeyedReader *reader, IdemKeyedPass *pass, int *table)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(reader->heaps[pass->from]);

	*table = pass->from;
	if (pass->next < blocks)
	{
		(void) copy_pages(reader, pass, Min(blocks, pass->next + reader->log->pass_blocks), InvalidXLogRecPtr);
		return IDEM_KEYED_TAKEN;
	}
	end_pass(pass);
	IDEM_FAULT_POINT("keyed-pass-ended");
	return is_awaited(reader, pass) ? IDEM_KEYED_WAITS : look_again(reader, pass);
}

/* Bytes of rows */
typedef struct Census
{
	uint64		older;			/* than the table's turn: copies */
	uint64		all;
} Census;

/* Count the rows of one page; marker: of the table. */
static void
count_page(Relation heap, BlockNumber block, int64 marker, Census *census)
{
	TupleTableSlot *slot = table_slot_create(heap, NULL);
	OffsetNumber last = idem_keyed_page_rows(heap, block);

	for (OffsetNumber off = FirstOffsetNumber; off <= last; off++)
	{
		ItemPointerData tid;
		uint64		length;

		ItemPointerSet(&tid, block, off);
		if (!table_tuple_fetch_row_version(heap, &tid, SnapshotSelf, slot))
			continue;
		length = ExecFetchSlotHeapTuple(slot, false, NULL)->t_len + idem_table_bytes_out_of_line(slot);
		census->all += length;
		if (idem_keyed_number(slot) < marker)
			census->older += length;
	}
	ExecDropSingleTupleTableSlot(slot);
}

/*
 * Has the current table grown, so that it loses its turn?  If most of its rows were
 * copied to it, a turn would copy them once more, and free little.  So the table may
 * become twice as long as what it began with, which a sample of its pages tells to every
 * process alike.
 */
static bool
has_grown(IdemKeyedReader *reader, int current, int64 marker)
{
	Relation	heap = reader->heaps[current];
	BlockNumber blocks = RelationGetNumberOfBlocks(heap);
	BlockNumber samples = Min(blocks, MAX_SAMPLES);
	Census		census = {0};

	if (!idem_keyed_is_long(reader->log, heap))
		return false;
	for (BlockNumber i = 0; i < samples; i++)
		count_page(heap, (uint64) blocks * i / samples, marker, &census);
	return census.older <= census.all / 2;
}

/*
 * Decide on the next step, and take it if it needs no more locks.  *table: to be
 * emptied or marked.
 *
 * A table that somebody reads for long cannot be emptied.  A pass over it would be the
 * only one, so the other tables come first: they go on taking turns.
 */
static IdemKeyedStep
take_step(IdemKeyedReader *reader, IdemKeyedPass *pass, int *table)
{
	int64		marker;
	int			current = idem_keyed_find_current(reader, &marker);
	IdemKeyedStep step;

	*table = find_half_empty(reader);
	if (*table >= 0)
		return IDEM_KEYED_TO_EMPTY;
	if (pass->active)
		pass->active = is_pass_valid(reader, pass, marker);
	if (pass->active)
		return continue_pass(reader, pass, table);
	step = begin_any_pass(reader, pass, current, marker, false, table);
	if (step != IDEM_KEYED_BUSY && step != IDEM_KEYED_NONE)
		return step;
	*table = find_empty(reader, current);
	if (*table >= 0 && has_grown(reader, current, marker))
		return IDEM_KEYED_TO_MARK;
	return begin_any_pass(reader, pass, current, marker, true, table);
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
		(!copied && idem_empty_look(oid) == IDEM_FILES_ROWS) ||
		!idem_empty_in_place(oid))
		return false;
	IDEM_FAULT_POINT("keyed-emptied");
	if (copied)
		pass->active = false;
	return true;
}

IdemKeyedStep
idem_keyed_log_maintain(const IdemKeyedLog *log, IdemKeyedPass *pass)
{
	Snapshot	snapshot;
	IdemKeyedReader reader;
	IdemKeyedStep step;
	int			table;

	if (!ConditionalLockRelationOid(idem_relref_oid(log->sequence), ShareUpdateExclusiveLock))
		return IDEM_KEYED_NONE;
	if (!idem_keyed_reader_open(&reader, log, false))
		return IDEM_KEYED_BUSY;

	/* values that are stored out of line are read by a snapshot */
	snapshot = RegisterSnapshot(GetLatestSnapshot());
	step = take_step(&reader, pass, &table);
	UnregisterSnapshot(snapshot);
	idem_keyed_reader_close(&reader);
	if (step == IDEM_KEYED_TO_EMPTY)
		return empty_table(log, pass, table) ? IDEM_KEYED_TAKEN : IDEM_KEYED_BUSY;
	if (step != IDEM_KEYED_TO_MARK)
		return step;
	mark(log, table);
	return IDEM_KEYED_TAKEN;
}
