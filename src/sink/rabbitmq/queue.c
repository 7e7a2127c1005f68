/*-------------------------------------------------------------------------
 *
 * queue.c
 *		The mode for queues: publishes events to exchanges, at least once.
 *
 * The messages of the batches that are there go in waves: a wave is sent, and its answers
 * are awaited.  With key order a wave has no key twice, because the server may refuse a
 * message and take the next one.
 *
 * The server closes the channel for a message that it cannot take at all (its exchange
 * is missing, the user may not publish there, it is too large), drops what came behind
 * it, and does not say which message it was.  If it names the exchange, the events of this
 * exchange are refused.  Otherwise the messages that were in flight go again one by one.
 *
 * INVARIANT
 *		An event is acked only if its message was confirmed, and not returned.
 *
 * A crash leaves messages whose events the worker sends again, with the same ids.
 *
 * MEMORY
 *		Targets are freed with their batch.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/queue.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "sink/common/template.h"
#include "sink/rabbitmq/queue.h"

#define LOOK_TIME	200			/* ms between two looks at the clock, and at
								 * heartbeats */

static BQueue queue;

/* A job: what happens at start. */
static bool
start_job(void *arg)
{
	BSink	   *p = arg;

	return bqueue_connect(p, &queue) && bqueue_open_channel(p, &queue) && bqueue_check_exchange(p, &queue);
}

/* The library may be another one than at build.  False: p->failure */
static bool
check_version(BSink *p)
{
	if (amqp_version_number() >= BQUEUE_LEAST_VERSION)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000", "librabbitmq is version %s; the rabbitmq sink needs %s or later",
						  amqp_version(), BQUEUE_LEAST_VERSION_TEXT);
}

static bool
start(BSink *p, IdemProtoReady *ready)
{
	queue.wave = idem_sink_alloc(BQUEUE_MAX_WAVE * sizeof(queue.wave[0]));
	if (!p->config.exchange_is_fixed || idem_template_makes_destinations(p->config.routing_key))
		p->in.destination = bqueue_destination;
	p->in.destination_arg = p;
	ready->max_batch_events = BQUEUE_MAX_BATCH_EVENTS;
	ready->max_batch_bytes = BQUEUE_MAX_BATCH_BYTES;
	ready->credit_messages = BQUEUE_CREDIT_BATCHES * BQUEUE_MAX_BATCH_EVENTS;
	ready->credit_bytes = BQUEUE_CREDIT_BATCHES * BQUEUE_MAX_BATCH_BYTES;
	return check_version(p) && bsink_run(p, start_job, p, bsink_start_time(p) + BSINK_MARGIN);
}

static bool
connect_job(void *arg)
{
	BSink	   *p = arg;

	return bqueue_connect(p, &queue) && bqueue_open_channel(p, &queue);
}

static bool
exchange_job(void *arg)
{
	return bqueue_check_exchange(arg, &queue);
}

static bool
look(BSink *p)
{
	idem_sink_look_at(&p->sink, "connection",
					  "Put right what the message names: servers, a firewall, user mapping, vhost and its permissions, or certificates.");
	if (!check_version(p) || !bsink_run(p, connect_job, p, bsink_start_time(p) + BSINK_MARGIN))
		return false;
	idem_sink_found(&p->sink, true, NULL);
	idem_sink_look_at(&p->sink, "exchange", "Run at the server what sink_setup prints.");
	if (!bsink_run(p, exchange_job, p, bsink_start_time(p) + BSINK_MARGIN))
		return false;
	idem_sink_found(&p->sink, true, p->config.exchange_is_fixed ? NULL :
					"exchanges whose names come from events are looked at only when the relay publishes to them");
	idem_sink_look_at(&p->sink, "rights and bindings", "Run at the server what sink_setup prints.");
	idem_sink_found(&p->sink, true,
					"the server does not tell them: whether the user may publish, and whether a queue is bound, shows only when the relay publishes");
	return true;
}

