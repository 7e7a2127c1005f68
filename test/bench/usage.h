/*-------------------------------------------------------------------------
 *
 * usage.h
 *		Time and CPU of a program of the benchmark, in seconds.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/usage.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef BENCH_USAGE_H
#define BENCH_USAGE_H

#include <sys/resource.h>
#include <time.h>

static double
now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double) ts.tv_sec + (double) ts.tv_nsec / 1e9;
}

static double
cpu(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double) (u.ru_utime.tv_sec + u.ru_stime.tv_sec) + (double) (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

#endif							/* BENCH_USAGE_H */
