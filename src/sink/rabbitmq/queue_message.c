/*-------------------------------------------------------------------------
 *
 * queue_message.c
 *		Makes an AMQP message of an event: exchange, routing key, properties, body.
 *
 * INVARIANT
 *		A message that the library begins to send can be sent to its end: names and
 *		short strings have at most 255 bytes, and the properties fit into a frame.
 *		The library checks the former nowhere, and the latter when half of the
 *		message is under way.
 *
 * MEMORY
 *		Targets live until bqueue_free_targets, messages until bqueue_free_message.
 *		LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/queue_message.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/common/template.h"
#include "sink/rabbitmq/queue.h"

#define PER_HEADER	8			/* bytes that a header has besides its texts */
#define PERSISTENT	2			/* delivery mode */

/* Decide the event, which can never have a message.  Always false. */
static bool
refuse(BSink *p, IdemBatchEvent *e, const char *sqlstate, const char *problem)
{
	idem_intake_decide(&p->in, e, IDEM_PROTO_IMPOSSIBLE, sqlstate, problem);
	return false;
}

/* Fill in a template of the option.  NULL: the event was decided. */
static char *
fill(BSink *p, IdemBatchEvent *e, const char *option, const char *template)
{
	const IdemTemplate how = {.relay = p->config.relay};
	IdemSinkEvent view = idem_batch_view(e);
	IdemText	t = {NULL, 0, 0};
	IdemProtoStr at;
	const char *before = NULL;
	const char *after = "";
	char		text[128];

	if (idem_template_fill(&how, template, &view, &t, &at) != IDEM_TEMPLATE_FILLED)
	{
		before = "lacks a header that the option \"";
		after = "\" names";
	}
	else if (t.len > BQUEUE_MAX_NAME)
	{
		before = "makes an ";
		after = " of more than 255 bytes";
	}
	else if (t.len > 0 && memchr(t.data, '\0', t.len) != NULL)
	{
		before = "makes an ";
		after = " with a zero byte";
	}
	if (before == NULL)
		return idem_text_terminate(&t);
	free(t.data);
	snprintf(text, sizeof(text), "event %s%s%s", before, option, after);
	(void) refuse(p, e, "22023", text);
	return NULL;
}

/* Name where the event goes, or decide it. */
static void
prepare_event(BSink *p, IdemBatchEvent *e)
{
	const BSinkConfig *c = &p->config;
	char	   *exchange;
	char	   *routing_key;

	exchange = c->exchange_is_fixed ? idem_sink_strdup(c->exchange, strlen(c->exchange)) : fill(p, e, "exchange", c->exchange);
	if (exchange == NULL)
		return;
	routing_key = fill(p, e, "routing_key", c->routing_key);
	if (routing_key == NULL)
	{
		free(exchange);
		return;
	}
	e->target = idem_sink_alloc(sizeof(BQueueTarget));
	e->target->exchange = exchange;
	e->target->routing_key = routing_key;
}

void
bqueue_prepare(BSink *p, IdemBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
	{
		IdemBatchEvent *e = &b->events[i];

		if (e->outcome != 0 || e->target != NULL)
			continue;
		/* what the event lacks must not be said before the key's block is */
		if (idem_intake_is_blocked(&p->in, e))
			idem_intake_decide(&p->in, e, IDEM_PROTO_SKIPPED, "00000", NULL);
		else
			prepare_event(p, e);
	}
}

void
bqueue_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1])
{
	const BSinkConfig *c = &((BSink *) p)->config;
	const IdemTemplate how = {.relay = c->relay};
	IdemSinkEvent view = idem_batch_view(e);
	size_t		len = 0;

	if (!c->exchange_is_fixed)
	{
		idem_template_name(&how, c->exchange, &view, buf, IDEM_SINK_DESTINATION / 2);
		len = strlen(buf);
		buf[len++] = '/';
	}
	buf[len] = '\0';
	if (idem_template_makes_destinations(c->routing_key))
		idem_template_name(&how, c->routing_key, &view, buf + len, IDEM_SINK_DESTINATION + 1 - len);
}

void
bqueue_free_targets(IdemBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
	{
		BQueueTarget *t = b->events[i].target;

		if (t == NULL)
			continue;
		free(t->exchange);
		free(t->routing_key);
		free(t);
		b->events[i].target = NULL;
	}
}

/* Add a text to those of the message.  Until they are complete, it is known by its place. */
static amqp_bytes_t
add_text(BQueueMessage *m, const void *data, size_t len)
{
	amqp_bytes_t place = {.len = len, .bytes = (void *) m->names.len};

	idem_text_add(&m->names, data, len);
	return place;
}

/* The texts are complete: make an address of a place. */
static void
find_text(const BQueueMessage *m, amqp_bytes_t *text)
{
	text->bytes = m->names.data + (size_t) text->bytes;
}

