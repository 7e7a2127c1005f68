/*-------------------------------------------------------------------------
 *
 * conn.c
 *		One libpq connection to the target, in pipeline mode.
 *
 * Statements are queued with what they are for; results come back in the same
 * order, and the first error is kept with the statement it belongs to.  All
 * waiting is done by idem_sink_wait, so that the worker is served meanwhile.
 * What the target sends besides does not prolong the wait for a result.
 *
 * INVARIANT
 *		No session state at the target outlives a transaction: settings are
 *		local, and the only prepared statement is the unnamed one, prepared in
 *		the transaction that uses it.  A pooler in transaction mode may sit in
 *		between.
 *
 * LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/conn.c
 *
 *-------------------------------------------------------------------------
 */
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

#define MIN_SERVER	120000

void
pg_forget_error(PgSink *p)
{
	memset(&p->error, 0, sizeof(p->error));
}

/* Note an error unless there is one; a lost connection is always noted. */
static void
note_error(PgSink *p, PgPending what, bool lost, const char *sqlstate, const char *message)
{
	size_t		len;

	if (lost)
		p->error.lost = true;
	if (p->error.set)
		return;
	p->error.set = true;
	p->error.step = what.step;
	p->error.arg = what.arg;
	snprintf(p->error.sqlstate, sizeof(p->error.sqlstate), "%s", sqlstate ? sqlstate : "08006");
	snprintf(p->error.message, sizeof(p->error.message), "%s", message ? message : "");
	len = strlen(p->error.message);
	while (len > 0 && p->error.message[len - 1] == '\n')
		p->error.message[--len] = '\0';
}

void
pg_disconnect(PgSink *p)
{
	if (p->conn != NULL)
		PQfinish(p->conn);
	p->conn = NULL;
	p->pending_at = p->pending_end = 0;
}

static void
lose(PgSink *p, PgPending what, const char *message)
{
	note_error(p, what, true, "08006", message);
	pg_disconnect(p);
}

/*
 * Connect; false with p->error set if it failed.  That it was not with a
 * password, though one is required, is final: the target trusts the server's
 * operating-system user, and the relay's owner must not profit from it.
 */
bool
pg_connect(PgSink *p)
{
	PgPending	what = {PG_STEP_FRAME, 0};
	char		problem[IDEM_PROTO_MAX_MESSAGE];

	pg_disconnect(p);
	pg_forget_error(p);
	p->conn = pg_open(p, problem, sizeof(problem));
	if (p->conn == NULL)
	{
		lose(p, what, problem);
		return false;
	}
	if (p->config.require_password && !PQconnectionUsedPassword(p->conn))
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "2F003",
						 "the target did not ask for a password, but the relay's owner is not a superuser; change the target's authentication method");
	if (PQserverVersion(p->conn) < MIN_SERVER)
		idem_sink_failed(&p->sink, IDEM_PROTO_REJECTED, "0A000",
						 "the target's server is older than version %d", MIN_SERVER / 10000);
	if (PQsetnonblocking(p->conn, 1) != 0 || PQenterPipelineMode(p->conn) != 1)
	{
		lose(p, what, PQerrorMessage(p->conn));
		return false;
	}
	return true;
}

static void
push_pending(PgSink *p, PgStep step, uint32_t arg)
{
	if (p->pending_end == p->pending_size)
	{
		p->pending_size = p->pending_size > 0 ? p->pending_size * 2 : 64;
		p->pending = idem_sink_realloc(p->pending, p->pending_size * sizeof(PgPending));
	}
	p->pending[p->pending_end].step = step;
	p->pending[p->pending_end].arg = arg;
	p->pending_end++;
}

/* Note what became of queueing a statement. */
static void
queued(PgSink *p, PgStep step, uint32_t arg, int ok)
{
	PgPending	what = {step, arg};

	if (ok)
		push_pending(p, step, arg);
	else
		lose(p, what, PQerrorMessage(p->conn));
}

/* Binary where there is a length. */
static const int *
formats_of(int nparams, const int *lengths)
{
	static int	formats[PG_NFIELDS + 8];

	for (int i = 0; i < nparams; i++)
		formats[i] = lengths != NULL && lengths[i] > 0;
	return formats;
}

