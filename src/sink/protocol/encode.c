/*-------------------------------------------------------------------------
 *
 * encode.c
 *		Writes frames of the sink protocol into a caller's buffer.
 *
 * Each encoder first computes the size of its frame.  A frame that does not fit
 * leaves the buffer untouched.  A frame that fits is written without further
 * checks.
 *
 * INVARIANT
 *		A written frame decodes without an error to the same values.
 *
 * MEMORY
 *		None of its own.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/protocol/encode.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/protocol/protocol.h"
#include "sink/protocol/wire.h"

#define FRAME_HEAD		5		/* length and type */
#define EVENT_FIXED		(8 + 4 + 1 + IDEM_PROTO_ID_BYTES + 3 * 8 + 2 * 4)

/* Write an integer, bytes or text at p; returns the place behind it. */
static uint8_t *
put8(uint8_t *p, uint8_t v)
{
	*p = v;
	return p + 1;
}

static uint8_t *
put16(uint8_t *p, uint16_t v)
{
	wire_put16(p, v);
	return p + 2;
}

static uint8_t *
put32(uint8_t *p, uint32_t v)
{
	wire_put32(p, v);
	return p + 4;
}

static uint8_t *
put64(uint8_t *p, uint64_t v)
{
	wire_put64(p, v);
	return p + 8;
}

static uint8_t *
put_bytes(uint8_t *p, const void *data, size_t len)
{
	if (len > 0)
		memcpy(p, data, len);
	return p + len;
}

static uint8_t *
put_str16(uint8_t *p, IdemProtoStr s)
{
	p = put16(p, (uint16_t) s.len);
	return put_bytes(p, s.data, s.len);
}

/* Is the string without NUL and at most max bytes long? */
static bool
str_fits(IdemProtoStr s, uint32_t max)
{
	return s.len <= max && (s.len == 0 || memchr(s.data, 0, s.len) == NULL);
}

/* Five digits or upper-case letters? */
static bool
sqlstate_ok(const char *s)
{
	for (int i = 0; i < 5; i++)
		if (!((s[i] >= '0' && s[i] <= '9') || (s[i] >= 'A' && s[i] <= 'Z')))
			return false;
	return s[5] == '\0';
}

/*
 * Write length and type of a frame with that many bytes of body.  Returns the
 * place for the body.  Returns NULL if the frame cannot be written: the encoder
 * then returns *size at once.  *size is the encoder's result in both cases.
 */
static uint8_t *
start(uint8_t *buf, size_t cap, IdemProtoType type, size_t body, size_t *size)
{
	if (body + 1 > IDEM_PROTO_MAX_LENGTH)
	{
		*size = 0;
		return NULL;
	}
	*size = FRAME_HEAD + body;
	if (*size > cap)
		return NULL;
	buf = put32(buf, (uint32_t) body + 1);
	return put8(buf, (uint8_t) type);
}

/* The size of a HELLO's options; 0 if one of them cannot be sent. */
static size_t
options_size(const IdemProtoHello *f)
{
	size_t		size = 2;

	if (f->noptions > IDEM_PROTO_MAX_OPTIONS)
		return 0;
	for (int i = 0; i < f->noptions; i++)
	{
		if (f->keys[i].len == 0 || !str_fits(f->keys[i], UINT16_MAX) ||
			!str_fits(f->values[i], IDEM_PROTO_MAX_LENGTH))
			return 0;
		size += 2 + f->keys[i].len + 4 + f->values[i].len;
	}
	return size;
}

/* Write a HELLO or a LOOK. */
static size_t
encode_greeting(uint8_t *buf, size_t cap, IdemProtoType type, const IdemProtoHello *f)
{
	size_t		size;
	size_t		options = options_size(f);
	uint8_t    *p;

	if (options == 0 || (f->flags & ~IDEM_PROTO_HELLO_FLAGS) != 0 ||
		f->relay.len == 0 || !str_fits(f->relay, UINT16_MAX) ||
		!str_fits(f->incarnation, UINT16_MAX))
		return 0;
	p = start(buf, cap, type, 4 + 2 + 4 + 2 + f->relay.len +
			  2 + f->incarnation.len + options, &size);
	if (p == NULL)
		return size;
	p = put32(p, IDEM_PROTO_MAGIC);
	p = put16(p, f->version);
	p = put32(p, f->flags);
	p = put_str16(p, f->relay);
	p = put_str16(p, f->incarnation);
	p = put16(p, f->noptions);
	for (int i = 0; i < f->noptions; i++)
	{
		p = put_str16(p, f->keys[i]);
		p = put32(p, f->values[i].len);
		p = put_bytes(p, f->values[i].data, f->values[i].len);
	}
	return size;
}

