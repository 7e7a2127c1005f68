/*-------------------------------------------------------------------------
 *
 * publish.c
 *		At least once: publishes message by message, of each key one at a time.
 *
 * Each message has the event's id as Nats-Msg-Id: a repeat within the stream's
 * duplicate_window is dropped.  Messages of all complete batches are in flight
 * together.  The server answers each by itself, and may refuse one and take the next;
 * so the next message of a key is sent when the one before it is answered
 * (common/lane.c).
 *
 * A job makes and sends messages, because the library waits for a socket that takes no
 * bytes.  Answers gather in the library's subscription.  While few messages are in
 * flight the job waits for them; otherwise the program looks every millisecond, because
 * a thread that each answer wakes costs half as much as the rest.
 *
 * INVARIANT
 *		An event is acked only by an answer that names it.  An answer names the event and
 *		not the message, since a message may go twice.
 *
 * A crash leaves messages whose events the worker sends again, with the same ids.
 *
 * LOCKING
 *		None: the main thread touches nothing of a job while it runs.
 * MEMORY
 *		An answer is freed once it was acted on.  There are not more than messages in
 *		flight, but for those that went twice.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/publish.c
 *
 *-------------------------------------------------------------------------
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/nats/sink.h"

/*
 * Messages without an answer; more brought nothing.  At HALF the flight is filled up
 * again: many messages in one job cost less than one by one.
 */
#define MAX_FLIGHT	1000
#define HALF		(MAX_FLIGHT / 2)
#define FEW			64			/* messages in flight whose answers a job
								 * awaits */
#define SHORT_TIME	1			/* ms between two looks at the answers */
#define LONG_TIME	500			/* ms after which a message without an answer
								 * is looked at */

/* What came of the messages in flight. */
static struct
{
	natsSubscription *sub;		/* as long as the connection */
	natsMsg    *list[MAX_FLIGHT];
	uint32_t	n;
	bool		lost;			/* an answer said that no stream has the
								 * subject; the library keeps it to itself */
}			answers;

/* Messages that a job makes and sends. */
typedef struct Flock
{
	NSink	   *p;
	uint32_t	n;
	uint32_t	done;			/* sent, or without a message */
	IdemPlace  *places[MAX_FLIGHT];
	natsMsg    *messages[MAX_FLIGHT];
	NSinkProblem *problems[MAX_FLIGHT]; /* why there is none; NULL: it is sent */
} Flock;

/*
 * Free messages.  The library does it in a thread of its own, which is woken by the
 * first one: so many are freed at once.
 */
static void
free_messages(natsMsg **list, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		natsMsg_Destroy(list[i]);
}

bool
nsink_start_publishing(NSink *p)
{
	char		subject[NSINK_MAX_SUBJECT];
	natsStatus	s = natsInbox_Create(&p->inbox);

	if (s == NATS_OK)
	{
		snprintf(subject, sizeof(subject), "%s.>", p->inbox);
		s = natsConnection_SubscribeSync(&answers.sub, p->nc, subject);
	}
	return s == NATS_OK || nsink_fail(p, s, "subscribe to the answers");
}

/* Gather so many answers; wait for them for about so many ms.  False: p->failure. */
static bool
gather(NSink *p, uint32_t wanted, int timeout)
{
	int64_t		end = idem_sink_clock() + timeout;

	while (answers.n < wanted && (timeout == 0 || idem_sink_clock() <= end))
	{
		natsStatus	s = natsSubscription_NextMsg(&answers.list[answers.n], answers.sub, timeout);

		if (s == NATS_OK)
			answers.n++;
		else if (s == NATS_NO_RESPONDERS)
			answers.lost = true;
		else
			return s == NATS_TIMEOUT || idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "could not get the server's acknowledgements: %s",
													   natsStatus_GetText(s));
	}
	return true;
}

