/*-------------------------------------------------------------------------
 *
 * retention.h
 *		Retention classes: how long the dedup store remembers an entry.
 *
 * A retention is rounded up to the length of a class.  An entry of a class of
 * finite length is remembered at least that long after it was packed, and at
 * most a slice, a sixth of the length, longer.  Time is the store's (uptime.h).
 *
 * There are few classes, so that runs are few: a run has entries of one class
 * and one slice, and goes as a whole.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/retention.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_RETENTION_H
#define IDEM_STORE_RETENTION_H

#include "postgres.h"

#include "utils/timestamp.h"

/* The classes, as they are stored; the longest is 0. */
#define IDEM_RETENTION_FOR_EVER	0
#define IDEM_RETENTION_HOUR		1
#define IDEM_RETENTION_DAY		2
#define IDEM_RETENTION_MONTH	3	/* of 31 days */
#define IDEM_RETENTION_CLASSES	4

/* A class has so many slices. */
#define IDEM_RETENTION_SLICES	6

static const struct
{
	int64		seconds;
	const char *name;
}			idem_retention_classes[IDEM_RETENTION_CLASSES] = {
	[IDEM_RETENTION_FOR_EVER] = {0, "for ever"},
	[IDEM_RETENTION_HOUR] = {SECS_PER_HOUR, "hour"},
	[IDEM_RETENTION_DAY] = {SECS_PER_DAY, "day"},
	[IDEM_RETENTION_MONTH] = {31 * SECS_PER_DAY, "month"},
};

/* Is it a class of finite length?  A damaged or newer one counts as for ever. */
static inline bool
idem_retention_is_finite(int class)
{
	return class > IDEM_RETENTION_FOR_EVER && class < IDEM_RETENTION_CLASSES;
}

/* The length of a class in seconds; 0: for ever. */
static inline int64
idem_retention_seconds(int class)
{
	return idem_retention_is_finite(class) ? idem_retention_classes[class].seconds : 0;
}

/* The name of a class, for views: "hour", "day", "month", "for ever". */
static inline const char *
idem_retention_name(int class)
{
	return idem_retention_classes[idem_retention_is_finite(class) ? class : IDEM_RETENTION_FOR_EVER].name;
}

/*
 * The shortest class that is at least as long as a number of seconds > 0, which
 * is for ever above the longest finite one.
 */
static inline int
idem_retention_class(int64 seconds)
{
	for (int class = IDEM_RETENTION_HOUR; class < IDEM_RETENTION_CLASSES; class++)
	{
		if (seconds <= idem_retention_classes[class].seconds)
			return class;
	}
	return IDEM_RETENTION_FOR_EVER;
}

/* The longer one of two classes. */
static inline int
idem_retention_longer(int a, int b)
{
	if (!idem_retention_is_finite(a) || !idem_retention_is_finite(b))
		return IDEM_RETENTION_FOR_EVER;
	return Max(a, b);
}

/*
 * The slice of a class that a time of the store, in seconds, falls into; 0 for
 * the class without an end.
 */
static inline int64
idem_retention_slice(int class, int64 time)
{
	return idem_retention_is_finite(class) ? time / (idem_retention_classes[class].seconds / IDEM_RETENTION_SLICES) : 0;
}

/*
 * When the entries of a slice may be dropped: all of them have been remembered
 * long enough.  PG_INT64_MAX: never.
 */
static inline int64
idem_retention_end(int class, int64 slice)
{
	if (!idem_retention_is_finite(class))
		return PG_INT64_MAX;
	return (slice + 1 + IDEM_RETENTION_SLICES) * (idem_retention_classes[class].seconds / IDEM_RETENTION_SLICES);
}

#endif							/* IDEM_STORE_RETENTION_H */
