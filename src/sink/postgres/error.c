/*-------------------------------------------------------------------------
 *
 * error.c
 *		Errors of the target, and failures that end the program.
 *
 * An error belongs to a statement of the pipeline.  The caller decides whether
 * an error ends the program: an event, the batch or nobody may be to blame,
 * and another try may help.  A failure is final.
 *
 * INVARIANT
 *		The first error and the first failure stay.  Later ones are their
 *		consequences and are dropped.
 *		No message of the target is shown that has a secret in it.  A failure is
 *		logged, so it has no part of an event in it either.
 *
 * MEMORY
 *		Error and failure are part of PgSink.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/error.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/postgres/sink.h"

void
pgsink_forget_error(PgSink *p)
{
	memset(&p->error, 0, sizeof(p->error));
}

/* Put a sentence in the place of the message. */
static void
hide(PgSinkError *e, const char *why)
{
	snprintf(e->message, sizeof(e->message), "SQLSTATE %s; the message %s", e->sqlstate, why);
}

void
pgsink_note_error(PgSink *p, PgSinkPending pending, bool lost, const char *sqlstate,
				  const char *message)
{
	size_t		len = message != NULL ? strnlen(message, IDEM_SINK_LOOKED_AT(sizeof(p->error.message))) : 0;

	if (lost)
		p->error.lost = true;
	if (p->error.set)
		return;
	p->error.set = true;
	p->error.step = pending.step;
	p->error.arg = pending.arg;
	snprintf(p->error.sqlstate, sizeof(p->error.sqlstate), "%s", sqlstate ? sqlstate : "08006");
	if (idem_sink_has_secret(message, len))
		hide(&p->error, IDEM_SINK_HIDES_SECRET);
	else
		snprintf(p->error.message, sizeof(p->error.message), "%s", message ? message : "");
	len = strlen(p->error.message);
	while (len > 0 && p->error.message[len - 1] == '\n')
		p->error.message[--len] = '\0';
}

PgSinkBlame
pgsink_blame(const PgSinkError *error)
{
	static const struct
	{
		const char *prefix;		/* of the SQLSTATE */
		PgSinkBlame blame;
	}			rules[] = {
		{"08", PGSINK_BLAME_OUTAGE},	/* connection */
		{"40", PGSINK_BLAME_PASSING},	/* deadlock, serialization */
		{"53", PGSINK_BLAME_OUTAGE},	/* out of disk, memory, connections */
		{"57014", PGSINK_BLAME_SLOW},	/* statement_timeout */
		{"55P03", PGSINK_BLAME_SLOW},	/* lock_timeout set by the handler */
		{"57", PGSINK_BLAME_OUTAGE},	/* shutdown, crash, not accepting */
		{"58", PGSINK_BLAME_OUTAGE},	/* errors of the system outside */
		{"25006", PGSINK_BLAME_OUTAGE}, /* demoted to a standby */
		{"25P03", PGSINK_BLAME_OUTAGE}, /* idle_in_transaction_session_timeout */
		{"25P04", PGSINK_BLAME_OUTAGE}, /* transaction_timeout */
		{"42501", PGSINK_BLAME_CONFIG}, /* no privilege */
		{"28", PGSINK_BLAME_CONFIG},
		{"3D000", PGSINK_BLAME_CONFIG},
	};

	bool		in_call = (error->step == PGSINK_STEP_CALL || error->step == PGSINK_STEP_CHECK);

	/* BEGIN ... READ WRITE is refused so on a standby. */
	bool		in_recovery = error->step == PGSINK_STEP_FRAME && strcmp(error->sqlstate, "0A000") == 0;

	if (error->lost || in_recovery)
		return PGSINK_BLAME_OUTAGE;
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
		if (strncmp(error->sqlstate, rules[i].prefix, strlen(rules[i].prefix)) == 0)
			return rules[i].blame == PGSINK_BLAME_SLOW && !in_call && error->step != PGSINK_STEP_TIME ?
				PGSINK_BLAME_OUTAGE : rules[i].blame;
	return in_call ? PGSINK_BLAME_EVENT : PGSINK_BLAME_CONFIG;
}

/* Is the position table missing at the target, or one of its columns? */
static bool
lacks_position_table(const PgSink *p)
{
	const char *state = p->error.sqlstate;

	return p->conn != NULL && p->error.step == PGSINK_STEP_FENCE &&
		(strcmp(state, "42P01") == 0 || strcmp(state, "3F000") == 0 || strcmp(state, "42703") == 0);
}

void
pgsink_hide_events(const PgSink *p, PgSinkError *e)
{
	const PgSinkBatch *b = &p->batch;
	size_t		len = strlen(e->message);

	for (uint32_t i = 0; i < b->count; i++)
	{
		const PgSinkSpan *parts[2] = {&b->events[i].headers, &b->events[i].payload};

		for (int j = 0; j < 2; j++)
			if (idem_sink_repeats(e->message, len, b->arena + parts[j]->at, parts[j]->len))
			{
				hide(e, IDEM_SINK_HIDES_EVENT);
				return;
			}
	}
}

bool
pgsink_fail_for_error(PgSink *p, const char *doing)
{
	PgSinkError *e = &p->error;

	pgsink_hide_events(p, e);
	if (lacks_position_table(p))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, e->sqlstate,
							  "could not use position table %s at the target: %s; idempotency.sink_setup_sql(server) prints what to run there",
							  p->position_table, e->message);
	return idem_sink_fail(&p->failure, pgsink_blame(e) == PGSINK_BLAME_CONFIG ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  e->sqlstate, "could not %s: %s", doing, e->message);
}
