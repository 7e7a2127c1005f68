/*-------------------------------------------------------------------------
 *
 * sink.c
 *		The sink of the benchmark's latencies: acknowledges everything and
 *		counts how old events are when they are read.
 *
 * Whenever nothing came for a while the ages of ages.h are written to the file of
 * the option "report".
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

#include "ages.h"
#include "sink/common/program.h"

#define CREDIT_MESSAGES		1000000
#define CREDIT_BYTES		(64 * 1024 * 1024)
#define QUIET				200 /* ms without an event before a report */

static const IdemSinkOption options[] = {
	{.name = "report", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = NULL}
};

static IdemSink sink;

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
				Birth		birth = birth_of(&frame.u.event);

				count_age(&birth, now);
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
			if (!write_ages(path))
				idem_sink_broken(&sink, "could not write \"%s\"", path);
			reported = since_due.samples;
		}
	}
}
