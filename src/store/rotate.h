/*-------------------------------------------------------------------------
 *
 * rotate.h
 *		Closes the current segment when it is large or old enough, and empties
 *		segments and slots that are no longer needed.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/rotate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_ROTATE_H
#define IDEM_STORE_ROTATE_H

#include "postgres.h"

#include "access/transam.h"

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

/*
 * May the table be emptied, if every live snapshot sees the transactions before
 * the horizon?  Does not ask whether somebody holds a lock on it.
 */
extern bool idem_cut_may_segment(const IdemSurvey *survey, int number, FullTransactionId horizon);
extern bool idem_cut_may_slot(const IdemSurvey *survey, int number, FullTransactionId horizon);

/*
 * Empty the table; false if a lock was not free.  The caller holds the packer's
 * lock, and its transaction ends next.  Before a slot the state was raised, in
 * an earlier transaction.
 */
extern bool idem_cut_segment(int number);
extern bool idem_cut_slot(int number);

/*
 * Is a segment packed, and not emptied yet?  Nothing that has expired goes
 * meanwhile.
 */
extern bool idem_cut_packed_remain(const IdemSurvey *survey);

#endif							/* IDEM_STORE_ROTATE_H */