/* Put the events that may be in flight together into the wave. */
static void
make_wave(BSink *p)
{
	BQueue	   *q = &queue;
	uint32_t	most = q->suspects > 0 ? 1 : BQUEUE_MAX_WAVE;
	IdemKeys	keys = {NULL, 0, 0, 0};

	for (IdemBatch *b = p->in.first; b != NULL && b->complete && q->n_wave < most; b = b->next)
	{
		bqueue_prepare(p, b);
		for (uint32_t i = 0; i < b->count && q->n_wave < most; i++)
		{
			IdemBatchEvent *e = &b->events[i];

			if (e->outcome != 0 || e->delivered)
				continue;
			if (idem_intake_is_blocked(&p->in, e))
			{
				idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
				continue;
			}
			if (p->in.key_order)
			{
				/* an earlier event of the key is in this wave */
				if (idem_keys_has(&keys, e))
					continue;
				idem_keys_add(&keys, e);
			}
			q->wave[q->n_wave++] = e;
		}
	}
	idem_keys_free(&keys);
}

/* How an attempt at a wave ended. */
typedef enum WaveEnd
{
	WAVE_ANSWERED,
	WAVE_CLOSED,				/* the server has closed the channel */
	WAVE_BLOCKED				/* the server takes nothing for now; say so,
								 * and go on */
} WaveEnd;

typedef struct Wave
{
	BSink	   *p;
	int64_t		begun;
	WaveEnd		end;
} Wave;

/* The server has said nothing for the time that the option allows.  False: p->failure */
static bool
give_up(BSink *p)
{
	if (queue.blocked[0] != '\0')
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53000", "the server blocks connections that publish: %s", queue.blocked);
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the server confirmed nothing for %d ms", p->config.timeout);
}

/* Send while the socket takes bytes: the library would wait without end.  False: p->failure */
static bool
send_some(Wave *w, struct pollfd *socket)
{
	BQueue	   *q = &queue;

	for (int n = 0; n < 100 && q->n_sent < q->n_wave; n++)
	{
		if (poll(socket, 1, 0) != 1 || (socket->revents & POLLOUT) == 0)
			break;
		if (!bqueue_send_next(w->p, q))
			return false;
	}
	return true;
}

/*
 * A job: send the wave and await its answers.  After the option's timeout nothing more of
 * it is sent, so the job has an end that can be told beforehand.
 */
static bool
wave_job(void *arg)
{
	Wave	   *w = arg;
	BSink	   *p = w->p;
	BQueue	   *q = &queue;
	int64_t		heard = idem_sink_clock();

	w->end = WAVE_ANSWERED;
	while (q->open > 0 || q->n_sent < q->n_wave)
	{
		int64_t		now = idem_sink_clock();
		bool		may_send = q->n_sent < q->n_wave && q->blocked[0] == '\0';
		struct pollfd socket = {.fd = amqp_get_sockfd(q->conn)};
		bool		any;

		if (now - w->begun > p->config.timeout && q->n_sent > 0)
		{
			may_send = false;
			if (q->open == 0)
				return true;
		}
		socket.events = may_send ? POLLIN | POLLOUT : POLLIN;
		if (!amqp_data_in_buffer(q->conn))
			(void) poll(&socket, 1, LOOK_TIME);
		if (!bqueue_take_frames(p, q, &any))
			return false;
		if (any)
			heard = now;
		if (q->closed.code != 0)
		{
			w->end = WAVE_CLOSED;
			return true;
		}
		if (q->blocked[0] != '\0' && !q->told_blocked)
		{
			w->end = WAVE_BLOCKED;
			return true;
		}
		if (may_send && q->blocked[0] == '\0' && !send_some(w, &socket))
			return false;
		if (now - heard > p->config.timeout || now - w->begun > (int64_t) 3 * p->config.timeout)
			return give_up(p);
	}
	return true;
}

/* Does the server name the event's exchange as the one that it does not take? */
static bool
is_named(const BQueueReply *reply, const IdemBatchEvent *e)
{
	char		named[BQUEUE_MAX_NAME + 32];

	if (reply->code != AMQP_NOT_FOUND && reply->code != AMQP_ACCESS_REFUSED)
		return false;
	snprintf(named, sizeof(named), "exchange '%s' in vhost", e->target->exchange);
	/* rights on topics are an event's */
	return strstr(reply->text, named) != NULL && strstr(reply->text, "access to topic") == NULL;
}

