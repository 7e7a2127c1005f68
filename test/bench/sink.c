/*-------------------------------------------------------------------------
 *
 * sink.c
 *		The sink of the benchmark's latencies: acknowledges everything and
 *		counts how old events are when they are read.
 *
 * Two ages: since the stamp of the commit, and since the time at which the
 * load generator meant to enqueue the event, which it gives as aggregate id
 * (microseconds since 1970).  The second has no coordinated omission: where
 * the server is late, so is every event that should have come meanwhile.
 * An event whose aggregate id is no number is not counted.
 * Whenever nothing came for a while both histograms are written to the file of
 * the option "report", one line per bucket: which, largest value in us, events.
 *
 * A crash leaves the last report.  MEMORY: the framework's; LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/bench/sink.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sink/common/program.h"
#include "sink/null/histogram.h"

#define CREDIT_MESSAGES		1000000
#define CREDIT_BYTES		(64 * 1024 * 1024)
#define QUIET				200 /* ms without an event before a report */

static const IdemSinkOption options[] = {
	{.name = "report", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = NULL}
};

static IdemSink sink;
static NullHistogram since_commit;
static NullHistogram since_due;

static int64_t
wall_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_REALTIME, &ts);
	return (int64_t) ts.tv_sec * 1000000 + ts.tv_nsec / 1000;
}

/* The decimal number that a string is. */
static int64_t
number(IdemProtoStr s)
{
	int64_t		n = 0;

	for (uint32_t i = 0; i < s.len && s.data[i] >= '0' && s.data[i] <= '9'; i++)
		n = n * 10 + (s.data[i] - '0');
	return n;
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

/* Under another name first, so that it is whole once it is there. */
static void
write_report(const char *path)
{
	char		part[1024];
	FILE	   *f;

	snprintf(part, sizeof(part), "%s.part", path);
	f = fopen(part, "w");
	if (f == NULL)
		idem_sink_broken(&sink, "could not write \"%s\"", part);
	write_histogram(f, "commit", &since_commit);
	write_histogram(f, "due", &since_due);
	if (fclose(f) != 0 || rename(part, path) != 0)
		idem_sink_broken(&sink, "could not write \"%s\"", path);
}

static void
take_event(const IdemProtoEvent *e, int64_t now)
{
	int64_t		due = number(e->aggregate_id);

	if (due == 0)
		return;
	if (e->committed_at != 0)
		null_histogram_add(&since_commit, now - e->committed_at);
	null_histogram_add(&since_due, now - due);
}

int
main(void)
{
	IdemProtoHello hello;
	IdemProtoReady ready = {
		.credit_messages = CREDIT_MESSAGES,
		.credit_bytes = CREDIT_BYTES
	};
	IdemProtoFrame frame;
	size_t		size;
	char	   *path;
	int64_t		now = 0;
	int64_t		heard = 0;
	uint64_t	reported = 0;

	idem_sink_start(&sink, "bench");
	hello = idem_sink_hello(&sink, options);
	path = idem_sink_option(&hello, "report", "/dev/null");
	idem_sink_ready(&sink, &ready);
	for (;;)
	{
		while (idem_sink_poll(&sink, &frame, &size))
		{
			if (frame.type == IDEM_PROTO_EVENT)
			{
				take_event(&frame.u.event, now);
				heard = idem_sink_clock();
				idem_sink_grant(&sink, 1, size, false);
			}
			else if (frame.type == IDEM_PROTO_CHUNK)
				idem_sink_grant(&sink, 0, size, false);
			else if (frame.type == IDEM_PROTO_END)
				idem_sink_result(&sink, frame.u.end.batch,
								 0, frame.u.end.count - 1, IDEM_PROTO_ACKED, NULL, NULL);
			else if (frame.type == IDEM_PROTO_BYE)
				idem_sink_finish(&sink);
		}
		idem_sink_wait(&sink, -1, 0, QUIET, true);
		now = wall_clock();
		if (idem_sink_clock() - heard >= QUIET && since_due.samples > reported)
		{
			write_report(path);
			reported = since_due.samples;
		}
	}
}