void
pg_send(PgSink *p, PgStep step, uint32_t arg, const char *sql, int nparams,
		const uint32_t *types, const char *const *values, const int *lengths)
{
	if (p->conn != NULL)
		queued(p, step, arg,
			   PQsendQueryParams(p->conn, sql, nparams, types, values, lengths,
								 formats_of(nparams, lengths), 0));
}

void
pg_prepare(PgSink *p, const char *sql, int nparams, const uint32_t *types)
{
	if (p->conn != NULL)
		queued(p, PG_STEP_PREPARE, 0, PQsendPrepare(p->conn, "", sql, nparams, types));
}

void
pg_execute(PgSink *p, uint32_t arg, int nparams, const char *const *values,
		   const int *lengths)
{
	if (p->conn != NULL)
		queued(p, PG_STEP_CALL, arg,
			   PQsendQueryPrepared(p->conn, "", nparams, values, lengths,
								   formats_of(nparams, lengths), 0));
}

void
pg_sync(PgSink *p)
{
	if (p->conn != NULL)
		queued(p, PG_STEP_SYNC, 0, PQpipelineSync(p->conn));
}

/* Wait until libpq can give a result; false if the connection is lost. */
static bool
wait_for_result(PgSink *p, PgPending what)
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
			lose(p, what, "no answer from the target within its timeout");
			return false;
		}
		if ((got & ~POLLOUT) && !PQconsumeInput(p->conn))
			break;
	}
	lose(p, what, PQerrorMessage(p->conn));
	return false;
}

static void
note_result_error(PgSink *p, PgPending what, const PGresult *res)
{
	const char *sqlstate = PQresultErrorField(res, PG_DIAG_SQLSTATE);
	const char *message = PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY);

	const char *severity = PQresultErrorField(res, PG_DIAG_SEVERITY_NONLOCALIZED);
	bool		fatal = severity != NULL && strcmp(severity, "ERROR") != 0;

	/* the setting refused what is left of the time */
	if (what.step == PG_STEP_TIME && sqlstate != NULL && strcmp(sqlstate, "22023") == 0)
	{
		sqlstate = "57014";
		message = "the calls of the batch took longer than statement_timeout";
	}
	/* a FATAL is the end of the connection, though libpq does not see it yet */
	note_error(p, what, fatal || PQstatus(p->conn) == CONNECTION_BAD, sqlstate,
			   message ? message : PQresultErrorMessage(res));
}

PGresult *
pg_next(PgSink *p, PgPending *what)
{
	PGresult   *res;
	PGresult   *end;

	if (p->conn == NULL || p->pending_at == p->pending_end)
	{
		p->pending_at = p->pending_end = 0;
		return NULL;
	}
	*what = p->pending[p->pending_at++];
	if (!wait_for_result(p, *what))
		return NULL;
	res = PQgetResult(p->conn);
	if (res == NULL)
	{
		lose(p, *what, PQerrorMessage(p->conn));
		return NULL;
	}
	if (PQresultStatus(res) == PGRES_FATAL_ERROR)
		note_result_error(p, *what, res);
	if (what->step == PG_STEP_SYNC)
		return res;

	/* In a pipeline each statement's result is followed by a NULL. */
	if (!wait_for_result(p, *what))
	{
		PQclear(res);
		return NULL;
	}
	if ((end = PQgetResult(p->conn)) != NULL)
	{
		PQclear(end);
		PQclear(res);
		lose(p, *what, "the target's answers are out of step");
		return NULL;
	}
	return res;
}

void
pg_drain(PgSink *p)
{
	PgPending	what;
	PGresult   *res;

	while ((res = pg_next(p, &what)) != NULL)
		PQclear(res);
}

void
pg_rollback(PgSink *p)
{
	PgError		kept = p->error;

	pg_send(p, PG_STEP_FRAME, 0, "ROLLBACK", 0, NULL, NULL, NULL);
	pg_sync(p);
	pg_drain(p);
	if (kept.set)
	{
		kept.lost |= p->error.lost;
		p->error = kept;
	}
}

/*
 * synchronous_commit is raised if it is too low for an acknowledgement, not
 * lowered where the target has more.
 */
