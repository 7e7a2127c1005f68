/*-------------------------------------------------------------------------
 *
 * decode.c
 *		Reads frames of the sink protocol out of a caller's buffer.
 *
 * A Reader walks through the body of a frame.  The first field that passes the
 * body's end or has an impossible value sets the Reader's error.  All later
 * reads return zeros.  So the function of each frame type just lists its
 * fields, and idem_proto_next checks for the error once.
 *
 * INVARIANT
 *		No byte at or after buf + len is read, whatever the bytes before it say.
 *
 * MEMORY
 *		None of its own.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/protocol/decode.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/protocol/protocol.h"
#include "sink/protocol/wire.h"

typedef struct Reader
{
	const uint8_t *p;
	const uint8_t *end;
	IdemProtoStatus status;
} Reader;

/* Note an error unless there is one; all later reads return zeros. */
static const uint8_t *
fail(Reader *r, IdemProtoStatus status)
{
	if (r->status == IDEM_PROTO_OK)
		r->status = status;
	r->p = r->end;
	return NULL;
}

/* Take the next len bytes of the body; NULL if there are fewer. */
static inline const uint8_t *
take(Reader *r, size_t len)
{
	const uint8_t *p = r->p;

	if ((size_t) (r->end - p) < len)
		return fail(r, IDEM_PROTO_ERR_BODY);
	r->p += len;
	return p;
}

/* Read an integer of the body; 0 after an error. */
static inline uint8_t
get8(Reader *r)
{
	const uint8_t *p = take(r, 1);

	return p ? *p : 0;
}

static inline uint16_t
get16(Reader *r)
{
	const uint8_t *p = take(r, 2);

	return p ? wire_get16(p) : 0;
}

static inline uint32_t
get32(Reader *r)
{
	const uint8_t *p = take(r, 4);

	return p ? wire_get32(p) : 0;
}

static inline uint64_t
get64(Reader *r)
{
	const uint8_t *p = take(r, 8);

	return p ? wire_get64(p) : 0;
}

/* Read text of len bytes without NUL; empty after an error. */
static inline IdemProtoStr
get_str(Reader *r, uint32_t len)
{
	IdemProtoStr s = {"", 0};
	const uint8_t *p = take(r, len);

	if (p == NULL || len == 0)
		return s;
	if (memchr(p, 0, len) != NULL)
	{
		fail(r, IDEM_PROTO_ERR_VALUE);
		return s;
	}
	s.data = (const char *) p;
	s.len = len;
	return s;
}

/* Read a str16: a u16 length and the text. */
static inline IdemProtoStr
get_str16(Reader *r)
{
	return get_str(r, get16(r));
}

/* Read a SQLSTATE into dst, with a terminator; empty after an error. */
static void
get_sqlstate(Reader *r, char *dst)
{
	const uint8_t *p = take(r, 5);

	memset(dst, 0, 6);
	if (p == NULL)
		return;
	for (int i = 0; i < 5; i++)
	{
		if (!((p[i] >= '0' && p[i] <= '9') || (p[i] >= 'A' && p[i] <= 'Z')))
		{
			fail(r, IDEM_PROTO_ERR_VALUE);
			return;
		}
		dst[i] = (char) p[i];
	}
}

/* Read a u8 that has to be between low and high. */
static int
get_enum(Reader *r, int low, int high)
{
	int			v = get8(r);

	if (r->status == IDEM_PROTO_OK && (v < low || v > high))
		fail(r, IDEM_PROTO_ERR_VALUE);
	return v;
}

/* Note an error unless the values that were read obey a rule. */
static void
check(Reader *r, bool ok)
{
	if (!ok)
		fail(r, IDEM_PROTO_ERR_VALUE);
}

/*
 * Read a HELLO or a LOOK.  f->version is set for another version, too, so that the
 * program can name it in its answer.
 */
static void
decode_hello(Reader *r, IdemProtoHello *f)
{
	IdemProtoStr key;
	IdemProtoStr value;
	IdemProtoHello walk;

	if (get32(r) != IDEM_PROTO_MAGIC)
		fail(r, IDEM_PROTO_ERR_MAGIC);
	f->version = get16(r);
	if (r->status == IDEM_PROTO_OK && f->version != IDEM_PROTO_VERSION)
		fail(r, IDEM_PROTO_ERR_VERSION);
	f->flags = get32(r);
	f->relay = get_str16(r);
	f->incarnation = get_str16(r);
	f->noptions = get16(r);
	check(r, (f->flags & ~IDEM_PROTO_HELLO_FLAGS) == 0 && f->relay.len > 0 &&
		  f->noptions <= IDEM_PROTO_MAX_OPTIONS);
	f->options = r->p;
	f->options_end = r->end;
	f->keys = f->values = NULL;
	if (r->status != IDEM_PROTO_OK)
		return;

	/* Check all options now, so that idem_proto_next_option cannot fail. */
	walk = *f;
	while (idem_proto_next_option(&walk, &key, &value))
		;
	if (walk.noptions != 0 || walk.options != r->end)
		fail(r, IDEM_PROTO_ERR_BODY);
	r->p = r->end;
}

