/*-------------------------------------------------------------------------
 *
 * age.c
 *		Is it time to pack what the current segment has?
 *
 * Entries expire from the time on at which they were packed.  So a segment that
 * has entries that expire is closed after a slice of their class, even if it is
 * small.
 *
 * Nothing says which classes a segment has, but its rows.  A process that looks
 * again and again reads each page once, and the last one again.  Rows of
 * transactions that aborted count; then a segment is closed early, which does no
 * harm.  The same holds if another process has closed, emptied and used the
 * segment again since the last look.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: the content lock of one page at a time.
 *
 * MEMORY: what was found, for one segment.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/age.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"
#include "utils/timestamp.h"

#include "store/age.h"
#include "store/retention.h"
#include "store/ring.h"

/* The most pages that one call reads. */
#define AGE_PAGES	1024

/* What was found so far. */
static int	known_segment = -1;
static BlockNumber known_blocks = 0;	/* read, and full by now but for the
										 * last */
static TimestampTz due = DT_NOEND;

/* Callback: when is it time to pack the row? */
static void
look_at_row(Relation heap, HeapTuple tuple, void *arg)
{
	TupleDesc	desc = RelationGetDescr(heap);
	bool		isnull;
	int			class = DatumGetInt16(heap_getattr(tuple, IDEM_RING_CLASS + 1, desc, &isnull));
	int64		seconds = idem_retention_seconds(class);

	if (seconds > 0)
		due = Min(due,
				  DatumGetTimestampTz(heap_getattr(tuple, IDEM_RING_CLAIMED_AT + 1, desc, &isnull)) +
				  seconds / IDEM_RETENTION_SLICES * USECS_PER_SEC);
}

bool
idem_age_is_due(Relation heap, int segment)
{
	BlockNumber blocks = RelationGetNumberOfBlocks(heap);
	BlockNumber end;

	if (segment != known_segment || blocks < known_blocks)
	{
		known_segment = segment;
		known_blocks = 0;
		due = DT_NOEND;
	}
	end = Min(blocks, known_blocks + AGE_PAGES);
	for (BlockNumber block = known_blocks > 0 ? known_blocks - 1 : 0; block < end; block++)
	{
		CHECK_FOR_INTERRUPTS();
		idem_store_segment_visit_page(heap, block, look_at_row, NULL);
	}
	known_blocks = end;
	return due <= GetCurrentTimestamp();
}
