/*-------------------------------------------------------------------------
 *
 * main.c
 *		The http sink: life cycle and the loop.
 *
 * INVARIANT
 *		Nothing blocks.  The program waits in one place, for the worker, for the
 *		sockets of its requests and for the next time at which something is due.
 *
 * A crash leaves requests that may have arrived: at least once.
 *
 * MEMORY
 *		The worker's credit bounds the events, the option concurrency the requests.
 *		LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/main.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>

#include "sink/http/options.h"
#include "sink/http/sink.h"

#define GIVE_UP_TIME	5000	/* ms for the worker to complete its batches */

static void look(HSink *p) __attribute__((noreturn));

/* End the program with the reason in p->failure. */
static void
fail(HSink *p)
{
	IDEM_SINK_FAULT_POINT(&p->sink, "http-failing");
	idem_sink_failed(&p->sink, p->failure.outcome, p->failure.sqlstate, "%s", p->failure.message);
}

/* Milliseconds until something is due; -1: only if something comes. */
static int
time_left(const HSink *p, int64_t give_up_at)
{
	const int64_t due[] = {p->timer_at, p->failure.outcome == 0 ? hsink_token_wake(p) : -1, give_up_at};
	int64_t		now = idem_sink_clock();
	int64_t		least = -1;

	for (int i = 0; i < 3; i++)
	{
		int64_t		left = due[i] > now ? due[i] - now : 0;

		if (due[i] >= 0 && (least < 0 || left < least))
			least = left;
	}
	return least > 3600000 ? 3600000 : (int) least;
}

/* Deliver until the worker says BYE or the program has to end. */
static void
serve(HSink *p)
{
	int64_t		give_up_at = -1;

	for (;;)
	{
		hsink_take_frames(p);
		hsink_finish_requests(p);
		if (p->failure.outcome == 0)
			hsink_dispatch(p);
		if (p->failure.outcome != 0)
		{
			if (give_up_at < 0 && p->in_flight == 0)
				give_up_at = idem_sink_clock() + GIVE_UP_TIME;
			if (hsink_give_up(p) || (give_up_at >= 0 && idem_sink_clock() >= give_up_at))
				fail(p);
		}
		/* the worker may count on each answered event's credit */
		idem_sink_grant(&p->sink, 0, 0, true);
		if (p->bye)
			idem_sink_finish(&p->sink);
		(void) idem_sink_wait(&p->sink, p->epoll_fd, POLLIN, time_left(p, give_up_at), true);
		hsink_drive(p);
	}
}

/* Connect to a server, with TLS, and send nothing. */
static void
look_at(HSink *p, const char *what, const char *origin, bool is_token)
{
	HSinkRequest *r = hsink_new_request(p);
	HSinkRequest *done;
	HSinkVerdict verdict;

	idem_sink_look_at(&p->sink, what, "Put right what the message names: host and port of the URL, a firewall, or certificates.");
	r->looks = true;
	r->is_token = is_token;
	idem_text_puts(&r->url, origin);
	idem_text_puts(&r->url, "/");
	if (!hsink_start_request(p, r))
		fail(p);
	while ((done = hsink_next_done(p)) == NULL)
	{
		(void) idem_sink_wait(&p->sink, p->epoll_fd, POLLIN, time_left(p, -1), true);
		hsink_drive(p);
	}
	if (done->code == CURLE_OK)
	{
		idem_sink_found(&p->sink, true, NULL);
		return;
	}
	done->was_sent = false;
	if (hsink_judge(p, done, &verdict) != HSINK_FAILS)
		idem_sink_fail(&p->failure, verdict.outcome, verdict.sqlstate, "%s", verdict.message);
	fail(p);
}

/* Answer LOOK.  Whether a login is accepted, only a request would tell. */
static void
look(HSink *p)
{
	idem_sink_found(&p->sink, true, NULL);
	if (p->config.token_url != NULL)
		look_at(p, "connection to the token server", p->config.token_origin, true);
	look_at(p, "connection", p->config.origin, false);
	idem_sink_finish(&p->sink);
}

int
main(void)
{
	static HSink state;
	HSink	   *p = &state;
	IdemProtoHello hello;
	IdemProtoReady ready = {.credit_bytes = HSINK_CREDIT_BYTES};

	idem_sink_start(&p->sink, "http");
	hello = idem_sink_hello(&p->sink, idem_sink_http_options);
	if (!hsink_configure(p, &hello) || !hsink_open_transfers(p))
		fail(p);
	if (idem_sink_looks(&p->sink))
		look(p);
	ready.max_batch_events = (uint32_t) p->config.concurrency * p->most / 2;
	if (ready.max_batch_events < HSINK_LEAST_BATCH)
		ready.max_batch_events = HSINK_LEAST_BATCH;
	if (ready.max_batch_events > HSINK_MOST_BATCH)
		ready.max_batch_events = HSINK_MOST_BATCH;
	ready.credit_messages = ready.max_batch_events * HSINK_CREDIT_BATCHES;
	IDEM_SINK_FAULT_POINT(&p->sink, "http-ready");
	idem_sink_ready(&p->sink, &ready);
	/* a login that the token server refuses shows before an event comes */
	(void) hsink_has_token(p);
	serve(p);
}
