/*-------------------------------------------------------------------------
 *
 * apply.c
 *		A batch as one transaction of the target.
 *
 * States of a batch:
 *		fast		all events in one statement; two or three round trips
 *		careful		one by one under savepoints, after an event raised an error
 *		answered	some were not acked: results are out, SETTLE is awaited
 *		committing	COMMIT is sent; a lost answer is asked for at the position;
 *					where it fails though careful found nothing, the worker is told
 * An attempt that cannot commit is rolled back and the next one begins afresh;
 * what was decided about an event stays, so that each repeat has fewer events
 * to do and the loop ends.
 *
 * INVARIANT
 *		COMMIT is sent only after the fence found its row, every event was
 *		done, is a duplicate or was answered otherwise, and in the last case
 *		the worker has noted it.
 *
 * A crash leaves a transaction that the target rolls back, or one of which
 * only the answer is missing: the next hello finds its position.
 *
 * MEMORY
 *		Arrays live for one statement.  LOCKING: none here, the position row
 *		there.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/apply.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

#define MAX_TRIES			5	/* lost connections and deadlocks per batch */
#define FIRST_BACKOFF		50	/* ms, doubled each time */
#define RECONNECT_TIMEOUT	15000	/* ms */
#define MAX_BACKOFF			2000

typedef enum Attempt
{
	ATTEMPT_COMMITTED,
	ATTEMPT_AGAIN,				/* events were decided */
	ATTEMPT_CAREFUL,			/* an event raised an error */
	ATTEMPT_PASSING,			/* nobody's fault */
	ATTEMPT_COMMIT_LOST,
	ATTEMPT_OUTAGE,
	ATTEMPT_CONFIG,
	ATTEMPT_FENCED
} Attempt;

static void abandon_fenced(PgSink *p) __attribute__((noreturn));
static void abandon_unfound(PgSink *p) __attribute__((noreturn));

/*
 * A later event of the same id was not claimed because this one was: what is
 * not done here is not done there.
 */
static void
decide_twins(PgSink *p, uint32_t i)
{
	PgBatch    *b = &p->batch;

	for (uint32_t j = i + 1; j < b->count; j++)
		if (b->events[j].outcome == 0 &&
			memcmp(b->events[j].id, b->events[i].id, IDEM_PROTO_ID_BYTES) == 0)
			b->events[j].outcome = IDEM_PROTO_SKIPPED;
}

void
pg_decide(PgSink *p, uint32_t i, IdemProtoOutcome outcome, const char *sqlstate,
		  const char *message)
{
	PgEvent    *e = &p->batch.events[i];

	e->outcome = outcome;
	memcpy(e->sqlstate, sqlstate, sizeof(e->sqlstate));
	if (message != NULL && message[0] != '\0')
		e->message = idem_sink_strdup(message, strlen(message));
	if (p->config.key_order)
		pg_keys_add(&p->failed, &p->batch, e);
	if (p->claim_sql != NULL)
		decide_twins(p, i);
}

void
pg_decide_error(PgSink *p, uint32_t i)
{
	pg_decide(p, i, pg_blame(&p->error) == PG_BLAME_SLOW ? IDEM_PROTO_RETRY : IDEM_PROTO_REJECTED,
			  p->error.sqlstate, p->error.message);
}

/* Is the payload bytes where the target takes JSON only? */
static bool
has_wrong_payload(const PgSink *p, const PgEvent *e)
{
	return !(e->flags & IDEM_PROTO_PAYLOAD_JSON) && p->used[PG_PAYLOAD] &&
		p->type[PG_PAYLOAD] != PG_BYTEA && !p->used[PG_PAYLOAD_BYTES];
}

/* Decide what needs no call: keys that failed before, payloads that do not fit. */
static void
decide_ahead(PgSink *p)
{
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgEvent    *e = &p->batch.events[i];

		if (e->outcome != 0)
			continue;
		if (p->config.key_order && pg_keys_has(&p->failed, &p->batch, e))
			pg_decide(p, i, IDEM_PROTO_SKIPPED, "00000", NULL);
		else if (has_wrong_payload(p, e))
			pg_decide(p, i, IDEM_PROTO_REJECTED, "42804",
					  "payload is bytes, and the target has no \"payload\" of type bytea and no \"payload_bytes\"");
	}
}

bool
pg_to_call(const PgSink *p, uint32_t i)
{
	const PgEvent *e = &p->batch.events[i];

	return e->outcome == 0 && (p->claim_sql == NULL || e->claimed);
}

/* Begin an attempt: what the transaction before did is undone. */
static void
start_attempt(PgSink *p)
{
	pg_forget_error(p);
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		p->batch.events[i].asked = false;
		p->batch.events[i].claimed = false;
		p->batch.events[i].done = false;
	}
	decide_ahead(p);
}

