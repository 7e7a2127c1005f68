/*-------------------------------------------------------------------------
 *
 * copy.h
 *		Copies a closed segment into a run.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/copy.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_COPY_H
#define IDEM_STORE_COPY_H

#include "postgres.h"

#include "store/slot.h"

/* A closed segment that is being copied. */
typedef struct IdemCopy IdemCopy;

/*
 * Open a closed segment, and count its committed rows; NULL, and nothing is
 * done, if a lock is not free.  The caller holds the packer's lock in a
 * transaction that ends next, and has an active snapshot.  Memory: the current
 * context, which the caller gives up.
 */
extern IdemCopy *idem_copy_begin(int segment);
extern void idem_copy_end(IdemCopy *copy);

/* Does the segment have rows of the class? */
extern bool idem_copy_has(const IdemCopy *copy, int class);

/*
 * Copy the rows of a class into a new run of a slot, which the caller has opened
 * with RowExclusiveLock.  stamp: the time of the store.
 */
extern void idem_copy_class(IdemCopy *copy, int class, IdemSlot *slot, int64 run_number,
							int64 stamp);

/* Has every transaction that wrote to the closed segment ended? */
extern bool idem_copy_is_drained(int segment);

#endif							/* IDEM_STORE_COPY_H */
