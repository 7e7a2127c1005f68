/*-------------------------------------------------------------------------
 *
 * clock.h
 *		A clock for waiting: it only goes forward.
 *
 * Whatever a process waits for, a backoff, a deadline, its next maintenance,
 * is measured by this one.  The wall clock may be set by years in either
 * direction, and a deadline taken from it then lies years ahead.  Times that
 * are stored or shown are of the wall clock all the same.
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

static inline IdemClock
idem_clock_plus_ms(IdemClock from, int64 ms)
{
	return from + ms * INT64CONST(1000);
}

#endif							/* IDEM_CLOCK_H */
