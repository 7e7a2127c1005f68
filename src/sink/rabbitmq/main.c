/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the rabbitmq sink.
 *
 * What a crash leaves is told where the mode delivers.
 *
 * INVARIANT
 *		Only this file ends the program for a fault of the server or the options,
 *		and bsink_run where a job does not end.  The other files return false, with
 *		the reason in p->failure.
 *
 * MEMORY
 *		A batch is kept until it is answered, so READY limits its size, and the
 *		credit what is kept.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>

#include "sink/rabbitmq/options.h"
#include "sink/rabbitmq/sink.h"

static void stop(BSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(BSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

/* The mode that the options ask for. */
static const BSinkMode *
choose_mode(const BSink *p)
{
	return p->config.stream != NULL ? &bsink_stream_mode : &bsink_queue_mode;
}

/* Answer HELLO or LOOK. */
static const BSinkMode *
greet(BSink *p)
{
	IdemProtoHello hello = idem_sink_hello(&p->sink, idem_sink_rabbitmq_options);
	IdemProtoReady ready = {.incarnation = {"", 0}};
	const BSinkMode *mode;

	p->in.sink = &p->sink;
	p->in.key_order = (hello.flags & IDEM_PROTO_KEY_ORDER) != 0;
	if (!bsink_configure(p, &hello))
		stop(p);
	mode = choose_mode(p);
	if (idem_sink_looks(&p->sink))
	{
		idem_sink_found(&p->sink, true, NULL);
		if (!mode->look(p))
			stop(p);
		idem_sink_finish(&p->sink);
	}
	if (!mode->start(p, &ready))
		stop(p);
	p->in.max_events = ready.max_batch_events;
	p->in.max_bytes = ready.max_batch_bytes;
	idem_sink_ready(&p->sink, &ready);
	return mode;
}

int
main(void)
{
	static BSink p;
	const BSinkMode *mode;
	int			half_a_heartbeat;

	idem_sink_start(&p.sink, "rabbitmq");
	mode = greet(&p);
	half_a_heartbeat = p.config.heartbeat * 500;
	for (int64_t next = idem_sink_clock() + half_a_heartbeat;;)
	{
		int64_t		now = idem_sink_clock();

		idem_intake_take(&p.in);
		if (p.in.first != NULL && p.in.first->complete)
		{
			if (!mode->deliver(&p))
				stop(&p);
		}
		else if (p.in.bye)
			idem_sink_finish(&p.sink);
		else if (now >= next || idem_sink_wait(&p.sink, mode->descriptor(&p), POLLIN, (int) (next - now), true) != 0)
		{
			if (!mode->tend(&p))
				stop(&p);
			next = idem_sink_clock() + half_a_heartbeat;
		}
	}
}