size_t
idem_proto_encode_hello(uint8_t *buf, size_t cap, const IdemProtoHello *f)
{
	return encode_greeting(buf, cap, IDEM_PROTO_HELLO, f);
}

size_t
idem_proto_encode_look(uint8_t *buf, size_t cap, const IdemProtoHello *f)
{
	return encode_greeting(buf, cap, IDEM_PROTO_LOOK, f);
}

/* The size of an EVENT's body before its chunk. */
static size_t
event_head_size(const IdemProtoEvent *f)
{
	return EVENT_FIXED + 4 * 2 + (size_t) f->aggregate_type.len +
		f->aggregate_id.len + f->event_type.len + f->content_type.len;
}

size_t
idem_proto_event_room(const IdemProtoEvent *event)
{
	size_t		head = 1 + event_head_size(event);

	return head < IDEM_PROTO_MAX_LENGTH ? IDEM_PROTO_MAX_LENGTH - head : 0;
}

/* Are the event's strings valid, and do its flags and lengths agree? */
static bool
event_ok(const IdemProtoEvent *f)
{
	if ((f->flags & ~IDEM_PROTO_EVENT_FLAGS) != 0 ||
		(f->headers_len > 0 && !(f->flags & IDEM_PROTO_HAS_HEADERS)) ||
		(f->content_type.len > 0 && !(f->flags & IDEM_PROTO_HAS_CONTENT_TYPE)) ||
		f->chunk_len > (uint64_t) f->headers_len + f->payload_len)
		return false;
	return str_fits(f->aggregate_type, UINT16_MAX) &&
		str_fits(f->aggregate_id, UINT16_MAX) &&
		str_fits(f->event_type, UINT16_MAX) &&
		str_fits(f->content_type, UINT16_MAX);
}

size_t
idem_proto_encode_event(uint8_t *buf, size_t cap, const IdemProtoEvent *f)
{
	size_t		size;
	uint8_t    *p;

	if (!event_ok(f))
		return 0;
	p = start(buf, cap, IDEM_PROTO_EVENT, event_head_size(f) + f->chunk_len, &size);
	if (p == NULL)
		return size;
	p = put64(p, f->batch);
	p = put32(p, f->index);
	p = put8(p, f->flags);
	p = put_bytes(p, f->event_id, IDEM_PROTO_ID_BYTES);
	p = put64(p, (uint64_t) f->seq);
	p = put64(p, (uint64_t) f->enqueued_at);
	p = put64(p, (uint64_t) f->committed_at);
	p = put32(p, f->headers_len);
	p = put32(p, f->payload_len);
	p = put_str16(p, f->aggregate_type);
	p = put_str16(p, f->aggregate_id);
	p = put_str16(p, f->event_type);
	p = put_str16(p, f->content_type);
	if (f->chunk != NULL)
		put_bytes(p, f->chunk, f->chunk_len);
	return size;
}

size_t
idem_proto_encode_chunk(uint8_t *buf, size_t cap, const IdemProtoChunk *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->len == 0 || f->offset > UINT32_MAX - f->len)
		return 0;
	p = start(buf, cap, IDEM_PROTO_CHUNK, 8 + 4 + 4 + (size_t) f->len, &size);
	if (p == NULL)
		return size;
	p = put64(p, f->batch);
	p = put32(p, f->index);
	p = put32(p, f->offset);
	if (f->data != NULL)
		put_bytes(p, f->data, f->len);
	return size;
}

size_t
idem_proto_encode_end(uint8_t *buf, size_t cap, const IdemProtoEnd *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->count == 0)
		return 0;
	p = start(buf, cap, IDEM_PROTO_END, 8 + 4 + 8 + 8, &size);
	if (p == NULL)
		return size;
	p = put64(p, f->batch);
	p = put32(p, f->count);
	p = put64(p, (uint64_t) f->position.row_id);
	put64(p, (uint64_t) f->position.k);
	return size;
}

