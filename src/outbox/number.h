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
 * give its lock back, call idem_number_settle, and try again.
 */
extern bool idem_number_draw(int n, int64 *first);

/*
 * Make the sequence of a restored or upgraded database usable.  Waits for all
 * transactions that write to the outbox; an error if the sequence was set by
 * hand.
 */
extern void idem_number_settle(void);

/* The same also for a sequence that was set by hand; returns the last number. */
extern int64 idem_number_mend(void);

/* Were events enqueued here, so that a dump cannot be restored into the log? */
extern bool idem_number_in_use(void);

/*
 * Before others restore what has numbers of events: false if numbers are in use
 * here.  True: none is given out before this transaction has ended, and those are
 * greater than what idem_outbox_greatest_hook knows then.
 */
extern bool idem_number_hold_for_restore(void);

#endif							/* IDEM_OUTBOX_NUMBER_H */
