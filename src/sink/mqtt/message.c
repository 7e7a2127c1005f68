/*-------------------------------------------------------------------------
 *
 * message.c
 *		Makes an MQTT message of an event: topic, properties, payload.
 *
 * INVARIANT
 *		A message that the broker, or the library, would end the connection for is
 *		refused here: the library takes a packet that is too large for the broker
 *		into its queue, and never sends it.
 *
 * MEMORY
 *		The caller frees the message; the library copies what it sends.
 *		LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/message.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/common/template.h"
#include "sink/mqtt/sink.h"

/* A message while its properties are added. */
typedef struct Making
{
	MSinkMessage *m;
	const IdemCloudEvent *ce;	/* of the binary form, or NULL */
	size_t		size;			/* bytes of the properties in the packet */
	bool		ok;
} Making;

bool
msink_is_topic(const char *topic, size_t len)
{
	/* topics with a dollar sign are the broker's own */
	return len > 0 && len <= MSINK_MAX_STRING && topic[0] != '$' && memchr(topic, '\0', len) == NULL &&
		memchr(topic, '+', len) == NULL && memchr(topic, '#', len) == NULL;
}

static bool
refuse(MSinkMessage *m, const char *sqlstate, const char *text)
{
	m->sqlstate = sqlstate;
	snprintf(m->problem, sizeof(m->problem), "%s", text);
	return false;
}

/* Fill in the topic.  False: m->problem. */
static bool
make_topic(const MSink *p, const IdemSinkEvent *e, MSinkMessage *m)
{
	const IdemTemplate how = {.relay = p->config.relay};
	IdemProtoStr at;

	if (idem_template_fill(&how, p->config.topic, e, &m->topic, &at) != IDEM_TEMPLATE_FILLED)
		return refuse(m, "22023", "event lacks a header that the option \"topic\" names");
	if (!msink_is_topic(m->topic.data, m->topic.len))
		return refuse(m, "22023", "event makes no topic: it must not be empty, have +, # or more than 65535 bytes, or begin with $");
	idem_text_terminate(&m->topic);
	if (mosquitto_validate_utf8(m->topic.data, (int) m->topic.len) != MOSQ_ERR_SUCCESS)
		return refuse(m, "22023", "event makes no topic: it has a control character, or one that is none");
	return true;
}

/* Add a user property. */
static void
add_pair(Making *g, const char *name, size_t name_len, const char *value, size_t value_len)
{
	if (!g->ok)
		return;
	if (name_len > MSINK_MAX_STRING || value_len > MSINK_MAX_STRING)
		g->ok = refuse(g->m, "54000", "event has a header of more than 65535 bytes");
	/* the library (2.0.11) does not look at the value */
	else if (memchr(name, '\0', name_len) != NULL || mosquitto_validate_utf8(value, (int) value_len) != MOSQ_ERR_SUCCESS ||
			 mosquitto_property_add_string_pair(&g->m->properties, MQTT_PROP_USER_PROPERTY, name, value) != MOSQ_ERR_SUCCESS)
		g->ok = refuse(g->m, "22023", "event has a control character in a header or a field, which MQTT does not take");
	g->size += 5 + name_len + value_len;
}

/* The same for a field of the event, which has no terminator. */
static void
add_field(Making *g, const char *name, IdemProtoStr value)
{
	char	   *text = idem_sink_strdup(value.data, value.len);

	add_pair(g, name, strlen(name), text, value.len);
	free(text);
}

/* Is the name that of an attribute, which is a user property of the same name? */
static bool
is_attribute(const IdemCloudEvent *ce, const IdemHeader *h)
{
	for (int i = 0; ce != NULL && i < ce->count; i++)
		if (idem_header_is_same(h->name.data, h->name.len, ce->attributes[i].name))
			return true;
	return false;
}

/* Add the event's own headers. */
static void
add_headers(Making *g, const IdemSinkEvent *e)
{
	IdemHeader	h = {.at = 0};

	while (g->ok && idem_header_next(&h, e, IDEM_HEADERS_OF_MQTT))
		if (!h.is_null && !is_attribute(g->ce, &h))
			add_pair(g, h.name.data, h.name.len, h.value.data, h.value.len);
	idem_header_end(&h);
}

