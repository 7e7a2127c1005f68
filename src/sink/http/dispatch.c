/*-------------------------------------------------------------------------
 *
 * dispatch.c
 *		Events into requests, and the ends of requests into answers.
 *
 * A request that is refused as a whole, with several events in it, is split: each
 * of its events goes again, alone, and has an answer of its own.
 *
 * A receiver that refuses events in a row because it takes fewer is not sent what waits
 * here: these events go back to the relay, which knows how fast it may send.
 *
 * INVARIANT
 *		Each event has one answer.  No request is started after a failure; the
 *		requests in flight come to their end first.
 *
 * A crash leaves requests that may have arrived; their events are sent again.
 *
 * MEMORY
 *		Events in flight belong to their request.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/dispatch.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/template.h"
#include "sink/http/sink.h"

/*
 * Add an event to the request.  False: the request is full, and the event is
 * back in its queue.
 */
static bool
add_event(HSink *p, HSinkRequest *r, HSinkEvent *e)
{
	HSinkProblem problem = {.sqlstate = "22023"};
	size_t		len = r->body.len;
	size_t		weight = r->weight;
	bool		refused = !p->service->add(p, r, e, &problem);

	if (!refused && (r->count == 0 || (!e->alone && r->weight <= p->service->most_weight)))
	{
		r->events[r->count++] = e;
		if (e->destination == NULL && idem_template_makes_destinations(p->config.url))
			e->destination = idem_sink_strdup(r->url.data, strcspn(r->url.data, "?"));
		return true;
	}
	r->body.len = len;
	r->weight = weight;
	if (refused)
		hsink_answer(p, e, IDEM_PROTO_IMPOSSIBLE, problem.sqlstate, 0, problem.text);
	else
		hsink_put_back(p, e);
	return refused;
}

/* May an event be sent whose key hung? */
static bool
may_take_slow(const HSink *p)
{
	long		most = p->config.concurrency > 1 ? p->config.concurrency / 2 : 1;

	return p->slow.first != NULL && p->slow_in_flight < most;
}

/* The next event for a request: an event whose key hung goes alone; a request may have events of one key only. */
static HSinkEvent *
next_for(HSink *p, HSinkRequest *r)
{
	if (r->count == 0)
		r->slow = may_take_slow(p);
	if (r->slow)
		return r->count == 0 ? hsink_next_slow(p) : NULL;
	if (r->count > 0 && p->service->one_key && p->config.key_order)
		return hsink_next_of_key(p, r->events[0]);
	return hsink_next_ready(p);
}

/* Fill a request; false if there is no event for it. */
static bool
fill(HSink *p, HSinkRequest *r)
{
	HSinkEvent *e;

	while (r->count < p->most && !(r->count > 0 && r->events[0]->alone) && (e = next_for(p, r)) != NULL)
		if (!add_event(p, r, e))
			break;
	return r->count > 0;
}

/* Put the events of a request back, in their order; alone: each goes alone. */
static void
put_back(HSink *p, HSinkRequest *r, bool alone)
{
	for (uint32_t i = r->count; i-- > 0;)
	{
		r->events[i]->alone = r->events[i]->alone || alone;
		hsink_put_back(p, r->events[i]);
	}
	r->count = 0;
}

void
hsink_dispatch(HSink *p)
{
	HSinkRequest *r;

	while ((p->ready.first != NULL || may_take_slow(p)) && p->failure.outcome == 0 && hsink_has_token(p) &&
		   (r = hsink_new_request(p)) != NULL)
	{
		if (!fill(p, r))
		{
			hsink_free_request(p, r);
			continue;
		}
		p->service->finish(p, r);
		if (hsink_start_request(p, r))
		{
			p->slow_in_flight += r->slow;
			continue;
		}
		put_back(p, r, false);
		hsink_free_request(p, r);
	}
}

/* Give all events that have no answer yet this one. */
static void
answer_all(HSink *p, HSinkRequest *r, const HSinkVerdict *v)
{
	for (uint32_t i = 0; i < r->count; i++)
		if (r->events[i] != NULL)
			hsink_answer(p, r->events[i], v->outcome, v->sqlstate, v->retry_after, v->message);
}

/* The status is 2xx: answer the events. */
static void
take_answer(HSink *p, HSinkRequest *r)
{
	static const HSinkVerdict acked = {.outcome = IDEM_PROTO_ACKED};
	static const HSinkVerdict missing = {.outcome = IDEM_PROTO_RETRY, .message = "response says nothing of the event"};

	if (p->service->read != NULL)
		p->service->read(p, r);
	answer_all(p, r, p->service->read != NULL ? &missing : &acked);
}

/* Act on a request that has ended. */
static void
finish(HSink *p, HSinkRequest *r)
{
	HSinkVerdict v;
	bool		again = hsink_judge_token(p, r);

	p->slow_in_flight -= r->slow;
	if (r->code == CURLE_OPERATION_TIMEDOUT && r->was_sent && r->count == 1)
		hsink_note_hang(p, r->events[0]);
	switch (hsink_judge(p, r, &v))
	{
		case HSINK_ANSWERED:
			take_answer(p, r);
			break;
		case HSINK_ALL:
			if (again)
				put_back(p, r, false);
			else if ((v.outcome == IDEM_PROTO_REJECTED || v.outcome == IDEM_PROTO_IMPOSSIBLE) && r->count > 1)
				put_back(p, r, true);
			else
				answer_all(p, r, &v);
			break;
		case HSINK_FAILS:
			put_back(p, r, false);
			break;
	}
	IDEM_SINK_FAULT_POINT(&p->sink, "http-request-done");
	hsink_free_request(p, r);
}

/* The next of all events that may be sent. */
static HSinkEvent *
next_waiting(HSink *p)
{
	HSinkEvent *e = hsink_next_ready(p);

	return e != NULL ? e : hsink_next_slow(p);
}

/* Answer the events that may be sent, and were not, with "unknown", which counts no attempt. */
static void
give_back_ready(HSink *p)
{
	HSinkEvent *e;

	while ((e = next_waiting(p)) != NULL)
		hsink_answer(p, e, IDEM_PROTO_UNKNOWN, NULL, 0, "not sent: the receiver takes fewer events");
}

void
hsink_finish_requests(HSink *p)
{
	HSinkRequest *r;

	while ((r = hsink_next_done(p)) != NULL)
	{
		if (r->is_token)
			hsink_token_done(p, r);
		else
			finish(p, r);
	}
	if (p->put_off >= HSINK_MOST_PUT_OFF && p->failure.outcome == 0)
	{
		p->put_off = 0;
		give_back_ready(p);
	}
}

/* The last batch that has an acked event; 0: none. */
static uint64_t
last_acked(const HSink *p)
{
	uint64_t	number = 0;

	for (const HSinkBatch *b = p->first_batch; b != NULL; b = b->next)
		if (b->acked > 0)
			number = b->number;
	return number;
}

bool
hsink_give_up(HSink *p)
{
	uint64_t	last = last_acked(p);
	HSinkQueue	left = {NULL, NULL};
	HSinkEvent *e;

	if (p->in_flight > 0)
		return false;
	while ((e = next_waiting(p)) != NULL)
	{
		if (e->batch->number <= last)
		{
			hsink_answer(p, e, IDEM_PROTO_UNKNOWN, NULL, 0, NULL);
			continue;
		}
		e->next = left.first;
		left.first = e;
	}
	while ((e = left.first) != NULL)
	{
		left.first = e->next;
		hsink_put_back(p, e);
	}
	return p->first_batch == NULL || p->first_batch->number > last;
}