bool
idem_proto_next_option(IdemProtoHello *hello, IdemProtoStr *key, IdemProtoStr *value)
{
	Reader		r = {hello->options, hello->options_end, IDEM_PROTO_OK};

	if (hello->noptions == 0)
		return false;
	*key = get_str16(&r);
	*value = get_str(&r, get32(&r));
	if (r.status != IDEM_PROTO_OK || key->len == 0)
		return false;
	hello->noptions--;
	hello->options = r.p;
	return true;
}

/* This function and the next ones read the fields of one frame type each. */
static void
decode_event(Reader *r, IdemProtoEvent *f)
{
	f->batch = get64(r);
	f->index = get32(r);
	f->flags = get8(r);
	f->event_id = take(r, IDEM_PROTO_ID_BYTES);
	f->seq = (int64_t) get64(r);
	f->enqueued_at = (int64_t) get64(r);
	f->committed_at = (int64_t) get64(r);
	f->headers_len = get32(r);
	f->payload_len = get32(r);
	f->aggregate_type = get_str16(r);
	f->aggregate_id = get_str16(r);
	f->event_type = get_str16(r);
	f->content_type = get_str16(r);
	f->chunk = r->p;
	f->chunk_len = (uint32_t) (r->end - r->p);
	r->p = r->end;
	check(r, (f->flags & ~IDEM_PROTO_EVENT_FLAGS) == 0 &&
		  (f->headers_len == 0 || (f->flags & IDEM_PROTO_HAS_HEADERS)) &&
		  (f->content_type.len == 0 || (f->flags & IDEM_PROTO_HAS_CONTENT_TYPE)) &&
		  f->chunk_len <= (uint64_t) f->headers_len + f->payload_len);
}

static void
decode_chunk(Reader *r, IdemProtoChunk *f)
{
	f->batch = get64(r);
	f->index = get32(r);
	f->offset = get32(r);
	f->data = r->p;
	f->len = (uint32_t) (r->end - r->p);
	r->p = r->end;
	check(r, f->len > 0 && f->offset <= UINT32_MAX - f->len);
}

static void
decode_end(Reader *r, IdemProtoEnd *f)
{
	f->batch = get64(r);
	f->count = get32(r);
	f->position.row_id = (int64_t) get64(r);
	f->position.k = (int64_t) get64(r);
	check(r, f->count > 0);
}

static void
decode_ready(Reader *r, IdemProtoReady *f)
{
	f->version = get16(r);
	if (r->status == IDEM_PROTO_OK && f->version != IDEM_PROTO_VERSION)
		fail(r, IDEM_PROTO_ERR_VERSION);
	f->capabilities = get32(r);
	f->has_position = get_enum(r, 0, 1) != 0;
	f->incarnation = get_str16(r);
	f->position.row_id = (int64_t) get64(r);
	f->position.k = (int64_t) get64(r);
	f->max_batch_events = get32(r);
	f->max_batch_bytes = get32(r);
	f->credit_messages = get32(r);
	f->credit_bytes = get32(r);
	check(r, (f->capabilities & ~IDEM_PROTO_CAPABILITIES) == 0 &&
		  f->credit_messages > 0 && f->credit_bytes > 0 &&
		  (f->has_position || (f->incarnation.len == 0 &&
							   f->position.row_id == 0 && f->position.k == 0)));
}

static void
decode_failed(Reader *r, IdemProtoFailed *f)
{
	f->outcome = (IdemProtoOutcome) get8(r);
	get_sqlstate(r, f->sqlstate);
	f->message = get_str16(r);
	check(r, f->outcome == IDEM_PROTO_OUTAGE || f->outcome == IDEM_PROTO_FENCED ||
		  f->outcome == IDEM_PROTO_REJECTED || f->outcome == IDEM_PROTO_HALTED);
}

static void
decode_result(Reader *r, IdemProtoResult *f)
{
	f->batch = get64(r);
	f->first = get32(r);
	f->last = get32(r);
	f->outcome = (IdemProtoOutcome) get_enum(r, IDEM_PROTO_ACKED, IDEM_PROTO_IMPOSSIBLE);
	get_sqlstate(r, f->sqlstate);
	f->retry_after = get32(r);
	f->destination = get_str16(r);
	f->message = get_str16(r);
	check(r, f->first <= f->last && f->outcome != IDEM_PROTO_HALTED);
}

static void
decode_settle(Reader *r, IdemProtoSettle *f)
{
	f->batch = get64(r);
	f->first = get32(r);
	f->last = get32(r);
	check(r, f->first <= f->last);
}

static void
decode_verdict(Reader *r, IdemProtoVerdict *f)
{
	f->batch = get64(r);
	f->kind = (IdemProtoVerdictKind)
		get_enum(r, IDEM_PROTO_COMMITTED, IDEM_PROTO_VERDICT_FENCED);
	get_sqlstate(r, f->sqlstate);
	f->message = get_str16(r);
}

