/*-------------------------------------------------------------------------
 *
 * apply.c
 *		Applies a batch as one transaction of the target.
 *
 * States of a batch:
 *		fast		All events go in one statement: two round trips, three
 *					with claims.
 *		careful		An event raised an error: the events go one by one, each
 *					under a savepoint.
 *		answered	Some events are not acked: the results are sent, and the
 *					batch waits for its SETTLE.
 *		committing	COMMIT is sent.  If its answer is lost, the position row
 *					tells whether it committed.  If COMMIT fails although
 *					careful found no event at fault, the verdict is ABORTED.
 * A transaction keeps the locks of its calls until COMMIT, and clients of the target
 * wait for them.  So the calls of more than PGSINK_FEW events have LONG_MS (config.c): after that, or after
 * MAX_TRIES deadlocks, the program asks for fewer events (53400), which drops what is
 * in flight.  Not sooner: where several relays lock the same rows, small batches meet more deadlocks.
 *
 * An attempt that cannot commit is rolled back, and the next attempt begins a
 * new transaction.  The outcomes of events stay, so each attempt that decides
 * an event has fewer events to do.  MAX_TRIES bounds the attempts that fail
 * through nobody's fault, and also those that lose the connection, before COMMIT
 * or at it: each kind has a count of its own, since a batch may have events of
 * each kind.  After these the program fails, and the relay's breaker waits; but
 * if it was a call that failed each time, careful first looks whether one event
 * is at fault.  So it does when the connection was lost, because a call may end
 * the session, or take the target down.
 *
 * INVARIANT
 *		COMMIT is sent only after the fence found its row, and only when every
 *		event is done, is a duplicate, or has an outcome that the worker has
 *		noted.
 *
 * A crash before COMMIT leaves a transaction that the target rolls back.
 * After a crash during COMMIT the transaction may be committed: the next hello
 * finds the batch's position.
 *
 * MEMORY
 *		Arrays live for one statement.  LOCKING: at the target, see position.c.
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

#define MAX_TRIES			5	/* per batch, after lost connections and
								 * deadlocks */
#define FIRST_BACKOFF		50	/* ms, doubled after each try */
#define RECONNECT_TIMEOUT	15000	/* ms */
#define MAX_BACKOFF			2000

/* How an attempt at a batch ended. */
typedef enum Attempt
{
	ATTEMPT_COMMITTED,			/* committed; from do_work: ready for COMMIT */
	ATTEMPT_AGAIN,				/* more events are decided: try without them */
	ATTEMPT_CAREFUL,			/* an event raised an error */
	ATTEMPT_PASSING,			/* nobody's fault */
	ATTEMPT_CHANGED,			/* the function was changed */
	ATTEMPT_COMMIT_LOST,		/* the answer to COMMIT is lost */
	ATTEMPT_OUTAGE,
	ATTEMPT_CONFIG,				/* or p->failure is set */
	ATTEMPT_TAKEN_BACK,			/* an event that was answered as acked can no
								 * longer be done */
	ATTEMPT_FENCED				/* the fence found no row */
} Attempt;

/* Begin an attempt.  The transaction of the attempt before was rolled back. */
static void
start_attempt(PgSink *p)
{
	pgsink_forget_error(p);
	p->fell = false;
	p->changed = false;
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		p->batch.events[i].claim = PGSINK_CLAIM_NONE;
		p->batch.events[i].done = false;
	}
	pgsink_decide_ahead(p);
}

/*
 * Read the pending results; note the answers to claims in the events.  Returns
 * whether the fence found its row.  p->failure if the target does not do what
 * position or claims need.
 */
static bool
read_pending(PgSink *p)
{
	PgSinkPending pending;
	PGresult   *res;
	bool		found = false;

	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_FENCE && PQresultStatus(res) == PGRES_TUPLES_OK)
			found = pgsink_read_fence(p, res);
		else if (pending.step == PGSINK_STEP_CLAIM && PQresultStatus(res) == PGRES_TUPLES_OK &&
				 pgsink_read_claims(p, res))
			pgsink_decide_claims(p);
		else if (pending.step == PGSINK_STEP_LOOK && PQresultStatus(res) == PGRES_TUPLES_OK)
			p->changed = !pgsink_read_look(res);
		PQclear(res);
	}
	return found;
}

