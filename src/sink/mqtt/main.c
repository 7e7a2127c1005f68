/*-------------------------------------------------------------------------
 *
 * main.c
 *		The life cycle of the mqtt sink, which publishes events to a broker of MQTT 5.
 *
 * INVARIANT
 *		Only this file ends the program for a fault of the broker or the options, and
 *		server.c where a job does not end.  The other files return false, with the
 *		reason in p->failure.
 *
 * A crash leaves nothing here; deliver.c tells what it leaves at the broker.
 *
 * MEMORY
 *		A batch is kept until its results, so READY limits its size, and the credit
 *		what is kept.  LOCKING: see sink.h.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "sink/common/template.h"
#include "sink/mqtt/options.h"
#include "sink/mqtt/sink.h"

static void stop(MSink *p) __attribute__((noreturn));

/* End the program because of p->failure. */
static void
stop(MSink *p)
{
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

/* The library may be another one than at build. */
static bool
check_version(MSink *p)
{
	int			major;
	int			minor;
	int			revision;

	if (mosquitto_lib_version(&major, &minor, &revision) >= MSINK_LEAST_VERSION)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "libmosquitto is version %d.%d.%d; the mqtt sink needs %s or later",
						  major, minor, revision, MSINK_LEAST_VERSION_TEXT);
}

/*
 * Answer LOOK, with a client id of its own: the relay's would end the connection of a
 * relay that is at work.
 */
static void
look(MSink *p)
{
	char		id[64];
	uint64_t	bits = 0;

	if (getrandom(&bits, sizeof(bits), 0) != (ssize_t) sizeof(bits))
		bits = (uint64_t) idem_sink_clock();
	snprintf(id, sizeof(id), "%.24s-look-%016" PRIx64, p->config.client_id, bits);
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "connection", "Put right what the message names: servers, a firewall, user mapping, or certificates.");
	if (!msink_connect(p, id))
		stop(p);
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "limits of the broker", "Change the options that the message names, or the broker's settings, as sink_setup prints them.");
	if (!msink_check_limits(p))
		stop(p);
	idem_sink_found(&p->sink, true, p->limits.receive < p->config.in_flight ?
					"the broker takes fewer messages without an answer than the option \"in_flight\" says: its max_inflight_messages" : NULL);
	idem_sink_look_at(&p->sink, "rights", NULL);
	idem_sink_found(&p->sink, true, "MQTT does not tell them: the broker refuses a topic that the user may not publish to only when the relay does");
	(void) mosquitto_disconnect_v5(p->mosq, 0, NULL);
	idem_sink_finish(&p->sink);
}

/* Answer HELLO. */
static void
greet(MSink *p)
{
	IdemProtoHello hello = idem_sink_hello(&p->sink, idem_sink_mqtt_options);
	IdemProtoReady ready = {
		.incarnation = {"", 0},
		.max_batch_events = MSINK_MAX_BATCH_EVENTS,
		.max_batch_bytes = MSINK_MAX_BATCH_BYTES,
		.credit_messages = MSINK_CREDIT_BATCHES * MSINK_MAX_BATCH_EVENTS,
		.credit_bytes = MSINK_CREDIT_BATCHES * MSINK_MAX_BATCH_BYTES
	};

	p->in.sink = &p->sink;
	p->in.max_events = ready.max_batch_events;
	p->in.max_bytes = ready.max_batch_bytes;
	idem_lanes_start(&p->lanes, &p->in, (hello.flags & IDEM_PROTO_KEY_ORDER) != 0);
	(void) mosquitto_lib_init();
	if (!check_version(p) || !msink_configure(p, &hello))
		stop(p);
	if (idem_sink_looks(&p->sink))
		look(p);
	p->in.destination = idem_template_makes_destinations(p->config.topic) ? msink_destination : NULL;
	p->in.destination_arg = p;
	if (!msink_connect(p, p->config.client_id) || !msink_check_limits(p))
		stop(p);
	msink_start_delivery(p);
	idem_sink_ready(&p->sink, &ready);
}

int
main(void)
{
	static MSink p;

	idem_sink_start(&p.sink, "mqtt");
	greet(&p);
	for (;;)
	{
		if (!msink_deliver(&p))
			break;
		if (p.in.first == NULL && p.in.bye)
		{
			(void) mosquitto_disconnect_v5(p.mosq, 0, NULL);
			idem_sink_finish(&p.sink);
		}
		if (!msink_await(&p))
			break;
	}
	idem_lanes_give_up(&p.lanes);
	stop(&p);
}
