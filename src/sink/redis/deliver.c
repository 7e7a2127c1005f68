/*-------------------------------------------------------------------------
 *
 * deliver.c
 *		Batches into streams: attempts, results, verdicts.
 *
 * A batch is one run of the script RSINK_BATCH_SCRIPT.  Where the server has to sync its
 * file, or replicas have to answer, several batches are added before one wait, and have
 * their verdicts behind it.
 *
 * INVARIANT
 *		A batch with an event that is not acked has its results and its SETTLE before
 *		its script runs.  After the results no further event is refused: the streams
 *		were looked at before.
 *
 * A crash leaves a batch wholly there, with its position, or not at all.
 *
 * MEMORY
 *		The request of a batch is freed when it is answered.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/deliver.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/redis/script.h"
#include "sink/redis/sink.h"

#define MAX_TRIES	4			/* of a batch whose connection is lost */
#define MAX_UNCONFIRMED	100		/* batches before one wait */

/* How a run of the script ended. */
typedef enum Applied
{
	APPLIED,
	REFUSED_EVENTS,				/* events were decided; nothing was changed */
	FAILED						/* p->failure */
} Applied;

/* Write the request: everything behind the script. */
static void
make_request(const RSink *p, const IdemBatch *b, bool look, RSinkRequest *r)
{
	const RSinkConfig *c = &p->config;
	uint32_t	count = 0;

	rsink_add_number(r, p->n_streams + (c->exactly_once ? 1 : 0));
	if (c->exactly_once)
		rsink_add_text(r, c->position_key);
	for (uint32_t i = 0; i < p->n_streams; i++)
		rsink_add(r, p->streams[i]->key, p->streams[i]->len);
	rsink_add_text(r, c->exactly_once ? "1" : "0");
	rsink_add_number(r, p->epoch);
	rsink_add_text(r, p->stored.incarnation);
	/* no position is stored as empty texts */
	for (int i = 0; i < 2; i++)
		if (p->stored.incarnation[0] == '\0')
			rsink_add_text(r, "");
		else
			rsink_add_number(r, i == 0 ? p->stored.at.row_id : p->stored.at.k);
	rsink_add_text(r, c->incarnation);
	rsink_add_number(r, b->position.row_id);
	rsink_add_number(r, b->position.k);
	rsink_add_text(r, c->maxlen);
	rsink_add_text(r, look ? "1" : "0");
	for (uint32_t i = 0; i < b->count; i++)
		count += b->events[i].outcome == 0;
	if (look)
		count = 0;
	rsink_add_number(r, count);
	for (uint32_t i = 0; i < b->count && !look; i++)
		if (b->events[i].outcome == 0)
			rsink_add_entry(p, r, &b->events[i]);
}

/* Run the script by its hash, or with its text if the server does not know it. */
static RSinkAnswer
run_script(RSink *p, const RSinkRequest *r)
{
	const char *by_hash[] = {"EVALSHA", p->sha};
	static const char *const by_text[] = {"EVAL", RSINK_BATCH_SCRIPT};
	RSinkAnswer answer = rsink_ask(p, by_hash, 2, r, p->config.timeout);

	if (answer == RSINK_REFUSED && strncmp(p->error, "NOSCRIPT", 8) == 0)
		answer = rsink_ask(p, by_text, 2, r, p->config.timeout);
	return answer;
}

/* Decide the undecided events of the streams that are marked. */
static void
refuse_events(RSink *p, IdemBatch *b, const char *sqlstate, const char *message)
{
	for (uint32_t i = 0; i < b->count; i++)
		if (b->events[i].outcome == 0 && b->events[i].target->refused)
			idem_intake_decide(&p->in, &b->events[i], IDEM_PROTO_REJECTED, sqlstate, message);
}

/* Keys of events are no streams. */
static Applied
refuse_wrong(RSink *p, IdemBatch *b)
{
	if (p->config.stream_is_fixed)
	{
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "42809", "key of the option \"stream\" is not a stream");
		return FAILED;
	}
	for (size_t i = 1; i < p->reply->elements; i++)
	{
		long long	n = p->reply->element[i]->integer;

		if (n >= 0 && n < p->n_streams)
			p->streams[n]->refused = true;
	}
	refuse_events(p, b, "42809", "key of the event's stream is not a stream");
	return REFUSED_EVENTS;
}

