/*-------------------------------------------------------------------------
 *
 * decide.c
 *		Notes the outcome of an event that is not acked.
 *
 * An event without an outcome is called, or is a duplicate at the target.
 * COMMIT makes it acked.
 *
 * INVARIANT
 *		An outcome stays: when the batch is applied again, the event is left
 *		out.  With key order a decided event blocks the later events of its
 *		key.
 *
 * MEMORY
 *		The message of an outcome belongs to the event.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/decide.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <string.h>

#include "sink/postgres/sink.h"

/*
 * Skip the later events with the id of event i.  The target calls their claims
 * duplicates of event i's claim, which is released.  If they were acked as
 * duplicates, they would be lost.
 */
static void
decide_twins(PgSink *p, uint32_t i)
{
	PgSinkBatch *b = &p->batch;

	for (uint32_t j = i + 1; j < b->count; j++)
		if (b->events[j].outcome == 0 &&
			memcmp(b->events[j].id, b->events[i].id, IDEM_PROTO_ID_BYTES) == 0)
			b->events[j].outcome = IDEM_PROTO_SKIPPED;
}

void
pgsink_decide(PgSink *p, uint32_t i, IdemProtoOutcome outcome, const char *sqlstate,
			  const char *message)
{
	PgSinkEvent *e = &p->batch.events[i];

	e->outcome = outcome;
	memcpy(e->sqlstate, sqlstate, sizeof(e->sqlstate));
	if (message != NULL && message[0] != '\0')
		e->message = idem_sink_strdup(message, strlen(message));
	if (p->config.key_order)
		pgsink_keys_add(&p->failed, &p->batch, e);
	if (p->claim_sql != NULL)
		decide_twins(p, i);
}

void
pgsink_decide_error(PgSink *p, uint32_t i)
{
	PgSinkBlame blame = pgsink_blame(p);

	p->batch.events[i].doubtful = blame == PGSINK_BLAME_DOUBTFUL;
	pgsink_decide(p, i, blame == PGSINK_BLAME_SLOW ? IDEM_PROTO_RETRY :
				  blame == PGSINK_BLAME_DOUBTFUL ? IDEM_PROTO_UNKNOWN : IDEM_PROTO_REJECTED,
				  p->error.sqlstate, p->error.message);
}

/*
 * Does the target take payloads, but none of this event's kind?  Returns what the
 * target lacks, else NULL.  A column that the option omit_columns names is not
 * lacking.
 */
static const char *
lacking_payload(const PgSink *p, const PgSinkEvent *e)
{
	const char *omitted = p->config.omit_columns;

	if (e->flags & IDEM_PROTO_PAYLOAD_JSON)
		return p->used[PGSINK_FIELD_PAYLOAD_BYTES] && !p->used[PGSINK_FIELD_PAYLOAD] &&
			!idem_sink_option_names(omitted, "payload")
			? "payload is JSON, and the target has no \"payload\"" : NULL;
	return p->used[PGSINK_FIELD_PAYLOAD] && p->type[PGSINK_FIELD_PAYLOAD] != PGSINK_TYPE_BYTEA &&
		!p->used[PGSINK_FIELD_PAYLOAD_BYTES]
		? "payload is bytes, and the target has no \"payload\" of type bytea and no \"payload_bytes\"" : NULL;
}

bool
pgsink_is_blocked(const PgSink *p, uint32_t i)
{
	return p->config.key_order &&
		pgsink_keys_has(&p->failed, &p->batch, &p->batch.events[i]);
}

/* The event's key is blocked, or its payload does not fit the target. */
void
pgsink_decide_ahead(PgSink *p)
{
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		const char *lacking = lacking_payload(p, &p->batch.events[i]);

		if (p->batch.events[i].outcome != 0)
			continue;
		if (pgsink_is_blocked(p, i))
			pgsink_decide(p, i, IDEM_PROTO_SKIPPED, "00000", NULL);
		else if (lacking != NULL)
			pgsink_decide(p, i, IDEM_PROTO_REJECTED, "42804", lacking);
	}
}

/*
 * The outcome of each refused claim.  An event that is too old, or parked at the
 * target, stays so until somebody acts there, and says nothing of other events: it is
 * a dead letter at once, and stops nothing.
 */
static const struct
{
	IdemProtoOutcome outcome;	/* 0: the claim is not refused */
	char		sqlstate[6];
	const char *message;
}			refusals[] = {

	[PGSINK_CLAIM_BUSY] = {IDEM_PROTO_RETRY, "55P03",
		"event is busy at the target: another transaction or a lease has it, or its consumer has foreign_lockers"
	" and the batch more events than a transaction may keep locks (idempotency.max_claim_locks)"},
	[PGSINK_CLAIM_EXPIRED] = {IDEM_PROTO_IMPOSSIBLE, "22023",
		"event is too old for the target's claims to tell a repeat: if it had no effect there, call consumer_alter there"
	" with a longer retention, then relay_redrive; else relay_discard"},
	[PGSINK_CLAIM_DEAD] = {IDEM_PROTO_IMPOSSIBLE, "55000",
		"event is dead at the target: call consumer_redrive there, then relay_redrive; or, if it is to have no effect,"
	" relay_discard"},
	[PGSINK_CLAIM_UNKNOWN] = {IDEM_PROTO_REJECTED, "0A000",
	"the target's answer to the claim is not known to this version of the sink's program, which has to be updated"}
};

void
pgsink_decide_claims(PgSink *p)
{
	for (uint32_t i = 0; i < p->batch.count; i++)
	{
		PgSinkEvent *e = &p->batch.events[i];
		char		message[IDEM_PROTO_MAX_MESSAGE];

		if (e->outcome != 0 || refusals[e->claim].outcome == 0)
			continue;
		snprintf(message, sizeof(message), "%s; consumer \"%s\"", refusals[e->claim].message,
				 p->config.consumer);
		pgsink_decide(p, i, refusals[e->claim].outcome, refusals[e->claim].sqlstate, message);
	}
}

bool
pgsink_to_call(const PgSink *p, uint32_t i)
{
	const PgSinkEvent *e = &p->batch.events[i];

	return e->outcome == 0 && (p->claim_sql == NULL || e->claim == PGSINK_CLAIM_GRANTED);
}
