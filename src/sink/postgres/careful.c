/*-------------------------------------------------------------------------
 *
 * careful.c
 *		Calls the events of a batch one by one, to find those that raise errors.
 *
 * Each event has its own segment of the pipeline; s is the savepoint:
 *
 *		ROLLBACK TO s; settings; time; call; time; check constraints; all time;
 *		RELEASE s; SAVEPOINT s; sync
 *
 * An error skips the rest of its segment.  So s always stands after the last
 * event that was done, and ROLLBACK TO s is right whether the event before
 * failed or not.  Therefore segments are sent without waiting for answers.
 *
 * All calls of a batch together have statement_timeout, those of many events less (apply.c).  When the time is
 * over, the step "time" of each later segment fails.  The events that were not
 * done are answered as unknown: the relay sends them again and counts no
 * attempt.  Only the first event is blamed as too slow, because it had all the
 * time.  So each batch gets at least one event done or blamed, and the events
 * of a slow batch are delivered in several batches.
 *
 * The timeout may end any statement behind "time", such as the PREPARE of a
 * call.  RELEASE and SAVEPOINT get the whole time again: without s nothing of
 * the batch could be committed.
 *
 * An error such as "disk full" is doubtful: it may be the target's, or the
 * event's, whose function raised it.  What happens to the other events tells:
 *
 * - An event behind it was done: it is rejected.
 * - Only events before it were done: it is unknown, and tried again later.
 * - None was done, and more than PGSINK_FEW are doubtful: the target is to blame.
 * - None was done, and few are doubtful: they are unknown; but if the last call
 *	 of the batches before was done, the first of them is rejected.  The relay sends
 *	 the same batch after an outage, so a few events must not be one.  After an
 *	 outage of retries it sends at most PGSINK_FEW of them together.
 *
 * One of several that exceeds a limit for transactions (53400) is unknown, whatever the others do:
 * the relay sends it alone.
 *
 * So an outage costs no attempts, but for one event after each acceptance, and
 * few events stop no others.  A missing privilege shows as wrong configuration
 * while the target has never stored a position.
 *
 * A call may also end the session, or take the server down.  The first loss of a
 * connection may have any cause; the batch is then done here, and each segment
 * waits for the answer to the one before: a server that ends a session with
 * segments unread resets the connection, and answers that it had sent are lost.
 * So the segment without an answer has the event that was called when the
 * connection was lost again.  If it is the transaction's first call, the
 * event is rejected: the target has answered between the two losses.  If not, the
 * transaction may be too long for something that ends long ones.  Then the
 * batch ends before the event: it and those behind it are unknown, and the relay
 * sends it alone.  Such an event is remembered, so that a retry costs one loss.
 *
 * INVARIANT
 *		At the end s holds the effects of the events marked done, and no others.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/careful.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/postgres/sink.h"

#define WINDOW		100			/* events sent before answers are read */

#define DOUBT_WAIT	5000		/* ms until a doubtful event is tried again */

/* Arguments of the two steps "time" in a segment. */
#define BEFORE_CALL	0
#define AFTER_CALL	1

/* Queue a statement without parameters. */
static void
send_frame(PgSink *p, const char *sql)
{
	pgsink_send(p, PGSINK_STEP_FRAME, 0, sql, 0, NULL, NULL, NULL);
}

/* Queue the segment of an event. */
static void
send_segment(PgSink *p, uint32_t i)
{
	send_frame(p, "ROLLBACK TO SAVEPOINT idempotency_sink");
	pgsink_send_settings(p);
	pgsink_guard_claims(p);
	pgsink_limit_time(p, BEFORE_CALL);
	pgsink_send_calls(p, &i, 1);
	pgsink_limit_time(p, AFTER_CALL);
	pgsink_send(p, PGSINK_STEP_CHECK, i, "SET CONSTRAINTS ALL IMMEDIATE", 0, NULL, NULL, NULL);
	pgsink_give_time(p);
	send_frame(p, "RELEASE SAVEPOINT idempotency_sink");
	send_frame(p, "SAVEPOINT idempotency_sink");
	pgsink_sync(p);
}

/* How far the events of the batch have come. */
typedef struct Progress
{
	bool		tried;			/* the first event is done or decided */
	bool		out_of_time;	/* no time is left for later events */
} Progress;

