/*-------------------------------------------------------------------------
 *
 * table.h
 *		Appends rows to a table, and their index entries, without the executor.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/table.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TABLE_H
#define IDEM_TABLE_H

#include "postgres.h"

#include "access/heapam.h"
#include "access/htup.h"
#include "access/tupdesc.h"
#include "executor/tuptable.h"
#include "storage/bufmgr.h"
#include "utils/relcache.h"

#include "shared/guard.h"

/*
 * The most indexes of a table: a few times more than REINDEX CONCURRENTLY leaves behind
 * when it is cancelled.
 */
#define IDEM_TABLE_INDEXES	16

/* The most rows that one call appends. */
#define IDEM_TABLE_ROWS		256

/* The indexes of a table, open to be written to. */
typedef struct IdemTableIndexes
{
	int			n;
	Relation	rels[IDEM_TABLE_INDEXES];
} IdemTableIndexes;

/*
 * Carriers of finished rows, which heap_multi_insert takes in slots only.  Static in each
 * user's file, for tables of one form, and zero at first.
 */
typedef struct IdemTableSlots
{
	MemoryContext context;
	TupleDesc	desc;
	TupleTableSlot *slots[IDEM_TABLE_ROWS];
} IdemTableSlots;

/* All of these get a table that is open, locked and checked (guard.h). */

/* Get all indexes that PostgreSQL maintains, valid or not; returns how many. */
extern int	idem_table_indexes(Relation heap, Oid *oids);

/* The index to read by; error 55000 if none is valid. */
extern Oid	idem_table_index(Relation heap, const IdemIndexForm *form);

/*
 * Open the indexes that get entries, with RowExclusiveLock; closing gives the lock back,
 * unless the mode is NoLock.  Error 55000 if there is none of the form; NULL: the table
 * need not have any.
 */
extern void idem_table_open_indexes(Relation heap, const IdemIndexForm *form,
									IdemTableIndexes *indexes);
extern void idem_table_close_indexes(const IdemTableIndexes *indexes, LOCKMODE mode);

/* Make a row of the table's own n columns.  Columns that somebody added are NULL. */
extern HeapTuple idem_table_form_row(TupleDesc desc, int n, const Datum *values, const bool *nulls);

/*
 * Take a row apart, in one pass over it.  Columns that somebody added are left out; one that
 * was added and dropped again does no harm.  Nothing else deforms rows.
 */
extern void idem_table_take_apart(TupleDesc desc, int n, HeapTuple row, Datum *values, bool *nulls);

/*
 * Make a row for another table of the log from the row in the slot.  The tables need not be
 * alike beyond their own columns: a value goes where both have a column of its type.
 */
extern HeapTuple idem_table_copy_row(TupleTableSlot *slot, TupleDesc to);

/*
 * Append n <= IDEM_TABLE_ROWS rows to the heap, and set their t_self.  Leaves about a
 * page of memory behind in the current context, unless n is 1.  options, bulk: as
 * heap_multi_insert has them.  slots: may be NULL if n is 1.
 */
extern void idem_table_append(Relation heap, IdemTableSlots *slots, HeapTuple *rows, int n,
							  int options, BulkInsertState bulk);

/*
 * Point a tuple to the row at a line pointer of a page that the caller has locked, whether
 * the row is visible or not; false if there is none.
 */
static inline bool
idem_table_row_at(Relation heap, Buffer buffer, OffsetNumber offset, HeapTuple row)
{
	Page		page = BufferGetPage(buffer);
	ItemId		item;

	if (offset > PageGetMaxOffsetNumber(page))
		return false;
	item = PageGetItemId(page, offset);
	if (!ItemIdIsNormal(item))
		return false;
	row->t_tableOid = RelationGetRelid(heap);
	row->t_data = (HeapTupleHeader) PageGetItem(page, item);
	row->t_len = ItemIdGetLength(item);
	ItemPointerSet(&row->t_self, BufferGetBlockNumber(buffer), offset);
	return true;
}

/*
 * Visit the rows of a page, whether they are visible or not.  The page's buffer is locked
 * meanwhile.  strategy: to read the page by, or NULL.
 */
extern void idem_table_visit_page(Relation heap, BlockNumber block, BufferAccessStrategy strategy,
								  void (*visit) (Relation heap, HeapTuple row, void *arg), void *arg);

/* The bytes that the row in a slot has out of line. */
extern int64 idem_table_bytes_out_of_line(TupleTableSlot *slot);

/* Insert an entry into an index; or the entries of a row into all. */
extern void idem_table_insert_entry(Relation heap, Relation index, const Datum *values,
									const bool *nulls, const ItemPointerData *tid);
extern void idem_table_insert_entries(Relation heap, const IdemTableIndexes *indexes, HeapTuple row);

/*
 * Append a row with its entries, waiting for the server's own locks as
 * idem_work_patiently does.  The locks on the indexes stay.
 */
extern void idem_table_append_row(Relation heap, HeapTuple row);

#endif							/* IDEM_TABLE_H */
