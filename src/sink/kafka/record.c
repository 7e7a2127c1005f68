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
 *	a value.  The event's own headers have none of the names of ours.
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

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/common/template.h"
#include "sink/kafka/sink.h"

bool
ksink_is_topic(const char *name)
{
	size_t		len = strlen(name);

	return len > 0 && len <= KSINK_MAX_TOPIC && strcmp(name, ".") != 0 && strcmp(name, "..") != 0 &&
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") == len;
}

const char *
ksink_topic_of(const KSink *p, const KSinkEvent *e, char *topic)
{
	const IdemTemplate how = {.relay = p->config.relay};
	IdemSinkEvent view = idem_batch_view(e);
	IdemText	t = {NULL, 0, 0};
	IdemProtoStr at;
	const char *problem = NULL;

	if (p->config.topic_is_fixed)
	{
		snprintf(topic, KSINK_MAX_TOPIC + 1, "%s", p->config.topic);
		return NULL;
	}
	if (idem_template_fill(&how, p->config.topic, &view, &t, &at) != IDEM_TEMPLATE_FILLED)
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

void
ksink_destination(void *p, const KSinkEvent *e, char buf[IDEM_SINK_DESTINATION + 1])
{
	if (ksink_topic_of(p, e, buf) != NULL)
		buf[0] = '\0';
}

/* Add a header of ours. */
static void
add_header(KSinkRecord *r, const char *name, const void *value, size_t len)
{
	rd_kafka_header_add(r->headers, name, -1, value, (ssize_t) len);
}

/* Add the event's own headers, in their order. */
static void
add_own_headers(KSinkRecord *r, const IdemSinkEvent *e)
{
	IdemHeader	h = {.at = 0};

	while (idem_header_next(&h, e, IDEM_HEADERS_OF_KAFKA))
		rd_kafka_header_add(r->headers, h.name.data, (ssize_t) h.name.len, h.is_null ? NULL : h.value.data,
							h.is_null ? 0 : (ssize_t) h.value.len);
	idem_header_end(&h);
}

/* Add the attributes of a CloudEvent as headers. */
static void
add_ce_headers(const KSink *p, const IdemSinkEvent *e, KSinkRecord *r)
{
	IdemProtoStr type = idem_content_type(e);
	IdemCloudEvent ce;
	char		name[32];

	idem_ce_make(&ce, e, p->config.source, p->config.relay);
	for (int i = 0; i < ce.count; i++)
	{
		snprintf(name, sizeof(name), "ce_%s", ce.attributes[i].name);
		add_header(r, name, ce.attributes[i].value.data, ce.attributes[i].value.len);
	}
	if (r->value != NULL)
		add_header(r, "content-type", type.data, type.len);
	idem_ce_free(&ce);
}

/* Make the value a CloudEvent with the payload in it. */
static void
wrap_value(const KSink *p, const IdemSinkEvent *e, KSinkRecord *r)
{
	IdemText	t = {NULL, 0, 0};

	idem_ce_add_json(&t, e, p->config.source, p->config.relay, idem_content_type(e));
	add_header(r, "content-type", IDEM_CE_JSON_TYPE, strlen(IDEM_CE_JSON_TYPE));
	r->owned_value = t.data;
	r->value = t.data;
	r->value_len = t.len;
}

/* Is the payload JSON null? */
static bool
is_null(const IdemSinkEvent *e)
{
	return (e->flags & IDEM_PROTO_PAYLOAD_JSON) && e->payload.len == 4 &&
		memcmp(e->payload.data, "null", 4) == 0;
}

/* The key: the aggregate id, or the same as a JSON string. */
static void
make_key(const KSink *p, const IdemSinkEvent *e, KSinkRecord *r)
{
	IdemText	t = {NULL, 0, 0};

	r->key = e->aggregate_id.data;
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
	IdemSinkEvent view = idem_batch_view(e);

	r->headers = rd_kafka_headers_new(8);
	r->timestamp = e->enqueued_at / 1000;
	r->owned_key = r->owned_value = NULL;
	r->value = p->config.tombstones && is_null(&view) ? NULL : view.payload.data;
	r->value_len = r->value != NULL ? e->payload.len : 0;
	make_key(p, &view, r);
	add_own_headers(r, &view);
	switch (p->config.format)
	{
		case KSINK_DEBEZIUM:
			add_header(r, "id", view.id, strlen(view.id));
			add_header(r, "type", view.event_type.data, view.event_type.len);
			if (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE)
				add_header(r, "content-type", view.content_type.data, view.content_type.len);
			break;
		case KSINK_CE_STRUCTURED:
			if (r->value != NULL)
			{
				wrap_value(p, &view, r);
				break;
			}
			/* a tombstone has no value to hold the attributes */
			/* FALLTHROUGH */
		case KSINK_CE_BINARY:
			add_ce_headers(p, &view, r);
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
