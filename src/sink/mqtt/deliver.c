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
 *		A refusal is told to the relay, also if the connection ends before its batch is
 *		done.  Otherwise an event that the broker refuses, and ends the connection for,
 *		would be sent for ever.
 *
 * A crash leaves messages that the broker has and the relay sends again.  QoS 2 keeps
 * them from being doubled within one session, and each start has its own.
 *
 * MEMORY
 *		The places of a batch are freed with it.  LOCKING: none.
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
	MSinkPlace *place = mid > 0 && mid < MSINK_MIDS ? p->by_mid[mid] : NULL;
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
	msink_remove(&p->flight, place);
	p->n_flight--;
	p->flight_bytes -= place->bytes;
	msink_end_event(p, place, outcome, sqlstate, text);
}

void
msink_start_delivery(MSink *p)
{
	p->lanes = idem_sink_alloc(MSINK_LANE_SLOTS * sizeof(*p->lanes));
	memset(p->lanes, 0, MSINK_LANE_SLOTS * sizeof(*p->lanes));
	p->by_mid = idem_sink_alloc(MSINK_MIDS * sizeof(*p->by_mid));
	memset(p->by_mid, 0, MSINK_MIDS * sizeof(*p->by_mid));
	mosquitto_publish_v5_callback_set(p->mosq, on_answer);
}

/* Put the message in flight.  False: p->failure. */
static bool
publish(MSink *p, MSinkPlace *place, const MSinkMessage *m)
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
	msink_append(&p->flight, place);
	p->n_flight++;
	p->flight_bytes += place->bytes;
	return true;
}

/* Send the first event that is ready, or decide it.  False: p->failure. */
static bool
send_first(MSink *p)
{
	MSinkPlace *place = p->ready.first;
	IdemSinkEvent view = idem_batch_view(place->event);
	MSinkMessage m;
	bool		ok = true;

	msink_remove(&p->ready, place);
	if (msink_make_message(p, &view, &m))
		ok = publish(p, place, &m);
	else
		msink_end_event(p, place, IDEM_PROTO_IMPOSSIBLE, m.sqlstate, m.problem);
	msink_free_message(&m);
	return ok;
}

/* May another message be in flight? */
static bool
has_room(const MSink *p)
{
	return !p->broken && p->n_flight < p->limits.receive && p->flight_bytes < MSINK_MAX_FLIGHT_BYTES;
}

/* Answer the batches that are done, in any order; free them in their order. */
static void
answer_batches(MSink *p)
{
	for (IdemBatch *b = p->in.first; b != NULL && b->number <= p->begun; b = b->next)
		if (b->open == 0)
			idem_intake_answer(&p->in, b);
	while (p->in.first != NULL && p->in.first->answered)
	{
		free(p->in.first->events[0].target);
		idem_intake_drop(&p->in);
	}
}

bool
msink_deliver(MSink *p)
{
	IdemBatch  *b;

	idem_intake_take(&p->in);
	for (b = p->in.first; b != NULL && b->complete; b = b->next)
		if (b->number > p->begun)
		{
			p->begun = b->number;
			msink_begin_batch(p, b);
		}

	/*
	 * the events of a batch that is not complete may stand before the last
	 * SETTLE
	 */
	msink_end_blocks(p, b != NULL ? b->events[0].settles : p->in.settles);
	while (p->ready.first != NULL && has_room(p))
		if (!send_first(p))
			return false;
	answer_batches(p);
	return true;
}

void
msink_end_delivery(MSink *p)
{
	answer_batches(p);
	for (IdemBatch *b = p->in.first; b != NULL && b->number <= p->begun; b = b->next)
	{
		if (b->answered || idem_batch_count_decided(b) == 0)
			continue;
		for (uint32_t i = 0; i < b->count; i++)
			if (b->events[i].outcome == 0 && !b->events[i].delivered)
				idem_intake_decide(&p->in, &b->events[i], IDEM_PROTO_UNKNOWN, "00000", NULL);
		idem_intake_answer(&p->in, b);
	}
}

/* Milliseconds until something has to be looked at. */
static int
time_left(const MSink *p)
{
	/* a quarter: the ping has to be there before the broker gives up at 1.5 */
	int			most = p->limits.keepalive > 0 ? p->limits.keepalive * 250 : 60000;
	const MSinkPlace *oldest = p->flight.first;
	int64_t		left = oldest != NULL ? oldest->sent_at + p->config.timeout - idem_sink_clock() : most;

	return left < 0 ? 0 : left < most ? (int) left : most;
}

bool
msink_await(MSink *p)
{
	const MSinkPlace *oldest;
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
