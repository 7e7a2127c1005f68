/*-------------------------------------------------------------------------
 *
 * detail.c
 *		Reads what a run has of an event beside its digest.
 *
 * An event may have several details in a run, one of each turn.  The index does
 * not have the turns, so whoever wants them in order reads all rows of a
 * digest.  They are few: kept claims, and orders to forget.
 *
 * Values that are stored out of line need no snapshot either.  The packer's
 * heap_multi_insert writes their chunks with the options of the row, so they
 * are frozen, too; a restore commits its chunks with its rows.  So if the row
 * is there (slot.c), its chunks are.
 *
 * LOCKING: as in slot.c.  A scan keeps a page of the index pinned.
 *
 * MEMORY: an entry that is found has its values in the current context.  A scan
 * holds the rows of one digest, without the values that are stored out of line,
 * and the values of one entry.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/detail.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "store/detail.h"

typedef struct Detail
{
	int16		turn;
	HeapTuple	tuple;
} Detail;

struct IdemDetailScan
{
	const IdemSlot *slot;
	IdemSlotScan *rows;
	MemoryContext context;		/* of the scan */
	MemoryContext entry_context;	/* of the entry that was returned last */
	Detail	   *group;			/* the rows of one digest, by turn */
	int			size;			/* of the array */
	int			ngroup;
	int			next;			/* in the group */
	HeapTuple	ahead;			/* the first row of the next digest; NULL: the
								 * rows are at their end */
};

/* A time; 0 if it is NULL. */
static TimestampTz
time_value(const IdemSlot *slot, HeapTuple tuple, int column)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, column, &isnull);

	return isnull ? 0 : DatumGetTimestampTz(value);
}

/* A detoasted copy of a long value; 0 if it is NULL. */
static Datum
long_value(const IdemSlot *slot, HeapTuple tuple, int column)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, column, &isnull);

	return isnull ? (Datum) 0 : PointerGetDatum(PG_DETOAST_DATUM_COPY(value));
}

static int16
turn_value(const IdemSlot *slot, HeapTuple tuple)
{
	bool		isnull;
	Datum		value = idem_slot_value(slot, tuple, IDEM_SLOT_TURN, &isnull);

	return isnull ? 0 : DatumGetInt16(value);
}

static pg_uuid_t *
digest_value(const IdemSlot *slot, HeapTuple tuple)
{
	bool		isnull;

	return DatumGetUUIDP(idem_slot_value(slot, tuple, IDEM_SLOT_DIGEST, &isnull));
}

/* Make an entry of a row. */
static void
fill_entry(const IdemSlot *slot, HeapTuple tuple, bool values, IdemEventEntry *entry)
{
	bool		isnull;
	Datum		state = idem_slot_value(slot, tuple, IDEM_SLOT_STATE, &isnull);

	entry->digest = *digest_value(slot, tuple);
	entry->turn = turn_value(slot, tuple);
	entry->state = isnull ? '\0' : DatumGetChar(state);
	entry->has_detail = values;
	entry->claimed_at = time_value(slot, tuple, IDEM_SLOT_CLAIMED_AT);
	entry->completed_at = time_value(slot, tuple, IDEM_SLOT_COMPLETED_AT);
	entry->event_id = values ? long_value(slot, tuple, IDEM_SLOT_EVENT_ID) : 0;
	entry->consumer = values ? long_value(slot, tuple, IDEM_SLOT_CONSUMER) : 0;
	entry->result = values ? long_value(slot, tuple, IDEM_SLOT_RESULT) : 0;
	entry->tid = tuple->t_self;
}

bool
idem_detail_find(const IdemSlot *slot, int64 run, const pg_uuid_t *digest,
				 bool values, IdemEventEntry *entry)
{
	IdemSlotScan *rows = idem_slot_scan_begin(slot, IDEM_SLOT_DETAIL, run, digest);
	HeapTuple	best = NULL;
	HeapTuple	tuple;

	while ((tuple = idem_slot_scan_next(rows)) != NULL)
	{
		if (best == NULL || turn_value(slot, tuple) > turn_value(slot, best))
		{
			if (best != NULL)
				heap_freetuple(best);
			best = tuple;
		}
		else
			heap_freetuple(tuple);
	}
	idem_slot_scan_end(rows);
	if (best == NULL)
		return false;
	fill_entry(slot, best, values, entry);
	heap_freetuple(best);
	return true;
}

IdemDetailScan *
idem_detail_begin(const IdemSlot *slot, int64 run)
{
	IdemDetailScan *scan = palloc0(sizeof(IdemDetailScan));

	scan->slot = slot;
	scan->rows = idem_slot_scan_begin(slot, IDEM_SLOT_DETAIL, run, NULL);
	scan->context = CurrentMemoryContext;
	scan->entry_context = AllocSetContextCreate(CurrentMemoryContext, "detail of the dedup store",
												ALLOCSET_DEFAULT_SIZES);
	scan->size = 4;
	scan->group = palloc(scan->size * sizeof(Detail));
	scan->ahead = idem_slot_scan_next(scan->rows);
	return scan;
}

/* Add a row to the group; not if a restore has brought it twice. */
static void
add_to_group(IdemDetailScan *scan, HeapTuple tuple)
{
	for (int i = 0; i < scan->ngroup; i++)
	{
		if (scan->group[i].turn == turn_value(scan->slot, tuple))
		{
			heap_freetuple(tuple);
			return;
		}
	}
	if (scan->ngroup == scan->size)
	{
		scan->size *= 2;
		scan->group = repalloc(scan->group, scan->size * sizeof(Detail));
	}
	scan->group[scan->ngroup].turn = turn_value(scan->slot, tuple);
	scan->group[scan->ngroup++].tuple = tuple;
}

static int
compare_turns(const void *a, const void *b)
{
	return ((const Detail *) a)->turn - ((const Detail *) b)->turn;
}

/*
 * Collect the rows of the next digest.  The index has them in the order of
 * their places, which after a restore may not be the order of their turns.
 */
static void
fill_group(IdemDetailScan *scan)
{
	MemoryContext old = MemoryContextSwitchTo(scan->context);

	scan->ngroup = scan->next = 0;
	while (scan->ahead != NULL &&
		   (scan->ngroup == 0 ||
			idem_digest_compare(digest_value(scan->slot, scan->ahead),
								digest_value(scan->slot, scan->group[0].tuple)) == 0))
	{
		add_to_group(scan, scan->ahead);
		scan->ahead = idem_slot_scan_next(scan->rows);
	}
	qsort(scan->group, scan->ngroup, sizeof(Detail), compare_turns);
	MemoryContextSwitchTo(old);
}

bool
idem_detail_next(IdemDetailScan *scan, IdemEventEntry *entry)
{
	MemoryContext old;
	HeapTuple	tuple;

	CHECK_FOR_INTERRUPTS();
	MemoryContextReset(scan->entry_context);
	if (scan->next == scan->ngroup)
		fill_group(scan);
	if (scan->next == scan->ngroup)
		return false;
	tuple = scan->group[scan->next++].tuple;
	old = MemoryContextSwitchTo(scan->entry_context);
	fill_entry(scan->slot, tuple, true, entry);
	MemoryContextSwitchTo(old);
	heap_freetuple(tuple);
	return true;
}

void
idem_detail_end(IdemDetailScan *scan)
{
	idem_slot_scan_end(scan->rows);
	MemoryContextDelete(scan->entry_context);
	pfree(scan);
}
