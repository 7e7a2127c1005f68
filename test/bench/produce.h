/*-------------------------------------------------------------------------
 *
 * produce.h
 *		What the producers of the benchmark share: events from memory, their ids and
 *		keys, and what is measured of them.
 *
 * A producer sends so many events and has their acknowledgements counted.  It prints
 * the events per second between the acknowledgement of the first tenth and of the
 * last event, and the CPU seconds of its process since produce_begin, which it calls
 * once it is connected.
 *
 * MEMORY: static.  LOCKING: none; a library that acknowledges in a thread of its own
 * has one such thread, and the main thread reads `answered` when it is told to.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/produce.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_PRODUCE_H
#define BENCH_PRODUCE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "usage.h"

#define PRODUCE_KEYS	10000
#define PRODUCE_ID		48		/* bytes for an id */

static long events;
static long answered;
static const char *payload;
static double tenth_at;
static long answered_by_then;
static double cpu_before;

static void die(const char *what, const char *why) __attribute__((noreturn));

static void
die(const char *what, const char *why)
{
	fprintf(stderr, "producer: %s: %s\n", what, why);
	exit(1);
}

/* The arguments ADDRESS:PORT TARGET EVENTS PAYLOAD, and what is the producer's own; returns the port, and cuts it off. */
static int
produce_arguments(int argc, char **argv)
{
	char	   *colon = argc >= 5 ? strrchr(argv[1], ':') : NULL;

	if (colon == NULL)
		die("usage", "producer ADDRESS:PORT TARGET EVENTS PAYLOAD");
	*colon = '\0';
	events = atol(argv[3]);
	payload = argv[4];
	if (events < 10)
		die("usage", "EVENTS is 10 or more");
	return atoi(colon + 1);
}

static void
produce_begin(void)
{
	cpu_before = cpu();
}

/* So many more events are acknowledged. */
static inline void
produce_answered(long n)
{
	answered += n;
	if (tenth_at == 0 && answered >= events / 10)
	{
		tenth_at = now();
		/* a rate is that of the events behind this moment */
		answered_by_then = answered;
	}
}

static inline void
produce_id(char id[PRODUCE_ID], long n)
{
	snprintf(id, PRODUCE_ID, "00000000-0000-4000-8000-%012ld", n);
}

static void
produce_report(void)
{
	printf("%.1f\t%.6f\n", (double) (events - answered_by_then) / (now() - tenth_at), cpu() - cpu_before);
}

#endif							/* BENCH_PRODUCE_H */
