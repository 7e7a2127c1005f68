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
 *		src/sink/common/decide.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "sink/common/batch.h"

void
idem_intake_decide(IdemIntake *in, IdemBatchEvent *e, IdemProtoOutcome outcome, const char *sqlstate,
				   const char *message)
{
	e->outcome = outcome;
	memcpy(e->sqlstate, sqlstate, sizeof(e->sqlstate));
	if (message != NULL && message[0] != '\0')
		e->message = idem_sink_strdup(message, strlen(message));
	if (in->key_order)
		idem_keys_add(&in->keys, e);
}

bool
idem_intake_is_blocked(IdemIntake *in, const IdemBatchEvent *e)
{
	if (!in->key_order)
		return false;
	idem_keys_pass(&in->keys, e->settles);
	return idem_keys_has(&in->keys, e);
}

uint32_t
idem_batch_count_decided(const IdemBatch *b)
{
	uint32_t	n = 0;

	for (uint32_t i = 0; i < b->count; i++)
		n += b->events[i].outcome != 0;
	return n;
}

/* The event's destination, if the program names them. */
static void
find_destination(const IdemIntake *in, const IdemBatchEvent *e, char *buf)
{
	buf[0] = '\0';
	if (in->destination != NULL)
		in->destination(in->destination_arg, e, buf);
}

/* One RESULT for each range of events with the same outcome and the same destination. */
void
idem_intake_answer(IdemIntake *in, IdemBatch *b)
{
	char		names[2][IDEM_SINK_DESTINATION + 1];
	uint32_t	first = 0;

	if (b->answered)
		return;
	for (uint32_t i = 0; i < b->count; i++)
	{
		const IdemBatchEvent *e = &b->events[i];
		bool		has_next = i + 1 < b->count;
		char	   *name = names[i % 2];
		char	   *next_name = names[(i + 1) % 2];

		if (i == 0)
			find_destination(in, e, name);
		if (has_next)
			find_destination(in, e + 1, next_name);
		if (has_next && e->message == NULL && e[1].message == NULL && e[1].outcome == e->outcome &&
			strcmp(name, next_name) == 0)
			continue;
		idem_sink_result_of(in->sink, b->number, first, i, e->outcome ? e->outcome : IDEM_PROTO_ACKED,
							e->outcome ? e->sqlstate : NULL, 0, e->message, name);
		first = i + 1;
	}
	b->answered = true;
	b->answered_decided = idem_batch_count_decided(b);
}
