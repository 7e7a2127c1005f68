/*-------------------------------------------------------------------------
 *
 * intake.c
 *		Turns the frames of the worker into batches.
 *
 * INVARIANT
 *	p->first to p->last are the batches without a verdict, in the order of the
 *	stream; only the last one may be incomplete.
 *
 * MEMORY
 *	Batches are bounded by the credit.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/intake.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/kafka/sink.h"

/* Add the event to the last batch, or to a new one; data may follow. */
static void
take_event(KSink *p, const IdemProtoEvent *event, size_t size)
{
	KSinkBatch *b = p->last;

	if (b == NULL || b->complete)
	{
		b = ksink_batch_new(event->batch);
		if (p->last != NULL)
			p->last->next = b;
		else
			p->first = b;
		p->last = b;
	}
	if (b->count >= KSINK_MAX_BATCH_EVENTS || b->bytes >= KSINK_MAX_BATCH_BYTES)
		idem_sink_broken(&p->sink, "protocol error: batch is larger than READY allows");
	ksink_batch_add(b, event, p->settled);
	b->bytes += size;
}

void
ksink_take_frames(KSink *p)
{
	IdemProtoFrame frame;
	size_t		size;

	while (idem_sink_poll(&p->sink, &frame, &size))
	{
		switch (frame.type)
		{
			case IDEM_PROTO_EVENT:
				take_event(p, &frame.u.event, size);
				break;
			case IDEM_PROTO_CHUNK:
				ksink_batch_add_data(p->last, frame.u.chunk.data, frame.u.chunk.len);
				p->last->bytes += size;
				break;
			case IDEM_PROTO_END:
				p->last->position = frame.u.end.position;
				p->last->complete = true;
				break;
			case IDEM_PROTO_SETTLE:
				p->settled = frame.u.settle.batch;
				break;
			case IDEM_PROTO_BYE:
				p->bye = true;
				break;
			default:
				break;
		}
	}
}

void
ksink_drop_batch(KSink *p)
{
	KSinkBatch *b = p->first;
	uint32_t	count = b->count;
	uint64_t	bytes = b->bytes;

	p->first = b->next;
	if (p->first == NULL)
		p->last = NULL;
	if (p->joined == b)
		p->joined = NULL;
	ksink_batch_free(b);
	idem_sink_grant(&p->sink, count, bytes, false);
}
