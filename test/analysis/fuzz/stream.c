/*-------------------------------------------------------------------------
 *
 * stream.c
 *		Fuzz target: events cut into frames and put together again.
 *
 * The input chooses events, how their data is cut into CHUNKs, where PINGs
 * stand between, how many bytes arrive at a time, and whether a frame is lost
 * or comes twice on the way.  Frames decode only when they are whole.  A
 * faultless stream passes all checks and gives the events back as they were;
 * one with a frame too few or too many never passes for whole.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		test/analysis/fuzz/stream.c
 *
 *-------------------------------------------------------------------------
 */
#include "input.h"
#include "sink/common/stream.h"
#include "sink/postgres/sink.h"

int			LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_EVENTS	3
#define MAX_FRAMES	256
#define MAX_DATA	200000
#define STREAM_BYTES (MAX_EVENTS * (MAX_DATA + 2 * IDEM_PROTO_MAX_FRAME))

typedef struct Original
{
	IdemProtoEvent event;
	uint8_t		id[IDEM_PROTO_ID_BYTES];
	uint8_t		salt;
} Original;

static uint8_t stream_bytes[STREAM_BYTES];
static size_t stream_len;
static struct
{
	size_t		at;
	size_t		len;
	IdemProtoType type;
}			frames[MAX_FRAMES];
static int	nframes;
static char letters[UINT16_MAX];
static PgSinkBatch batch;

/* The byte at a place of an event's data. */
static uint8_t
byte_at(uint8_t salt, size_t i)
{
	return (uint8_t) (1 + (i * 31 + (i >> 8) * 7 + salt) % 255);
}

static void
append(size_t len, IdemProtoType type)
{
	CHECK(nframes < MAX_FRAMES);
	frames[nframes].at = stream_len;
	frames[nframes].len = len;
	frames[nframes].type = type;
	nframes++;
	stream_len += len;
}

static void
maybe_ping(Input *in)
{
	if (take8(in) % 8 == 1)
		append(idem_proto_encode_ping(stream_bytes + stream_len, IDEM_PROTO_MAX_FRAME, take64(in)),
			   IDEM_PROTO_PING);
}

/* Lengths around those where something changes, and some between. */
static uint32_t
take_length(Input *in, uint32_t max)
{
	uint32_t	v;

	switch (take8(in) % 4)
	{
		case 0:
			v = take8(in);
			break;
		case 1:
			v = IDEM_PROTO_MAX_LENGTH - 128 + take8(in);
			break;
		case 2:
			v = take32(in) % (max + 1);
			break;
		default:
			v = 0;
	}
	return v < max ? v : max;
}

static IdemProtoStr
take_letters(Input *in)
{
	IdemProtoStr s = {letters, take8(in)};

	if (s.len == 255)
		s.len = take_length(in, UINT16_MAX);
	return s;
}

static void
fill(uint8_t *dst, uint8_t salt, size_t from, size_t len)
{
	for (size_t i = 0; i < len; i++)
		dst[i] = byte_at(salt, from + i);
}

static void
append_chunks(Input *in, const Original *o, uint32_t total)
{
	uint32_t	most = take8(in) % 2 ? IDEM_PROTO_MAX_LENGTH : 30000;
	uint32_t	offset = o->event.chunk_len;

	while (offset < total)
	{
		IdemProtoChunk c = {o->event.batch, o->event.index, offset, NULL, 0};
		size_t		len;

		c.len = most - IDEM_PROTO_CHUNK_HEAD + 4;
		if (c.len > total - offset)
			c.len = total - offset;
		maybe_ping(in);
		len = idem_proto_encode_chunk(stream_bytes + stream_len, IDEM_PROTO_MAX_FRAME, &c);
		CHECK(len == IDEM_PROTO_CHUNK_HEAD + c.len);
		fill(stream_bytes + stream_len + len - c.len, o->salt, offset, c.len);
		append(len, IDEM_PROTO_CHUNK);
		offset += c.len;
	}
}

/* False if its strings do not fit in a frame. */
static bool
append_event(Input *in, Original *o, uint32_t index)
{
	IdemProtoEvent *e = &o->event;
	uint32_t	total;
	size_t		room;
	size_t		len;

	memset(o, 0, sizeof(*o));
	for (int i = 0; i < IDEM_PROTO_ID_BYTES; i++)
		o->id[i] = take8(in);
	o->salt = take8(in);
	e->batch = 7;
	e->index = index;
	e->event_id = o->id;
	e->seq = (int64_t) take64(in);
	e->enqueued_at = (int64_t) take64(in);
	e->flags = take8(in) & IDEM_PROTO_EVENT_FLAGS;
	e->aggregate_type = take_letters(in);
	e->aggregate_id = take_letters(in);
	e->event_type = take_letters(in);
	if (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE)
		e->content_type = take_letters(in);
	if (e->flags & IDEM_PROTO_HAS_HEADERS)
		e->headers_len = take_length(in, MAX_DATA / 2);
	e->payload_len = take_length(in, MAX_DATA / 2);
	total = e->headers_len + e->payload_len;
	room = idem_proto_event_room(e);
	e->chunk_len = total < room ? total : (uint32_t) room;
	len = idem_proto_encode_event(stream_bytes + stream_len, IDEM_PROTO_MAX_FRAME, e);
	if (len == 0)
	{
		CHECK(room == 0);
		return false;
	}
	CHECK(len <= IDEM_PROTO_MAX_FRAME);
	fill(stream_bytes + stream_len + len - e->chunk_len, o->salt, 0, e->chunk_len);
	append(len, IDEM_PROTO_EVENT);
	append_chunks(in, o, total);
	return true;
}

