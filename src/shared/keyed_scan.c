/*-------------------------------------------------------------------------
 *
 * keyed_scan.c
 *		All keys of a keyed log, one after the other.
 *
 * A scan reads the tables page by page, and shows a key at the place of its newest row.
 * The index tells whether a row is that: no newer row of the key is in any table, and no
 * table before it has a copy of the row, nor has its own table one that the index has first.
 *
 * Invariant: a scan shows each key once, as one moment saw it, whatever is written
 * meanwhile, and whether the tables are about to take turns or not.  The moment is after
 * all tables were locked: what was committed before is in one of them, and stays there.
 * It is a moment of the scan's own at every isolation level, since an older snapshot
 * does not see the copies of rows that have moved.
 *
 * A row that the log could not have written is passed over, and so is its key if the row
 * is the newest: one row of a dump must not hide all others.  A warning names the row.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: AccessShareLock on all tables and indexes, to the end of the scan.  No table
 * is emptied meanwhile, so the log may grow; nobody waits.
 *
 * MEMORY: one row.  The slots that the functions return belong to the scan.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_scan.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/tableam.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "shared/keyed_read.h"
#include "shared/keyed_scan.h"

struct IdemKeyedScan
{
	IdemKeyedReader reader;
	TupleTableSlot *rows[IDEM_KEYED_MAX_TABLES];	/* for the row that the
													 * scan has come to */
	int			table;			/* that is read */
	BlockNumber blocks;			/* its pages when the scan came to it */
	BlockNumber block;			/* the page that is read */
	OffsetNumber offset;		/* the row, or 0: before the first one */
	OffsetNumber last;			/* of the page */
	bool		warned;			/* that a row was passed over */
};

/* Go to a page of the table. */
static void
enter_page(IdemKeyedScan *scan, BlockNumber block)
{
	CHECK_FOR_INTERRUPTS();
	scan->block = block;
	scan->offset = InvalidOffsetNumber;
	scan->last = block < scan->blocks ?
		idem_keyed_page_rows(scan->reader.heaps[scan->table], block) : InvalidOffsetNumber;
}

/* Go to a table, if there is one of that number. */
static void
enter_table(IdemKeyedScan *scan, int table)
{
	scan->table = table;
	if (table == scan->reader.log->ntables)
		return;
	scan->blocks = scan->reader.indexes[table] != NULL ?
		RelationGetNumberOfBlocks(scan->reader.heaps[table]) : 0;
	enter_page(scan, 0);
}

IdemKeyedScan *
idem_keyed_scan_begin(const IdemKeyedLog *log)
{
	IdemKeyedScan *scan = palloc0(sizeof(IdemKeyedScan));

	idem_keyed_reader_open_as_of_now(&scan->reader, log);
	for (int n = 0; n < log->ntables; n++)
		scan->rows[n] = table_slot_create(scan->reader.heaps[n], NULL);
	enter_table(scan, 0);
	return scan;
}

/* Is the row one that the log could have written?  The first one that it could not is told of. */
static bool
is_sound(IdemKeyedScan *scan, TupleTableSlot *slot)
{
	if (idem_keyed_is_sound(scan->reader.log, slot))
		return true;
	if (!scan->warned)
		idem_report_row(WARNING, RelationGetRelid(scan->reader.heaps[scan->table]), &slot->tts_tid,
						"Look at the row, and delete it: what was written of its key before counts then.");
	scan->warned = true;
	return false;
}

/* Fetch the row that the scan has come to; false if it does not count, or is of another kind. */
static bool
fetch_row(IdemKeyedScan *scan)
{
	TupleTableSlot *slot = scan->rows[scan->table];
	ItemPointerData tid;
	bool		isnull;

	ItemPointerSet(&tid, scan->block, scan->offset);
	return table_tuple_fetch_row_version(scan->reader.heaps[scan->table], &tid, SnapshotSelf, slot) &&
		idem_keyed_counts(&scan->reader, scan->table, slot) && is_sound(scan, slot) &&
		DatumGetChar(slot_getattr(slot, IDEM_KEYED_KIND, &isnull)) == scan->reader.log->kinds[0];
}

/* Take the row in a slot apart. */
static void
take_apart(const IdemKeyedScan *scan, TupleTableSlot *slot, IdemKeyedColumns *row)
{
	int			n = scan->reader.log->tables[0].form->ncolumns;

	slot_getallattrs(slot);
	memcpy(row->values, slot->tts_values, n * sizeof(Datum));
	memcpy(row->nulls, slot->tts_isnull, n * sizeof(bool));
}

bool
idem_keyed_scan_next(IdemKeyedScan *scan, IdemKeyedColumns *row)
{
	for (; scan->table < scan->reader.log->ntables; enter_table(scan, scan->table + 1))
	{
		for (; scan->block < scan->blocks; enter_page(scan, scan->block + 1))
		{
			while (scan->offset < scan->last)
			{
				scan->offset++;
				if (!fetch_row(scan))
					continue;
				take_apart(scan, scan->rows[scan->table], row);
				return true;
			}
		}
	}
	return false;
}

/* The digest of the row that the scan has come to. */
static const pg_uuid_t *
digest_of(IdemKeyedScan *scan)
{
	bool		isnull;

	return DatumGetUUIDP(slot_getattr(scan->rows[scan->table], IDEM_KEYED_DIGEST, &isnull));
}

/* Is it the row that the scan has come to? */
static bool
is_here(const IdemKeyedScan *scan, TupleTableSlot *slot)
{
	return ItemPointerGetBlockNumber(&slot->tts_tid) == scan->block &&
		ItemPointerGetOffsetNumber(&slot->tts_tid) == scan->offset;
}

bool
idem_keyed_scan_is_newest(IdemKeyedScan *scan)
{
	IdemKeyedReader *reader = &scan->reader;
	int64		number = idem_keyed_number(scan->rows[scan->table]);
	bool		newest = true;

	for (int n = 0; n < reader->log->ntables && newest; n++)
	{
		if (idem_keyed_fetch_newest(reader, n, digest_of(scan), reader->log->kinds[0], IDEM_KEYED_END))
		{
			int64		other = idem_keyed_number(reader->slots[n]);

			/*
			 * A restore may have brought the row once more, into its table as
			 * well.
			 */
			newest = other < number || (other == number && n >= scan->table &&
										(n > scan->table || is_here(scan, reader->slots[n])));
		}
		idem_keyed_let_go(reader, n);
	}
	return newest;
}

bool
idem_keyed_scan_part(IdemKeyedScan *scan, char kind, IdemKeyedColumns *row)
{
	IdemKeyedReader *reader = &scan->reader;
	TupleTableSlot *newest = NULL;

	for (int n = 0; n < reader->log->ntables; n++)
	{
		if (idem_keyed_fetch_newest(reader, n, digest_of(scan), kind, IDEM_KEYED_END) &&
			(newest == NULL || idem_keyed_number(reader->slots[n]) > idem_keyed_number(newest)))
			newest = reader->slots[n];
	}
	if (newest != NULL)
		take_apart(scan, newest, row);
	return newest != NULL;
}

void
idem_keyed_scan_end(IdemKeyedScan *scan)
{
	for (int n = 0; n < scan->reader.log->ntables; n++)
		ExecDropSingleTupleTableSlot(scan->rows[n]);
	UnregisterSnapshot(scan->reader.snapshot);
	idem_keyed_reader_close(&scan->reader);
	pfree(scan);
}
