/*-------------------------------------------------------------------------
 *
 * null.c
 *		The sink that acknowledges everything and keeps nothing.
 *
 * The null sink measures the relay: the cost of an event's way out of the
 * server, and the time from the event's commit to the program.  Each read of
 * the socket acknowledges its events in one range.  With stats_interval the
 * sink reports rate and latency in the server log.
 *
 * A crash leaves nothing.  MEMORY: the buffers of sink/common.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/null/null.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sink/common/program.h"
#include "sink/null/histogram.h"
#include "sink/null/options.h"

#define CREDIT_MESSAGES		1000000
#define CREDIT_BYTES		(64 * 1024 * 1024)

typedef struct NullSink
{
	IdemSink	sink;
	uint64_t	batch;			/* batch of the current range */
	uint32_t	first;			/* the current range is first to next - 1 */
	uint32_t	next;
	uint64_t	missing;		/* bytes of the last event's data still to
								 * come */
	uint32_t	owed_messages;	/* credit to give back after this read */
	uint64_t	owed_bytes;
	int64_t		now;			/* time of the last read, us since 1970 */
	long		interval;		/* ms between reports; 0: no reports */
	int64_t		reported_at;	/* idem_sink_clock() of the last report */
	uint64_t	events;			/* since the last report */
	uint64_t	bytes;
	NullHistogram latency;		/* since the last report */
} NullSink;

/* Microseconds since 1970, the unit of the times in an EVENT. */
static int64_t
wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* Acknowledge the complete events of the current range. */
static void
flush_range(NullSink *n)
{
	uint32_t	end = n->missing > 0 ? n->next - 1 : n->next;

	if (end == n->first)
		return;
	IDEM_SINK_FAULT_POINT(&n->sink, "null-acked");
	idem_sink_result(&n->sink, n->batch, n->first, end - 1, IDEM_PROTO_ACKED, NULL, NULL);
	n->first = end;
}

/* Log rate and latency since the last report, and reset the counters. */
static void
report(NullSink *n)
{
	int64_t		ms = idem_sink_clock() - n->reported_at;

	if (n->events > 0)
		idem_sink_log(&n->sink, IDEM_PROTO_LOG_INFO,
					  "null sink: events=%llu bytes=%llu ms=%lld latency_us samples=%llu p50=%llu p90=%llu p99=%llu p999=%llu max=%llu",
					  (unsigned long long) n->events, (unsigned long long) n->bytes,
					  (long long) ms,
					  (unsigned long long) n->latency.samples,
					  (unsigned long long) null_histogram_quantile(&n->latency, 0.5),
					  (unsigned long long) null_histogram_quantile(&n->latency, 0.9),
					  (unsigned long long) null_histogram_quantile(&n->latency, 0.99),
					  (unsigned long long) null_histogram_quantile(&n->latency, 0.999),
					  (unsigned long long) n->latency.max);
	n->events = 0;
	n->bytes = 0;
	memset(&n->latency, 0, sizeof(n->latency));
	n->reported_at = idem_sink_clock();
}

/* Add the event to the current range; an event of a new batch opens a range. */
static void
take_event(NullSink *n, const IdemProtoEvent *e)
{
	if (e->batch != n->batch)
	{
		n->batch = e->batch;
		n->first = n->next = 0;
	}
	n->next = e->index + 1;
	n->missing = (uint64_t) e->headers_len + e->payload_len - e->chunk_len;
	n->owed_messages++;
	n->events++;
	if (e->committed_at != 0 && n->interval > 0)
		null_histogram_add(&n->latency, n->now - e->committed_at);
}

/* Count the frame's events and bytes; act on the end of a batch and on BYE. */
static void
take_frame(NullSink *n, const IdemProtoFrame *frame, size_t size)
{
	switch (frame->type)
	{
		case IDEM_PROTO_EVENT:
			take_event(n, &frame->u.event);
			n->owed_bytes += size;
			n->bytes += size;
			break;
		case IDEM_PROTO_CHUNK:
			n->missing -= frame->u.chunk.len;
			n->owed_bytes += size;
			n->bytes += size;
			break;
		case IDEM_PROTO_END:
			flush_range(n);
			break;
		case IDEM_PROTO_BYE:
			flush_range(n);
			if (n->interval > 0)
				report(n);
			idem_sink_finish(&n->sink);
		default:
			break;				/* no SETTLE comes: all events are acked */
	}
}

/* Milliseconds until the next report; -1 if there are no reports. */
static int
until_report(const NullSink *n)
{
	int64_t		left;

	if (n->interval == 0)
		return -1;
	left = n->reported_at + n->interval - idem_sink_clock();
	return left > 0 ? (int) left : 0;
}

/* Acknowledge the events of each read in one range, which keeps answers few. */
static void
serve(NullSink *n)
{
	IdemProtoFrame frame;
	size_t		size;

	for (;;)
	{
		while (idem_sink_poll(&n->sink, &frame, &size))
			take_frame(n, &frame, size);
		flush_range(n);
		idem_sink_grant(&n->sink, n->owed_messages, n->owed_bytes, false);
		n->owed_messages = 0;
		n->owed_bytes = 0;
		idem_sink_wait(&n->sink, -1, 0, until_report(n), true);
		n->now = wall_clock();
		if (until_report(n) == 0)
			report(n);
	}
}

int
main(void)
{
	static NullSink n;
	IdemProtoHello hello;
	IdemProtoReady ready = {
		.credit_messages = CREDIT_MESSAGES,
		.credit_bytes = CREDIT_BYTES
	};

	idem_sink_start(&n.sink, "null");
	hello = idem_sink_hello(&n.sink, idem_sink_null_options);
	n.interval = idem_sink_option_int(&hello, "stats_interval", 0);
	n.reported_at = idem_sink_clock();
	if (idem_sink_looks(&n.sink))
	{
		idem_sink_found(&n.sink, true, NULL);
		idem_sink_finish(&n.sink);
	}
	idem_sink_ready(&n.sink, &ready);
	serve(&n);
}
