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

/*
 * Look for the rows of an event: as of now, uncommitted work of others counts;
 * or as a snapshot sees them.  again: the segment was looked into by this snapshot before.
 * Adds to the finding: the highest turn decides.
 */
extern void idem_ring_probe(IdemRingSegment *segment, const pg_uuid_t *digest,
							IdemFinding *finding);
extern void idem_ring_look_up(IdemRingSegment *segment, const pg_uuid_t *digest,
							  Snapshot snapshot, bool again, IdemFinding *finding);

/* Get a copy of a row's result; false if the row has none. */
extern bool idem_ring_result(IdemRingSegment *segment, const ItemPointerData *tid, Datum *result);

/*
 * Insert n <= IDEM_STORE_CHUNK entries, of ids and consumers within the limits.
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