/* Lose or repeat a frame.  Does that change what the stream says? */
static bool
damage(Input *in)
{
	static uint8_t copy[STREAM_BYTES];
	uint8_t		how = take8(in) % 8;
	uint8_t		where = take8(in) % (uint8_t) (nframes < 256 ? nframes : 255);
	size_t		at = frames[where].at;
	size_t		len = frames[where].len;

	if (how > 1 || frames[where].type == IDEM_PROTO_PING)
		return false;
	memcpy(copy, stream_bytes + at + len, stream_len - at - len);
	if (how == 0)
	{
		memcpy(stream_bytes + at, copy, stream_len - at - len);
		stream_len -= len;
	}
	else if (stream_len + len <= STREAM_BYTES)
	{
		memcpy(stream_bytes + at + len, stream_bytes + at, len);
		memcpy(stream_bytes + at + 2 * len, copy, stream_len - at - len);
		stream_len += len;
	}
	else
		return false;
	return true;
}

static void
take_in(const IdemProtoFrame *frame)
{
	if (frame->type == IDEM_PROTO_EVENT)
		pgsink_batch_add(&batch, &frame->u.event);
	else if (frame->type == IDEM_PROTO_CHUNK)
		pgsink_batch_add_data(&batch, frame->u.chunk.data, frame->u.chunk.len);
}

/*
 * Let the stream arrive; true if it was taken as whole, up to an END.  Only
 * as many bytes as came are there to be read.
 */
static bool
receive(Input *in)
{
	IdemSinkStream st;
	size_t		done = 0;
	size_t		there = 0;
	bool		ended = false;

	idem_stream_init(&st);
	st.said_hello = true;
	st.credit_messages = MAX_EVENTS + 1;
	st.credit_bytes = 2 * STREAM_BYTES;
	pgsink_batch_reset(&batch);
	while (there < stream_len)
	{
		/*
		 * At most a few hundred pieces: each costs a copy of what is there of
		 * its frame, which the sanitizer keeps for a while.
		 */
		size_t		more = 1 + (take8(in) % 4 ? stream_len / 3 : stream_len / 256 + take8(in));
		uint8_t    *bytes;
		size_t		at = 0;

		there = more > stream_len - there ? stream_len : there + more;
		bytes = malloc(there - done);
		memcpy(bytes, stream_bytes + done, there - done);
		for (;;)
		{
			IdemProtoFrame frame;
			size_t		used;
			IdemProtoStatus status = idem_proto_next(IDEM_PROTO_FROM_WORKER, bytes + at,
													 there - done - at, &frame, &used);

			CHECK(status == IDEM_PROTO_OK || status == IDEM_PROTO_NEED_MORE);
			if (status != IDEM_PROTO_OK)
				break;
			if (idem_stream_check(&st, &frame, used) != NULL)
			{
				free(bytes);
				return false;
			}
			take_in(&frame);
			ended = ended || frame.type == IDEM_PROTO_END;
			at += used;
		}
		done += at;
		free(bytes);
	}
	CHECK(done == stream_len);
	return ended;
}

static void
same_letters(PgSinkSpan span, IdemProtoStr s)
{
	CHECK(span.len == s.len);
	CHECK(s.len == 0 || memcmp(batch.arena + span.at, s.data, s.len) == 0);
}

static void
same_data(PgSinkSpan span, uint8_t salt, size_t from)
{
	for (size_t i = 0; i < span.len; i++)
		CHECK(batch.arena[span.at + i] == byte_at(salt, from + i));
}

static void
same_event(const PgSinkEvent *e, const Original *o)
{
	CHECK(memcmp(e->id, o->id, sizeof(o->id)) == 0);
	CHECK(e->flags == o->event.flags && e->seq == o->event.seq);
	CHECK(e->enqueued_at == o->event.enqueued_at);
	same_letters(e->aggregate_type, o->event.aggregate_type);
	same_letters(e->aggregate_id, o->event.aggregate_id);
	same_letters(e->event_type, o->event.event_type);
	same_letters(e->content_type, o->event.content_type);
	CHECK(e->headers.len == o->event.headers_len && e->payload.len == o->event.payload_len);
	same_data(e->headers, o->salt, 0);
	same_data(e->payload, o->salt, o->event.headers_len);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	Input		in = {data, size};
	Original	originals[MAX_EVENTS];
	IdemProtoEnd end = {7, 0, {1, 2}};
	uint8_t		wanted = (uint8_t) (1 + take8(&in) % MAX_EVENTS);
	bool		damaged;
	bool		whole;

	memset(letters, 'x', sizeof(letters));
	stream_len = 0;
	nframes = 0;
	for (int i = 0; i < wanted; i++)
		if (append_event(&in, &originals[end.count], end.count))
			end.count++;
	if (end.count == 0)
		return 0;
	append(idem_proto_encode_end(stream_bytes + stream_len, IDEM_PROTO_MAX_FRAME, &end),
		   IDEM_PROTO_END);
	damaged = damage(&in);
	whole = receive(&in);
	CHECK(whole == !damaged);
	if (!whole)
		return 0;
	CHECK(batch.count == end.count);
	for (uint32_t i = 0; i < end.count; i++)
		same_event(&batch.events[i], &originals[i]);
	return 0;
}
