/*-------------------------------------------------------------------------
 *
 * slot_write.c
 *		Appends rows to a slot, frozen.
 *
 * Rows are frozen when they are written, and their pages are marked all-visible
 * at once.  So nothing has to touch them again: no reader sets hint bits, and
 * neither VACUUM nor a freeze writes the pages a second time.  A frozen row is
 * there for everybody from the moment it is written, even if its transaction
 * aborts.  That is harmless because readers go by end marks (run.c), and the
 * row of the end mark is the last one that is written.  Logical decoding skips
 * the rows (insert_rows).
 *
 * Values that are too long for a row go to the TOAST table; heap_multi_insert
 * writes their chunks with the same options, so they are frozen as well.  Only
 * the visibility map does not know that: the first VACUUM against wraparound
 * reads the TOAST table, and marks its pages.
 *
 * A body fills a page.  Bodies that are written one after the other stand on
 * consecutive blocks, because each row goes to the page of the row before it,
 * or, if it has no room there, to a page past the end of the file: without the
 * free space map PostgreSQL looks nowhere else.  The writer still checks the
 * places of all bodies.  From PostgreSQL 16 on a bulk insertion may make more
 * pages than it needs now.  Those that are left when the writer ends would be
 * lost, as many as it needed.  So the writer makes PostgreSQL forget, before
 * each batch, how many pages were made before (compat.h); then each batch makes
 * as many as it needs.
 *
 * What a crash leaves: the first few rows, and the index entries of the first
 * few of them.  PostgreSQL 16 and later: also pages without contents.
 *
 * LOCKING: RowExclusiveLock on the heap, which the caller opened the slot with,
 * and on all its indexes until the writer ends; on the TOAST table and its
 * index to the end of the transaction.
 *
 * MEMORY: a batch of rows, about BATCH_BYTES and one row.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/slot_write.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/timestamp.h"
#include "utils/xid8.h"

#include "compat.h"
#include "shared/fault.h"
#include "store/slot.h"

/* A batch ends when it reaches either bound. */
#define BATCH_ROWS		64
#define BATCH_BYTES		(256 * 1024)

#define INSERT_OPTIONS	(HEAP_INSERT_FROZEN | HEAP_INSERT_SKIP_FSM)

struct IdemSlotWriter
{
	IdemSlot   *slot;
	int64		run;
	FullTransactionId packer;
	BulkInsertState bulk;
	IdemTableIndexes indexes;

	/* The batch */
	MemoryContext context;
	int			nrows;
	Size		bytes;
	HeapTuple	rows[BATCH_ROWS];
	IdemSlotKind kinds[BATCH_ROWS];

	/* Where the bodies went */
	BlockNumber first_body;
	BlockNumber last_body;		/* InvalidBlockNumber: none so far */
	bool		scattered;		/* not on consecutive blocks */
};

/* Take down where a body went. */
static void
note_body(IdemSlotWriter *writer, BlockNumber block)
{
	if (writer->last_body == InvalidBlockNumber)
		writer->first_body = block;
	else if (block != writer->last_body + 1)
		writer->scattered = true;
	writer->last_body = block;
}

/*
 * Insert the heap rows of the batch, without what logical decoding needs.
 *
 * Why variables of the server are changed for the call.  Of the functions that insert
 * into a heap, heap_insert knows HEAP_INSERT_NO_LOGICAL, and heap_multi_insert marks the
 * pages of frozen rows all-visible; neither does both.  Row by row with heap_insert,
 * each page of the store would be read, marked and logged once more by VACUUM, which is
 * what the frozen rows are for.  heap_multi_insert asks RelationIsLogicallyLogged alone:
 * that goes by wal_level, and from 19 on by XLogLogicalInfo.  Both are variables of
 * this process, and lower only from here to the end of the call: PG_FINALLY restores them
 * after an error, too, and no interrupt, which could change them or run other code, is
 * served meanwhile.  The WAL stays valid: a record without a tuple for decoding is what
 * each server writes for catalogs.
 *
 * If a server changes what this rests on, tests fail: 117_store_decoding if rows of the
 * packer are decoded, or if rows that the session writes afterwards are not;
 * sql/store_run.sql if pages are not all-visible.
 */
static void
insert_rows(IdemSlotWriter *writer)
{
	static IdemTableSlots slots;
	int			level = wal_level;
	bool		logical_info = idem_compat_logical_info();

	HOLD_INTERRUPTS();
	PG_TRY();
	{
		wal_level = Min(level, WAL_LEVEL_REPLICA);
		idem_compat_set_logical_info(false);
		idem_table_append(writer->slot->heap, &slots, writer->rows, writer->nrows, INSERT_OPTIONS, writer->bulk);
	}
	PG_FINALLY();
	{
		wal_level = level;
		idem_compat_set_logical_info(logical_info);
	}
	PG_END_TRY();
	RESUME_INTERRUPTS();
}

void
idem_slot_flush(IdemSlotWriter *writer)
{
	Size		bytes = writer->bytes;
	MemoryContext old;

	if (writer->nrows == 0)
		return;
	old = MemoryContextSwitchTo(writer->context);
	idem_compat_bulk_insert_forget(writer->bulk);
	insert_rows(writer);
	IDEM_FAULT_POINT("store-slot-rows-written");
	for (int i = 0; i < writer->nrows; i++)
	{
		CHECK_FOR_INTERRUPTS();
		idem_table_insert_entries(writer->slot->heap, &writer->indexes, writer->rows[i]);
		if (writer->kinds[i] == IDEM_SLOT_PAGE || writer->kinds[i] == IDEM_SLOT_FILTER)
			note_body(writer, ItemPointerGetBlockNumber(&writer->rows[i]->t_self));
	}
	IDEM_FAULT_POINT("store-slot-flushed");
	writer->nrows = 0;
	writer->bytes = 0;
	MemoryContextSwitchTo(old);
	MemoryContextReset(writer->context);
	if (writer->slot->wrote != NULL)
		writer->slot->wrote(bytes);
}

