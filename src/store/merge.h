/*-------------------------------------------------------------------------
 *
 * merge.h
 *		Merges the runs of a slot into one run of the next level.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/merge.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_MERGE_H
#define IDEM_STORE_MERGE_H

#include "postgres.h"

#include "store/run.h"

/*
 * Merge n runs of a slot into a new run of another slot, of a higher level, whose
 * mark says that it replaces them.  All are of one class, and of one slice but
 * for those that a restore brought.  False, and nothing is done, if a lock is not
 * free.  The caller holds the packer's lock in a transaction that ends next, and has
 * an active snapshot.  Memory: the current context, which the caller gives up.
 */
extern bool idem_merge_runs(int from, const IdemRun *runs, int n, int to, int level,
							int64 run_number);

#endif							/* IDEM_STORE_MERGE_H */
