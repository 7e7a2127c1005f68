/*-------------------------------------------------------------------------
 *
 * number.h
 *		Numbers of events, each given out once.
 *
 * Private to src/outbox.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/outbox/number.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_OUTBOX_NUMBER_H
#define IDEM_OUTBOX_NUMBER_H

#include "postgres.h"

/*
 * Draw n numbers for events; *first is the first of them.  The caller has a
 * segment locked for writing.  False: nothing was drawn, and the caller has to
 * give its lock back, call idem_number_make_safe, and try again.
 */
extern bool idem_number_draw(int n, int64 *first);

/*
 * Have the sequence of a restored or upgraded database go on at a safe number.  Waits
 * for all transactions that write to the outbox.  Error 55000 if the sequence was set
 * by hand.
 */
extern void idem_number_make_safe(void);

/* The same, for a sequence that was set by hand as well; returns the last number. */
extern int64 idem_number_mend(void);

/* Were events enqueued here, so that a dump cannot be restored into the log? */
extern bool idem_number_in_use(void);

/*
 * Call it before rows that have numbers of events are restored.  False: numbers are
 * in use here.  True: no number is given out before this transaction has ended, and
 * later ones are greater than the number that idem_outbox_greatest_hook says then.
 */
extern bool idem_number_hold_for_restore(void);

#endif							/* IDEM_OUTBOX_NUMBER_H */
