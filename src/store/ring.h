/*-------------------------------------------------------------------------
 *
 * ring.h
 *		The open ring: the segments that entries are written to.
 *
 * A segment is a table of entries, one row each.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/ring.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_RING_H
#define IDEM_STORE_RING_H

#include "postgres.h"

#include "access/htup.h"
#include "access/xlogdefs.h"
#include "executor/tuptable.h"
#include "storage/block.h"
#include "storage/itemptr.h"
#include "storage/lockdefs.h"
#include "utils/relcache.h"
#include "utils/snapshot.h"

#include "store/entry.h"
#include "store/segment.h"

/* The most rows that one call inserts. */
#define IDEM_RING_CHUNK	64

/* An open segment. */
typedef struct IdemRingSegment IdemRingSegment;

/*
 * Open a segment: AccessShareLock to read, RowExclusiveLock to write.  What the
 * segment allocates is in "context".  Closing gives AccessShareLock back;
 * RowExclusiveLock stays to the end of the (sub)transaction.  All calls, the
 * closing included, run under the same resource owner.
 */
extern IdemRingSegment *idem_ring_open(int number, LOCKMODE mode, MemoryContext context);
extern void idem_ring_close(IdemRingSegment *segment);

/* What a segment has of an event. */
typedef struct IdemRingFinding
{
	bool		found;
	bool		busy;			/* another transaction is writing or removing
								 * a row; only busy_xid is set */
	TransactionId busy_xid;		/* that transaction, or a subtransaction of it */
	bool		dead_rows;		/* there are rows that nobody sees any more,
								 * or places of such rows */
	bool		own;			/* written by the current transaction */
	bool		in_snapshot;	/* own, or the transaction snapshot sees it */
	int16		turn;			/* the highest, and that row's fields */
	char		state;
	int16		class;
	bool		unsound;		/* the store did not write that row */
	ItemPointerData tid;
	TimestampTz claimed_at;
	TimestampTz completed_at;
	XLogRecPtr	commit_lsn;		/* once flushed up to here, the row is durable */
} IdemRingFinding;

/* Is the segment without rows now? */
extern bool idem_ring_is_empty(IdemRingSegment *segment);

/*
 * Look for the rows of an event: as of now, uncommitted work of others counts;
 * or as a snapshot sees them.  again: the segment was looked into by this snapshot before.
 */
extern void idem_ring_probe(IdemRingSegment *segment, const pg_uuid_t *digest,
							IdemRingFinding *finding);
extern void idem_ring_look_up(IdemRingSegment *segment, const pg_uuid_t *digest,
							  Snapshot snapshot, bool again, IdemRingFinding *finding);

/* Get a copy of a row's result; false if the row has none. */
extern bool idem_ring_result(IdemRingSegment *segment, const ItemPointerData *tid, Datum *result);

/*
 * Insert n <= IDEM_RING_CHUNK entries, of ids and consumers within the limits.
 * Sets their ref.
 */
extern void idem_ring_insert(IdemRingSegment *segment, IdemNewEntry *entries, int n);

/*
 * Remove the row of an event that this transaction inserted; false if it is gone.  tid is
 * where it was put.
 */
extern bool idem_ring_delete(IdemRingSegment *segment, const pg_uuid_t *digest,
							 const ItemPointerData *tid);

#endif							/* IDEM_STORE_RING_H */
