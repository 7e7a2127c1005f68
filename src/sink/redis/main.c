/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the redis sink, which adds events to streams of a
 *		Redis or Valkey server.
 *
 * One script of the server adds a batch and stores the relay's position.  Batches are
 * added one after the other; frames that come meanwhile become further batches.
 *
 * INVARIANT
 *		Only this file ends the program for a fault of the server or the options,
 *		and connect.c where a job does not end.  The other files return false, with
 *		the reason in p->failure.
 *
 * A crash leaves nothing here; takeover.c and script.h tell what it leaves at the
 * server.
 *
 * MEMORY
 *		A batch is kept until its verdict, so READY limits a batch's size, and its
 *		credit what is kept.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <string.h>

#include "sink/redis/options.h"
#include "sink/redis/sink.h"

/* The credit covers what one wait for the disk holds up, a second by default. */
#define CREDIT_MESSAGES		100000
#define CREDIT_BYTES		(16 * RSINK_MAX_BATCH_BYTES)

static void stop(RSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(RSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

/* Answer LOOK: the take-over is left out, and nothing is written. */
static void
look(RSink *p)
{
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "server, login and position",
					  "Put right what the message names: servers, the user mapping, or what sink_setup prints.");
	if (!rsink_take_over(p, false))
		stop(p);
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_finish(&p->sink);
}

/* Answer HELLO. */
static void
greet(RSink *p)
{
	IdemProtoHello hello = idem_sink_hello(&p->sink, idem_sink_redis_options);
	IdemProtoReady ready = {
		.incarnation = {"", 0},
		.max_batch_events = RSINK_MAX_BATCH_EVENTS,
		.max_batch_bytes = RSINK_MAX_BATCH_BYTES,
		.credit_messages = CREDIT_MESSAGES,
		.credit_bytes = CREDIT_BYTES
	};

	p->in.sink = &p->sink;
	p->in.max_events = ready.max_batch_events;
	p->in.max_bytes = ready.max_batch_bytes;
	p->in.key_order = (hello.flags & IDEM_PROTO_KEY_ORDER) != 0;
	if (!rsink_configure(p, &hello))
		stop(p);
	p->in.destination = p->config.stream_is_fixed ? NULL : rsink_destination;
	p->in.destination_arg = p;
	if (idem_sink_looks(&p->sink))
		look(p);
	if (!rsink_take_over(p, false))
		stop(p);
	p->stored = p->found;
	if (p->config.exactly_once)
		ready.capabilities = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
	ready.has_position = p->config.exactly_once && p->stored.incarnation[0] != '\0';
	if (ready.has_position)
	{
		ready.incarnation.data = p->stored.incarnation;
		ready.incarnation.len = (uint32_t) strlen(p->stored.incarnation);
		ready.position = p->stored.at;
	}
	idem_sink_ready(&p->sink, &ready);
}

int
main(void)
{
	static RSink p;

	idem_sink_start(&p.sink, "redis");
	greet(&p);
	for (;;)
	{
		idem_intake_take(&p.in);
		if (p.in.first != NULL && p.in.first->complete)
		{
			if (!rsink_deliver(&p))
				stop(&p);
		}
		else if (p.in.bye)
			idem_sink_finish(&p.sink);
		else if (idem_sink_wait(&p.sink, p.conn != NULL ? p.conn->fd : -1, POLLIN, -1, true) != 0 && rsink_is_lost(&p))

			/*
			 * Servers end the connections of idle clients.  The next batch
			 * makes a new one, which compares the position.
			 */
			rsink_disconnect(&p);
	}
}
