/*-------------------------------------------------------------------------
 *
 * clock.h
 *		A clock for waiting: it only goes forward.
 *
 * Processes measure every wait by this clock: a backoff, a deadline, the next
 * maintenance.  The wall clock may be set by years in either direction, and a
 * deadline taken from it then lies years ahead.  Times that are stored or shown are
 * the wall clock's all the same.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/clock.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLOCK_H
#define IDEM_CLOCK_H

#include "postgres.h"

/* Microseconds since some moment, the same one for all processes of a machine. */
typedef int64 IdemClock;

extern IdemClock idem_clock(void);

/* Milliseconds until then, rounded up; 0 if it has passed. */
extern long idem_clock_ms_until(IdemClock then);

/* The moment that many milliseconds later. */
static inline IdemClock
idem_clock_plus_ms(IdemClock from, int64 ms)
{
	return from + ms * INT64CONST(1000);
}

#endif							/* IDEM_CLOCK_H */
