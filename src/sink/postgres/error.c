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

/*
 * A function raises what it likes.  As long as the connection lives, and the
 * fence has written in the same transaction, an error of a call that says that
 * the target is down is the function's.  Lack of resources or of a privilege may
 * be the target's or the function's.
 */
PgSinkBlame
pgsink_blame(const PgSink *p)
{
	const PgSinkError *error = &p->error;
	static const struct
	{
		const char *prefix;		/* of the SQLSTATE */
		PgSinkBlame blame;
		PgSinkBlame in_call;
	}			rules[] = {
		/* deadlock, serialization */
		{"40", PGSINK_BLAME_PASSING, PGSINK_BLAME_PASSING},
		/* out of disk, memory, connections */
		{"53", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_DOUBTFUL},
		/* errors of the system outside */
		{"58", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_DOUBTFUL},
		/* no privilege */
		{"42501", PGSINK_BLAME_CONFIG, PGSINK_BLAME_DOUBTFUL},
		/* statement_timeout; lock_timeout set by the handler */
		{"57014", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_SLOW},
		{"55P03", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_SLOW},
		/* connection; shutdown, crash, not accepting; demoted to a standby */
		{"08", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_EVENT},
		{"57", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_EVENT},
		{"25006", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_EVENT},
		/* idle_in_transaction_session_timeout, transaction_timeout */
		{"25P03", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_EVENT},
		{"25P04", PGSINK_BLAME_OUTAGE, PGSINK_BLAME_EVENT},
		/* login */
		{"28", PGSINK_BLAME_CONFIG, PGSINK_BLAME_EVENT},
		{"3D000", PGSINK_BLAME_CONFIG, PGSINK_BLAME_EVENT},
	};

	bool		in_call = (error->step == PGSINK_STEP_CALL || error->step == PGSINK_STEP_CHECK);

	/* BEGIN ... READ WRITE is refused so on a standby. */
	bool		in_recovery = error->step == PGSINK_STEP_FRAME && strcmp(error->sqlstate, "0A000") == 0;

	if (error->lost || in_recovery)
		return PGSINK_BLAME_OUTAGE;
	for (size_t i = 0; i < sizeof(rules) / sizeof(rules[0]); i++)
	{
		if (strncmp(error->sqlstate, rules[i].prefix, strlen(rules[i].prefix)) != 0)
			continue;
		if (error->step == PGSINK_STEP_TIME && rules[i].in_call == PGSINK_BLAME_SLOW)
			return PGSINK_BLAME_SLOW;
		if (!in_call)
			return rules[i].blame;
		return rules[i].in_call == PGSINK_BLAME_PASSING && p->repeated ?
			PGSINK_BLAME_DOUBTFUL : rules[i].in_call;
	}
	return in_call ? PGSINK_BLAME_EVENT : PGSINK_BLAME_CONFIG;
}

/*
 * The class of what does not exist, has another type, or lacks an index, without the
 * missing privilege, which pgsink_blame knows; and what ON CONFLICT says of an
 * index that is deferrable.
 */
bool
pgsink_may_be_shape(const PgSinkError *e)
{
	return (strncmp(e->sqlstate, "42", 2) == 0 && strcmp(e->sqlstate, "42501") != 0) ||
		strcmp(e->sqlstate, "3F000") == 0 || strcmp(e->sqlstate, "55000") == 0;
}

/* Is the position table missing at the target, one of its columns, or its key? */
static bool
lacks_position_table(const PgSink *p)
{
	const char *state = p->error.sqlstate;

	return p->conn != NULL && p->error.step == PGSINK_STEP_FENCE &&
		(strcmp(state, "42P01") == 0 || strcmp(state, "3F000") == 0 || strcmp(state, "42703") == 0 ||
		 strcmp(state, "42P10") == 0);
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
	if (lacks_position_table(p) && strcmp(e->sqlstate, "42P10") == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, e->sqlstate,
							  "position table %s at the target has lost its primary key, as after pg_restore -t; run ALTER TABLE %s ADD PRIMARY KEY (relay) there",
							  p->position_table, p->position_table);
	if (lacks_position_table(p))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, e->sqlstate,
							  "could not use position table %s at the target: %s; idempotency.sink_setup_sql(server) prints what to run there",
							  p->position_table, e->message);
	return idem_sink_fail(&p->failure, pgsink_blame(p) == PGSINK_BLAME_CONFIG ? IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE,
						  e->sqlstate, "could not %s: %s", doing, e->message);
}
