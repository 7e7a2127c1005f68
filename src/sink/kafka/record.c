/*-------------------------------------------------------------------------
 *
 * record.c
 *		Makes a Kafka record of an event: topic, key, headers, value.
 *
 * Three forms.  "debezium" is what the outbox event router of Debezium writes with
 * string converters: the key is the aggregate id, the value is the payload, the
 * header "id" is the event's id; "type" follows it.  "cloudevents_binary" has the
 * attributes of CloudEvents 1.0 as headers, "cloudevents_structured" has them
 * around the payload in the value.
 *
 * INVARIANT
 *	A payload is never changed, except that JSON null becomes a record without
 *	a value.  Our headers stand behind the event's own, so a consumer that asks
 *	for the last header of a name finds ours.
 *
 * MEMORY
 *	A record points into its batch, except for what owned_key and owned_value
 *	point to.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/record.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/template.h"
#include "sink/kafka/sink.h"

#define CE_PREFIX	"ce_"		/* of the headers of a CloudEvent */

bool
ksink_is_topic(const char *name)
{
	size_t		len = strlen(name);

	return len > 0 && len <= KSINK_MAX_TOPIC && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == len;
}

/* Add what the placeholder between braces stands for; false if nothing. */
static bool
add_placeholder(const KSink *p, const KSinkEvent *e, const char *name, size_t len, IdemText *t)
{
	if (len > strlen(IDEM_SINK_HEADER_PREFIX) &&
		strncmp(name, IDEM_SINK_HEADER_PREFIX, strlen(IDEM_SINK_HEADER_PREFIX)) == 0)
		return idem_text_add_member(t, ksink_at(e, e->headers), e->headers.len,
									name + strlen(IDEM_SINK_HEADER_PREFIX), len - strlen(IDEM_SINK_HEADER_PREFIX));
	if (len == 14 && strncmp(name, "aggregate_type", len) == 0)
		idem_text_add(t, ksink_at(e, e->aggregate_type), e->aggregate_type.len);
	else if (len == 10 && strncmp(name, "event_type", len) == 0)
		idem_text_add(t, ksink_at(e, e->event_type), e->event_type.len);
	else
		idem_text_puts(t, p->config.relay);
	return true;
}

/* Fill in a template; false if the event lacks a header that it names. */
static bool
expand(const KSink *p, const KSinkEvent *e, const char *template, IdemText *t)
{
	for (const char *s = template; *s != '\0';)
	{
		size_t		plain = strcspn(s, "{");
		const char *end;

		idem_text_add(t, s, plain);
		s += plain;
		if (*s == '\0')
			break;
		end = strchr(s, '}');
		if (!add_placeholder(p, e, s + 1, (size_t) (end - s) - 1, t))
			return false;
		s = end + 1;
	}
	return true;
}

const char *
ksink_topic_of(const KSink *p, const KSinkEvent *e, char *topic)
{
	IdemText	t = {NULL, 0, 0};
	const char *problem = NULL;

	if (p->config.topic_is_fixed)
	{
		snprintf(topic, KSINK_MAX_TOPIC + 1, "%s", p->config.topic);
		return NULL;
	}
	if (!expand(p, e, p->config.topic, &t))
		problem = "event lacks a header that the option \"topic\" names";
	else if (t.len == 0 || t.len > KSINK_MAX_TOPIC)
		problem = "topic of the event must have 1 to 249 bytes";
	else
	{
		memcpy(topic, t.data, t.len);
		topic[t.len] = '\0';
		if (strlen(topic) != t.len || !ksink_is_topic(topic))
			problem = "topic of the event may have ASCII letters, digits, dots, underscores and hyphens only";
	}
	free(t.data);
	return problem;
}

/* Add a header of ours. */
static void
add_header(KSinkRecord *r, const char *name, const void *value, size_t len)
{
	rd_kafka_header_add(r->headers, name, -1, value, (ssize_t) len);
}

