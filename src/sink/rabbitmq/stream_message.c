/*-------------------------------------------------------------------------
 *
 * stream_message.c
 *		Makes messages of events, and an entry of the messages of a batch.
 *
 * A message is AMQP 1.0: properties, application properties, data.  The messages of a
 * batch are one entry with one publishing id (a "sub-batch" that is not compressed), so the
 * server stores a batch as a whole or not at all.  The first message has the note with
 * the batch's position as its annotations.  A batch of which no event is left, and a fence,
 * are a message without an id and without data.
 *
 * INVARIANT
 *		A payload is never changed.  An entry fits into a frame that the server takes.
 *
 * MEMORY
 *		Messages live until bstream_free_messages, the entry in s->out.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/stream_message.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/rabbitmq/stream.h"

/* Constructors of AMQP 1.0 */
#define A_DESCRIBED		0x00
#define A_SMALL_ULONG	0x53
#define A_NULL			0x40
#define A_TIMESTAMP		0x83
#define A_BINARY_8		0xa0
#define A_BINARY_32		0xb0
#define A_STRING_8		0xa1
#define A_STRING_32		0xb1
#define A_SYMBOL_8		0xa3
#define A_SYMBOL_32		0xb3
#define A_LIST_32		0xd0
#define A_MAP_32		0xd1

/* Sections of a message */
#define S_PROPERTIES	0x73
#define S_APPLICATION	0x74
#define S_DATA			0x75

#define ROOM_FOR_NOTE	2048	/* and for the head of a frame */

static void
begin_section(IdemText *t, uint8_t section)
{
	bstream_put8(t, A_DESCRIBED);
	bstream_put8(t, A_SMALL_ULONG);
	bstream_put8(t, section);
}

/* Add a value whose constructor depends on its length. */
static void
add_value(IdemText *t, uint8_t small, uint8_t large, const char *data, size_t len)
{
	if (len <= UINT8_MAX)
	{
		bstream_put8(t, small);
		bstream_put8(t, (uint8_t) len);
	}
	else
	{
		bstream_put8(t, large);
		bstream_put32(t, (uint32_t) len);
	}
	idem_text_add(t, data, len);
}

static void
add_string(IdemText *t, const char *data, size_t len)
{
	add_value(t, A_STRING_8, A_STRING_32, data, len);
}

/* Begin a list or a map; its size and count are written at the end.  Returns its place. */
static size_t
begin_compound(IdemText *t, uint8_t constructor)
{
	size_t		at;

	bstream_put8(t, constructor);
	at = t->len;
	bstream_put32(t, 0);
	bstream_put32(t, 0);
	return at;
}

static void
end_compound(IdemText *t, size_t at, uint32_t count)
{
	bstream_patch32(t, at, (uint32_t) (t->len - at - 4));
	bstream_patch32(t, at + 4, count);
}

/* Add the properties: id, type of the content, time. */
static void
add_properties(IdemText *t, const IdemSinkEvent *e, IdemProtoStr type)
{
	size_t		at;

	begin_section(t, S_PROPERTIES);
	at = begin_compound(t, A_LIST_32);
	add_string(t, e->id, strlen(e->id));
	for (int i = 0; i < 5; i++) /* user-id, to, subject, reply-to,
								 * correlation-id */
		bstream_put8(t, A_NULL);
	add_value(t, A_SYMBOL_8, A_SYMBOL_32, type.data, type.len);
	bstream_put8(t, A_NULL);	/* content-encoding */
	bstream_put8(t, A_NULL);	/* absolute-expiry-time */
	bstream_put8(t, A_TIMESTAMP);
	bstream_put64(t, (uint64_t) (e->enqueued_at / 1000));
	end_compound(t, at, 10);
}

/* Add an application property; a NULL value is one without content. */
static void
add_property(IdemText *t, uint32_t *count, const char *name, size_t name_len, const char *value, size_t len)
{
	add_string(t, name, name_len);
	if (value != NULL)
		add_string(t, value, len);
	else
		bstream_put8(t, A_NULL);
	*count += 2;
}

/* Add the fields of the event as the format has them. */
static void
add_fields(IdemText *t, uint32_t *count, const BSink *p, const IdemSinkEvent *e)
{
	IdemCloudEvent ce;
	char		name[48];

	if (p->config.format == BSINK_PLAIN)
	{
		add_property(t, count, "event_type", 10, e->event_type.data, e->event_type.len);
		add_property(t, count, "aggregate_type", 14, e->aggregate_type.data, e->aggregate_type.len);
		add_property(t, count, "aggregate_id", 12, e->aggregate_id.data, e->aggregate_id.len);
	}
	if (p->config.format != BSINK_CE_BINARY)
		return;
	idem_ce_make(&ce, e, p->config.source, p->config.relay);
	for (int i = 0; i < ce.count; i++)
	{
		int			len = snprintf(name, sizeof(name), "cloudEvents_%s", ce.attributes[i].name);

		add_property(t, count, name, (size_t) len, ce.attributes[i].value.data, ce.attributes[i].value.len);
	}
	idem_ce_free(&ce);
}

/* Add the application properties: fields and the event's own headers. */
static void
add_application(IdemText *t, const BSink *p, const IdemSinkEvent *e)
{
	IdemHeader	h = {.at = 0};
	uint32_t	count = 0;
	size_t		at;

	begin_section(t, S_APPLICATION);
	at = begin_compound(t, A_MAP_32);
	while (idem_header_next(&h, e, IDEM_HEADERS_OF_AMQP))
		if (!idem_header_is_same(h.name.data, h.name.len, "event_type"))
			add_property(t, &count, h.name.data, h.name.len, h.is_null ? NULL : h.value.data, h.value.len);
	idem_header_end(&h);
	add_fields(t, &count, p, e);
	end_compound(t, at, count);
}