/* Read what is pending; the number of rows that the fence updated. */
static int
read_pending(PgSink *p)
{
	PgPending	what;
	PGresult   *res;
	int			fence = 0;

	while ((res = pg_next(p, &what)) != NULL)
	{
		if (what.step == PG_STEP_FENCE && PQresultStatus(res) == PGRES_COMMAND_OK)
			fence = (int) strtol(PQcmdTuples(res), NULL, 10);
		else if (what.step == PG_STEP_CLAIM && PQresultStatus(res) == PGRES_TUPLES_OK)
			pg_read_claims(p, res);
		PQclear(res);
	}
	return fence;
}

/* What an error of the transaction means for the batch; rolls back. */
static Attempt
after_error(PgSink *p)
{
	PgBlame		blame = pg_blame(&p->error);
	bool		lost = p->error.lost;

	pg_rollback(p);
	if (lost)
		return ATTEMPT_PASSING;
	switch (blame)
	{
		case PG_BLAME_EVENT:
		case PG_BLAME_SLOW:
			return ATTEMPT_CAREFUL;
		case PG_BLAME_PASSING:
			return ATTEMPT_PASSING;
		case PG_BLAME_OUTAGE:
			return ATTEMPT_OUTAGE;
		default:
			return ATTEMPT_CONFIG;
	}
}

/* Queue all calls in one statement. */
static void
send_all(PgSink *p)
{
	uint32_t   *which = idem_sink_alloc(p->batch.count * sizeof(uint32_t));
	uint32_t	n = 0;

	for (uint32_t i = 0; i < p->batch.count; i++)
		if (pg_to_call(p, i))
		{
			p->batch.events[i].done = true;
			which[n++] = i;
		}
	if (n > 0)
	{
		pg_send_calls(p, which, n);
		pg_send(p, PG_STEP_CHECK, which[0], "SET CONSTRAINTS ALL IMMEDIATE", 0, NULL, NULL, NULL);
	}
	pg_send_claim_ends(p);
	free(which);
}

static bool
anything_to_call(const PgSink *p)
{
	for (uint32_t i = 0; i < p->batch.count; i++)
		if (p->batch.events[i].outcome == 0)
			return true;
	return false;
}

/*
 * Open the transaction and do everything in it but COMMIT.  Without claims
 * and savepoints that is one flight; the fence's answer is looked at before
 * COMMIT is sent, which is soon enough.
 */