/* The event in flight that the answer is for, or NULL. */
static IdemPlace *
place_of(NSink *p, natsMsg *reply)
{
	const char *name = natsMsg_GetSubject(reply) + strlen(p->inbox) + 1;
	char	   *dot;
	uint64_t	number = strtoull(name, &dot, 10);
	unsigned long index = *dot == '.' ? strtoul(dot + 1, NULL, 10) : UINT32_MAX;
	IdemBatch  *b = p->in.first;

	while (b != NULL && b->number < number)
		b = b->next;
	if (b == NULL || b->number != number || b->places == NULL || index >= b->count || !b->events[index].sent)
		return NULL;
	return &b->places[index];
}

/* The message is not in flight any more. */
static void
land(NSink *p, IdemPlace *place)
{
	place->event->sent = false;
	idem_places_remove(&p->flight, place);
	p->n_flight--;
}

/* Act on an answer.  False: p->failure. */
static bool
take_answer(NSink *p, natsMsg *reply)
{
	IdemPlace  *place = place_of(p, reply);
	NSinkAnswer a;

	if (place == NULL)
		return true;
	nsink_read_answer(reply, &a);
	if (nsink_is_out(&a))
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53000", "stream \"%s\" takes no message: %s", p->config.stream, a.text);
	land(p, place);
	idem_lanes_end(&p->lanes, place, IDEM_PROTO_REJECTED, a.code == 0 ? NULL : a.code == NSINK_NO_STREAM ? "42704" :
				   a.code == NSINK_TOO_LARGE ? "54000" : "22023", a.text);
	return true;
}

/* Act on the answers that have come, also if one of them ends the program.  False: p->failure. */
static bool
take_answers(NSink *p)
{
	bool		ok = gather(p, MAX_FLIGHT, 0);

	if (answers.n > 0)
		IDEM_SINK_FAULT_POINT(&p->sink, "nats-answers-come");
	for (uint32_t i = 0; i < answers.n; i++)
		ok = take_answer(p, answers.list[i]) && ok;
	free_messages(answers.list, answers.n);
	answers.n = 0;
	return ok;
}

/* Make and send message number i; or note why it has none. */
static natsStatus
send_message(Flock *f, uint32_t i)
{
	const NSink *p = f->p;
	const IdemBatchEvent *e = f->places[i]->event;
	NSinkProblem problem;
	char		reply[NSINK_MAX_SUBJECT];

	snprintf(reply, sizeof(reply), "%s.%" PRIu64 ".%u", p->inbox, e->batch->number, e->index);
	f->messages[i] = nsink_make_message(p, e, reply, &problem);
	f->problems[i] = NULL;
	if (f->messages[i] != NULL)
		return natsConnection_PublishMsg(p->nc, f->messages[i]);
	f->problems[i] = idem_sink_alloc(sizeof(problem));
	*f->problems[i] = problem;
	return NATS_OK;
}

/*
 * A job: send; wait for the answers if that is quick.  After the option's timeout it sends
 * no more, so it has an end that can be told beforehand.
 */
static bool
send_job(void *arg)
{
	Flock	   *f = arg;
	NSink	   *p = f->p;
	int64_t		end = idem_sink_clock() + p->config.timeout;
	natsStatus	s = NATS_OK;

	for (f->done = 0; f->done < f->n && s == NATS_OK && idem_sink_clock() < end; f->done++)
		s = send_message(f, f->done);
	free_messages(f->messages, f->done);
	if (s != NATS_OK)
		return nsink_fail(p, s, "send messages");
	if (p->n_flight + f->n > FEW)
		return true;
	/* the library's own thread sends what is left after a millisecond */
	s = natsConnection_FlushTimeout(p->nc, p->config.timeout);
	if (s != NATS_OK)
		return nsink_fail(p, s, "send messages");
	return gather(p, p->n_flight + f->n, SHORT_TIME);
}

