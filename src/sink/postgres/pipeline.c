/*-------------------------------------------------------------------------
 *
 * pipeline.c
 *		Statements and results of the connection to the target.
 *
 * Statements are queued with their purpose (PgSinkStep).  Results come back in
 * the same order, and the first error is kept with its statement.  Only
 * idem_sink_wait waits, and it serves the worker meanwhile.  The wait for a
 * result has a deadline; other messages of the target do not extend it.
 *
 * INVARIANT
 *		No session state at the target outlives a transaction.  Settings are
 *		local, and the only prepared statement is the unnamed statement, which
 *		each transaction prepares for itself.  So a pooler in transaction mode
 *		may sit between program and target.
 *
 * MEMORY
 *		The list of pending statements is reused.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/pipeline.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

void
pgsink_disconnect(PgSink *p)
{
	if (p->conn != NULL)
		PQfinish(p->conn);
	p->conn = NULL;
	p->pending_at = p->pending_end = 0;
}

/* Note that the connection is gone, and close it. */
static void
lose(PgSink *p, PgSinkPending pending, const char *message)
{
	pgsink_note_error(p, pending, true, "08006", message);
	pgsink_disconnect(p);
}

/* Add a statement to the list of pending statements. */
static void
push_pending(PgSink *p, PgSinkStep step, uint32_t arg)
{
	if (p->pending_end == p->pending_size)
	{
		p->pending_size = p->pending_size > 0 ? p->pending_size * 2 : 64;
		p->pending = idem_sink_realloc(p->pending, p->pending_size * sizeof(PgSinkPending));
	}
	p->pending[p->pending_end].step = step;
	p->pending[p->pending_end].arg = arg;
	p->pending_end++;
}

/*
 * Note that a statement is pending; if libpq did not take it, lose the
 * connection.
 */
static void
queued(PgSink *p, PgSinkStep step, uint32_t arg, int ok)
{
	PgSinkPending pending = {step, arg};

	if (ok)
		push_pending(p, step, arg);
	else
		lose(p, pending, PQerrorMessage(p->conn));
}

/* The format of each parameter: binary if its length is above 0. */
static const int *
formats_of(int nparams, const int *lengths)
{
	static int	formats[PGSINK_NFIELDS + 8];

	for (int i = 0; i < nparams; i++)
		formats[i] = lengths != NULL && lengths[i] > 0;
	return formats;
}

void
pgsink_send(PgSink *p, PgSinkStep step, uint32_t arg, const char *sql, int nparams,
			const uint32_t *types, const char *const *values, const int *lengths)
{
	if (p->conn != NULL)
		queued(p, step, arg,
			   PQsendQueryParams(p->conn, sql, nparams, types, values, lengths,
								 formats_of(nparams, lengths), 0));
}

void
pgsink_prepare(PgSink *p, const char *sql, int nparams, const uint32_t *types)
{
	if (p->conn != NULL)
		queued(p, PGSINK_STEP_PREPARE, 0, PQsendPrepare(p->conn, "", sql, nparams, types));
}

void
pgsink_execute(PgSink *p, uint32_t arg, int nparams, const char *const *values,
			   const int *lengths)
{
	if (p->conn != NULL)
		queued(p, PGSINK_STEP_CALL, arg,
			   PQsendQueryPrepared(p->conn, "", nparams, values, lengths,
								   formats_of(nparams, lengths), 0));
}

void
pgsink_sync(PgSink *p)
{
	if (p->conn != NULL)
		queued(p, PGSINK_STEP_SYNC, 0, PQpipelineSync(p->conn));
}

/* Wait until libpq can give a result; false if the connection is lost. */
static bool
wait_for_result(PgSink *p, PgSinkPending pending)
{
	int64_t		deadline = idem_sink_clock() + p->config.reply_timeout;

	for (;;)
	{
		int			unsent = PQflush(p->conn);
		int64_t		left = deadline - idem_sink_clock();
		short		got = 0;

		if (unsent < 0)
			break;
		if (!PQisBusy(p->conn))
			return true;
		if (p->config.reply_timeout == 0 || left > 0)
			got = idem_sink_wait(&p->sink, PQsocket(p->conn),
								 (short) (POLLIN | (unsent > 0 ? POLLOUT : 0)),
								 p->config.reply_timeout == 0 ? -1 : (int) left, false);
		if (got == 0)
		{
			lose(p, pending, "no answer from the target within its timeout");
			return false;
		}
		if ((got & ~POLLOUT) && !PQconsumeInput(p->conn))
			break;
	}
	lose(p, pending, PQerrorMessage(p->conn));
	return false;
}