/* A frame whose body is one u64. */
static size_t
encode_u64(uint8_t *buf, size_t cap, IdemProtoType type, uint64_t value)
{
	size_t		size;
	uint8_t    *p = start(buf, cap, type, 8, &size);

	if (p != NULL)
		put64(p, value);
	return size;
}

size_t
idem_proto_encode_settle(uint8_t *buf, size_t cap, const IdemProtoSettle *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->first > f->last)
		return 0;
	p = start(buf, cap, IDEM_PROTO_SETTLE, 8 + 4 + 4, &size);
	if (p != NULL)
	{
		p = put64(p, f->batch);
		p = put32(p, f->first);
		put32(p, f->last);
	}
	return size;
}

size_t
idem_proto_encode_ping(uint8_t *buf, size_t cap, uint64_t nonce)
{
	return encode_u64(buf, cap, IDEM_PROTO_PING, nonce);
}

size_t
idem_proto_encode_pong(uint8_t *buf, size_t cap, uint64_t nonce)
{
	return encode_u64(buf, cap, IDEM_PROTO_PONG, nonce);
}

size_t
idem_proto_encode_bye(uint8_t *buf, size_t cap)
{
	size_t		size;

	start(buf, cap, IDEM_PROTO_BYE, 0, &size);
	return size;
}

size_t
idem_proto_encode_ready(uint8_t *buf, size_t cap, const IdemProtoReady *f)
{
	size_t		size;
	uint8_t    *p;

	if ((f->capabilities & ~IDEM_PROTO_CAPABILITIES) != 0 ||
		!str_fits(f->incarnation, UINT16_MAX) ||
		f->credit_messages == 0 || f->credit_bytes == 0 ||
		(!f->has_position &&
		 (f->incarnation.len > 0 || f->position.row_id != 0 || f->position.k != 0)))
		return 0;
	p = start(buf, cap, IDEM_PROTO_READY, 2 + 4 + 1 + 2 + f->incarnation.len +
			  8 + 8 + 4 * 4, &size);
	if (p == NULL)
		return size;
	p = put16(p, f->version);
	p = put32(p, f->capabilities);
	p = put8(p, f->has_position);
	p = put_str16(p, f->incarnation);
	p = put64(p, (uint64_t) f->position.row_id);
	p = put64(p, (uint64_t) f->position.k);
	p = put32(p, f->max_batch_events);
	p = put32(p, f->max_batch_bytes);
	p = put32(p, f->credit_messages);
	put32(p, f->credit_bytes);
	return size;
}

size_t
idem_proto_encode_failed(uint8_t *buf, size_t cap, const IdemProtoFailed *f)
{
	size_t		size;
	uint8_t    *p;

	if ((f->outcome != IDEM_PROTO_OUTAGE && f->outcome != IDEM_PROTO_FENCED &&
		 f->outcome != IDEM_PROTO_REJECTED && f->outcome != IDEM_PROTO_HALTED) ||
		!sqlstate_ok(f->sqlstate) || !str_fits(f->message, UINT16_MAX))
		return 0;
	p = start(buf, cap, IDEM_PROTO_FAILED, 1 + 5 + 2 + (size_t) f->message.len, &size);
	if (p == NULL)
		return size;
	p = put8(p, (uint8_t) f->outcome);
	p = put_bytes(p, f->sqlstate, 5);
	put_str16(p, f->message);
	return size;
}

size_t
idem_proto_encode_result(uint8_t *buf, size_t cap, const IdemProtoResult *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->last < f->first || !idem_proto_is_result(f->outcome) || !sqlstate_ok(f->sqlstate) ||
		!str_fits(f->destination, UINT16_MAX) || !str_fits(f->message, UINT16_MAX))
		return 0;
	p = start(buf, cap, IDEM_PROTO_RESULT, 8 + 4 + 4 + 1 + 5 + 4 + 2 + 2 +
			  (size_t) f->destination.len + (size_t) f->message.len, &size);
	if (p == NULL)
		return size;
	p = put64(p, f->batch);
	p = put32(p, f->first);
	p = put32(p, f->last);
	p = put8(p, (uint8_t) f->outcome);
	p = put_bytes(p, f->sqlstate, 5);
	p = put32(p, f->retry_after);
	p = put_str16(p, f->destination);
	put_str16(p, f->message);
	return size;
}

