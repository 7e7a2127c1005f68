/*-------------------------------------------------------------------------
 *
 * decide.c
 *		Notes the outcomes of events that are not acked, and sends results.
 *
 * INVARIANT
 *	An outcome stays: when a transaction is done again, the event is left out.
 *	With key order a decided event blocks the later events of its key.
 *
 * MEMORY
 *	The message of an outcome belongs to the event.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/decide.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "sink/kafka/sink.h"

void
ksink_decide(KSink *p, KSinkEvent *e, IdemProtoOutcome outcome, const char *sqlstate,
			 const char *message)
{
	e->outcome = outcome;
	memcpy(e->sqlstate, sqlstate, sizeof(e->sqlstate));
	if (message != NULL && message[0] != '\0')
		e->message = idem_sink_strdup(message, strlen(message));
	if (p->config.key_order)
		ksink_keys_add(&p->keys, e);
}

bool
ksink_is_blocked(KSink *p, const KSinkEvent *e)
{
	if (!p->config.key_order)
		return false;
	ksink_keys_settle(&p->keys, e->settled);
	return ksink_keys_has(&p->keys, e);
}

uint32_t
ksink_count_decided(const KSinkBatch *b)
{
	uint32_t	n = 0;

	for (uint32_t i = 0; i < b->count; i++)
		n += b->events[i].outcome != 0;
	return n;
}

/* One RESULT for each range of events with the same outcome. */
void
ksink_send_results(KSink *p, KSinkBatch *b)
{
	uint32_t	first = 0;

	if (b->answered)
		return;
	for (uint32_t i = 0; i < b->count; i++)
	{
		const KSinkEvent *e = &b->events[i];
		const KSinkEvent *next = i + 1 < b->count ? e + 1 : NULL;

		if (e->message == NULL && next != NULL && next->message == NULL && next->outcome == e->outcome)
			continue;
		idem_sink_result(&p->sink, b->number, first, i, e->outcome ? e->outcome : IDEM_PROTO_ACKED,
						 e->outcome ? e->sqlstate : NULL, e->message);
		first = i + 1;
	}
	b->answered = true;
	b->answered_decided = ksink_count_decided(b);
}