/* Also takes in what the target says by itself, such as a changed setting. */
bool
pgsink_is_alive(PgSink *p)
{
	if (PQconsumeInput(p->conn))
	{
		PGnotify   *notify;

		while ((notify = PQnotifies(p->conn)) != NULL)
			PQfreemem(notify);
	}
	if (PQstatus(p->conn) != CONNECTION_BAD)
		return true;
	return idem_sink_fail(&p->failure, IDEM_PROTO_OUTAGE, "08006",
						  "the target ended the session");
}

/* Note the error that a result holds. */
static void
note_result_error(PgSink *p, PgSinkPending pending, const PGresult *res)
{
	const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);
	const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
	bool		fatal = severity != NULL && strcmp(severity, "ERROR") != 0;

	/* pgsink_limit_time found no time left */
	if (pending.step == PGSINK_STEP_TIME && sqlstate != NULL && strcmp(sqlstate, "22023") == 0)
	{
		sqlstate = "57014";
		message = "the calls of the batch took longer than statement_timeout";
	}

	/*
	 * After a FATAL error the target closes the connection, but libpq may not
	 * have seen the end yet.
	 */
	pgsink_note_error(p, pending, fatal || PQstatus(p->conn) == CONNECTION_BAD, sqlstate,
					  message ? message : PQresultErrorMessage(res));
}

PGresult *
pgsink_next(PgSink *p, PgSinkPending *pending)
{
	PGresult   *res;
	PGresult   *end;
	bool		unreplicated;

	if (p->conn == NULL || p->pending_at == p->pending_end)
	{
		p->pending_at = p->pending_end = 0;
		return NULL;
	}
	*pending = p->pending[p->pending_at++];
	if (!wait_for_result(p, *pending))
		return NULL;
	res = PQgetResult(p->conn);
	if (res == NULL)
	{
		lose(p, *pending, PQerrorMessage(p->conn));
		return NULL;
	}
	unreplicated = pending->step == PGSINK_STEP_COMMIT && p->unreplicated;
	if (PQresultStatus(res) == PGRES_FATAL_ERROR && !unreplicated)
		note_result_error(p, *pending, res);
	if (pending->step == PGSINK_STEP_SYNC)
		return res;

	/* In a pipeline a NULL follows each statement's result. */
	if (!wait_for_result(p, *pending))
	{
		PQclear(res);
		return NULL;
	}
	if ((end = PQgetResult(p->conn)) != NULL)
	{
		PQclear(end);
		PQclear(res);
		lose(p, *pending, "the target's answers are out of step");
		return NULL;
	}

	/* The next connection asks again, and its own COMMIT waits again. */
	if (unreplicated)
	{
		PQclear(res);
		lose(p, *pending, "the target stopped waiting for its synchronous standby: what it committed may be lost in a failover");
		return NULL;
	}
	return res;
}

void
pgsink_drain(PgSink *p)
{
	PgSinkPending pending;
	PGresult   *res;

	while ((res = pgsink_next(p, &pending)) != NULL)
		PQclear(res);
}

void
pgsink_rollback(PgSink *p)
{
	PgSinkError kept = p->error;

	pgsink_send(p, PGSINK_STEP_FRAME, 0, "ROLLBACK", 0, NULL, NULL, NULL);
	pgsink_sync(p);
	pgsink_drain(p);
	if (kept.set)
	{
		kept.lost |= p->error.lost;
		p->error = kept;
	}
}

bool
pgsink_rehearse(PgSink *p, PgSinkStep step, const char *sql, int nparams, const uint32_t *types)
{
	const char *values[PGSINK_NFIELDS + 8] = {NULL};
	char	   *explain = pgsink_format("EXPLAIN %s", sql);

	pgsink_begin(p);
	pgsink_send(p, step, 0, explain, nparams, types, values, NULL);
	pgsink_sync(p);
	pgsink_drain(p);
	free(explain);
	pgsink_rollback(p);
	return !p->error.set;
}

