/*-------------------------------------------------------------------------
 *
 * copy.h
 *		Writes runs: copies a closed segment into runs, and merges runs into one.
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

#include "store/survey.h"

/*
 * Copy a closed segment into a run of each class that it has; *nruns: how many.  False,
 * and nothing is done, if a lock or a slot is not free.  The caller holds the packer's lock in a
 * transaction that ends next, and has an active snapshot, which goes.
 */
extern bool idem_copy_segment(const IdemSurvey *survey, int number, int *nruns);

/*
 * Merge n runs of a slot into a new run of another slot, of a higher level, whose
 * mark says that it replaces them.  All are of one class, and of one slice but
 * for those that a restore brought.  False, and nothing is done, if a lock is not
 * free.  The caller holds the packer's lock in a transaction that ends next, and has
 * an active snapshot.  Memory: the current context, which the caller gives up.
 */
extern bool idem_merge_runs(int from, const IdemRun *runs, int n, int to, int level);

#endif							/* IDEM_STORE_COPY_H */