/* Decide the event that the server does not take. */
static void
refuse(BSink *p, IdemBatchEvent *e, const BQueueReply *reply)
{
	idem_intake_decide(&p->in, e, IDEM_PROTO_REJECTED, reply->code == AMQP_NOT_FOUND ? "42704" : reply->code == AMQP_ACCESS_REFUSED ? "42501" :
					   reply->code == AMQP_PRECONDITION_FAILED ? "54000" : "58000", reply->text);
}

/*
 * The server has closed the channel because of one of the messages in flight: decide
 * its event, or make the events suspects.  False: p->failure
 */
static bool
blame(BSink *p)
{
	BQueue	   *q = &queue;
	uint32_t	in_flight = 0;
	bool		found = false;

	for (uint32_t i = q->lowest; i < q->n_sent; i++)
	{
		IdemBatchEvent *e = q->wave[i];

		if (!e->sent)
			continue;
		in_flight++;
		if (!is_named(&q->closed, e))
			continue;
		if (p->config.exchange_is_fixed)
			return bqueue_fail_for_exchange(p, &q->closed);
		refuse(p, e, &q->closed);
		found = true;
	}
	if (in_flight == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the server closed the channel: %s", q->closed.text);
	if (!found && in_flight == 1)
	{
		for (uint32_t i = q->lowest; i < q->n_sent; i++)
			if (q->wave[i]->sent)
				refuse(p, q->wave[i], &q->closed);
	}
	else if (!found)
		q->suspects = in_flight;
	return true;
}

static bool
reopen_job(void *arg)
{
	return bqueue_open_channel(arg, &queue);
}

/* Send a wave and take its answers.  False: p->failure */
static bool
deliver_wave(BSink *p)
{
	BQueue	   *q = &queue;
	Wave		w = {.p = p, .begun = idem_sink_clock()};
	static Wave job;

	job = w;
	for (;;)
	{
		/* 3 timeouts at most, and what is left of one when it was noticed */
		if (!bsink_run(p, wave_job, &job, 4 * p->config.timeout + BSINK_MARGIN))
			return false;
		if (job.end != WAVE_BLOCKED)
			break;
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING, "rabbitmq sink: the server blocks connections that publish: %s", q->blocked);
		q->told_blocked = true;
	}
	if (q->suspects > 0)
		q->suspects--;
	if (job.end == WAVE_CLOSED)
	{
		bool		ok = blame(p);

		bqueue_forget_wave(q);
		return ok && bsink_run(p, reopen_job, p, p->config.timeout + BSINK_MARGIN);
	}
	bqueue_forget_wave(q);
	return true;
}

/* Answer the batches of which all events have their outcomes. */
static void
answer(BSink *p)
{
	for (;;)
	{
		IdemBatch  *b = p->in.first;

		if (b == NULL || !b->complete)
			return;
		for (uint32_t i = 0; i < b->count; i++)
			if (b->events[i].outcome == 0 && !b->events[i].delivered)
				return;
		idem_intake_answer(&p->in, b);
		bqueue_free_targets(b);
		idem_intake_drop(&p->in);
	}
}

static bool
deliver(BSink *p)
{
	make_wave(p);
	if (queue.n_wave > 0 && !deliver_wave(p))
		return false;
	answer(p);
	return true;
}

static int
descriptor(const BSink *p)
{
	(void) p;
	return amqp_get_sockfd(queue.conn);
}

/* A job: send and take heartbeats; notice that the server ends the connection. */
static bool
tend_job(void *arg)
{
	BSink	   *p = arg;
	bool		any;

	return bqueue_take_frames(p, &queue, &any) &&
		(queue.closed.code == 0 ||
		 idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the server closed the channel: %s", queue.closed.text));
}

static bool
tend(BSink *p)
{
	return bsink_run(p, tend_job, p, p->config.timeout + BSINK_MARGIN);
}

const BSinkMode bsink_queue_mode = {
	.look = look,
	.start = start,
	.deliver = deliver,
	.descriptor = descriptor,
	.tend = tend
};