/*
 * Add a row to the batch.  The caller filled in the columns from the turn on,
 * in the context of the batch.
 */
static void
add_row(IdemSlotWriter *writer, IdemSlotKind kind, const pg_uuid_t *digest,
		Datum *values, bool *nulls)
{
	HeapTuple	tuple;

	values[IDEM_SLOT_PACKER] = FullTransactionIdGetDatum(writer->packer);
	values[IDEM_SLOT_RUN] = Int64GetDatum(kind == IDEM_SLOT_FILTER ? 0 : writer->run);
	values[IDEM_SLOT_DIGEST] = UUIDPGetDatum(digest);
	values[IDEM_SLOT_KIND] = Int16GetDatum(kind);
	nulls[IDEM_SLOT_PACKER] = nulls[IDEM_SLOT_RUN] = false;
	nulls[IDEM_SLOT_DIGEST] = nulls[IDEM_SLOT_KIND] = false;
	tuple = idem_table_form_row(RelationGetDescr(writer->slot->heap), IDEM_SLOT_NATTS, values, nulls);
	writer->kinds[writer->nrows] = kind;
	writer->rows[writer->nrows++] = tuple;
	writer->bytes += tuple->t_len;
	if (writer->nrows == BATCH_ROWS || writer->bytes >= BATCH_BYTES)
		idem_slot_flush(writer);
}

IdemSlotWriter *
idem_slot_begin_write(IdemSlot *slot, int64 run)
{
	IdemSlotWriter *writer = palloc0(sizeof(IdemSlotWriter));

	writer->slot = slot;
	writer->run = run;
	writer->packer = GetTopFullTransactionId();
	writer->bulk = GetBulkInsertState();
	idem_slot_open_indexes(slot, &writer->indexes);
	writer->context = AllocSetContextCreate(CurrentMemoryContext, "rows of a slot",
											ALLOCSET_DEFAULT_SIZES);
	idem_slot_reset_first_block(writer);
	return writer;
}

void
idem_slot_write_body(IdemSlotWriter *writer, IdemSlotKind kind,
					 const pg_uuid_t *digest, const char *body, int len)
{
	Datum		values[IDEM_SLOT_NATTS];
	bool		nulls[IDEM_SLOT_NATTS];
	MemoryContext old = MemoryContextSwitchTo(writer->context);

	Assert(len <= IDEM_SLOT_BODY_BYTES);
	memset(nulls, true, sizeof(nulls));
	values[IDEM_SLOT_BODY] = PointerGetDatum(cstring_to_text_with_len(body, len));
	nulls[IDEM_SLOT_BODY] = false;
	add_row(writer, kind, digest, values, nulls);
	MemoryContextSwitchTo(old);
}

void
idem_slot_write_detail(IdemSlotWriter *writer, const IdemEventEntry *entry)
{
	Datum		values[IDEM_SLOT_NATTS];
	bool		nulls[IDEM_SLOT_NATTS];
	MemoryContext old = MemoryContextSwitchTo(writer->context);

	memset(nulls, false, sizeof(nulls));
	values[IDEM_SLOT_TURN] = Int16GetDatum(entry->turn);
	values[IDEM_SLOT_STATE] = CharGetDatum(entry->state);
	values[IDEM_SLOT_CLAIMED_AT] = TimestampTzGetDatum(entry->claimed_at);
	values[IDEM_SLOT_COMPLETED_AT] = TimestampTzGetDatum(entry->completed_at);
	nulls[IDEM_SLOT_COMPLETED_AT] = entry->completed_at == 0;
	values[IDEM_SLOT_EVENT_ID] = entry->event_id;
	nulls[IDEM_SLOT_EVENT_ID] = entry->event_id == 0;
	values[IDEM_SLOT_CONSUMER] = entry->consumer;
	nulls[IDEM_SLOT_CONSUMER] = entry->consumer == 0;
	values[IDEM_SLOT_RESULT] = entry->result;
	nulls[IDEM_SLOT_RESULT] = entry->result == 0;
	nulls[IDEM_SLOT_BODY] = true;
	add_row(writer, IDEM_SLOT_DETAIL, &entry->digest, values, nulls);
	MemoryContextSwitchTo(old);
}

BlockNumber
idem_slot_first_block(IdemSlotWriter *writer)
{
	idem_slot_flush(writer);
	return writer->scattered ? InvalidBlockNumber : writer->first_body;
}

void
idem_slot_reset_first_block(IdemSlotWriter *writer)
{
	idem_slot_flush(writer);
	writer->first_body = writer->last_body = InvalidBlockNumber;
	writer->scattered = false;
}

void
idem_slot_end_write(IdemSlotWriter *writer)
{
	idem_slot_flush(writer);
	idem_table_close_indexes(&writer->indexes, RowExclusiveLock);
	FreeBulkInsertState(writer->bulk);
	MemoryContextDelete(writer->context);
	pfree(writer);
}
