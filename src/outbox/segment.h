/*-------------------------------------------------------------------------
 *
 * segment.h
 *		The ring of segments that holds the outbox.
 *
 * Private to src/outbox.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/segment.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_SEGMENT_H
#define IDEM_OUTBOX_SEGMENT_H

#include "postgres.h"

#include "access/genam.h"
#include "access/htup.h"
#include "access/itup.h"
#include "access/skey.h"
#include "access/transam.h"
#include "datatype/timestamp.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/table.h"

#define IDEM_OUTBOX_SEGMENTS	8

/* Columns of a segment, in the order of the install script, from 0. */
enum
{
	IDEM_ATT_XID,
	IDEM_ATT_SEQ,
	IDEM_ATT_EVENT_ID,
	IDEM_ATT_ENQUEUED_AT,
	IDEM_ATT_AGGREGATE_TYPE,
	IDEM_ATT_AGGREGATE_ID,
	IDEM_ATT_EVENT_TYPE,
	IDEM_ATT_PAYLOAD,
	IDEM_ATT_PAYLOAD_BYTES,
	IDEM_ATT_CONTENT_TYPE,
	IDEM_ATT_HEADERS,
	IDEM_NATTS
};

/* An entry of a segment's index. */
typedef struct IdemEntry
{
	uint64		xid;
	int64		seq;
	ItemPointerData tid;
} IdemEntry;

/* Read an entry as it is in an index. */
static inline void
idem_segment_read_entry(IndexTuple itup, IdemEntry *entry)
{
	char	   *data = (char *) itup + IndexInfoFindDataOffset(itup->t_info);

	memcpy(&entry->xid, data, sizeof(entry->xid));
	memcpy(&entry->seq, data + sizeof(entry->xid), sizeof(entry->seq));
	entry->tid = itup->t_tid;
}

/* An open segment. */
typedef struct IdemSegment
{
	int			number;
	Relation	heap;
	Relation	index;
} IdemSegment;

/*
 * The generation.  It rises with each change of the current segment; modulo 8
 * it is the number of the current segment.
 */
extern int64 idem_outbox_generation(void);

/* Read the generation, much cheaper; the caller holds a lock on a segment. */
extern int64 idem_outbox_generation_locked(void);

static inline int
idem_segment_of(int64 generation)
{
	return (int) (generation % IDEM_OUTBOX_SEGMENTS);
}

extern IdemRelRef idem_outbox_segments[IDEM_OUTBOX_SEGMENTS];
extern Oid	idem_segment_oid(int number);

/* The cells of the numbers and of the generation. */
extern IdemRelRef idem_outbox_seq_cell;
extern IdemRelRef idem_outbox_generation_cell;

/*
 * Open a segment for reading.  idem_segment_open waits for the locks.
 * idem_segment_open_nowait returns false if a lock is not available at once.
 * idem_segment_close gives the locks back.
 */
extern bool idem_segment_try_open(IdemSegment *seg, int number, bool waits);
#define idem_segment_open(seg, number)			((void) idem_segment_try_open(seg, number, true))
#define idem_segment_open_nowait(seg, number)	idem_segment_try_open(seg, number, false)
extern void idem_segment_close(IdemSegment *seg);

/* Open the indexes of a segment that is locked to be written to. */
extern void idem_segment_open_indexes(const IdemSegment *seg, IdemTableIndexes *indexes);

/*
 * Is the segment without events?  A crash in the middle of emptying leaves an
 * index without blocks: the events that are still in the heap were delivered.
 */
extern bool idem_segment_is_empty(const IdemSegment *seg);

/* Bytes on disk: heap, TOAST and indexes. */
extern int64 idem_segment_bytes(const IdemSegment *seg);

/*
 * Scan the index, which must have blocks.  Entries come in order of (xid,
 * seq).
 */
extern IndexScanDesc idem_segment_beginscan(const IdemSegment *seg, int nkeys);
extern bool idem_segment_next(IndexScanDesc scan, ScanDirection direction,
							  IdemEntry *entry);

/* Scan keys on the index's columns. */
extern void idem_scankey_xid(ScanKey key, StrategyNumber strategy, uint64 xid);
extern void idem_scankey_seq(ScanKey key, StrategyNumber strategy, int64 seq);

/*
 * Find the first entry; find the last one; does an entry with this xid exist?
 */
extern bool idem_segment_first(const IdemSegment *seg, IdemEntry *entry);
extern bool idem_segment_last(const IdemSegment *seg, IdemEntry *entry);
extern bool idem_segment_has_xid(const IdemSegment *seg, uint64 xid);

/*
 * Summary of the events, visible or not, on the first or last page that has
 * events.
 */
typedef struct IdemPageSummary
{
	int			tuples;			/* 0: no page of the segment has events */
	TimestampTz oldest;
	TimestampTz newest;
} IdemPageSummary;

extern void idem_segment_summarize(const IdemSegment *seg, bool last,
								   IdemPageSummary *summary);

/*
 * Does the segment have an event, visible or not, enqueued between these
 * times?  Any page may have the newest event, since each session fills a page
 * of its own.  The last pages are read first, so mostly it is enough to read
 * one page.
 */
extern bool idem_segment_has_between(const IdemSegment *seg, TimestampTz after,
									 TimestampTz before);

/*
 * The number of events in the segment, visible or not: estimated, but exact if
 * the segment has few pages.
 */
extern int64 idem_segment_estimate_events(const IdemSegment *seg);

/* enqueued_at of the tuple at tid, visible or not; 0 if there is no tuple. */
extern TimestampTz idem_segment_time_at(const IdemSegment *seg, ItemPointer tid);

/*
 * The last number that the event sequence gave out.  The log has no later
 * number.
 */
extern int64 idem_outbox_last_seq(void);

#endif							/* IDEM_OUTBOX_SEGMENT_H */
