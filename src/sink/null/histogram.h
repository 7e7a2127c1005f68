/*-------------------------------------------------------------------------
 *
 * histogram.h
 *		A histogram of latencies.  A bucket's width is at most 1/16 of its
 *		values.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/null/histogram.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_HISTOGRAM_H
#define IDEM_SINK_HISTOGRAM_H

#include <stdint.h>

#define NULL_HISTOGRAM_SUB		16	/* buckets per power of two */
#define NULL_HISTOGRAM_BUCKETS	(41 * NULL_HISTOGRAM_SUB)

typedef struct NullHistogram
{
	uint64_t	samples;
	uint64_t	max;
	uint64_t	count[NULL_HISTOGRAM_BUCKETS];
} NullHistogram;

/*
 * The bucket of a value.  A value below 16 has a bucket of its own; above, each
 * power of two has 16 buckets.
 */
static inline int
null_histogram_bucket(uint64_t v)
{
	int			shift;
	int			b;

	if (v < NULL_HISTOGRAM_SUB)
		return (int) v;
	shift = 63 - __builtin_clzll(v) - 4;
	b = (shift + 1) * NULL_HISTOGRAM_SUB + (int) ((v >> shift) & (NULL_HISTOGRAM_SUB - 1));
	return b < NULL_HISTOGRAM_BUCKETS ? b : NULL_HISTOGRAM_BUCKETS - 1;
}

/* The largest value of a bucket. */
static inline uint64_t
null_histogram_upper(int b)
{
	int			shift = b / NULL_HISTOGRAM_SUB - 1;

	if (shift < 0)
		return (uint64_t) b;
	return ((uint64_t) (b % NULL_HISTOGRAM_SUB + NULL_HISTOGRAM_SUB + 1) << shift) - 1;
}

/* Add a latency.  A negative latency, of a clock that stepped, counts as 0. */
static inline void
null_histogram_add(NullHistogram *h, int64_t us)
{
	uint64_t	v = us > 0 ? (uint64_t) us : 0;

	h->samples++;
	if (v > h->max)
		h->max = v;
	h->count[null_histogram_bucket(v)]++;
}

/* An upper bound of the q-quantile, at most 1/16 too high. */
static inline uint64_t
null_histogram_quantile(const NullHistogram *h, double q)
{
	uint64_t	rank = (uint64_t) (q * (double) h->samples);
	uint64_t	seen = 0;

	for (int b = 0; b < NULL_HISTOGRAM_BUCKETS; b++)
	{
		seen += h->count[b];
		if (seen > rank)
			return null_histogram_upper(b) < h->max ? null_histogram_upper(b) : h->max;
	}
	return h->max;
}

#endif							/* IDEM_SINK_HISTOGRAM_H */
