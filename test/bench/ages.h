/*-------------------------------------------------------------------------
 *
 * ages.h
 *		How old events are when something happens to them, and the report of it.
 *
 * Three ages: since the stamp of the commit, since the event was enqueued, and
 * since the time at which the load generator meant to enqueue it, which it gives
 * as aggregate id (microseconds since 1970).  The last has no coordinated
 * omission: where the server is late, so is every event that should have come
 * meanwhile.  An event whose aggregate id is no number is not counted.
 *
 * A report has one line per bucket: which age, largest value in us, events.  A
 * crash leaves the last report.  MEMORY: static.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/ages.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_BENCH_AGES_H
#define IDEM_BENCH_AGES_H

#include <stdbool.h>
#include <stdio.h>
#include <time.h>

#include "sink/null/histogram.h"
#include "sink/protocol/protocol.h"

#define AGES_PATH	1024		/* bytes of a report's path, at most */

/* When an event was born, in microseconds since 1970; due is 0 if it does not count. */
typedef struct Birth
{
	int64_t		committed;		/* 0: not known */
	int64_t		enqueued;
	int64_t		due;
} Birth;

static NullHistogram since_commit;
static NullHistogram since_enqueue;
static NullHistogram since_due;

/* Microseconds since 1970. */
static int64_t
wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

static Birth
birth_of(const IdemProtoEvent *e)
{
	Birth		b = {.committed = e->committed_at, .enqueued = e->enqueued_at};

	for (uint32_t i = 0; i < e->aggregate_id.len; i++)
	{
		char		c = e->aggregate_id.data[i];

		if (c < '0' || c > '9')
			break;
		b.due = b.due * 10 + (c - '0');
	}
	return b;
}

static void
count_age(const Birth *b, int64_t now)
{
	if (b->due == 0)
		return;
	if (b->committed != 0)
		null_histogram_add(&since_commit, now - b->committed);
	null_histogram_add(&since_enqueue, now - b->enqueued);
	null_histogram_add(&since_due, now - b->due);
}

static void
write_histogram(FILE *f, const char *name, const NullHistogram *h)
{
	for (int b = 0; b < NULL_HISTOGRAM_BUCKETS; b++)
		if (h->count[b] > 0)
			fprintf(f, "%s\t%llu\t%llu\n", name,
					(unsigned long long) null_histogram_upper(b),
					(unsigned long long) h->count[b]);
}

/* Write the report, first under another name: once it is there, it is whole. */
static bool
write_ages(const char *path)
{
	char		part[AGES_PATH + 8];
	FILE	   *f;

	snprintf(part, sizeof(part), "%.*s.part", AGES_PATH, path);
	f = fopen(part, "w");
	if (f == NULL)
		return false;
	write_histogram(f, "commit", &since_commit);
	write_histogram(f, "enqueue", &since_enqueue);
	write_histogram(f, "due", &since_due);
	return fclose(f) == 0 && rename(part, path) == 0;
}

#endif							/* IDEM_BENCH_AGES_H */
