/*-------------------------------------------------------------------------
 *
 * batch.c
 *		The events of a batch, kept until its verdict.
 *
 * A transaction that was aborted is done again, so everything of a batch stays
 * until the target has it for good.  READY limits how much that is.
 *
 * MEMORY
 *	One arena holds all bytes of a batch.  Spans are offsets, because the arena
 *	moves as it grows; so does the array of events.  Both stay in place once
 *	the batch is complete.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/batch.h"

#define FIRST_EVENTS	256
#define FIRST_BYTES		65536

IdemBatch *
idem_batch_new(uint64_t number)
{
	IdemBatch  *b = idem_sink_alloc(sizeof(IdemBatch));

	memset(b, 0, sizeof(*b));
	b->number = number;
	return b;
}

void
idem_batch_free(IdemBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		free(b->events[i].message);
	free(b->events);
	free(b->places);
	free(b->arena);
	free(b);
}

/* Append bytes to the arena. */
static IdemSpan
put(IdemBatch *b, const void *data, size_t len)
{
	IdemSpan	span = {(uint32_t) b->arena_len, (uint32_t) len};

	if (b->arena_size - b->arena_len < len)
	{
		do
			b->arena_size = b->arena_size > 0 ? b->arena_size * 2 : FIRST_BYTES;
		while (b->arena_size - b->arena_len < len);
		b->arena = idem_sink_realloc(b->arena, b->arena_size);
	}
	if (len > 0)
		memcpy(b->arena + b->arena_len, data, len);
	b->arena_len += len;
	return span;
}

void
idem_batch_add_data(IdemBatch *b, const uint8_t *data, uint32_t len)
{
	put(b, data, len);
}

/* Headers and payload lie in the arena one after the other. */
void
idem_batch_add(IdemBatch *b, const IdemProtoEvent *event, uint64_t settles)
{
	IdemBatchEvent *e;

	if (b->count == b->size)
	{
		b->size = b->size > 0 ? b->size * 2 : FIRST_EVENTS;
		b->events = idem_sink_realloc(b->events, b->size * sizeof(IdemBatchEvent));
	}
	e = &b->events[b->count];
	memset(e, 0, sizeof(*e));
	e->batch = b;
	e->index = b->count++;
	memcpy(e->id, event->event_id, IDEM_PROTO_ID_BYTES);
	e->flags = event->flags;
	e->settles = settles;
	e->enqueued_at = event->enqueued_at;
	e->aggregate_type = put(b, event->aggregate_type.data, event->aggregate_type.len);
	e->aggregate_id = put(b, event->aggregate_id.data, event->aggregate_id.len);
	e->event_type = put(b, event->event_type.data, event->event_type.len);
	e->content_type = put(b, event->content_type.data, event->content_type.len);
	e->headers.at = (uint32_t) b->arena_len;
	e->headers.len = event->headers_len;
	e->payload.at = (uint32_t) b->arena_len + event->headers_len;
	e->payload.len = event->payload_len;
	put(b, event->chunk, event->chunk_len);
}

static IdemProtoStr
string_at(const IdemBatchEvent *e, IdemSpan span)
{
	return (IdemProtoStr)
	{
		idem_batch_at(e, span), span.len
	};
}

IdemSinkEvent
idem_batch_view(const IdemBatchEvent *e)
{
	IdemSinkEvent view = {
		.flags = e->flags, .enqueued_at = e->enqueued_at,
		.aggregate_type = string_at(e, e->aggregate_type), .aggregate_id = string_at(e, e->aggregate_id),
		.event_type = string_at(e, e->event_type), .content_type = string_at(e, e->content_type),
		.headers = string_at(e, e->headers), .payload = string_at(e, e->payload)
	};

	idem_write_uuid(view.id, e->id);
	return view;
}
