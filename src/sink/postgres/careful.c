/*-------------------------------------------------------------------------
 *
 * careful.c
 *		The events of a batch one by one, to find those that raise errors.
 *
 * Each event has a segment of the pipeline of its own:
 *
 *		ROLLBACK TO s; time; call; time; check constraints; RELEASE s; SAVEPOINT s; sync
 *
 * An error skips the rest of its segment.  So s stands after the last event
 * that worked, whether the one before failed or not, and ROLLBACK TO is always
 * right: nobody has to wait for an answer to know what to send next.
 *
 * All calls together have statement_timeout.  When it is over, the step "time" of
 * each later segment fails, and the events that were not done are answered as
 * unknown: the relay sends them again, and counts no attempt.  Only the first
 * event, which had all the time, is itself too slow.  So each batch gets at least
 * one event done or blamed, and a slow batch ends in several.
 *
 * INVARIANT
 *		At the end s holds the effects of the events marked done, no others.
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
#include <string.h>

#include "sink/postgres/sink.h"

#define WINDOW		100			/* events sent before answers are read */

/* Arguments of the step "time" in a segment. */
#define BEFORE_CALL	0
#define AFTER_CALL	1

static void
send_frame(PgSink *p, const char *sql)
{
	pg_send(p, PG_STEP_FRAME, 0, sql, 0, NULL, NULL, NULL);
}

static void
send_segment(PgSink *p, uint32_t i)
{
	send_frame(p, "ROLLBACK TO SAVEPOINT idempotency_sink");
	pg_limit_time(p, BEFORE_CALL);
	pg_send_calls(p, &i, 1);
	pg_limit_time(p, AFTER_CALL);
	pg_send(p, PG_STEP_CHECK, i, "SET CONSTRAINTS ALL IMMEDIATE", 0, NULL, NULL, NULL);
	send_frame(p, "RELEASE SAVEPOINT idempotency_sink");
	send_frame(p, "SAVEPOINT idempotency_sink");
	pg_sync(p);
}

/* Where the events of a batch stand in the transaction. */
typedef struct Progress
{
	bool		tried;			/* the first event has its answer */
	bool		out_of_time;	/* no later event can be done */
} Progress;

/* Was it the time that events before had taken? */
static bool
is_out_of_time(const PgSink *p, const Progress *progress)
{
	return progress->tried && !p->error.lost && strcmp(p->error.sqlstate, "57014") == 0;
}

/* The event was not done, and is not to blame for it. */
static void
postpone(PgSink *p, uint32_t i)
{
	pg_decide(p, i, IDEM_PROTO_UNKNOWN, "57014",
			  "the events before it in the batch took the time of statement_timeout");
}

/*
 * Before the first event only the fence and the claims ran: the target is too
 * slow for any.  The error stays, as that of the fence.
 */
static bool
no_time_at_all(PgSink *p, const Progress *progress)
{
	if (progress->tried || p->error.step != PG_STEP_TIME || p->error.arg != BEFORE_CALL)
		return false;
	p->error.step = PG_STEP_FENCE;
	return true;
}

/* At the end of a segment: what became of the event?  False to give up. */
static bool
take_answer(PgSink *p, uint32_t i, Progress *progress)
{
	PgBlame		blame;

	if (!p->error.set)
	{
		p->batch.events[i].done = true;
		progress->tried = true;
		return true;
	}
	blame = pg_blame(&p->error);
	if (no_time_at_all(p, progress) || (blame != PG_BLAME_EVENT && blame != PG_BLAME_SLOW))
		return false;
	if (is_out_of_time(p, progress))
	{
		progress->out_of_time |= p->error.step == PG_STEP_TIME;
		postpone(p, i);
	}
	else
		pg_decide_error(p, i);
	progress->tried = true;
	pg_forget_error(p);
	return true;
}

/* Read the answers to the segments of those events. */
static bool
read_window(PgSink *p, const uint32_t *which, uint32_t n, Progress *progress)
{
	PgPending	what;
	PGresult   *res;
	uint32_t	segment = 0;

	while ((res = pg_next(p, &what)) != NULL)
	{
		PQclear(res);
		if (what.step != PG_STEP_SYNC)
			continue;
		if (segment < n && !take_answer(p, which[segment], progress))
			return false;
		segment++;
	}
	return !p->error.set;
}

/* Was an event done though an earlier one of its key was found to fail? */
static bool
broke_key_order(const PgSink *p)
{
	if (!p->config.key_order)
		return false;
	for (uint32_t i = 0; i < p->batch.count; i++)
		if (p->batch.events[i].done &&
			pg_keys_has(&p->failed, &p->batch, &p->batch.events[i]))
			return true;
	return false;
}

bool
pg_call_carefully(PgSink *p)
{
	uint32_t	which[WINDOW];
	uint32_t	i = 0;
	Progress	progress = {false, false};

	send_frame(p, "SAVEPOINT idempotency_sink");
	while (i < p->batch.count)
	{
		uint32_t	n = 0;

		for (; i < p->batch.count && n < WINDOW; i++)
		{
			PgEvent    *e = &p->batch.events[i];

			if (!pg_to_call(p, i))
				continue;
			if (p->config.key_order && pg_keys_has(&p->failed, &p->batch, e))
			{
				pg_decide(p, i, IDEM_PROTO_SKIPPED, "00000", NULL);
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
	if (broke_key_order(p))
		return false;
	send_frame(p, "ROLLBACK TO SAVEPOINT idempotency_sink");
	pg_give_time(p);
	pg_send_claim_ends(p);
	pg_sync(p);
	pg_drain(p);
	return !p->error.set;
}