/*
 * Roll back after p->error; the attempt's end depends on who is to blame.  Calls
 * behind the error may have been sent already, and one of them may end the
 * session meanwhile.  That is not the error, which counts as it was.
 */
static Attempt
after_error(PgSink *p)
{
	PgSinkBlame blame = pgsink_blame(p);
	bool		lost = p->error.lost;

	pgsink_rollback(p);
	p->error.lost = lost;
	if (lost)
		return ATTEMPT_PASSING;
	switch (blame)
	{
		case PGSINK_BLAME_EVENT:
		case PGSINK_BLAME_SLOW:
		case PGSINK_BLAME_DOUBTFUL:
			return ATTEMPT_CAREFUL;
		case PGSINK_BLAME_PASSING:
			return ATTEMPT_PASSING;
		case PGSINK_BLAME_OUTAGE:
			return ATTEMPT_OUTAGE;
		default:
			return ATTEMPT_CONFIG;
	}
}

/*
 * Queue all calls in one statement, then completion and release of the claims.
 */
static void
send_all(PgSink *p)
{
	uint32_t   *which = idem_sink_alloc(p->batch.count * sizeof(uint32_t));
	uint32_t	n = 0;

	for (uint32_t i = 0; i < p->batch.count; i++)
		if (pgsink_to_call(p, i))
		{
			p->batch.events[i].done = true;
			which[n++] = i;
		}
	if (n > 0)
	{
		pgsink_limit_calls(p);
		pgsink_send_calls(p, which, n);
		pgsink_send(p, PGSINK_STEP_CHECK, which[0], "SET CONSTRAINTS ALL IMMEDIATE", 0, NULL, NULL, NULL);
		pgsink_send_look(p);
	}
	pgsink_send_claim_ends(p);
	free(which);
}

/* The calls may have been left out, see target.c. */
static Attempt
after_change(PgSink *p)
{
	pgsink_rollback(p);
	return ATTEMPT_CHANGED;
}

/*
 * After send_all.  A call may leave a transaction in which claims cannot be
 * completed, such as a read only one.  CHECK blames the calls, so that careful
 * keeps them apart.
 */
static Attempt
after_all(PgSink *p)
{
	if (!p->error.set)
	{
		if (p->changed)
			return after_change(p);
		for (uint32_t i = 0; i < p->batch.count; i++)
			p->passes |= p->batch.events[i].done;
		return ATTEMPT_COMMITTED;
	}
	if (p->error.step == PGSINK_STEP_COMPLETE || p->error.step == PGSINK_STEP_LOOK)
		p->error.step = PGSINK_STEP_CHECK;
	return after_error(p);
}

/* The number of events that are not acked. */
static uint32_t
count_decided(const PgSink *p)
{
	uint32_t	n = 0;

	for (uint32_t i = 0; i < p->batch.count; i++)
		n += p->batch.events[i].outcome != 0;
	return n;
}

/*
 * Open the transaction and do everything in it but COMMIT.  Without claims and
 * savepoints this work is one round trip.  COMMIT cannot go with it, because it
 * depends on the fence's answer.
 */