static void
add_data(IdemText *t, const char *data, size_t len)
{
	begin_section(t, S_DATA);
	add_value(t, A_BINARY_8, A_BINARY_32, data, len);
}

/* Make the message of an event. */
static void
make_message(IdemText *t, const BSink *p, const IdemSinkEvent *e)
{
	IdemText	json = {NULL, 0, 0};

	if (p->config.format == BSINK_CE_STRUCTURED)
	{
		idem_ce_add_json(&json, e, p->config.source, p->config.relay, idem_content_type(e));
		add_properties(t, e, IDEM_STR(IDEM_CE_JSON_TYPE));
		add_application(t, p, e);
		add_data(t, json.data, json.len);
	}
	else
	{
		add_properties(t, e, idem_content_type(e));
		add_application(t, p, e);
		add_data(t, e->payload.data, e->payload.len);
	}
	free(json.data);
}

/* The bytes that the messages of an entry may have. */
static size_t
room(const BStream *s)
{
	return s->frame_max - ROOM_FOR_NOTE;
}

/* Make the event's message.  *used: bytes of the entry's messages up to now. */
static void
prepare_event(BSink *p, const BStream *s, IdemBatchEvent *e, size_t *used)
{
	IdemSinkEvent view = idem_batch_view(e);
	IdemText	t = {NULL, 0, 0};
	char		text[160];

	if (p->config.max_event_bytes > 0 && (uint64_t) e->headers.len + e->payload.len > p->config.max_event_bytes)
	{
		idem_intake_decide(&p->in, e, IDEM_PROTO_IMPOSSIBLE, "54000", "event is larger than the option \"max_event_bytes\" allows");
		return;
	}
	make_message(&t, p, &view);
	if (t.len + 4 > room(s))
	{
		snprintf(text, sizeof(text), "message would have %zu bytes, more than the %zu that the server takes; see stream.frame_max there", t.len, room(s) - 4);
		idem_intake_decide(&p->in, e, IDEM_PROTO_IMPOSSIBLE, "54000", text);
	}
	else if (*used + t.len + 4 > room(s))
		idem_intake_decide(&p->in, e, IDEM_PROTO_RETRY, "53400", "the events of the batch do not fit into a frame");
	else
	{
		*used += t.len + 4;
		e->target = idem_sink_alloc(sizeof(BStreamMessage));
		e->target->data = t.data;
		e->target->len = t.len;
		return;
	}
	free(t.data);
}

void
bstream_prepare(BSink *p, BStream *s, IdemBatch *b)
{
	size_t		used = 0;

	bstream_free_messages(b);
	for (uint32_t i = 0; i < b->count; i++)
	{
		IdemBatchEvent *e = &b->events[i];

		if (e->outcome != 0)
			continue;
		if (idem_intake_is_blocked(&p->in, e))
			idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
		else
			prepare_event(p, s, e, &used);
	}
}

void
bstream_free_messages(IdemBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
	{
		if (b->events[i].target == NULL)
			continue;
		free(b->events[i].target->data);
		free(b->events[i].target);
		b->events[i].target = NULL;
	}
}

/* Make the note of an entry. */
static void
make_note(IdemText *t, const BSink *p, const BStream *s, const IdemBatch *b, uint64_t id)
{
	BStreamNote note;

	if (!s->exactly_once)
		return;
	memset(&note, 0, sizeof(note));
	snprintf(note.relay, sizeof(note.relay), "%s", p->config.relay);
	snprintf(note.owner, sizeof(note.owner), "%s", s->owner);
	note.id = id;
	note.fence = b == NULL;
	if (b != NULL)
	{
		snprintf(note.incarnation, sizeof(note.incarnation), "%s", p->config.incarnation);
		note.at = b->position;
	}
	bstream_add_note(t, &note);
}

void
bstream_write_entry(BSink *p, BStream *s, const IdemBatch *b, uint64_t id)
{
	IdemText   *t = &s->out;
	IdemText	note = {NULL, 0, 0};
	uint32_t	count = 0;
	size_t		head;
	size_t		begin;

	make_note(&note, p, s, b, id);
	bstream_begin(t, BSTREAM_PUBLISH, false);
	bstream_put8(t, 1);			/* the publisher of the connection */
	bstream_put32(t, 1);		/* one entry */
	bstream_put64(t, id);
	bstream_put8(t, 0x80);		/* several messages, not compressed */
	head = t->len;
	bstream_put16(t, 0);
	bstream_put32(t, 0);
	bstream_put32(t, 0);
	begin = t->len;
	for (uint32_t i = 0; b != NULL && i < b->count; i++)
	{
		const BStreamMessage *m = b->events[i].target;

		if (m == NULL)
			continue;
		bstream_put32(t, (uint32_t) (m->len + note.len));
		idem_text_add(t, note.data, note.len);
		idem_text_add(t, m->data, m->len);
		note.len = 0;
		count++;
	}
	if (count == 0)
	{
		size_t		at = t->len;

		bstream_put32(t, 0);
		idem_text_add(t, note.data, note.len);
		add_data(t, "", 0);
		bstream_patch32(t, at, (uint32_t) (t->len - at - 4));
		count = 1;
	}
	wire_put16((uint8_t *) t->data + head, (uint16_t) count);
	bstream_patch32(t, head + 2, (uint32_t) (t->len - begin));
	bstream_patch32(t, head + 6, (uint32_t) (t->len - begin));
	bstream_end(t);
	free(note.data);
}