/* Add the event's own headers, in their order. */
static void
add_own_headers(KSinkRecord *r, const KSinkEvent *e)
{
	const char *json = ksink_at(e, e->headers);
	IdemText	name = {NULL, 0, 0};
	IdemText	text = {NULL, 0, 0};
	const char *value;
	size_t		value_len;
	size_t		at = 0;

	while (e->headers.len > 0 && idem_json_next(json, e->headers.len, &at, &name, &value, &value_len))
	{
		text.len = 0;
		if (value[0] == '"')
			idem_json_unquote(&text, value, value_len);
		else
			idem_text_add(&text, value, value_len);
		if (value_len == 4 && memcmp(value, "null", 4) == 0)
			rd_kafka_header_add(r->headers, name.data ? name.data : "", (ssize_t) name.len, NULL, 0);
		else
			rd_kafka_header_add(r->headers, name.data ? name.data : "", (ssize_t) name.len,
								text.data ? text.data : "", (ssize_t) text.len);
	}
	free(name.data);
	free(text.data);
}

/* The type of the payload's bytes; *len is its length. */
static const char *
content_type(const KSinkEvent *e, size_t *len)
{
	static const char json[] = "application/json";

	if (!(e->flags & IDEM_PROTO_HAS_CONTENT_TYPE))
	{
		*len = sizeof(json) - 1;
		return json;
	}
	*len = e->content_type.len;
	return ksink_at(e, e->content_type);
}

/* The attributes of a CloudEvent, all but its data and their type. */
typedef struct CloudEvent
{
	struct
	{
		const char *header;		/* CE_PREFIX and the attribute's name */
		const void *value;
		size_t		len;
	}			attributes[8];
	int			count;
	char		id[IDEM_UUID_TEXT];
	char		when[IDEM_TIME_TEXT];
	IdemText	source;			/* owned */
} CloudEvent;

static void
add_attribute(CloudEvent *ce, const char *header, const void *value, size_t len)
{
	ce->attributes[ce->count].header = header;
	ce->attributes[ce->count].value = value;
	ce->attributes[ce->count++].len = len;
}

/* Take the attributes from the event, in the order in which they are written. */
static void
make_cloud_event(const KSink *p, const KSinkEvent *e, CloudEvent *ce)
{
	const void *key = ksink_at(e, e->aggregate_id);

	memset(ce, 0, sizeof(*ce));
	idem_write_uuid(ce->id, e->id);
	idem_write_time(ce->when, sizeof(ce->when), e->enqueued_at);
	expand(p, e, p->config.source, &ce->source);
	add_attribute(ce, CE_PREFIX "specversion", "1.0", 3);
	add_attribute(ce, CE_PREFIX "id", ce->id, strlen(ce->id));
	add_attribute(ce, CE_PREFIX "source", ce->source.data, ce->source.len);
	add_attribute(ce, CE_PREFIX "type", ksink_at(e, e->event_type), e->event_type.len);
	add_attribute(ce, CE_PREFIX "subject", key, e->aggregate_id.len);
	add_attribute(ce, CE_PREFIX "time", ce->when, strlen(ce->when));
	add_attribute(ce, CE_PREFIX "partitionkey", key, e->aggregate_id.len);
}

/* Add the attributes of a CloudEvent as headers. */
static void
add_ce_headers(const KSink *p, const KSinkEvent *e, KSinkRecord *r)
{
	CloudEvent	ce;
	size_t		len;
	const char *type = content_type(e, &len);

	make_cloud_event(p, e, &ce);
	for (int i = 0; i < ce.count; i++)
		add_header(r, ce.attributes[i].header, ce.attributes[i].value, ce.attributes[i].len);
	if (r->value != NULL)
		add_header(r, "content-type", type, len);
	free(ce.source.data);
}

