/*-------------------------------------------------------------------------
 *
 * encode.c
 *		A relay and its events -> frames in the output.
 *
 * All text of an event is converted to UTF-8 before the first byte of the event
 * is in the output.  So an event that cannot be converted leaves nothing there.
 *
 * The server's own pg_server_to_any() raises an error for text that cannot be
 * converted.  The error, caught or not, would end the transaction, and the
 * relay would stop at an event that alone is at fault.  The conversion of this
 * file returns false instead.
 *
 * MEMORY: the strings and the payload of one event, in a context that is reset
 * after each event.  Text in another encoding takes four bytes per byte.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/encode.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/namespace.h"
#include "commands/defrem.h"
#include "mb/pg_wchar.h"
#include "utils/memutils.h"

#include "relay/stream/json_text.h"
#include "relay/stream/state.h"
#include "relay/stream/stream.h"
#include "shared/worker.h"

/* Microseconds from 1970-01-01 to 2000-01-01. */
#define EPOCH_DIFF_US (INT64CONST(10957) * USECS_PER_DAY)

/* A sink is told "incarnation/life"; the life has 16 hexadecimal digits. */
#define LIFE_SEPARATOR '/'
#define LIFE_DIGITS 16

/*
 * Convert text of an encoding other than UTF-8; false if that is not possible.
 */
static bool
convert(const char *data, int len, IdemProtoStr *out)
{
	int			encoding = GetDatabaseEncoding();
	Size		room = ((Size) len + 1) * MAX_CONVERSION_GROWTH + 1;
	Oid			conversion;
	unsigned char *converted;

	if (encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(PG_UTF8, data, len, true);

	conversion = FindDefaultConversionProc(encoding, PG_UTF8);
	if (!OidIsValid(conversion) || room > INT_MAX)
		return false;
	converted = MemoryContextAllocHuge(CurrentMemoryContext, room);
	if (pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, (unsigned char *) data,
									  len, converted, (int) room, true) < len)
		return false;
	out->data = (char *) converted;
	out->len = strlen((char *) converted);
	return true;
}

/*
 * The text in UTF-8: the text itself, or palloc'd.  Returns false, and raises
 * no error, if UTF-8 lacks a character of the text, or some bytes are no
 * character.  In a transaction, since looking up a conversion needs one.
 */
static bool
utf8_text(IdemEventText text, IdemProtoStr *out)
{
	out->data = text.data;
	out->len = text.len;
	return text.len == 0 || GetDatabaseEncoding() == PG_UTF8 ||
	convert(text.data, text.len, out);
}

static bool
utf8_cstring(const char *s, IdemProtoStr *out)
{
	IdemEventText text = {s, strlen(s)};

	return utf8_text(text, out);
}

static bool
utf8_jsonb(Datum jsonb, IdemProtoStr *out)
{
	StringInfoData buf;
	IdemEventText document;

	initStringInfo(&buf);
	idem_json_text(&buf, DatumGetJsonbP(jsonb));
	document.data = buf.data;
	document.len = buf.len;
	return utf8_text(document, out);
}

bool
idem_encode_life_of(const IdemStream *stream, IdemProtoStr incarnation, int64 *life)
{
	const char *ours = stream->relay.config->incarnation;
	size_t		len = strlen(ours);
	char		digits[LIFE_DIGITS + 1];
	char	   *end;

	if (incarnation.len != len + 1 + LIFE_DIGITS ||
		memcmp(incarnation.data, ours, len) != 0 ||
		incarnation.data[len] != LIFE_SEPARATOR)
		return false;
	memcpy(digits, incarnation.data + len + 1, LIFE_DIGITS);
	digits[LIFE_DIGITS] = '\0';
	*life = (int64) strtoull(digits, &end, 16);
	return *end == '\0';
}

