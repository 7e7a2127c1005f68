/*-------------------------------------------------------------------------
 *
 * careful.c
 *		The events of a batch one by one, to find those that raise errors.
 *
 * Each event has a segment of the pipeline of its own:
 *
 *		ROLLBACK TO s; call; check constraints; RELEASE s; SAVEPOINT s; sync
 *
 * An error skips the rest of its segment.  So s stands after the last event
 * that worked, whether the one before failed or not, and ROLLBACK TO is always
 * right: nobody has to wait for an answer to know what to send next.
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
#include "sink/postgres/sink.h"

#define WINDOW		100			/* events sent before answers are read */

static void
send_frame(PgSink *p, const char *sql)
{
	pg_send(p, PG_STEP_FRAME, 0, sql, 0, NULL, NULL, NULL);
}

static void
send_segment(PgSink *p, uint32_t i)
{
	send_frame(p, "ROLLBACK TO SAVEPOINT idempotency_sink");
	pg_send_calls(p, &i, 1);
	pg_send(p, PG_STEP_CHECK, i, "SET CONSTRAINTS ALL IMMEDIATE", 0, NULL, NULL, NULL);
	send_frame(p, "RELEASE SAVEPOINT idempotency_sink");
	send_frame(p, "SAVEPOINT idempotency_sink");
	pg_sync(p);
}

/* At the end of a segment: what became of the event?  False to give up. */
static bool
take_answer(PgSink *p, uint32_t i)
{
	PgBlame		blame;

	if (!p->error.set)
	{
		p->batch.events[i].done = true;
		return true;
	}
	blame = pg_blame(&p->error);
	if (blame != PG_BLAME_EVENT && blame != PG_BLAME_SLOW)
		return false;
	pg_decide_error(p, i);
	pg_forget_error(p);
	return true;
}

/* Read the answers to the segments of those events. */
static bool
read_window(PgSink *p, const uint32_t *which, uint32_t n)
{
	PgPending	what;
	PGresult   *res;
	uint32_t	segment = 0;

	while ((res = pg_next(p, &what)) != NULL)
	{
		PQclear(res);
		if (what.step != PG_STEP_SYNC)
			continue;
		if (segment < n && !take_answer(p, which[segment]))
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
			which[n++] = i;
			send_segment(p, i);
		}
		if (n > 0 && !read_window(p, which, n))
			return false;
	}
	if (broke_key_order(p))
		return false;
	send_frame(p, "ROLLBACK TO SAVEPOINT idempotency_sink");
	pg_send_claim_ends(p);
	pg_sync(p);
	pg_drain(p);
	return !p->error.set;
}