void
pg_begin(PgSink *p)
{
	const char *values[2] = {p->config.statement_timeout, p->config.idle_timeout};
	const uint32_t types[2] = {PG_TEXT, PG_TEXT};

	pg_send(p, PG_STEP_FRAME, 0, "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
			0, NULL, NULL, NULL);
	pg_send(p, PG_STEP_FRAME, 0,
			"SELECT pg_catalog.set_config('statement_timeout', $1, true),"
			" pg_catalog.set_config('lock_timeout', '0', true),"
			" pg_catalog.set_config('idle_in_transaction_session_timeout', $2, true),"
			" CASE WHEN pg_catalog.current_setting('synchronous_commit') NOT IN ('on', 'remote_apply')"
			" THEN pg_catalog.set_config('synchronous_commit', 'on', true) END",
			2, types, values, NULL);
}

/*
 * The target's own clock tells what is left, so that statements can be queued
 * without an answer to the ones before.  -1 is out of range for the setting.
 */
void
pg_limit_time(PgSink *p, uint32_t arg)
{
	const char *values[1] = {p->config.statement_timeout};
	const uint32_t types[1] = {PG_INT8};

	if (p->config.reply_timeout == 0)
		return;
	pg_send(p, PG_STEP_TIME, arg,
			"SELECT pg_catalog.set_config('statement_timeout',"
			" (CASE WHEN t.ms OPERATOR(pg_catalog.>) 0 THEN LEAST(t.ms, $1) ELSE -1 END)::pg_catalog.text, true)"
			" FROM (SELECT $1 OPERATOR(pg_catalog.-) pg_catalog.floor(pg_catalog.date_part('epoch',"
			" pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) pg_catalog.transaction_timestamp())"
			" OPERATOR(pg_catalog.*) 1000)::pg_catalog.int8) AS t(ms)",
			1, types, values, NULL);
}

void
pg_give_time(PgSink *p)
{
	const char *values[1] = {p->config.statement_timeout};
	const uint32_t types[1] = {PG_TEXT};

	if (p->config.reply_timeout == 0)
		return;
	pg_send(p, PG_STEP_FRAME, 0, "SELECT pg_catalog.set_config('statement_timeout', $1, true)",
			1, types, values, NULL);
}

PgBlame
pg_blame(const PgError *error)
{
	static const struct
	{
		const char *prefix;		/* of the SQLSTATE */
		PgBlame		blame;
	}			rules[] = {
		{"08", PG_BLAME_OUTAGE},	/* connection */
		{"40", PG_BLAME_PASSING},	/* deadlock, serialization */
		{"53", PG_BLAME_OUTAGE},	/* out of disk, memory, connections */
		{"57014", PG_BLAME_SLOW},	/* statement_timeout */
		{"55P03", PG_BLAME_SLOW},	/* lock_timeout set by the handler */
		{"57", PG_BLAME_OUTAGE},	/* shutdown, crash, not accepting */
		{"58", PG_BLAME_OUTAGE},	/* errors of the system outside */
		{"25006", PG_BLAME_OUTAGE}, /* demoted to a standby */
		{"25P03", PG_BLAME_OUTAGE}, /* idle_in_transaction_session_timeout */
		{"25P04", PG_BLAME_OUTAGE}, /* transaction_timeout */
		{"42501", PG_BLAME_CONFIG}, /* no privilege */
		{"28", PG_BLAME_CONFIG},
		{"3D000", PG_BLAME_CONFIG},
	};

	bool		in_call = (error->step == PG_STEP_CALL || error->step == PG_STEP_CHECK);

	if (error->lost)
		return PG_BLAME_OUTAGE;
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (strncmp(error->sqlstate, rules[i].prefix, strlen(rules[i].prefix)) == 0)
			return rules[i].blame == PG_BLAME_SLOW && !in_call && error->step != PG_STEP_TIME ?
				PG_BLAME_OUTAGE : rules[i].blame;
	return in_call ? PG_BLAME_EVENT : PG_BLAME_CONFIG;
}

char *
pg_quote(const char *name)
{
	char	   *dst = idem_sink_alloc(2 * strlen(name) + 3);
	char	   *d = dst;

	*d++ = '"';
	for (; *name; name++)
	{
		if (*name == '"')
			*d++ = '"';
		*d++ = *name;
	}
	*d++ = '"';
	*d = '\0';
	return dst;
}

char *
pg_format(const char *fmt,...)
{
	va_list		ap;
	char	   *s;
	int			len;

	va_start(ap, fmt);
	len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	s = idem_sink_alloc((size_t) len + 1);
	va_start(ap, fmt);
	vsnprintf(s, (size_t) len + 1, fmt, ap);
	va_end(ap);
	return s;
}