/*
 * What a call of an earlier event has set ends here: in a session whose client_encoding a
 * call has changed, later texts would be read as other characters.  Behind a pooler the
 * session began with another client_encoding than ours, so it is set anew, too.
 *
 * An acked event has to be durable, so synchronous_commit is at least "on".  If
 * the target has "remote_apply", it stays.  The timeouts of the role and the
 * database would end a batch as a whole, each time; transaction_timeout is known
 * from version 17 on.
 */
void
pgsink_send_settings(PgSink *p)
{
	const char *values[2] = {p->config.statement_timeout, p->config.idle_timeout};
	const uint32_t types[2] = {PGSINK_TYPE_TEXT, PGSINK_TYPE_TEXT};

	pgsink_send(p, PGSINK_STEP_FRAME, 0, "RESET ALL", 0, NULL, NULL, NULL);
	/* RESET ALL leaves the user and the role; a new user ends the role */
	pgsink_send(p, PGSINK_STEP_FRAME, 0,
				"SELECT pg_catalog.set_config('session_authorization', NULL, false),"
				" pg_catalog.set_config('role', NULL, false),"
				" pg_catalog.set_config('client_encoding', 'UTF8', false),"
				" pg_catalog.set_config('statement_timeout', $1, true),"
				" pg_catalog.set_config('lock_timeout', '0', true),"
				" pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true),"
				" CASE WHEN pg_catalog.current_setting('transaction_timeout', true) OPERATOR(pg_catalog.<>) '0'"
				" THEN pg_catalog.set_config('transaction_timeout', '0', true) END,"
				" CASE WHEN pg_catalog.current_setting('synchronous_commit') OPERATOR(pg_catalog.<>) ALL ('{on,remote_apply}')"
				" THEN pg_catalog.set_config('synchronous_commit', 'on', true) END",
				2, types, values, NULL);
}

void
pgsink_begin(PgSink *p)
{
	p->unreplicated = false;
	pgsink_send(p, PGSINK_STEP_FRAME, 0, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
				0, NULL, NULL, NULL);
	pgsink_send_settings(p);
}

/* ms for all calls of the batch; "0": no limit. */
static const char *
calls_time(const PgSink *p)
{
	return p->batch.count > PGSINK_FEW ? p->config.many_timeout : p->config.statement_timeout;
}

static void
set_time(PgSink *p, const char *ms)
{
	const uint32_t types[1] = {PGSINK_TYPE_TEXT};

	pgsink_send(p, PGSINK_STEP_FRAME, 0, "SELECT pg_catalog.set_config('statement_timeout', $1, true)",
				1, types, &ms, NULL);
}

void
pgsink_limit_calls(PgSink *p)
{
	if (strcmp(calls_time(p), p->config.statement_timeout) != 0)
		set_time(p, calls_time(p));
}

bool
pgsink_takes_long(const PgSink *p)
{
	return p->batch.count > PGSINK_FEW && strcmp(p->error.sqlstate, "57014") == 0 &&
		idem_sink_clock() - p->began >= atol(p->config.many_timeout);
}

/*
 * The target computes the rest of the time from its own clock, so that a
 * statement can be queued before earlier statements are answered.  If no time
 * is left, -1 makes set_config fail with 22023, which note_result_error turns
 * into 57014.
 */
void
pgsink_limit_time(PgSink *p, uint32_t arg)
{
	const char *values[1] = {calls_time(p)};
	const uint32_t types[1] = {PGSINK_TYPE_INT8};

	if (strcmp(values[0], "0") == 0)
		return;
	pgsink_send(p, PGSINK_STEP_TIME, arg,
				"SELECT pg_catalog.set_config('statement_timeout',"
				" (CASE WHEN t.ms OPERATOR(pg_catalog.>) 0 THEN LEAST(t.ms, $1) ELSE -1 END)::pg_catalog.text, true)"
				" FROM (SELECT $1 OPERATOR(pg_catalog.-) pg_catalog.floor(pg_catalog.date_part('epoch',"
				" pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.transaction_timestamp())"
				" OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8) AS t(ms)",
				1, types, values, NULL);
}

void
pgsink_give_time(PgSink *p)
{
	if (strcmp(calls_time(p), "0") != 0)
		set_time(p, p->config.statement_timeout);
}