/* Add the type of the payload, and that it is text. */
static void
add_type(Making *g, const IdemSinkEvent *e, bool structured)
{
	IdemProtoStr type = structured ? IDEM_STR(IDEM_CE_JSON_TYPE) : idem_content_type(e);
	char	   *text = idem_sink_strdup(type.data, type.len);

	if (mosquitto_property_add_string(&g->m->properties, MQTT_PROP_CONTENT_TYPE, text) != MOSQ_ERR_SUCCESS)
		g->ok = refuse(g->m, "22023", "event has a content type that MQTT does not take");
	g->size += 3 + type.len;
	free(text);
	if (!structured && (e->flags & IDEM_PROTO_PAYLOAD_JSON) == 0)
		return;
	if (mosquitto_property_add_byte(&g->m->properties, MQTT_PROP_PAYLOAD_FORMAT_INDICATOR, 1) != MOSQ_ERR_SUCCESS)
		g->ok = refuse(g->m, "53200", "out of memory");
	g->size += 2;
}

/* Add all properties.  False: m->problem. */
static bool
add_properties(Making *g, const MSink *p, const IdemSinkEvent *e)
{
	const MSinkConfig *c = &p->config;
	IdemCloudEvent ce = {.count = 0};

	if (c->format == MSINK_CE_BINARY)
	{
		idem_ce_make(&ce, e, c->source, c->relay);
		g->ce = &ce;
	}
	add_type(g, e, c->format == MSINK_CE_STRUCTURED);
	if (c->expiry > 0 && g->ok)
	{
		if (mosquitto_property_add_int32(&g->m->properties, MQTT_PROP_MESSAGE_EXPIRY_INTERVAL, c->expiry) != MOSQ_ERR_SUCCESS)
			g->ok = refuse(g->m, "53200", "out of memory");
		g->size += 5;
	}
	add_pair(g, "Event-Id", strlen("Event-Id"), e->id, strlen(e->id));
	if (c->format == MSINK_PLAIN)
	{
		add_field(g, "Event-Type", e->event_type);
		add_field(g, "Aggregate-Type", e->aggregate_type);
		add_field(g, "Aggregate-Id", e->aggregate_id);
	}
	for (int i = 0; i < ce.count; i++)
		add_field(g, ce.attributes[i].name, ce.attributes[i].value);
	add_headers(g, e);
	g->ce = NULL;
	idem_ce_free(&ce);
	return g->ok;
}

/* Bytes of a number of variable length. */
static size_t
varint_bytes(size_t n)
{
	return n < 128 ? 1 : n < 16384 ? 2 : n < 2097152 ? 3 : 4;
}

/* Does the packet fit?  False: m->problem. */
static bool
fits(const MSink *p, MSinkMessage *m, size_t properties)
{
	/* topic, packet identifier, properties, payload */
	size_t		remaining = 2 + m->topic.len + 2 + varint_bytes(properties) + properties + m->len;

	if (remaining <= MSINK_MAX_REMAINING &&
		(p->limits.packet == 0 || 1 + varint_bytes(remaining) + remaining <= p->limits.packet))
		return true;
	m->sqlstate = "54000";
	snprintf(m->problem, sizeof(m->problem), "message would have more than the %u bytes that the broker takes",
			 p->limits.packet > 0 ? p->limits.packet : MSINK_MAX_REMAINING);
	return false;
}

bool
msink_make_message(const MSink *p, const IdemSinkEvent *e, MSinkMessage *m)
{
	Making		g = {.m = m, .ok = true};

	memset(m, 0, sizeof(*m));
	if (!make_topic(p, e, m) || !add_properties(&g, p, e))
		return false;
	m->data = e->payload.data;
	m->len = e->payload.len;
	if (p->config.format == MSINK_CE_STRUCTURED)
	{
		idem_ce_add_json(&m->body, e, p->config.source, p->config.relay, idem_content_type(e));
		m->data = m->body.data;
		m->len = (uint32_t) m->body.len;
	}
	return fits(p, m, g.size);
}

void
msink_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1])
{
	const MSinkConfig *c = &((const MSink *) p)->config;
	const IdemTemplate how = {.relay = c->relay};
	IdemSinkEvent view = idem_batch_view(e);

	idem_template_name(&how, c->topic, &view, buf, IDEM_SINK_DESTINATION + 1);
}

void
msink_free_message(MSinkMessage *m)
{
	free(m->topic.data);
	free(m->body.data);
	mosquitto_property_free_all(&m->properties);
}