/* The undecided event number n; NULL: none. */
static IdemBatchEvent *
nth_event(IdemBatch *b, long long n)
{
	for (uint32_t i = 0; i < b->count; i++)
		if (b->events[i].outcome == 0 && n-- == 0)
			return &b->events[i];
	return NULL;
}

/* A command of the script failed, and the script has taken everything back. */
static Applied
judge_undone(RSink *p, IdemBatch *b)
{
	long long	n = p->reply->elements > 2 ? p->reply->element[2]->integer : -1;
	IdemBatchEvent *e = n >= 0 ? nth_event(b, n) : NULL;
	const char *error = rsink_element(p, 1);
	char		text[512];

	if (e == NULL || p->config.stream_is_fixed || rsink_blame(error) != RSINK_BLAME_UNKNOWN)
	{
		rsink_fail_for_error(p, "add events to a stream", error);
		return FAILED;
	}
	rsink_copy_error(text, sizeof(text), error);
	e->target->refused = true;
	refuse_events(p, b, "58000", text);
	return REFUSED_EVENTS;
}

/*
 * Could the script change nothing because the server has become a replica?  Then the
 * error is in p->error.
 */
static bool
is_elsewhere(RSink *p)
{
	if (strcmp(rsink_element(p, 0), "undone") != 0 || rsink_blame(rsink_element(p, 1)) != RSINK_BLAME_PLACE)
		return false;
	snprintf(p->error, sizeof(p->error), "%s", rsink_element(p, 1));
	return true;
}

/* Note what the script has stored. */
static void
note_applied(RSink *p, const IdemBatch *b, bool look)
{
	if (rsink_element(p, 1)[0] != '\0' && !p->told_untrimmed)
	{
		char		text[512];

		rsink_copy_error(text, sizeof(text), rsink_element(p, 1));
		idem_sink_log(&p->sink, IDEM_PROTO_LOG_WARNING, "redis sink: could not trim a stream: %s", text);
		p->told_untrimmed = true;
	}
	if (look)
		return;
	snprintf(p->stored.incarnation, sizeof(p->stored.incarnation), "%s", p->config.incarnation);
	p->stored.at = b->position;
}

/* Act on what the script says. */
static Applied
judge_script(RSink *p, IdemBatch *b, bool look)
{
	const char *what = rsink_element(p, 0);

	if (strcmp(what, "ok") == 0)
	{
		note_applied(p, b, look);
		return APPLIED;
	}
	if (strcmp(what, "wrong") == 0)
		return refuse_wrong(p, b);
	if (strcmp(what, "undone") == 0)
		return judge_undone(p, b);
	if (strcmp(what, "fenced") == 0)
		idem_sink_fail(&p->failure, IDEM_PROTO_FENCED, "55000", "another instance has taken over relay \"%s\"", p->config.relay);
	else if (strcmp(what, "back") == 0)
		idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
					   "position of relay \"%s\" is not the one that was stored last: it was set back, or is gone", p->config.relay);
	else if (strcmp(what, "stuck") == 0)
		rsink_fail_for_error(p, "take back the entries of a batch that failed, which are there without a position", rsink_element(p, 1));
	else
		idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08P01", "server gave an answer that makes no sense");
	return FAILED;
}

/*
 * The connection is lost, or the keys have moved: connect again, and see whether the
 * script has run.  *done: it has.  False: p->failure.
 */
static bool
connect_again(RSink *p, const IdemBatch *b, bool look, bool *done)
{
	*done = false;
	if (!rsink_take_over(p, true))
		return false;
	if (!p->config.exactly_once || rsink_is_at(&p->found, p->stored.incarnation, p->stored.at))
		return true;
	if (!look && rsink_is_at(&p->found, p->config.incarnation, b->position))
	{
		p->stored = p->found;
		*done = true;
		return true;
	}
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
						  "position of relay \"%s\" was set back while there was no connection", p->config.relay);
}

