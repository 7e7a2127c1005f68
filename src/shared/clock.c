/*-------------------------------------------------------------------------
 *
 * clock.c
 *		A clock for waiting, which only goes forward.
 *
 * LOCKING: none.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/clock.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>
#include <time.h>

#include "shared/clock.h"

IdemClock
idem_clock(void)
{
	struct timespec now;

	(void) clock_gettime(CLOCK_MONOTONIC, &now);
	return (IdemClock) now.tv_sec * INT64CONST(1000000) + now.tv_nsec / 1000;
}

long
idem_clock_ms_until(IdemClock then)
{
	IdemClock	left = then - idem_clock();

	if (left <= 0)
		return 0;
	return (long) Min((left + 999) / 1000, INT_MAX);
}
