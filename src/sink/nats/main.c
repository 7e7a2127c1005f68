/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the nats sink.
 *
 * A crash leaves nothing here; deliver.c and position.c tell what it leaves in the
 * stream.
 *
 * MEMORY
 *		A batch is kept until its verdict, so READY limits its size, and the credit
 *		what is kept.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "sink/nats/options.h"
#include "sink/nats/sink.h"

static void stop(NSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(NSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

/* What happens at start, as a job.  False: p->failure. */
static bool
start_job(void *arg)
{
	NSink	   *p = arg;
	int64_t		deadline = idem_sink_clock() + (p->config.timeout < NSINK_START_TIME ? p->config.timeout : NSINK_START_TIME);

	return nsink_connect(p, deadline) && nsink_read_stream(p, deadline) &&
		(!p->config.exactly_once || nsink_take_over(p, deadline));
}

/* The library may be another one than at build. */
static bool
check_version(NSink *p)
{
	if (nats_GetVersionNumber() >= NSINK_LEAST_VERSION)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "libnats is version %s; the nats sink needs %s or later",
						  nats_GetVersion(), NSINK_LEAST_VERSION_TEXT);
}

/* A position that is never renewed goes with the other messages. */
static void
warn_of_age(NSink *p)
{
	if (p->config.exactly_once && p->stream.max_age > 0 && !p->stream.keeps_position)
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING,
					  "nats sink: stream \"%s\" has max_age and lacks allow_rollup_hdrs or allow_msg_ttl: the position of a relay that sends nothing for that long is deleted",
					  p->config.stream);
}

/* Answer HELLO. */
static void
greet(NSink *p)
{
	IdemProtoHello hello = idem_sink_hello(&p->sink, idem_sink_nats_options);
	IdemProtoReady ready = {
		.incarnation = {"", 0},
		.max_batch_events = NSINK_MAX_BATCH_EVENTS,
		.max_batch_bytes = NSINK_MAX_BATCH_BYTES,
		.credit_messages = NSINK_CREDIT_BATCHES * NSINK_MAX_BATCH_EVENTS,
		.credit_bytes = NSINK_CREDIT_BATCHES * NSINK_MAX_BATCH_BYTES
	};

	p->in.sink = &p->sink;
	p->in.max_events = ready.max_batch_events;
	p->in.max_bytes = ready.max_batch_bytes;
	p->in.key_order = (hello.flags & IDEM_PROTO_KEY_ORDER) != 0;
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-hello");
	if (!check_version(p) || !nsink_configure(p, &hello) || !nsink_run(p, start_job, p, NSINK_START_TIME + 5000))
		stop(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-taken-over");
	warn_of_age(p);
	if (p->config.exactly_once)
		ready.capabilities = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
	ready.has_position = p->has_position;
	if (ready.has_position)
	{
		ready.incarnation.data = p->stored_incarnation;
		ready.incarnation.len = (uint32_t) strlen(p->stored_incarnation);
		ready.position = p->stored;
	}
	idem_sink_ready(&p->sink, &ready);
}

int
main(void)
{
	static NSink p;

	idem_sink_start(&p.sink, "nats");
	greet(&p);
	for (;;)
	{
		idem_intake_take(&p.in);
		if (p.in.first != NULL && p.in.first->complete)
		{
			if (!nsink_deliver(&p))
				stop(&p);
		}
		else if (p.in.bye)
			idem_sink_finish(&p.sink);
		else
			idem_sink_wait(&p.sink, -1, 0, -1, true);
	}
}