/* Run the script for a batch.  look: look at the streams only. */
static Applied
apply(RSink *p, IdemBatch *b, bool look)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		RSinkRequest r = {{NULL, 0, 0}, 0};
		bool		done = false;
		bool		idle = p->conn == NULL;
		RSinkAnswer answer;

		make_request(p, b, look, &r);
		answer = run_script(p, &r);
		free(r.text.data);
		if (answer == RSINK_ANSWERED && !is_elsewhere(p))
			return judge_script(p, b, look);
		if (answer == RSINK_REFUSED && rsink_blame(p->error) != RSINK_BLAME_MOVED && rsink_blame(p->error) != RSINK_BLAME_PLACE)
		{
			rsink_fail_for_error(p, "add a batch", p->error);
			return FAILED;
		}
		/* without a position nobody can tell whether a lost script has run */
		if (answer == RSINK_LOST && !idle && !p->config.exactly_once)
		{
			rsink_fail_for_error(p, "add a batch", p->error);
			return FAILED;
		}
		if (!connect_again(p, b, look, &done))
			return FAILED;
		if (done)
			return APPLIED;
	}
	rsink_fail_for_error(p, "add a batch", p->error);
	return FAILED;
}

/* Send what is left to say of the oldest batch, and drop it. */
static void
finish(RSink *p)
{
	IdemBatch  *b = p->in.first;

	idem_intake_answer(&p->in, b);
	if (p->config.exactly_once)
		idem_sink_verdict(&p->sink, b->number, IDEM_PROTO_COMMITTED, NULL, NULL);
	idem_intake_drop(&p->in);
}

/* Apply until no further event is refused.  False: p->failure. */
static bool
apply_rest(RSink *p, IdemBatch *b, bool look)
{
	for (;;)
	{
		Applied		applied;

		rsink_prepare(p, b);
		/* nothing is left, and no position has to move */
		if (!p->config.exactly_once && idem_batch_count_decided(b) == b->count)
			return true;
		applied = apply(p, b, look);
		if (applied != REFUSED_EVENTS)
			return applied == APPLIED;
		rsink_forget_streams(p);
		for (uint32_t i = 0; i < b->count; i++)
			b->events[i].target = NULL;
	}
}

/* Wait for the batch's SETTLE. */
static void
await_settle(RSink *p, const IdemBatch *b)
{
	while (idem_intake_take(&p->in), p->in.settled < b->number)
		idem_sink_wait(&p->sink, -1, 0, -1, true);
}

/* A batch of which an event is not acked.  False: p->failure. */
static bool
deliver_alone(RSink *p, IdemBatch *b)
{
	uint32_t	decided;

	if (!apply_rest(p, b, p->config.exactly_once))
		return false;
	if (p->config.exactly_once)
	{
		decided = idem_batch_count_decided(b);
		idem_intake_answer(&p->in, b);
		await_settle(p, b);
		if (!apply_rest(p, b, false))
			return false;
		if (idem_batch_count_decided(b) != decided)
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000", "streams changed while a batch was being added");
	}
	if (!rsink_confirm(p))
		return false;
	finish(p);
	return true;
}

bool
rsink_deliver(RSink *p)
{
	uint32_t	n = 0;
	bool		ok = true;

	for (IdemBatch *b = p->in.first; b != NULL && b->complete && n < MAX_UNCONFIRMED; b = b->next)
	{
		Applied		applied = REFUSED_EVENTS;

		rsink_forget_streams(p);
		rsink_prepare(p, b);
		if (idem_batch_count_decided(b) == 0)
			applied = apply(p, b, false);
		if (applied == FAILED)
			return false;
		if (applied == REFUSED_EVENTS)
		{
			/* its SETTLE comes behind the verdicts of the batches before */
			rsink_forget_streams(p);
			if (n > 0)
				break;
			return deliver_alone(p, b);
		}
		if (p->config.exactly_once)
			idem_intake_answer(&p->in, b);
		n++;
		if (!rsink_has_to_confirm(p))
			break;
		idem_intake_take(&p->in);
	}
	ok = n == 0 || rsink_confirm(p);
	for (; ok && n > 0; n--)
		finish(p);
	return ok;
}
