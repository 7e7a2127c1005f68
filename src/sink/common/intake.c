/*-------------------------------------------------------------------------
 *
 * intake.c
 *		Turns the frames of the worker into batches.
 *
 * INVARIANT
 *	in->first to in->last are the batches without a verdict, in the order of the
 *	stream; only the last one may be incomplete.
 *
 * MEMORY
 *	Batches are bounded by the credit.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/intake.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/batch.h"

/* Add the event to the last batch, or to a new one; data may follow. */
static void
take_event(IdemIntake *in, const IdemProtoEvent *event, size_t size)
{
	IdemBatch  *b = in->last;

	if (b == NULL || b->complete)
	{
		b = idem_batch_new(event->batch);
		if (in->last != NULL)
			in->last->next = b;
		else
			in->first = b;
		in->last = b;
	}
	if (b->count >= in->max_events || b->bytes >= in->max_bytes)
		idem_sink_broken(in->sink, "protocol error: batch is larger than READY allows");
	idem_batch_add(b, event, in->settles);
	b->bytes += size;
}

void
idem_intake_take(IdemIntake *in)
{
	IdemProtoFrame frame;
	size_t		size;

	while (idem_sink_poll(in->sink, &frame, &size))
	{
		switch (frame.type)
		{
			case IDEM_PROTO_EVENT:
				take_event(in, &frame.u.event, size);
				break;
			case IDEM_PROTO_CHUNK:
				idem_batch_add_data(in->last, frame.u.chunk.data, frame.u.chunk.len);
				in->last->bytes += size;
				break;
			case IDEM_PROTO_END:
				in->last->position = frame.u.end.position;
				in->last->complete = true;
				break;
			case IDEM_PROTO_SETTLE:
				if (frame.u.settle.batch > in->settled)
					in->settled = frame.u.settle.batch;
				in->settles++;
				if (in->settle != NULL)
					in->settle(in->settle_arg, &frame.u.settle, in->settles);
				else
					idem_keys_settle(&in->keys, &frame.u.settle, in->settles);
				break;
			case IDEM_PROTO_BYE:
				in->bye = true;
				break;
			default:
				break;
		}
	}
}

void
idem_intake_drop(IdemIntake *in)
{
	IdemBatch  *b = in->first;
	uint32_t	count = b->count;
	uint64_t	bytes = b->bytes;

	in->first = b->next;
	if (in->first == NULL)
		in->last = NULL;
	idem_batch_free(b);
	idem_sink_grant(in->sink, count, bytes, false);
}