/* Add a member of the CloudEvent, with a string as its value. */
static void
add_member(IdemText *t, const char *name, const void *value, size_t len)
{
	idem_text_puts(t, t->len > 1 ? ",\"" : "\"");
	idem_text_puts(t, name);
	idem_text_puts(t, "\":");
	idem_text_add_json(t, value, len);
}

/* Make the value a CloudEvent with the payload in it. */
static void
wrap_value(const KSink *p, const KSinkEvent *e, KSinkRecord *r)
{
	static const char type[] = "application/cloudevents+json; charset=UTF-8";
	IdemText	t = {NULL, 0, 0};
	CloudEvent	ce;
	size_t		len;
	const char *data_type = content_type(e, &len);

	make_cloud_event(p, e, &ce);
	idem_text_puts(&t, "{");
	for (int i = 0; i < ce.count; i++)
		add_member(&t, ce.attributes[i].header + strlen(CE_PREFIX), ce.attributes[i].value, ce.attributes[i].len);
	add_member(&t, "datacontenttype", data_type, len);
	idem_text_puts(&t, e->flags & IDEM_PROTO_PAYLOAD_JSON ? ",\"data\":" : ",\"data_base64\":");
	if (e->flags & IDEM_PROTO_PAYLOAD_JSON)
		idem_text_add(&t, ksink_at(e, e->payload), e->payload.len);
	else
	{
		idem_text_puts(&t, "\"");
		idem_text_add_base64(&t, ksink_at(e, e->payload), e->payload.len);
		idem_text_puts(&t, "\"");
	}
	idem_text_puts(&t, "}");
	free(ce.source.data);
	add_header(r, "content-type", type, sizeof(type) - 1);
	r->owned_value = t.data;
	r->value = t.data;
	r->value_len = t.len;
}

/* Is the payload JSON null? */
static bool
is_null(const KSinkEvent *e)
{
	return (e->flags & IDEM_PROTO_PAYLOAD_JSON) && e->payload.len == 4 &&
		memcmp(ksink_at(e, e->payload), "null", 4) == 0;
}

/* The key: the aggregate id, or the same as a JSON string. */
static void
make_key(const KSink *p, const KSinkEvent *e, KSinkRecord *r)
{
	IdemText	t = {NULL, 0, 0};

	r->key = ksink_at(e, e->aggregate_id);
	r->key_len = e->aggregate_id.len;
	if (!p->config.json_key)
		return;
	idem_text_add_json(&t, r->key, r->key_len);
	r->owned_key = t.data;
	r->key = t.data;
	r->key_len = t.len;
}

void
ksink_make_record(const KSink *p, const KSinkEvent *e, KSinkRecord *r)
{
	char		id[IDEM_UUID_TEXT];

	r->headers = rd_kafka_headers_new(8);
	r->timestamp = e->enqueued_at / 1000;
	r->owned_key = r->owned_value = NULL;
	r->value = p->config.tombstones && is_null(e) ? NULL : ksink_at(e, e->payload);
	r->value_len = r->value != NULL ? e->payload.len : 0;
	make_key(p, e, r);
	add_own_headers(r, e);
	switch (p->config.format)
	{
		case KSINK_DEBEZIUM:
			idem_write_uuid(id, e->id);
			add_header(r, "id", id, strlen(id));
			add_header(r, "type", ksink_at(e, e->event_type), e->event_type.len);
			if (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE)
				add_header(r, "content-type", ksink_at(e, e->content_type), e->content_type.len);
			break;
		case KSINK_CE_STRUCTURED:
			if (r->value != NULL)
			{
				wrap_value(p, e, r);
				break;
			}
			/* a tombstone has no value to hold the attributes */
			/* FALLTHROUGH */
		case KSINK_CE_BINARY:
			add_ce_headers(p, e, r);
			break;
	}
}

void
ksink_free_record(KSinkRecord *r)
{
	if (r->headers != NULL)
		rd_kafka_headers_destroy(r->headers);
	free(r->owned_key);
	free(r->owned_value);
}