static Attempt
do_work(PgSink *p, bool careful)
{
	bool		claims = p->claim_sql != NULL && count_decided(p) < p->batch.count;
	bool		split = claims || careful;

	pgsink_begin(p);
	pgsink_send_fence(p);
	if (claims)
		pgsink_send_claims(p);
	if (!split)
		send_all(p);
	pgsink_sync(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-begun");
	if (!read_pending(p) && !p->error.set)
	{
		pgsink_rollback(p);
		return ATTEMPT_FENCED;
	}
	if (p->failure.outcome != 0)
	{
		pgsink_rollback(p);
		return ATTEMPT_CONFIG;
	}
	if (!split)
		return after_all(p);
	if (p->error.set)
		return after_error(p);

	pgsink_decide_ahead(p);
	if (careful)
	{
		if (pgsink_call_carefully(p))
			return p->changed ? after_change(p) : ATTEMPT_COMMITTED;
		if (p->error.set)
			return after_error(p);
		pgsink_rollback(p);
		return ATTEMPT_AGAIN;
	}
	send_all(p);
	pgsink_sync(p);
	read_pending(p);
	return after_all(p);
}

/* Send a RESULT for each range of events with the same outcome. */
static void
send_results(PgSink *p)
{
	PgSinkBatch *b = &p->batch;
	uint32_t	first = 0;

	for (uint32_t i = 0; i < b->count; i++)
	{
		PgSinkEvent *e = &b->events[i];
		IdemProtoOutcome outcome = e->outcome ? e->outcome : IDEM_PROTO_ACKED;

		if (e->message == NULL && i + 1 < b->count && b->events[i + 1].message == NULL &&
			b->events[i + 1].outcome == e->outcome)
			continue;
		idem_sink_result_later(&p->sink, b->batch, first, i, outcome,
							   e->outcome ? e->sqlstate : NULL, e->retry_after, e->message);
		first = i + 1;
	}
	p->answered = true;
}

/* Send the VERDICT, after all results of the batch. */
static void
send_verdict(PgSink *p, IdemProtoVerdictKind kind, const char *sqlstate, const char *message)
{
	if (!p->answered)
		send_results(p);
	idem_sink_verdict(&p->sink, p->batch.batch, kind, sqlstate, message);
}

/*
 * Wait until the worker has noted the events that are not acked.  If the
 * position were committed before and the worker crashed, these events would be
 * lost: the position has passed them, and nothing else knows them.
 */
static void
await_settle(PgSink *p)
{
	if (count_decided(p) == 0)
		return;
	if (!p->answered)
		send_results(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-settle");
	while (p->sink.stream.settled < p->batch.batch)
		idem_sink_wait(&p->sink, -1, 0, -1, true);
}

/* Send COMMIT and read its answer. */
static Attempt
commit(PgSink *p)
{
	bool		committed = false;
	PgSinkPending pending;
	PGresult   *res;

	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-commit");
	pgsink_send_settings(p);	/* a call may have set synchronous_commit */
	pgsink_send(p, PGSINK_STEP_COMMIT, 0, "COMMIT", 0, NULL, NULL, NULL);
	pgsink_sync(p);
	IDEM_SINK_FAULT_POINT(&p->sink, "postgres-commit-sent");
	while ((res = pgsink_next(p, &pending)) != NULL)
	{
		if (pending.step == PGSINK_STEP_COMMIT && PQresultStatus(res) == PGRES_COMMAND_OK)
			committed = (strcmp(PQcmdStatus(res), "COMMIT") == 0);
		PQclear(res);
	}
	if (committed)
	{
		IDEM_SINK_FAULT_POINT(&p->sink, "postgres-committed");
		pgsink_position_stored(p);
		return ATTEMPT_COMMITTED;
	}
	if (p->error.lost)
		return ATTEMPT_COMMIT_LOST;

	/*
	 * A deferred trigger raised the error because of some event.  CHECK
	 * blames the events, so that careful looks for this event.  A doubtful
	 * error is the target's here.
	 */
	p->error.step = PGSINK_STEP_CHECK;
	if (pgsink_blame(p) == PGSINK_BLAME_DOUBTFUL)
		p->error.step = PGSINK_STEP_COMMIT;
	return after_error(p);
}

/* Apply the batch once, in one transaction. */
static Attempt
attempt(PgSink *p, bool careful)
{
	uint32_t	before = count_decided(p);
	Attempt		result;

	p->began = idem_sink_clock();

	start_attempt(p);
	result = do_work(p, careful);
	if (result != ATTEMPT_COMMITTED)
		return result;

	/*
	 * The results are out, but this attempt decided another event: its claim
	 * may be held elsewhere by now.
	 */
	if (p->answered && count_decided(p) != before)
		return ATTEMPT_TAKEN_BACK;
	await_settle(p);
	return commit(p);
}

/* Connect again within RECONNECT_TIMEOUT; false with p->error or p->failure. */
static bool
reconnect(PgSink *p)
{
	int64_t		deadline = idem_sink_clock() + RECONNECT_TIMEOUT;
	int			backoff = FIRST_BACKOFF;

	while (!pgsink_connect(p))
	{
		if (p->failure.outcome != 0 || idem_sink_clock() + backoff > deadline)
			return false;
		idem_sink_wait(&p->sink, -1, 0, backoff, false);
		backoff = backoff * 2 < MAX_BACKOFF ? backoff * 2 : MAX_BACKOFF;
	}
	return true;
}

/*
 * Fail because the fence found no row: a successor, or a target that was set
 * back?
 */
static bool
fail_fenced(PgSink *p)
{
	switch (pgsink_ask_takeover(p))
	{
		case PGSINK_FATE_FENCED:
			return idem_sink_fail(&p->failure, IDEM_PROTO_FENCED, "55000",
								  "another instance has taken over position \"%s\" in %s at the target; if it is a relay of the same name in another database, give one of the two another name or another position_table",
								  p->config.relay, p->position_table);
		case PGSINK_FATE_NOT_STORED:
			return false;
		case PGSINK_FATE_UNKNOWN:
			return pgsink_fail_for_error(p, "look at the relay's position at the target");
		default:
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
								  "position \"%s\" in %s at the target is not the one that was stored there last: the target was set back, or a copy of this database has stored it",
								  p->config.relay, p->position_table);
	}
}

/*
 * Fail because no single event raises an error, but COMMIT does.  For example,
 * a handler made a claim and did not complete it.  After ABORTED the worker
 * sends the events in smaller batches, to find the event that is at fault.
 */
static bool
fail_unfound(PgSink *p)
{
	pgsink_hide_events(p, &p->error);
	send_verdict(p, IDEM_PROTO_ABORTED, p->error.sqlstate, p->error.message);
	return pgsink_fail_for_error(p, "commit a batch");
}

/*
 * After a COMMIT whose answer is lost: ask the target until it has told whether
 * the batch committed.  False: p->failure.
 */
static bool
ask_until_known(PgSink *p, bool *committed)
{
	for (int tries = 0; tries < MAX_TRIES; tries++)
	{
		if (!reconnect(p))
			break;
		IDEM_SINK_FAULT_POINT(&p->sink, "postgres-ask-fate");
		switch (pgsink_ask_fate(p))
		{
			case PGSINK_FATE_COMMITTED:
				*committed = true;
				return true;
			case PGSINK_FATE_ABORTED:
				*committed = false;
				return true;
			case PGSINK_FATE_FENCED:
				return fail_fenced(p);
			default:
				break;
		}
		if (!p->error.lost)
			break;
	}
	return pgsink_fail_for_error(p, "learn whether a batch was committed");
}

/* Do the calls of many events keep their locks for too long? */
static bool
wants_fewer(const PgSink *p, Attempt result)
{
	if ((result != ATTEMPT_CAREFUL && result != ATTEMPT_PASSING && result != ATTEMPT_OUTAGE) || p->error.lost ||
		p->error.step == PGSINK_STEP_FENCE || p->error.step == PGSINK_STEP_CLAIM)
		return false;
	return pgsink_takes_long(p);
}

static bool
ask_for_fewer(PgSink *p)
{
	pgsink_hide_events(p, &p->error);
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "53400",
						  "one transaction keeps the locks of %u events for too long: fewer are sent together: %s",
						  p->batch.count, p->error.message);
}

