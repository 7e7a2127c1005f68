/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the nats sink.
 *
 * A crash leaves nothing here; deliver.c, position.c and publish.c tell what it leaves
 * in the stream.
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

#include "sink/common/template.h"
#include "sink/nats/options.h"
#include "sink/nats/sink.h"

static void stop(NSink *p) __attribute__((noreturn));
static void publish_messages(NSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(NSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

static int64_t
start_deadline(const NSink *p)
{
	return idem_sink_clock() + (p->config.timeout < NSINK_START_TIME ? p->config.timeout : NSINK_START_TIME);
}

/* What happens at start, as a job.  False: p->failure. */
static bool
start_job(void *arg)
{
	NSink	   *p = arg;
	int64_t		deadline = start_deadline(p);

	return nsink_connect(p, deadline) && nsink_read_stream(p, deadline) &&
		(p->config.exactly_once ? nsink_take_over(p, deadline) : nsink_start_publishing(p));
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

/* What the jobs of a LOOK get and give. */
typedef struct Look
{
	NSink	   *p;
	int64_t		deadline;
	bool		told;			/* the server told the user's rights */
} Look;

static bool
look_connect_job(void *arg)
{
	Look	   *l = arg;

	return nsink_connect(l->p, l->deadline);
}

static bool
look_stream_job(void *arg)
{
	Look	   *l = arg;

	return nsink_read_stream(l->p, l->deadline);
}

static bool
look_rights_job(void *arg)
{
	Look	   *l = arg;

	return nsink_check_rights(l->p, l->deadline, &l->told);
}

static bool
look_owner_job(void *arg)
{
	Look	   *l = arg;

	return nsink_check_owner(l->p, l->deadline);
}

/*
 * Say what a step of the LOOK has found, which is p->failure unless ok; then the next
 * step may have a failure of its own.
 */
static void
found(NSink *p, bool ok, const char *worth_knowing)
{
	idem_sink_found(&p->sink, ok, ok ? worth_knowing : p->failure.message);
	memset(&p->failure, 0, sizeof(p->failure));
}

/* Answer LOOK: without connection or stream there is nothing else to look at. */
static void
look(NSink *p)
{
	Look		l = {.p = p, .deadline = start_deadline(p)};
	const char *setup = "Run at the server what sink_setup prints.";
	bool		ok;

	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "connection", "Put right what the message names: servers, a firewall, user mapping, or certificates.");
	if (!nsink_run(p, look_connect_job, &l, NSINK_START_TIME + 5000))
		stop(p);
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "stream", setup);
	if (!nsink_run(p, look_stream_job, &l, NSINK_START_TIME + 5000))
		stop(p);
	idem_sink_found(&p->sink, true, p->stream.warning);
	idem_sink_look_at(&p->sink, "subjects", setup);
	ok = nsink_check_subjects(p);
	found(p, ok, NULL);
	idem_sink_look_at(&p->sink, "rights", setup);
	ok = nsink_run(p, look_rights_job, &l, NSINK_START_TIME + 5000);
	found(p, ok, l.told ? NULL : "the server does not tell them: it refuses a subject that the user may not publish to only when the relay does");
	if (p->config.exactly_once)
	{
		idem_sink_look_at(&p->sink, "position", "Give the user the rights that sink_setup prints, and the relay a subject of its own: the option \"position_subject\".");
		l.deadline = start_deadline(p);
		ok = nsink_run(p, look_owner_job, &l, NSINK_START_TIME + 5000);
		found(p, ok, NULL);
	}
	idem_sink_finish(&p->sink);
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
	if (!check_version(p) || !nsink_configure(p, &hello))
		stop(p);
	if (!p->config.exactly_once)
		idem_lanes_start(&p->lanes, &p->in, p->in.key_order);
	p->in.destination = idem_template_makes_destinations(p->config.subject) ? nsink_destination : NULL;
	p->in.destination_arg = p;
	if (idem_sink_looks(&p->sink))
		look(p);
	if (!nsink_run(p, start_job, p, NSINK_START_TIME + 5000))
		stop(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "nats-taken-over");
	if (p->stream.warning != NULL)
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING, "nats sink: stream \"%s\" %s", p->config.stream, p->stream.warning);
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

/* Exactly once: batch by batch. */
static void
deliver_batches(NSink *p)
{
	for (;;)
	{
		idem_intake_take(&p->in);
		if (p->in.first != NULL && p->in.first->complete)
		{
			if (!nsink_deliver(p))
				stop(p);
		}
		else if (p->in.bye)
			idem_sink_finish(&p->sink);
		else
			idem_sink_wait(&p->sink, -1, 0, -1, true);
	}
}

/* At least once: all messages that may be in flight together. */
static void
publish_messages(NSink *p)
{
	while (nsink_publish(p))
	{
		if (p->in.first == NULL && p->in.bye)
			idem_sink_finish(&p->sink);
		if (!nsink_await_answers(p))
			break;
	}
	idem_lanes_give_up(&p->lanes);
	stop(p);
}

int
main(void)
{
	static NSink p;

	idem_sink_start(&p.sink, "nats");
	greet(&p);
	if (p.config.exactly_once)
		deliver_batches(&p);
	publish_messages(&p);
}