size_t
idem_proto_encode_verdict(uint8_t *buf, size_t cap, const IdemProtoVerdict *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->kind < IDEM_PROTO_COMMITTED || f->kind > IDEM_PROTO_VERDICT_FENCED ||
		!sqlstate_ok(f->sqlstate) || !str_fits(f->message, UINT16_MAX))
		return 0;
	p = start(buf, cap, IDEM_PROTO_VERDICT, 8 + 1 + 5 + 2 +
			  (size_t) f->message.len, &size);
	if (p == NULL)
		return size;
	p = put64(p, f->batch);
	p = put8(p, (uint8_t) f->kind);
	p = put_bytes(p, f->sqlstate, 5);
	put_str16(p, f->message);
	return size;
}

size_t
idem_proto_encode_credit(uint8_t *buf, size_t cap, const IdemProtoCredit *f)
{
	size_t		size;
	uint8_t    *p = start(buf, cap, IDEM_PROTO_CREDIT, 8, &size);

	if (p == NULL)
		return size;
	p = put32(p, f->messages);
	put32(p, f->bytes);
	return size;
}

size_t
idem_proto_encode_log(uint8_t *buf, size_t cap, const IdemProtoLog *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->level < IDEM_PROTO_LOG_DEBUG || f->level > IDEM_PROTO_LOG_WARNING ||
		!str_fits(f->message, UINT16_MAX))
		return 0;
	p = start(buf, cap, IDEM_PROTO_LOG, 1 + 2 + (size_t) f->message.len, &size);
	if (p == NULL)
		return size;
	p = put8(p, (uint8_t) f->level);
	put_str16(p, f->message);
	return size;
}

size_t
idem_proto_encode_found(uint8_t *buf, size_t cap, const IdemProtoFound *f)
{
	size_t		size;
	uint8_t    *p;

	if (f->what.len == 0 || !str_fits(f->what, UINT16_MAX) ||
		!str_fits(f->problem, UINT16_MAX) || !str_fits(f->remedy, UINT16_MAX))
		return 0;
	p = start(buf, cap, IDEM_PROTO_FOUND, 1 + 3 * 2 + (size_t) f->what.len +
			  f->problem.len + f->remedy.len, &size);
	if (p == NULL)
		return size;
	p = put8(p, f->ok);
	p = put_str16(p, f->what);
	p = put_str16(p, f->problem);
	put_str16(p, f->remedy);
	return size;
}

size_t
idem_proto_encode(uint8_t *buf, size_t cap, const IdemProtoFrame *f)
{
	switch (f->type)
	{
		case IDEM_PROTO_HELLO:
			return idem_proto_encode_hello(buf, cap, &f->u.hello);
		case IDEM_PROTO_LOOK:
			return idem_proto_encode_look(buf, cap, &f->u.hello);
		case IDEM_PROTO_EVENT:
			return idem_proto_encode_event(buf, cap, &f->u.event);
		case IDEM_PROTO_CHUNK:
			return idem_proto_encode_chunk(buf, cap, &f->u.chunk);
		case IDEM_PROTO_END:
			return idem_proto_encode_end(buf, cap, &f->u.end);
		case IDEM_PROTO_SETTLE:
			return idem_proto_encode_settle(buf, cap, &f->u.settle);
		case IDEM_PROTO_PING:
			return idem_proto_encode_ping(buf, cap, f->u.ping.nonce);
		case IDEM_PROTO_BYE:
			return idem_proto_encode_bye(buf, cap);
		case IDEM_PROTO_READY:
			return idem_proto_encode_ready(buf, cap, &f->u.ready);
		case IDEM_PROTO_FAILED:
			return idem_proto_encode_failed(buf, cap, &f->u.failed);
		case IDEM_PROTO_RESULT:
			return idem_proto_encode_result(buf, cap, &f->u.result);
		case IDEM_PROTO_VERDICT:
			return idem_proto_encode_verdict(buf, cap, &f->u.verdict);
		case IDEM_PROTO_CREDIT:
			return idem_proto_encode_credit(buf, cap, &f->u.credit);
		case IDEM_PROTO_PONG:
			return idem_proto_encode_pong(buf, cap, f->u.ping.nonce);
		case IDEM_PROTO_LOG:
			return idem_proto_encode_log(buf, cap, &f->u.log);
		case IDEM_PROTO_FOUND:
			return idem_proto_encode_found(buf, cap, &f->u.found);
	}
	return 0;
}
