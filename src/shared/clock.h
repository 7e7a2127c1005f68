/*-------------------------------------------------------------------------
 *
 * clock.h
 *		A clock for waiting, which only goes forward.
 *
 * Processes measure every wait by this clock: a backoff, a deadline, the time
 * to the next maintenance.  The wall clock may be set by years in either
 * direction; a deadline taken from the wall clock would then lie years ahead.
 * Times that are stored or shown are times of the wall clock.
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

#include <limits.h>
#include <time.h>

/*
 * Microseconds since some moment, which is the same for all processes of a
 * machine.
 */
typedef int64 IdemClock;

static inline IdemClock
idem_clock(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (IdemClock) now.tv_sec * INT64CONST(1000000) + now.tv_nsec / 1000;
}

/* Milliseconds until "then", rounded up; 0 if that moment has passed. */
static inline long
idem_clock_ms_until(IdemClock then)
{
	IdemClock	left = then - idem_clock();

	if (left <= 0)
		return 0;
	return (long) Min((left + 999) / 1000, INT_MAX);
}

/* The moment ms milliseconds after "from". */
static inline IdemClock
idem_clock_plus_ms(IdemClock from, int64 ms)
{
	return from + ms * INT64CONST(1000);
}

/* The earlier of two times; 0 is no time. */
static inline IdemClock
idem_clock_earlier(IdemClock a, IdemClock b)
{
	return a == 0 || b == 0 ? Max(a, b) : Min(a, b);
}

#endif							/* IDEM_CLOCK_H */