/* Add a header; a NULL value is one without content. */
static void
add_header(BQueueMessage *m, const char *name, size_t name_len, const void *value, size_t len)
{
	amqp_table_entry_t *h;

	/* in steps of 16 */
	if (m->n_headers % 16 == 0)
		m->headers = idem_sink_realloc(m->headers, (size_t) (m->n_headers + 16) * sizeof(*m->headers));
	h = &m->headers[m->n_headers++];
	memset(h, 0, sizeof(*h));
	h->key = add_text(m, name, name_len);
	h->value.kind = value == NULL ? AMQP_FIELD_KIND_VOID : AMQP_FIELD_KIND_UTF8;
	if (value != NULL)
		h->value.value.bytes = add_text(m, value, len);
}

/* Add the event's own headers.  False: the event was decided. */
static bool
add_own_headers(BSink *p, IdemBatchEvent *e, const IdemSinkEvent *view, BQueueMessage *m)
{
	IdemHeader	h = {.at = 0};
	bool		ok = true;

	while (ok && idem_header_next(&h, view, IDEM_HEADERS_OF_AMQP))
	{
		ok = h.name.len <= BQUEUE_MAX_NAME ||
			refuse(p, e, "22023", "event has a header with a name of more than 255 bytes, which AMQP does not take");
		if (ok)
			add_header(m, h.name.data, h.name.len, h.is_null ? NULL : h.value.data, h.value.len);
	}
	idem_header_end(&h);
	return ok;
}

/* Add the headers that tell what the event is. */
static void
add_fields(const BSink *p, const IdemSinkEvent *view, BQueueMessage *m)
{
	IdemCloudEvent ce;
	char		name[32];

	if (p->config.format == BSINK_PLAIN)
	{
		add_header(m, "aggregate_type", 14, view->aggregate_type.data, view->aggregate_type.len);
		add_header(m, "aggregate_id", 12, view->aggregate_id.data, view->aggregate_id.len);
	}
	if (p->config.format != BSINK_CE_BINARY)
		return;
	idem_ce_make(&ce, view, p->config.source, p->config.relay);
	for (int i = 0; i < ce.count; i++)
	{
		snprintf(name, sizeof(name), "cloudEvents_%s", ce.attributes[i].name);
		add_header(m, name, strlen(name), ce.attributes[i].value.data, ce.attributes[i].value.len);
	}
	idem_ce_free(&ce);
}

/* Set the properties but for the headers, and the body. */
static void
set_properties(const BSink *p, const IdemSinkEvent *view, BQueueMessage *m)
{
	bool		structured = p->config.format == BSINK_CE_STRUCTURED;
	IdemProtoStr type = structured ? IDEM_STR(IDEM_CE_JSON_TYPE) : idem_content_type(view);
	amqp_basic_properties_t *out = &m->properties;

	out->_flags = AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_HEADERS_FLAG | AMQP_BASIC_DELIVERY_MODE_FLAG |
		AMQP_BASIC_MESSAGE_ID_FLAG | AMQP_BASIC_TIMESTAMP_FLAG | AMQP_BASIC_TYPE_FLAG;
	out->delivery_mode = PERSISTENT;
	out->timestamp = (uint64_t) (view->enqueued_at / 1000000);
	out->message_id = add_text(m, view->id, strlen(view->id));
	out->type = add_text(m, view->event_type.data, view->event_type.len);
	out->content_type = add_text(m, type.data, type.len);
	if (structured)
	{
		IdemText	json = {NULL, 0, 0};

		idem_ce_add_json(&json, view, p->config.source, p->config.relay, idem_content_type(view));
		m->body.bytes = json.data;
		m->body.len = json.len;
	}
	else
	{
		m->body.bytes = (void *) view->payload.data;
		m->body.len = view->payload.len;
	}
	m->owns_body = structured;
}

bool
bqueue_make_message(BSink *p, IdemBatchEvent *e, size_t room, BQueueMessage *m)
{
	IdemSinkEvent view = idem_batch_view(e);

	memset(m, 0, sizeof(*m));
	set_properties(p, &view, m);
	if (m->properties.type.len > BQUEUE_MAX_NAME)
		return refuse(p, e, "22023", "event has an event type of more than 255 bytes, which AMQP does not take");
	if (m->properties.content_type.len > BQUEUE_MAX_NAME)
		return refuse(p, e, "22023", "event has a content type of more than 255 bytes, which AMQP does not take");
	if (!add_own_headers(p, e, &view, m))
		return false;
	add_fields(p, &view, m);
	if (m->names.len + (size_t) m->n_headers * PER_HEADER > room)
		return refuse(p, e, "54000", "event has headers that do not fit into a frame of the connection");
	find_text(m, &m->properties.message_id);
	find_text(m, &m->properties.type);
	find_text(m, &m->properties.content_type);
	for (int i = 0; i < m->n_headers; i++)
	{
		find_text(m, &m->headers[i].key);
		if (m->headers[i].value.kind == AMQP_FIELD_KIND_UTF8)
			find_text(m, &m->headers[i].value.value.bytes);
	}
	m->properties.headers.num_entries = m->n_headers;
	m->properties.headers.entries = m->headers;
	return true;
}

void
bqueue_free_message(BQueueMessage *m)
{
	if (m->owns_body)
		free(m->body.bytes);
	free(m->names.data);
	free(m->headers);
}
