/*-------------------------------------------------------------------------
 *
 * intake.c
 *		Turns the frames of the worker into events.
 *
 * INVARIANT
 *		An event is queued once all its data have come, in the order of the
 *		stream.
 *
 * MEMORY
 *		An event is one block of memory, bounded by the credit.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/intake.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

/* The batch that is arriving; its first event makes it. */
static HSinkBatch *
arriving_batch(HSink *p, uint64_t number)
{
	HSinkBatch *b = p->last_batch;

	if (b != NULL && !b->complete)
		return b;
	b = idem_sink_alloc(sizeof(*b));
	memset(b, 0, sizeof(*b));
	b->number = number;
	if (p->last_batch != NULL)
		p->last_batch->next = b;
	else
		p->first_batch = b;
	p->last_batch = b;
	return b;
}

/* Copy a string to *at, and move *at behind it. */
static IdemProtoStr
copy(char **at, IdemProtoStr s)
{
	IdemProtoStr result = {*at, s.len};

	if (s.len > 0)
		memcpy(*at, s.data, s.len);
	*at += s.len;
	return result;
}

/* Make an event of a frame; its data may follow. */
static HSinkEvent *
make_event(HSink *p, const IdemProtoEvent *f, size_t size)
{
	size_t		data_len = (size_t) f->headers_len + f->payload_len;
	HSinkEvent *e = idem_sink_alloc(sizeof(*e) + f->aggregate_type.len + f->aggregate_id.len +
									f->event_type.len + f->content_type.len + data_len);
	char	   *at = (char *) (e + 1);

	memset(e, 0, sizeof(*e));
	e->batch = arriving_batch(p, f->batch);
	e->batch->open++;
	e->index = f->index;
	e->settles = p->settles;
	e->flags = f->flags;
	e->enqueued_at = f->enqueued_at;
	idem_write_uuid(e->id, f->event_id);
	e->aggregate_type = copy(&at, f->aggregate_type);
	e->aggregate_id = copy(&at, f->aggregate_id);
	e->event_type = copy(&at, f->event_type);
	e->content_type = copy(&at, f->content_type);
	e->data = at;
	e->headers = (IdemProtoStr)
	{
		at, f->headers_len
	};
	e->payload = (IdemProtoStr)
	{
		at + f->headers_len, f->payload_len
	};
	memcpy(e->data, f->chunk, f->chunk_len);
	e->data_len = f->chunk_len;
	e->credit = size;
	return e;
}

/* Queue the arriving event if all its data have come. */
static void
queue_arriving(HSink *p)
{
	HSinkEvent *e = p->arriving;

	if (e->data_len < (size_t) e->headers.len + e->payload.len)
		return;
	p->arriving = NULL;
	hsink_queue_event(p, e);
}

/* The last batch has its END; all of its events may have their answers. */
static void
end_batch(HSink *p)
{
	HSinkBatch *b = p->last_batch;
	HSinkBatch **at = &p->first_batch;

	b->complete = true;
	if (b->open > 0)
		return;
	p->last_batch = NULL;
	for (; *at != b; at = &(*at)->next)
		p->last_batch = *at;
	*at = NULL;
	free(b);
}

/* Act on a frame. */
static void
take(HSink *p, const IdemProtoFrame *frame, size_t size)
{
	switch (frame->type)
	{
		case IDEM_PROTO_EVENT:
			p->arriving = make_event(p, &frame->u.event, size);
			queue_arriving(p);
			break;
		case IDEM_PROTO_CHUNK:
			memcpy(p->arriving->data + p->arriving->data_len, frame->u.chunk.data, frame->u.chunk.len);
			p->arriving->data_len += frame->u.chunk.len;
			p->arriving->credit += size;
			queue_arriving(p);
			break;
		case IDEM_PROTO_END:
			end_batch(p);
			break;
		case IDEM_PROTO_SETTLE:
			hsink_settle(p, &frame->u.settle);
			break;
		case IDEM_PROTO_BYE:
			p->bye = true;
			break;
		default:
			break;
	}
}

void
hsink_take_frames(HSink *p)
{
	IdemProtoFrame frame;
	size_t		size;

	while (idem_sink_poll(&p->sink, &frame, &size))
		take(p, &frame, size);
}