static Attempt
do_work(PgSink *p, bool careful)
{
	bool		claims = p->claim_sql != NULL && anything_to_call(p);
	bool		split = claims || careful;

	pg_begin(p);
	pg_send_fence(p);
	if (claims)
		pg_send_claims(p);
	if (!split)
		send_all(p);
	pg_sync(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-begun");
	if (read_pending(p) == 0 && !p->error.set)
	{
		pg_rollback(p);
		return ATTEMPT_FENCED;
	}
	if (p->error.set)
		return after_error(p);
	if (!split)
		return ATTEMPT_COMMITTED;

	decide_ahead(p);
	if (careful)
	{
		if (pg_call_carefully(p))
			return ATTEMPT_COMMITTED;
		if (p->error.set)
			return after_error(p);
		pg_rollback(p);
		return ATTEMPT_AGAIN;
	}
	send_all(p);
	pg_sync(p);
	read_pending(p);
	return p->error.set ? after_error(p) : ATTEMPT_COMMITTED;
}

/* Send a RESULT for each run of events with the same answer. */
static void
send_results(PgSink *p)
{
	PgBatch    *b = &p->batch;
	uint32_t	first = 0;

	for (uint32_t i = 0; i < b->count; i++)
	{
		PgEvent    *e = &b->events[i];
		IdemProtoOutcome outcome = e->outcome ? e->outcome : IDEM_PROTO_ACKED;

		if (e->message == NULL && i + 1 < b->count && b->events[i + 1].message == NULL &&
			b->events[i + 1].outcome == e->outcome)
			continue;
		idem_sink_result(&p->sink, b->batch, first, i, outcome,
						 e->outcome ? e->sqlstate : NULL, e->message);
		first = i + 1;
	}
	p->answered = true;
}

/* The batch's fate, after all of its results. */
static void
send_verdict(PgSink *p, IdemProtoVerdictKind kind, const char *sqlstate, const char *message)
{
	if (!p->answered)
		send_results(p);
	idem_sink_verdict(&p->sink, p->batch.batch, kind, sqlstate, message);
}

/* Results first, then wait for the worker's note of what was not acked. */
static void
await_settle(PgSink *p)
{
	bool		failed = false;

	for (uint32_t i = 0; i < p->batch.count; i++)
		failed |= p->batch.events[i].outcome != 0;
	if (!failed)
		return;
	if (!p->answered)
		send_results(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-settle");
	while (p->sink.stream.settled < p->batch.batch)
		idem_sink_wait(&p->sink, -1, 0, -1, true);
}

static Attempt
commit(PgSink *p)
{
	bool		committed = false;
	PgPending	what;
	PGresult   *res;

	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-commit");
	pg_send(p, PG_STEP_COMMIT, 0, "COMMIT", 0, NULL, NULL, NULL);
	pg_sync(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-commit-sent");
	while ((res = pg_next(p, &what)) != NULL)
	{
		if (what.step == PG_STEP_COMMIT && PQresultStatus(res) == PGRES_COMMAND_OK)
			committed = (strcmp(PQcmdStatus(res), "COMMIT") == 0);
		PQclear(res);
	}
	if (committed)
	{
		IDEM_SINK_FAULT_POINT(&p->sink, "postgres-committed");
		pg_position_stored(p);
		return ATTEMPT_COMMITTED;
	}
	if (p->error.lost)
		return ATTEMPT_COMMIT_LOST;
	/* an error of a deferred trigger is some event's, which careful may find */
	p->error.step = PG_STEP_CHECK;
	return after_error(p);
}

static int
refused(const PgSink *p)
{
	int			n = 0;

	for (uint32_t i = 0; i < p->batch.count; i++)
		n += p->batch.events[i].outcome != 0;
	return n;
}

static Attempt
attempt(PgSink *p, bool careful)
{
	int			before = refused(p);
	Attempt		result;

	start_attempt(p);
	result = do_work(p, careful);
	if (result != ATTEMPT_COMMITTED)
		return result;

	/* Such as one that is claimed elsewhere by now; an answer stands. */
	if (p->answered && refused(p) != before)
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "55P03",
						 "could not apply a batch again: an event that was answered as done cannot be done any more");
	await_settle(p);
	return commit(p);
}

/* Connect again within RECONNECT_TIMEOUT; false with p->error set. */
static bool
reconnect(PgSink *p)
{
	int64_t		deadline = idem_sink_clock() + RECONNECT_TIMEOUT;
	int			backoff = FIRST_BACKOFF;

	while (!pg_connect(p))
	{
		if (idem_sink_clock() + backoff > deadline)
			return false;
		idem_sink_wait(&p->sink, -1, 0, backoff, false);
		backoff = backoff * 2 < MAX_BACKOFF ? backoff * 2 : MAX_BACKOFF;
	}
	return true;
}

/*
 * Where a batch cannot be applied, and it is not known to be for one of its events,
 * no verdict is given: it is unknown until the next hello finds its position or not.
 */
static void
abandon_fenced(PgSink *p)
{
	if (!pg_taken_over(p))
		idem_sink_failed(&p->sink, IDEM_PROTO_OUTAGE, "55000",
						 "position \"%s\" in %s at the target is not the one that was stored there last: the target was set back",
						 p->config.relay, p->position_table);
	idem_sink_failed(&p->sink, IDEM_PROTO_FENCED, "55000",
					 "another instance has taken over position \"%s\" in %s at the target",
					 p->config.relay, p->position_table);
}

/*
 * One by one no event raises an error, and COMMIT does: for a claim that a
 * handler made and did not complete, for example.  The worker tries them alone.
 */
static void
abandon_unfound(PgSink *p)
{
	send_verdict(p, IDEM_PROTO_ABORTED, p->error.sqlstate, p->error.message);
	pg_give_up(p, "commit a batch");
}

/* After a lost COMMIT: true if it was one. */
static bool
ask_until_known(PgSink *p)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		if (!reconnect(p))
			break;
		IDEM_SINK_FAULT_POINT(&p->sink, "postgres-ask-fate");
		switch (pg_ask_fate(p))
		{
			case PG_FATE_COMMITTED:
				return true;
			case PG_FATE_ABORTED:
				return false;
			case PG_FATE_FENCED:
				abandon_fenced(p);
			case PG_FATE_UNKNOWN:
				break;
		}
		if (!p->error.lost)
			break;
	}
	pg_give_up(p, "learn whether a batch was committed");
}

void
pg_apply(PgSink *p)
{
	bool		careful = false;
	int			tries = 0;
	int			backoff = FIRST_BACKOFF;

	p->answered = false;
	for (;;)
	{
		if (p->conn == NULL && !reconnect(p))
			pg_give_up(p, "apply a batch");
		switch (attempt(p, careful))
		{
			case ATTEMPT_COMMITTED:
				send_verdict(p, IDEM_PROTO_COMMITTED, NULL, NULL);
				return;
			case ATTEMPT_COMMIT_LOST:
				if (ask_until_known(p))
				{
					pg_position_stored(p);
					send_verdict(p, IDEM_PROTO_COMMITTED, NULL, NULL);
					return;
				}
				tries++;
				break;
			case ATTEMPT_CAREFUL:
				IDEM_SINK_FAULT_POINT(&p->sink, "postgres-careful");
				if (careful)
					abandon_unfound(p);
				/* an answer cannot be taken back */
				if (p->answered)
					pg_give_up(p, "apply a batch");
				careful = true;
				break;
			case ATTEMPT_AGAIN:
				if (p->answered)
					pg_give_up(p, "apply a batch");
				break;
			case ATTEMPT_PASSING:
				if (++tries >= MAX_TRIES)
					pg_give_up(p, "apply a batch");
				idem_sink_wait(&p->sink, -1, 0, backoff, false);
				backoff *= 2;
				break;
			case ATTEMPT_OUTAGE:
			case ATTEMPT_CONFIG:
				pg_give_up(p, "apply a batch");
			case ATTEMPT_FENCED:
				abandon_fenced(p);
		}
	}
}