/* Is p->error a timeout because earlier events took the time? */
static bool
is_out_of_time(const PgSink *p, const Progress *progress)
{
	return progress->tried && !p->error.lost && strcmp(p->error.sqlstate, "57014") == 0;
}

/* Decide an event that has no time because of earlier events. */
static void
postpone(PgSink *p, uint32_t i)
{
	pgsink_decide(p, i, IDEM_PROTO_UNKNOWN, "57014",
				  "the events before it in the batch took the time of statement_timeout");
}

/*
 * Did the time end before the first event was called?  Then only the fence and
 * the claims ran, and the target is too slow for any batch.  Turn the error
 * into an error of the fence, which blames no event.
 */
static bool
no_time_at_all(PgSink *p, const Progress *progress)
{
	if (progress->tried || p->error.step != PGSINK_STEP_TIME || p->error.arg != BEFORE_CALL)
		return false;
	p->error.step = PGSINK_STEP_FENCE;
	return true;
}

/*
 * At the end of a segment: mark its event done or decide it.  False with
 * p->error if the error is no event's fault.
 */
static bool
take_answer(PgSink *p, uint32_t i, Progress *progress)
{
	if (!p->error.set)
	{
		p->batch.events[i].done = true;
		progress->tried = true;
		return true;
	}
	if (pgsink_takes_long(p))
		return false;
	if (is_out_of_time(p, progress))
	{
		progress->out_of_time |= p->error.step == PGSINK_STEP_TIME;
		postpone(p, i);
	}
	else
	{
		PgSinkBlame blame = pgsink_blame(p);

		if (no_time_at_all(p, progress) ||
			(blame != PGSINK_BLAME_EVENT && blame != PGSINK_BLAME_SLOW &&
			 blame != PGSINK_BLAME_DOUBTFUL))
			return false;
		pgsink_decide_error(p, i);
	}
	progress->tried = true;
	pgsink_forget_error(p);
	return true;
}

/* Read the answers to the segments of n events.  False with p->error. */
static bool
read_window(PgSink *p, const uint32_t *which, uint32_t n, Progress *progress)
{
	PgSinkPending pending;
	PGresult   *res;
	uint32_t	segment = 0;

	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		PQclear(res);
		if (pending.step != PGSINK_STEP_SYNC)
			continue;
		if (segment < n && !take_answer(p, which[segment], progress))
			break;
		segment++;
	}
	if (p->error.lost && segment < n)
	{
		p->fell = true;
		p->fell_at = which[segment];
		p->fell_first = !progress->tried;
	}
	return !p->error.set;
}

/* The index behind the last event that was done; 0 if none was. */
static uint32_t
end_of_done(const PgSink *p)
{
	uint32_t	end = p->batch.count;

	while (end > 0 && !p->batch.events[end - 1].done)
		end--;
	return end;
}

/*
 * The number of doubtful events.  Some may be from an attempt before, whose
 * connection was lost.  The error of the first one becomes p->error, as if the
 * fence had raised it.
 */
static uint32_t
count_doubtful(PgSink *p)
{
	PgSinkPending fence = {PGSINK_STEP_FENCE, 0};
	uint32_t	n = 0;

	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		const PgSinkEvent *e = &p->batch.events[i];

		if (e->doubtful && n++ == 0)
			pgsink_note_error(p, fence, false, e->sqlstate, e->message);
	}
	return n;
}

/*
 * Judge the doubtful events, see the file header.  False with p->error, which
 * blames no event, if the target is to blame.
 */
static bool
judge_doubtful(PgSink *p)
{
	uint32_t	end = end_of_done(p);
	uint32_t	doubts = end == 0 ? count_doubtful(p) : 0;
	bool		blame_one = end == 0 && p->passes;

	if (doubts > 0)
	{
		if (doubts > PGSINK_FEW ||
			(!p->passes && p->stored_row_id == 0 && pgsink_blame(p) == PGSINK_BLAME_CONFIG))
			return false;
		pgsink_forget_error(p);
	}
	if (end > 0)
		p->passes = true;
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgSinkEvent *e = &p->batch.events[i];

		if (!e->doubtful)
			continue;
		e->doubtful = false;
		if (p->batch.count > 1 && strcmp(e->sqlstate, "53400") == 0)
			continue;
		if (i < end || blame_one)
			e->outcome = IDEM_PROTO_REJECTED;
		else
			e->retry_after = DOUBT_WAIT;
		if (i >= end)
			p->passes = false;
		blame_one = false;
	}
	return true;
}