/* The messages are in flight; an event that has none is decided; the rest is ready again. */
static void
take_off(NSink *p, Flock *f)
{
	int64_t		now = idem_sink_clock();

	for (uint32_t i = 0; i < f->n; i++)
	{
		IdemPlace  *place = f->places[i];
		NSinkProblem *problem = i < f->done ? f->problems[i] : NULL;

		if (i >= f->done)
			idem_places_append(&p->lanes.ready, place);
		else if (problem != NULL)
			idem_lanes_end(&p->lanes, place, problem->outcome, problem->sqlstate, problem->text);
		else
		{
			place->event->sent = true;
			place->sent_at = now;
			idem_places_append(&p->flight, place);
			p->n_flight++;
		}
		free(problem);
	}
}

/* Send what is ready and may be in flight.  *sent: something was.  False: p->failure. */
static bool
send_ready(NSink *p, bool *sent)
{
	static Flock f;
	bool		ok;

	f.p = p;
	f.n = 0;
	while (p->lanes.ready.first != NULL && p->n_flight <= HALF && p->n_flight + f.n < MAX_FLIGHT)
	{
		f.places[f.n] = p->lanes.ready.first;
		idem_places_remove(&p->lanes.ready, f.places[f.n++]);
	}
	*sent = f.n > 0;
	if (f.n == 0)
		return true;
	ok = nsink_run(p, send_job, &f, 3 * p->config.timeout + NSINK_MARGIN);
	take_off(p, &f);
	return ok;
}

/* Decide the event if it can have no message, or the server refuses its subject to the user. */
static bool
decide_unfit(NSink *p, IdemPlace *place)
{
	NSinkProblem problem;
	natsMsg    *msg = nsink_make_message(p, place->event, NULL, &problem);
	bool		denied = msg != NULL && nsink_was_denied(natsMsg_GetSubject(msg));

	if (msg != NULL && !denied)
	{
		natsMsg_Destroy(msg);
		return false;
	}
	natsMsg_Destroy(msg);
	land(p, place);
	if (denied)
		idem_lanes_end(&p->lanes, place, IDEM_PROTO_REJECTED, "42501", "the server does not let the user publish to the event's subject");
	else
		idem_lanes_end(&p->lanes, place, problem.outcome, problem.sqlstate, problem.text);
	return true;
}

/*
 * Are there messages in flight to which no answer comes?  A subject that the server refuses
 * to the user shows in an error of the connection, of which the library keeps the last
 * one only.  So if one is found, the others go again.  False: there is none.
 */
static bool
look_at_flight(NSink *p)
{
	IdemPlace  *next;
	bool		found = false;

	for (IdemPlace *place = p->flight.first; place != NULL; place = next)
	{
		next = place->after;
		found = decide_unfit(p, place) || found;
	}
	if (!found)
		return false;
	nsink_forget_denied();
	while (p->flight.first != NULL)
	{
		IdemPlace  *place = p->flight.first;

		land(p, place);
		idem_places_append(&p->lanes.ready, place);
	}
	return true;
}

/* No stream has the subject of a message in flight: which one?  False: p->failure. */
static bool
find_lost(NSink *p)
{
	answers.lost = false;
	if (!nsink_read_stream_again(p))
		return false;
	return look_at_flight(p) ||
		idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "nobody answers to a message into stream \"%s\"", p->config.stream);
}

bool
nsink_publish(NSink *p)
{
	bool		sent;

	do
	{
		idem_lanes_take(&p->lanes);
		if (!take_answers(p) || (answers.lost && !find_lost(p)) || !send_ready(p, &sent))
			return false;
		idem_lanes_answer(&p->lanes);
	} while (sent);
	return true;
}

bool
nsink_await_answers(NSink *p)
{
	static int64_t looked;
	int64_t		now;

	(void) idem_sink_wait(&p->sink, -1, 0, p->n_flight > 0 ? SHORT_TIME : -1, true);
	now = idem_sink_clock();
	if (p->n_flight == 0 || now - looked < LONG_TIME || now - p->flight.first->sent_at < LONG_TIME)
		return true;
	looked = now;
	if (now - p->flight.first->sent_at >= p->config.timeout)
		return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006", "the server did not acknowledge a message within %d ms",
							  p->config.timeout);
	(void) look_at_flight(p);
	return true;
}