/* How the batch is to be applied next. */
typedef struct Course
{
	bool		careful;		/* the events one by one */
	bool		committed;		/* the batch is done: no further attempt */
	int			tries;			/* attempts that failed without anybody's
								 * fault, on a connection that lived */
	int			drops;			/* attempts whose connection was lost before
								 * COMMIT, and that decided no event */
	int			lost;			/* attempts whose connection was lost at
								 * COMMIT, and that did not commit */
	int			backoff;		/* ms */
} Course;

/* Wait before the next attempt, longer each time. */
static bool
back_off(PgSink *p, Course *course)
{
	idem_sink_wait(&p->sink, -1, 0, course->backoff, false);
	course->backoff = course->backoff * 2 < MAX_BACKOFF ? course->backoff * 2 : MAX_BACKOFF;
	return true;
}

/*
 * The connection was lost before COMMIT.  Some other event may have used up the
 * tries, so these losses have a count of their own: a second loss has to come
 * for pgsink_judge_fall to find the event that ends the session.
 */
static bool
after_drop(PgSink *p, Course *course)
{
	course->careful = p->dropped = true;
	if (p->fell && pgsink_judge_fall(p, course->drops > 0))
		return true;
	if (++course->drops >= MAX_TRIES)
		return pgsink_fail_for_error(p, "apply a batch");
	return back_off(p, course);
}

