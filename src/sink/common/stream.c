/*-------------------------------------------------------------------------
 *
 * stream.c
 *		Checks that the worker's frames come in the order of the protocol.
 *
 * INVARIANT
 *		A frame that passes needs no check later: a program may use the event's
 *		index as the index of an array, and the length of its data for a copy.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/stream.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/stream.h"

#include <string.h>

void
idem_stream_init(IdemSinkStream *st)
{
	memset(st, 0, sizeof(*st));
}

bool
idem_stream_complete(const IdemSinkStream *st)
{
	return st->data_done == st->data_len;
}

/* Check that an EVENT opens a batch or is the next event of the open batch. */
static const char *
check_event(IdemSinkStream *st, const IdemProtoEvent *e, size_t size)
{
	if (st->credit_messages <= 0 || st->credit_bytes <= 0)
		return "EVENT without credit";
	if (!st->in_batch)
	{
		if (st->batch != 0 && e->batch <= st->batch)
			return "batch number did not rise";
		if (e->batch == 0)
			return "batch number is 0";
		st->in_batch = true;
		st->batch = e->batch;
		st->index = 0;
	}
	if (e->batch != st->batch)
		return "EVENT of another batch before END";
	if (e->index != st->index)
		return "event index out of turn";
	st->index++;
	st->credit_messages--;
	st->credit_bytes -= (int64_t) size;
	st->data_len = (uint64_t) e->headers_len + e->payload_len;
	st->data_done = e->chunk_len;
	return NULL;
}

/* Check that a CHUNK continues the data of the last event. */
static const char *
check_chunk(IdemSinkStream *st, const IdemProtoChunk *c, size_t size)
{
	if (c->batch != st->batch || c->index + 1 != st->index || c->offset != st->data_done)
		return "CHUNK does not continue the event";
	if (c->len > st->data_len - st->data_done)
		return "CHUNK passes the end of the event";
	st->credit_bytes -= (int64_t) size;
	st->data_done += c->len;
	return NULL;
}

/* Check that an END closes the open batch and has the right count of events. */
static const char *
check_end(IdemSinkStream *st, const IdemProtoEnd *e)
{
	if (!st->in_batch || e->batch != st->batch || e->count != st->index)
		return "END does not match the batch";
	st->in_batch = false;
	return NULL;
}

/* Check that a SETTLE names events that have come. */
static const char *
check_settle(IdemSinkStream *st, const IdemProtoSettle *s)
{
	if (s->batch > st->batch || (s->batch == st->batch && s->last >= st->index))
		return "SETTLE of events to come";
	if (s->batch > st->settled)
		st->settled = s->batch;
	return NULL;
}

const char *
idem_stream_check(IdemSinkStream *st, const IdemProtoFrame *frame, size_t size)
{
	bool		greets = frame->type == IDEM_PROTO_HELLO || frame->type == IDEM_PROTO_LOOK;

	if (st->said_hello == greets)
		return st->said_hello ? "second HELLO" : "first frame is no HELLO";
	if (st->looks && frame->type != IDEM_PROTO_PING)
		return "frame behind a LOOK";
	if (frame->type == IDEM_PROTO_CHUNK)
		return check_chunk(st, &frame->u.chunk, size);
	if (frame->type == IDEM_PROTO_PING)
		return NULL;
	if (!idem_stream_complete(st))
		return "event is incomplete";
	if (st->said_bye)
		return "frame after BYE";
	switch (frame->type)
	{
		case IDEM_PROTO_HELLO:
		case IDEM_PROTO_LOOK:
			st->said_hello = true;
			st->looks = frame->type == IDEM_PROTO_LOOK;
			return NULL;
		case IDEM_PROTO_EVENT:
			return check_event(st, &frame->u.event, size);
		case IDEM_PROTO_END:
			return check_end(st, &frame->u.end);
		case IDEM_PROTO_SETTLE:
			return check_settle(st, &frame->u.settle);
		case IDEM_PROTO_BYE:
			st->said_bye = true;
			return NULL;
		default:
			return NULL;
	}
}