/* The relay as HELLO describes it; false if a part of it cannot be converted to UTF-8. */
static bool
describe_relay(const IdemRelayConfig *c, int64 life, IdemProtoHello *hello)
{
	IdemProtoStr *keys = palloc(sizeof(IdemProtoStr) * (list_length(c->options) + 1));
	IdemProtoStr *values = palloc(sizeof(IdemProtoStr) * (list_length(c->options) + 1));
	ListCell   *lc;

	hello->version = IDEM_PROTO_VERSION;
	hello->flags = IDEM_PROTO_WANT_POSITION |
		(c->ordering == IDEM_ORDERING_KEY ? IDEM_PROTO_KEY_ORDER : 0) |
		(c->require_password ? IDEM_PROTO_REQUIRE_PASSWORD : 0);
	hello->keys = keys;
	hello->values = values;
	if (!utf8_cstring(c->name, &hello->relay) ||
		!utf8_cstring(psprintf("%s%c%0*llx", c->incarnation, LIFE_SEPARATOR,
							   LIFE_DIGITS, (unsigned long long) life),
					  &hello->incarnation))
		return false;
	foreach(lc, c->options)
	{
		DefElem    *def = lfirst(lc);
		int			n = hello->noptions;

		/*
		 * The option "program" chose the program.  The program does not know
		 * it.
		 */
		if (strcmp(c->kind, "program") == 0 && strcmp(def->defname, "program") == 0)
			continue;
		if (!utf8_cstring(def->defname, &keys[n]) ||
			!utf8_cstring(defGetString(def), &values[n]))
			return false;
		hello->noptions++;
	}
	return true;
}

