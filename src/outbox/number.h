/*-------------------------------------------------------------------------
 *
 * number.h
 *		Numbers of events, each given out once.
 *
 * For src/outbox, but idem_number_is_set_by_hand, which doctor() asks, and
 * idem_number_hold_for_restore, which relays call.
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
 * Numbers of events are below the end.  The constraint "sound" of segments and parked events
 * takes no others, so an event with a greater number could not be restored from a dump.  From
 * "few" on, one statement may need more numbers than there are.
 */
#define IDEM_NUMBERS_END	(INT64CONST(1) << 62)
#define IDEM_NUMBERS_FEW	(IDEM_NUMBERS_END - 10000)

/*
 * Draw n numbers for events; *first is the first of them.  The caller has
 * locked a segment for writing.  Returns false if nothing was drawn: then the
 * caller has to give its lock back, call idem_number_make_safe, and try again.
 */
extern bool idem_number_draw(int n, int64 *first);

/*
 * Set the sequence of a restored or upgraded database to a safe number.  Waits
 * for all transactions that write to the outbox.  Error 55000 if the sequence
 * was set by hand.
 */
extern void idem_number_make_safe(void);

/*
 * Set the sequence to a safe number even if it was set by hand.  Returns the
 * last number in use.
 */
extern int64 idem_number_mend(void);

/*
 * Was the sequence set by hand?  Then each event is refused until it is mended.  *value: the
 * sequence's value.
 */
extern bool idem_number_is_set_by_hand(int64 *value);

/*
 * Has the sequence next to no numbers left, of which no setval is known?  *value: the
 * sequence's value.
 */
extern bool idem_number_is_exhausted(int64 *value);

/*
 * The table with a row, perhaps a dead one, whose number is that great; palloc'd.  NULL: there
 * is none.  Reads all entries of the outbox.
 */
extern char *idem_number_exhausted_by(void);

/*
 * Were events enqueued in this database?  Then a dump cannot be restored into
 * the log.
 */
extern bool idem_number_in_use(void);

/*
 * Call this before rows that have numbers of events are restored.  Returns
 * false if numbers are in use in this database.  After true, no number is
 * given out before this transaction has ended, and later numbers are greater
 * than the number that idem_outbox_greatest_hook returns then.
 */
extern bool idem_number_hold_for_restore(void);

#endif							/* IDEM_OUTBOX_NUMBER_H */