/* Choose the course after an attempt.  False: p->failure. */
static bool
choose_course(PgSink *p, Attempt result, Course *course)
{
	PgSinkError lost;

	if (wants_fewer(p, result))
		return ask_for_fewer(p);
	switch (result)
	{
		case ATTEMPT_COMMITTED:
			course->committed = true;
			return true;
		case ATTEMPT_COMMIT_LOST:
			/* The next connection forgets why this one was lost. */
			lost = p->error;
			pgsink_hide_events(p, &lost);
			if (!ask_until_known(p, &course->committed))
				return false;
			if (course->committed)
				pgsink_position_stored(p);
			else if (++course->lost >= MAX_TRIES)
				return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
									  "could not commit a batch: %d connections were lost at COMMIT: %s",
									  course->lost, lost.message);
			return true;
		case ATTEMPT_CAREFUL:
			IDEM_SINK_FAULT_POINT(&p->sink, "postgres-careful");
			if (course->careful)
				return fail_unfound(p);
			course->careful = true;
			if (pgsink_may_be_shape(&p->error) && p->conn != NULL && !pgsink_check_target(p))
				return false;
			/* results that were sent cannot be changed */
			return !p->answered || pgsink_fail_for_error(p, "apply a batch");
		case ATTEMPT_AGAIN:
			return !p->answered || pgsink_fail_for_error(p, "apply a batch");
		case ATTEMPT_PASSING:
			if (p->error.lost && !p->answered)
				return after_drop(p, course);
			if (++course->tries >= MAX_TRIES)
			{
				if (p->batch.count > PGSINK_FEW && !p->error.lost && strcmp(p->error.sqlstate, "40P01") == 0)
					return ask_for_fewer(p);
				p->repeated = true;
				if (p->error.lost || p->answered || pgsink_blame(p) != PGSINK_BLAME_DOUBTFUL)
					return pgsink_fail_for_error(p, "apply a batch");
				course->careful = true;
				return true;
			}
			return back_off(p, course);
		case ATTEMPT_CHANGED:
			if (++course->tries >= MAX_TRIES)
				return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55000",
									  "function %s.%s at the target was changed during each of %d attempts at a batch",
									  p->config.schema, p->config.name, course->tries);
			return p->conn == NULL || pgsink_look_again(p);
		case ATTEMPT_TAKEN_BACK:
			return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "55P03",
								  "could not apply a batch again: an event that was answered as done cannot be done any more");
		case ATTEMPT_FENCED:
			return fail_fenced(p);
		default:
			return pgsink_fail_for_error(p, "apply a batch");
	}
}

/*
 * Fail because the target cannot be reached.  If it was reached before the calls
 * of the batch, one of them may have taken it down: ID006 tells the worker to
 * look for the event, should that happen again.
 */
static bool
fail_dropped(PgSink *p, bool dropped)
{
	(void) pgsink_fail_for_error(p, "apply a batch");
	if (dropped && p->failure.outcome == IDEM_PROTO_OUTAGE)
		memcpy(p->failure.sqlstate, "ID006", sizeof(p->failure.sqlstate));
	return false;
}

bool
pgsink_apply(PgSink *p)
{
	Course		course = {.backoff = FIRST_BACKOFF, .careful = pgsink_has_fallen(p)};

	p->answered = false;
	p->repeated = p->dropped = false;
	while (!course.committed)
	{
		if (p->conn == NULL && !reconnect(p))
			return fail_dropped(p, course.drops > 0);
		if (!choose_course(p, attempt(p, course.careful), &course))
			return false;
	}
	send_verdict(p, IDEM_PROTO_COMMITTED, NULL, NULL);
	return true;
}