IdemStreamVerdict
idem_encode_hello(IdemStream *stream)
{
	IdemProtoHello hello = {0};
	MemoryContext tmp = AllocSetContextCreate(stream->run_cxt, "hello", ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(tmp);
	size_t		n = 0;
	bool		converted;

	/* A random number but 0, which rows have that belong to no life. */
	stream->life = 0;
	while (stream->life == 0)
	{
		if (!pg_strong_random(&stream->life, sizeof(stream->life)))
			ereport(ERROR,
					(errcode(ERRCODE_INTERNAL_ERROR),
					 errmsg("could not generate random values")));
	}

	/* Looking up a conversion reads the catalog. */
	idem_txn_begin();
	MemoryContextSwitchTo(tmp);
	converted = describe_relay(stream->relay.config, stream->life, &hello);
	idem_txn_commit(false);
	if (converted)
		n = idem_proto_encode_hello(idem_pipe_reserve(&stream->pipe, IDEM_PROTO_MAX_FRAME),
									IDEM_PROTO_MAX_FRAME, &hello);
	MemoryContextSwitchTo(old);
	MemoryContextDelete(tmp);
	if (!converted)
		return idem_stream_verdict(IDEM_STREAM_UNUSABLE,
								   "the options of the server cannot be converted to UTF-8");
	if (n == 0 || n > IDEM_PROTO_MAX_FRAME)
		return idem_stream_verdict(IDEM_STREAM_UNUSABLE,
								   "the options of the server do not fit into one frame");
	idem_pipe_add(&stream->pipe, n);
	return IDEM_STREAM_GOES_ON;
}

size_t
idem_encode_look(const IdemRelayConfig *config, uint8 *buf)
{
	IdemProtoHello hello = {0};

	return describe_relay(config, 0, &hello) ? idem_proto_encode_look(buf, IDEM_PROTO_MAX_FRAME, &hello) : 0;
}

/* Copy the bytes [from, from + len) of headers followed by payload. */
static void
copy_data(uint8 *dst, IdemProtoStr headers, IdemProtoStr payload, uint32 from, uint32 len)
{
	if (from < headers.len)
	{
		uint32		n = Min(len, headers.len - from);

		memcpy(dst, headers.data + from, n);
		dst += n;
		from += n;
		len -= n;
	}
	if (len > 0)
		memcpy(dst, payload.data + (from - headers.len), len);
}

/* The payload as the sink gets it; false if its text has no form in UTF-8. */
static bool
payload_bytes(const IdemEvent *ev, IdemProtoStr *out)
{
	struct varlena *v;

	if (ev->is_json)
		return utf8_jsonb(ev->payload, out);
	v = PG_DETOAST_DATUM_PACKED(ev->payload);
	out->data = VARDATA_ANY(v);
	out->len = VARSIZE_ANY_EXHDR(v);
	return true;
}

/*
 * A frame of n bytes is complete; the caller copies an event's data into it
 * later.
 */
static void
append_frame(IdemStream *stream, size_t n)
{
	if (n == 0 || n > IDEM_PROTO_MAX_FRAME)
		elog(ERROR, "an event cannot be expressed in the sink protocol");
	idem_pipe_add(&stream->pipe, n);
	stream->credit_bytes -= n;
}

/* The part of the event's data that did not fit into its EVENT frame. */
static void
encode_chunks(IdemStream *stream, IdemProtoEvent *f, IdemProtoStr headers, IdemProtoStr payload)
{
	uint32		total = headers.len + payload.len;
	uint32		offset = f->chunk_len;

	while (offset < total)
	{
		uint32		len = Min(total - offset, IDEM_PROTO_MAX_FRAME - IDEM_PROTO_CHUNK_HEAD);
		IdemProtoChunk chunk = {f->batch, f->index, offset, NULL, len};
		uint8	   *buf = idem_pipe_reserve(&stream->pipe, IDEM_PROTO_MAX_FRAME);
		size_t		n = idem_proto_encode_chunk(buf, IDEM_PROTO_MAX_FRAME, &chunk);

		append_frame(stream, n);
		copy_data(buf + n - len, headers, payload, offset, len);
		offset += len;
	}
}

/* Convert the text of the event; false if some of it has no form in UTF-8. */
static bool
describe_event(const IdemEvent *ev, IdemProtoEvent *f, IdemProtoStr *headers,
			   IdemProtoStr *payload)
{
	f->flags = (ev->is_json ? IDEM_PROTO_PAYLOAD_JSON : 0) |
		(ev->has_headers ? IDEM_PROTO_HAS_HEADERS : 0) |
		(ev->has_content_type ? IDEM_PROTO_HAS_CONTENT_TYPE : 0);
	return payload_bytes(ev, payload) &&
		(!ev->has_headers || utf8_jsonb(ev->headers, headers)) &&
		utf8_text(ev->aggregate_type, &f->aggregate_type) &&
		utf8_text(ev->aggregate_id, &f->aggregate_id) &&
		utf8_text(ev->event_type, &f->event_type) &&
		(!ev->has_content_type || utf8_text(ev->content_type, &f->content_type));
}

bool
idem_encode_event(IdemStream *stream, const IdemBatch *batch, const IdemEvent *ev)
{
	MemoryContext old = MemoryContextSwitchTo(stream->event_cxt);
	IdemProtoStr headers = {"", 0};
	IdemProtoStr payload;
	IdemProtoEvent f = {.content_type = {"", 0}};
	bool		converted = describe_event(ev, &f, &headers, &payload);
	uint8	   *buf;
	size_t		n;

	if (converted)
	{
		f.batch = batch->no;
		f.index = batch->n;
		f.event_id = ev->event_id.data;
		f.seq = ev->seq;
		f.enqueued_at = ev->enqueued_at + EPOCH_DIFF_US;
		f.committed_at = stream->stamp == 0 || batch->repeats ? 0 :
			stream->stamp + EPOCH_DIFF_US;
		f.headers_len = headers.len;
		f.payload_len = payload.len;
		f.chunk_len = (uint32) Min((size_t) headers.len + payload.len, idem_proto_event_room(&f));

		buf = idem_pipe_reserve(&stream->pipe, IDEM_PROTO_MAX_FRAME);
		n = idem_proto_encode_event(buf, IDEM_PROTO_MAX_FRAME, &f);
		append_frame(stream, n);
		copy_data(buf + n - f.chunk_len, headers, payload, 0, f.chunk_len);
		encode_chunks(stream, &f, headers, payload);
		stream->credit_messages--;
	}
	MemoryContextSwitchTo(old);
	MemoryContextReset(stream->event_cxt);
	return converted;
}

void
idem_encode_end(IdemStream *stream, const IdemBatch *batch)
{
	IdemProtoEnd end = {batch->no, batch->n, {batch->row_id, batch->k}};
	uint8	   *buf = idem_pipe_reserve(&stream->pipe, 64);

	idem_pipe_add(&stream->pipe, idem_proto_encode_end(buf, 64, &end));
}
