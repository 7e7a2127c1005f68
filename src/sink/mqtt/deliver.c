/*-------------------------------------------------------------------------
 *
 * deliver.c
 *		Sends messages, and takes the broker's answers.
 *
 * Messages of all complete batches are in flight together, as many as the broker's
 * Receive Maximum and the option in_flight allow.  A batch is answered when all its
 * events are done.
 *
 * INVARIANT
 *		An event is acked only by the answer to its own message.  The library counts
 *		packet identifiers up and does not look whether one is in use; the credit
 *		lets a message be fewer messages behind than there are identifiers.
 *
 * A crash leaves messages that the broker has and the relay sends again.  QoS 2 keeps
 * them from being doubled within one session, and each start has its own.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/deliver.c
 *
 *-------------------------------------------------------------------------
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "sink/mqtt/sink.h"

_Static_assert(MSINK_CREDIT_BATCHES * MSINK_MAX_BATCH_EVENTS < MSINK_MIDS - 1, "a packet identifier would be used twice");

/* A callback of the library: the answer to a message. */
static void
on_answer(struct mosquitto *mosq, void *arg, int mid, int code, const mosquitto_property *properties)
{
	MSink	   *p = arg;
	IdemPlace  *place = mid > 0 && mid < MSINK_MIDS ? p->by_mid[mid] : NULL;
	const char *sqlstate;
	const char *text;
	IdemProtoOutcome outcome;

	(void) mosq;
	(void) properties;
	if (place == NULL)
		return;
	outcome = msink_outcome(code, &sqlstate, &text);
	if (outcome == 0)
	{
		/* of a packet identifier: the session is not what it was */
		(void) idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "the broker answered a message with 0x%02X, which ends the session",
							  (unsigned) code);
		return;
	}
	p->by_mid[mid] = NULL;
	idem_places_remove(&p->flight, place);
	p->n_flight--;
	p->flight_bytes -= place->bytes;
	idem_lanes_end(&p->lanes, place, outcome, sqlstate, text);
}

void
msink_start_delivery(MSink *p)
{
	p->by_mid = idem_sink_alloc(MSINK_MIDS * sizeof(*p->by_mid));
	memset(p->by_mid, 0, MSINK_MIDS * sizeof(*p->by_mid));
	mosquitto_publish_v5_callback_set(p->mosq, on_answer);
}

/* Put the message in flight.  False: p->failure. */
static bool
publish(MSink *p, IdemPlace *place, const MSinkMessage *m)
{
	int			mid = 0;
	int			rc;

	errno = 0;
	rc = mosquitto_publish_v5(p->mosq, &mid, m->topic.data, (int) m->len, m->data, p->config.qos, p->config.retain, m->properties);
	/* the broker may have answered earlier messages before it went away */
	if (rc == MOSQ_ERR_ERRNO || rc == MOSQ_ERR_CONN_LOST || rc == MOSQ_ERR_NO_CONN)
		p->broken = true;
	else if (rc != MOSQ_ERR_SUCCESS)
	{
		p->gone_errno = errno;
		return msink_fail_library(p, rc, "send a message");
	}
	p->by_mid[mid] = place;
	place->sent_at = idem_sink_clock();
	place->bytes = m->topic.len + m->len;
	idem_places_append(&p->flight, place);
	p->n_flight++;
	p->flight_bytes += place->bytes;
	return true;
}

/* Send the first event that is ready, or decide it.  False: p->failure. */
static bool
send_first(MSink *p)
{
	IdemPlace  *place = p->lanes.ready.first;
	IdemSinkEvent view = idem_batch_view(place->event);
	MSinkMessage m;
	bool		ok = true;

	idem_places_remove(&p->lanes.ready, place);
	if (msink_make_message(p, &view, &m))
		ok = publish(p, place, &m);
	else
		idem_lanes_end(&p->lanes, place, IDEM_PROTO_IMPOSSIBLE, m.sqlstate, m.problem);
	msink_free_message(&m);
	return ok;
}

/* May another message be in flight? */
static bool
has_room(const MSink *p)
{
	return !p->broken && p->n_flight < p->limits.receive && p->flight_bytes < MSINK_MAX_FLIGHT_BYTES;
}

bool
msink_deliver(MSink *p)
{
	idem_lanes_take(&p->lanes);
	while (p->lanes.ready.first != NULL && has_room(p))
		if (!send_first(p))
			return false;
	idem_lanes_answer(&p->lanes);
	return true;
}

/* Milliseconds until something has to be looked at. */
static int
time_left(const MSink *p)
{
	/* a quarter: the ping has to be there before the broker gives up at 1.5 */
	int			most = p->limits.keepalive > 0 ? p->limits.keepalive * 250 : 60000;
	const IdemPlace *oldest = p->flight.first;
	int64_t		left = oldest != NULL ? oldest->sent_at + p->config.timeout - idem_sink_clock() : most;

	return left < 0 ? 0 : left < most ? (int) left : most;
}

bool
msink_await(MSink *p)
{
	const IdemPlace *oldest;
	bool		there = msink_pump(p, time_left(p), true);

	if (p->failure.outcome != 0)
		return false;
	if (!there)
		return msink_fail_gone(p);
	oldest = p->flight.first;
	if (oldest != NULL && idem_sink_clock() - oldest->sent_at >= p->config.timeout)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the broker did not answer a message within %d ms", p->config.timeout);
	return true;
}
