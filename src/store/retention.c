/*-------------------------------------------------------------------------
 *
 * retention.c
 *		Retention classes: how long the dedup store remembers an entry.
 *
 * There are few classes, so that runs are few: a run has entries of one class
 * and one slice, and goes as a whole.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: none.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/retention.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "store/retention.h"

typedef struct RetentionClass
{
	int64		seconds;
	const char *name;
} RetentionClass;

static const RetentionClass classes[IDEM_RETENTION_CLASSES] = {
	[IDEM_RETENTION_FOR_EVER] = {0, "for ever"},
	[IDEM_RETENTION_HOUR] = {SECS_PER_HOUR, "hour"},
	[IDEM_RETENTION_DAY] = {SECS_PER_DAY, "day"},
	[IDEM_RETENTION_MONTH] = {31 * SECS_PER_DAY, "month"},
};

/* Is it a class of finite length?  A damaged or newer one counts as for ever. */
static bool
is_finite(int class)
{
	return class > IDEM_RETENTION_FOR_EVER && class < IDEM_RETENTION_CLASSES;
}

int64
idem_retention_seconds(int class)
{
	return is_finite(class) ? classes[class].seconds : 0;
}

const char *
idem_retention_name(int class)
{
	return classes[is_finite(class) ? class : IDEM_RETENTION_FOR_EVER].name;
}

int
idem_retention_class(int64 seconds)
{
	for (int class = IDEM_RETENTION_HOUR; class < IDEM_RETENTION_CLASSES; class++)
	{
		if (seconds <= classes[class].seconds)
			return class;
	}
	return IDEM_RETENTION_FOR_EVER;
}

int
idem_retention_longer(int a, int b)
{
	if (!is_finite(a) || !is_finite(b))
		return IDEM_RETENTION_FOR_EVER;
	return Max(a, b);
}

int64
idem_retention_slice(int class, int64 time)
{
	return is_finite(class) ? time / (classes[class].seconds / IDEM_RETENTION_SLICES) : 0;
}

int64
idem_retention_end(int class, int64 slice)
{
	if (!is_finite(class))
		return PG_INT64_MAX;
	return (slice + 1 + IDEM_RETENTION_SLICES) * (classes[class].seconds / IDEM_RETENTION_SLICES);
}
