/*-------------------------------------------------------------------------
 *
 * retention.h
 *		Retention classes: how long the dedup store remembers an entry.
 *
 * A retention is rounded up to the length of a class.  An entry of a class of
 * finite length is remembered at least that long after it was packed, and at
 * most a slice, a sixth of the length, longer.  Time is the store's (uptime.h).
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

/* The length of a class in seconds; 0: for ever. */
extern int64 idem_retention_seconds(int class);

/* The name of a class, for views: "hour", "day", "month", "for ever". */
extern const char *idem_retention_name(int class);

/*
 * The shortest class that is at least as long as a number of seconds > 0, which
 * is for ever above the longest finite one.
 */
extern int	idem_retention_class(int64 seconds);

/* The longer one of two classes. */
extern int	idem_retention_longer(int a, int b);

/*
 * The slice of a class that a time of the store, in seconds, falls into; 0 for
 * the class without an end.
 */
extern int64 idem_retention_slice(int class, int64 time);

/*
 * When the entries of a slice may be dropped: all of them have been remembered
 * long enough.  PG_INT64_MAX: never.
 */
extern int64 idem_retention_end(int class, int64 slice);

#endif							/* IDEM_STORE_RETENTION_H */
