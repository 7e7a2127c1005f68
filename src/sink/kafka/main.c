/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the kafka sink.
 *
 * INVARIANT
 *		Only this file ends the program for a fault of the brokers or the options,
 *		and error.c where a job does not end.  The other files return false, with the
 *		reason in p->failure.
 *
 * A crash leaves nothing here; flight.c and position.c tell what it leaves at the
 * brokers.
 *
 * MEMORY
 *		A batch is kept until its verdict, so READY limits a batch's size, and its
 *		credit what is kept.  The credit covers two full transactions: one ends while
 *		the next one's events come in.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <string.h>
#include <sys/eventfd.h>

#include "sink/kafka/options.h"
#include "sink/kafka/sink.h"

#define LEAST_CREDIT	(4 * KSINK_MAX_BATCH_EVENTS)

static void stop(KSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(KSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

/* Answer HELLO. */
static void
greet(KSink *p)
{
	IdemProtoHello hello = idem_sink_hello(&p->sink, idem_sink_kafka_options);
	IdemProtoReady ready = {
		.incarnation = {"", 0},
		.max_batch_events = KSINK_MAX_BATCH_EVENTS,
		.max_batch_bytes = KSINK_MAX_BATCH_BYTES,
		.credit_messages = LEAST_CREDIT,
		.credit_bytes = KSINK_CREDIT_BYTES
	};

	p->in.sink = &p->sink;
	p->in.max_events = ready.max_batch_events;
	p->in.max_bytes = ready.max_batch_bytes;
	p->in.key_order = (hello.flags & IDEM_PROTO_KEY_ORDER) != 0;
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-hello");
	if (!ksink_configure(p, &hello))
		stop(p);
	p->in.destination = p->config.topic_is_fixed ? NULL : ksink_destination;
	p->in.destination_arg = p;
	if (idem_sink_looks(&p->sink))
	{
		idem_sink_found(&p->sink, true, NULL);
		ksink_look(p);
		idem_sink_finish(&p->sink);
	}
	if (!ksink_take_over(p))
		stop(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "kafka-taken-over");
	if (p->config.exactly_once)
	{
		ready.capabilities = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
		if (ready.credit_messages < 2 * p->config.transaction_events)
			ready.credit_messages = 2 * p->config.transaction_events;
	}
	ready.has_position = p->config.exactly_once && p->has_position;
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
	static KSink p;

	idem_sink_start(&p.sink, "kafka");
	p.report_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (p.report_fd < 0)
		idem_sink_broken(&p.sink, "could not make an eventfd: %s", strerror(errno));
	greet(&p);
	for (;;)
	{
		idem_intake_take(&p.in);
		if (p.in.first != NULL && p.in.first->complete)
		{
			if (!ksink_fly(&p))
				stop(&p);
		}
		else if (p.in.bye)
			idem_sink_finish(&p.sink);
		else
			idem_sink_wait(&p.sink, -1, 0, -1, true);
	}
}
