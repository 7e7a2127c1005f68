/*-------------------------------------------------------------------------
 *
 * age.h
 *		Is it time to pack what the current segment has?
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/age.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_AGE_H
#define IDEM_STORE_AGE_H

#include "postgres.h"

#include "utils/relcache.h"

/*
 * Has the current segment an entry that expires, and that is older than a slice
 * of its class?  The caller holds a lock on the segment.  Reads the pages that were
 * added since the last call of this process, 1024 at most.
 */
extern bool idem_age_is_due(Relation heap, int segment);

#endif							/* IDEM_STORE_AGE_H */
