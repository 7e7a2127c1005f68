/*-------------------------------------------------------------------------
 *
 * segment.h
 *		The ring of segments that the outbox consists of.
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
#include "access/skey.h"
#include "access/transam.h"
#include "datatype/timestamp.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"

#include "compat.h"

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

/* An open segment. */
typedef struct IdemSegment
{
	int			number;
	Relation	heap;
	Relation	index;
} IdemSegment;

/* How many segments were opened so far; the current one is this modulo 8. */
extern int64 idem_outbox_generation(void);

/* The same, much cheaper; the caller holds a lock on a segment. */
extern int64 idem_outbox_generation_locked(void);

/* Make another segment current; the caller holds the maintenance lock. */
extern void idem_outbox_set_generation(int64 generation);

static inline int
idem_segment_of(int64 generation)
{
	return (int) (generation % IDEM_OUTBOX_SEGMENTS);
}

extern Oid	idem_segment_oid(int number);
extern Oid	idem_outbox_seq_oid(void);
extern Oid	idem_outbox_generation_oid(void);

/*
 * Open a segment for reading.  The first form waits for the lock; the second
 * returns false if it is not available at once.  Closing gives the lock back.
 */
extern void idem_segment_open(IdemSegment *seg, int number);
extern bool idem_segment_open_nowait(IdemSegment *seg, int number);
extern void idem_segment_close(IdemSegment *seg);

/*
 * The indexes of a locked segment that are to be read, or written to; at least
 * one, or an error.  More than one are there while REINDEX CONCURRENTLY works
 * and after one that was cancelled.
 */
#define IDEM_SEGMENT_MAX_INDEXES	16
extern int	idem_segment_indexes(Relation heap, bool to_read, Oid *oids);

/* Error 55000: the segment has an index or a column that is not its own. */
pg_noreturn extern void idem_segment_report_added(Relation heap);

/* Error 55000 unless the columns are a segment's, with dropped ones behind them at most. */
extern void idem_segment_check_columns(Relation heap);

/* Make a row of, or take apart, a segment's own columns: arrays of IDEM_NATTS. */
extern HeapTuple idem_segment_form_tuple(Relation heap, const Datum *values, const bool *nulls);
extern void idem_segment_deform_tuple(Relation heap, HeapTuple tuple, Datum *values, bool *nulls);

/* Is it a plain ascending btree on (xid, seq)? */
extern bool idem_segment_is_index(Relation index);

/*
 * Is no event in the segment?  A crash in the middle of emptying leaves an index
 * without blocks; the events that the heap still has were delivered.
 */
extern bool idem_segment_is_empty(const IdemSegment *seg);

/* Is every file of the segment as freshly made, so that it may become current? */
extern bool idem_segment_is_pristine(const IdemSegment *seg);

/* Bytes on disk: heap, TOAST and indexes. */
extern int64 idem_segment_bytes(const IdemSegment *seg);

/* Scans of the index, which needs blocks; entries come in (xid, seq) order. */
extern IndexScanDesc idem_segment_beginscan(const IdemSegment *seg, int nkeys);
extern bool idem_segment_next(IndexScanDesc scan, ScanDirection direction,
							  IdemEntry *entry);

/* Scan keys on the index's columns. */
extern void idem_scankey_xid(ScanKey key, StrategyNumber strategy, uint64 xid);
extern void idem_scankey_seq(ScanKey key, StrategyNumber strategy, int64 seq);

/* First entry with that xid or a later one; last entry of all. */
extern bool idem_segment_first(const IdemSegment *seg, uint64 xid,
							   IdemEntry *entry);
extern bool idem_segment_last(const IdemSegment *seg, IdemEntry *entry);
extern bool idem_segment_has_xid(const IdemSegment *seg, uint64 xid);

/* Summary of the events, visible or not, on the first or last filled page. */
typedef struct IdemPageSummary
{
	int			tuples;			/* 0: the segment has no filled page */
	TimestampTz oldest;
	TimestampTz newest;
} IdemPageSummary;

extern void idem_segment_summarize(const IdemSegment *seg, bool last,
								   IdemPageSummary *summary);

/*
 * Does the segment have an event, visible or not, from between these times?  Any
 * page may have the newest event, since each session fills a page of its own.  The
 * last pages are read first, so reading one is mostly enough.
 */
extern bool idem_segment_has_between(const IdemSegment *seg, TimestampTz after,
									 TimestampTz before);

/* Events in the segment, visible or not; exact if it has few pages. */
extern int64 idem_segment_estimate_events(const IdemSegment *seg);

/* enqueued_at of the tuple at tid, visible or not; 0 if there is none. */
extern TimestampTz idem_segment_time_at(const IdemSegment *seg, ItemPointer tid);

/* Last number the event sequence gave out; nothing after it is in the log. */
extern int64 idem_outbox_last_seq(void);

#endif							/* IDEM_OUTBOX_SEGMENT_H */