static void
decode_found(Reader *r, IdemProtoFound *f)
{
	f->ok = get_enum(r, 0, 1) != 0;
	f->what = get_str16(r);
	f->problem = get_str16(r);
	f->remedy = get_str16(r);
	check(r, f->what.len > 0);
}

/* Read the body of a frame whose type is known. */
static void
decode_body(Reader *r, IdemProtoFrame *frame)
{
	switch (frame->type)
	{
		case IDEM_PROTO_EVENT:
			decode_event(r, &frame->u.event);
			break;
		case IDEM_PROTO_CHUNK:
			decode_chunk(r, &frame->u.chunk);
			break;
		case IDEM_PROTO_END:
			decode_end(r, &frame->u.end);
			break;
		case IDEM_PROTO_SETTLE:
			decode_settle(r, &frame->u.settle);
			break;
		case IDEM_PROTO_PING:
		case IDEM_PROTO_PONG:
			frame->u.ping.nonce = get64(r);
			break;
		case IDEM_PROTO_HELLO:
		case IDEM_PROTO_LOOK:
			decode_hello(r, &frame->u.hello);
			break;
		case IDEM_PROTO_BYE:
			break;
		case IDEM_PROTO_READY:
			decode_ready(r, &frame->u.ready);
			break;
		case IDEM_PROTO_FAILED:
			decode_failed(r, &frame->u.failed);
			break;
		case IDEM_PROTO_RESULT:
			decode_result(r, &frame->u.result);
			break;
		case IDEM_PROTO_VERDICT:
			decode_verdict(r, &frame->u.verdict);
			break;
		case IDEM_PROTO_CREDIT:
			frame->u.credit.messages = get32(r);
			frame->u.credit.bytes = get32(r);
			break;
		case IDEM_PROTO_LOG:
			frame->u.log.level = (IdemProtoLogLevel)
				get_enum(r, IDEM_PROTO_LOG_DEBUG, IDEM_PROTO_LOG_WARNING);
			frame->u.log.message = get_str16(r);
			break;
		case IDEM_PROTO_FOUND:
			decode_found(r, &frame->u.found);
			break;
	}
}

/* May that peer send frames of that type? */
static bool
type_ok(IdemProtoPeer from, uint8_t type)
{
	switch (type)
	{
		case IDEM_PROTO_HELLO:
		case IDEM_PROTO_LOOK:
		case IDEM_PROTO_EVENT:
		case IDEM_PROTO_CHUNK:
		case IDEM_PROTO_END:
		case IDEM_PROTO_SETTLE:
		case IDEM_PROTO_PING:
		case IDEM_PROTO_BYE:
			return from == IDEM_PROTO_FROM_WORKER;
		case IDEM_PROTO_READY:
		case IDEM_PROTO_FAILED:
		case IDEM_PROTO_RESULT:
		case IDEM_PROTO_VERDICT:
		case IDEM_PROTO_CREDIT:
		case IDEM_PROTO_PONG:
		case IDEM_PROTO_LOG:
		case IDEM_PROTO_FOUND:
			return from == IDEM_PROTO_FROM_SINK;
	}
	return false;
}

IdemProtoStatus
idem_proto_next(IdemProtoPeer from, const uint8_t *buf, size_t len,
				IdemProtoFrame *frame, size_t *consumed)
{
	Reader		r;
	uint32_t	length;

	if (len < 4)
		return IDEM_PROTO_NEED_MORE;
	length = wire_get32(buf);
	if (length == 0 || length > IDEM_PROTO_MAX_LENGTH)
		return IDEM_PROTO_ERR_LENGTH;
	if (len < 5)
		return IDEM_PROTO_NEED_MORE;
	if (!type_ok(from, buf[4]))
		return IDEM_PROTO_ERR_TYPE;
	if (len - 4 < length)
		return IDEM_PROTO_NEED_MORE;

	r.p = buf + 5;
	r.end = buf + 4 + length;
	r.status = IDEM_PROTO_OK;
	frame->type = (IdemProtoType) buf[4];
	decode_body(&r, frame);
	if (r.status == IDEM_PROTO_OK && r.p != r.end)
		r.status = IDEM_PROTO_ERR_BODY;
	if (r.status == IDEM_PROTO_OK)
		*consumed = 4 + (size_t) length;
	return r.status;
}

const char *
idem_proto_status_text(IdemProtoStatus status)
{
	switch (status)
	{
		case IDEM_PROTO_OK:
			return "no error";
		case IDEM_PROTO_NEED_MORE:
			return "incomplete frame";
		case IDEM_PROTO_ERR_LENGTH:
			return "invalid frame length";
		case IDEM_PROTO_ERR_TYPE:
			return "unknown frame type";
		case IDEM_PROTO_ERR_BODY:
			return "frame body and its fields disagree in length";
		case IDEM_PROTO_ERR_VALUE:
			return "invalid value in a frame";
		case IDEM_PROTO_ERR_MAGIC:
			return "not the idempotency sink protocol";
		case IDEM_PROTO_ERR_VERSION:
			return "unsupported protocol version";
	}
	return "unrecognized error";
}