/* Has the event lost a connection before? */
static bool
has_fallen(const PgSink *p, uint32_t i)
{
	for (uint32_t f = 0; f < PGSINK_FALLEN && f < p->nfallen; f++)
		if (memcmp(p->fallen[f], p->batch.events[i].id, IDEM_PROTO_ID_BYTES) == 0)
			return true;
	return false;
}

bool
pgsink_has_fallen(const PgSink *p)
{
	for (uint32_t i = 0; p->nfallen > 0 && i < p->batch.count; i++)
		if (has_fallen(p, i))
			return true;
	return false;
}

/* Decide the events behind event i, with which the batch ends. */
static void
cut_behind(PgSink *p, uint32_t i)
{
	for (uint32_t j = i + 1; j < p->batch.count; j++)
	{
		if (p->batch.events[j].outcome != 0)
			continue;
		if (pgsink_is_blocked(p, j))
			pgsink_decide(p, j, IDEM_PROTO_SKIPPED, "00000", NULL);
		else
			pgsink_decide(p, j, IDEM_PROTO_UNKNOWN, "08006",
						  "the target ended the session before the event was called");
	}
}

bool
pgsink_judge_fall(PgSink *p, bool again)
{
	uint32_t	i = p->fell_at;
	char		message[IDEM_PROTO_MAX_MESSAGE];

	if (!has_fallen(p, i))
	{
		if (!again)
			return false;
		memcpy(p->fallen[p->nfallen++ % PGSINK_FALLEN], p->batch.events[i].id, IDEM_PROTO_ID_BYTES);
	}
	snprintf(message, sizeof(message), "the session at the target ended when the event was called: %.900s",
			 p->error.message);
	pgsink_decide(p, i, p->fell_first ? IDEM_PROTO_REJECTED : IDEM_PROTO_UNKNOWN, "ID006", message);
	if (!p->fell_first)
	{
		p->batch.events[i].retry_after = DOUBT_WAIT;
		cut_behind(p, i);
	}
	return true;
}

/* Was an event done although an earlier event of its key failed? */
static bool
broke_key_order(const PgSink *p)
{
	for (uint32_t i = 0; i < p->batch.count; i++)
		if (p->batch.events[i].done && pgsink_is_blocked(p, i))
			return true;
	return false;
}

/* Read the answers behind the last segment. */
static void
read_end(PgSink *p)
{
	PgSinkPending pending;
	PGresult   *res;

	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_LOOK && PQresultStatus(res) == PGRES_TUPLES_OK)
			p->changed = !pgsink_read_look(res);
		PQclear(res);
	}
}

bool
pgsink_call_carefully(PgSink *p)
{
	uint32_t	which[WINDOW];
	uint32_t	window = p->dropped || pgsink_has_fallen(p) ? 1 : WINDOW;
	uint32_t	i = 0;
	Progress	progress = {0};

	send_frame(p, "SAVEPOINT idempotency_sink");
	while (i < p->batch.count)
	{
		uint32_t	n = 0;

		for (; i < p->batch.count && n < window; i++)
		{
			if (!pgsink_to_call(p, i))
				continue;
			if (pgsink_is_blocked(p, i))
			{
				pgsink_decide(p, i, IDEM_PROTO_SKIPPED, "00000", NULL);
				continue;
			}
			if (progress.out_of_time)
			{
				postpone(p, i);
				continue;
			}
			which[n++] = i;
			send_segment(p, i);
		}
		if (n > 0 && !read_window(p, which, n, &progress))
			return false;
	}
	if (!judge_doubtful(p) || broke_key_order(p))
		return false;
	send_frame(p, "ROLLBACK TO SAVEPOINT idempotency_sink");
	pgsink_give_time(p);
	pgsink_send_look(p);
	pgsink_send_claim_ends(p);
	pgsink_sync(p);
	read_end(p);
	return !p->error.set;
}
