/*-------------------------------------------------------------------------
 *
 * close.h
 *		Closes the current segment when it is large enough.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/close.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_CLOSE_H
#define IDEM_STORE_CLOSE_H

#include "postgres.h"

#include "store/survey.h"

/*
 * Is the current segment as large as it may get, or has it entries that it is
 * time to pack?
 */
extern bool idem_close_is_due(const IdemSegmentInfo *segments, int current);

/*
 * The segment that may become current after it; -1: none is empty.
 */
extern int	idem_close_successor(const IdemSegmentInfo *segments, int current);

/*
 * Close the current segment if that is due and another one is empty; false if it
 * was not closed.  aged: it has entries that it is time to pack.  The caller
 * holds the packer's lock.  No abort undoes it.
 */
extern bool idem_close_if_due(bool aged);

#endif							/* IDEM_STORE_CLOSE_H */
