/*-------------------------------------------------------------------------
 *
 * message.c
 *		What the queues of all clouds have in common: text, attributes, key.
 *
 * A message has attributes that tell what the event is, so that a receiver knows
 * a repeat by event_id without reading the text.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/message.c
 *
 *-------------------------------------------------------------------------
 */
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/http/sink.h"

void
hsink_add_cloud_event(const HSink *p, IdemText *t, const HSinkEvent *e)
{
	IdemSinkEvent view = hsink_view(e);

	idem_ce_add_json(t, &view, p->config.source, p->config.relay, hsink_content_type(p, e));
}

const char *
hsink_check_batch_options(const HSink *p)
{
	for (int i = 0; i < p->config.n_headers; i++)
		if (strchr(p->config.headers[i].value, '{') != NULL && strcmp(p->config.headers[i].value, "{token}") != 0)
			return "option \"headers\" must not have placeholders of events: a request has several events";
	if (strchr(p->config.url, '{') != NULL)
		return "option \"url\" must not have placeholders: a request has several events";
	return NULL;
}

void
hsink_begin_request(HSink *p, HSinkRequest *r, const char *path)
{
	HSinkProblem problem;

	idem_text_puts(&r->url, p->config.endpoint);
	idem_text_puts(&r->url, path);
	/* without placeholders of events nothing is refused */
	(void) hsink_add_option_headers(p, r, r->events[0], &problem);
	hsink_add_login(p, r);
}

bool
hsink_add_message(const HSink *p, IdemText *t, const HSinkEvent *e)
{
	if (p->config.format == HSINK_CE_STRUCTURED)
	{
		hsink_add_cloud_event(p, t, e);
		return false;
	}
	if (e->flags & IDEM_PROTO_PAYLOAD_JSON)
	{
		idem_text_add(t, e->payload.data, e->payload.len);
		return false;
	}
	idem_text_add_base64(t, e->payload.data, e->payload.len);
	return true;
}

int
hsink_attributes(const HSinkEvent *e, bool base64, HSinkAttribute *attributes)
{
	const HSinkAttribute all[HSINK_MAX_ATTRIBUTES] = {
		{"event_id", {e->id, IDEM_UUID_TEXT - 1}},
		{"event_type", e->event_type},
		{"aggregate_type", e->aggregate_type},
		{"aggregate_id", e->aggregate_id},
		{"content_type", e->content_type},
		{"content_encoding", {"base64", base64 ? 6 : 0}}
	};
	int			n = 0;

	for (int i = 0; i < HSINK_MAX_ATTRIBUTES; i++)
		if (all[i].value.len > 0)
			attributes[n++] = all[i];
	return n;
}

void
hsink_add_string(IdemText *t, const char *before, const void *value, size_t len)
{
	idem_text_puts(t, before);
	idem_text_add_json(t, value, len);
}

/* Add a member, behind others. */
static void
add_property(IdemText *t, const void *name, size_t name_len, const void *value, size_t len)
{
	if (t->data[t->len - 1] != '{')
		idem_text_puts(t, ",");
	idem_text_add_json(t, name, name_len);
	hsink_add_string(t, ":", value, len);
}

/* Is it the name of one of these attributes? */
static bool
is_attribute(const HSinkAttribute *attributes, int n, const IdemText *name)
{
	for (int i = 0; i < n; i++)
		if (strlen(attributes[i].name) == name->len && memcmp(attributes[i].name, name->data, name->len) == 0)
			return true;
	return false;
}

void
hsink_add_properties(IdemText *t, const HSinkEvent *e, bool base64)
{
	HSinkAttribute attributes[HSINK_MAX_ATTRIBUTES];
	int			n = hsink_attributes(e, base64, attributes);
	IdemSinkEvent view = hsink_view(e);
	IdemHeader	h = {.at = 0};

	idem_text_puts(t, "{");
	while (idem_header_next(&h, &view, IDEM_HEADERS_ANY))
		if (!h.is_null && !is_attribute(attributes, n, &h.name))
			add_property(t, h.name.data, h.name.len, h.value.data, h.value.len);
	for (int i = 0; i < n; i++)
		add_property(t, attributes[i].name, strlen(attributes[i].name), attributes[i].value.data, attributes[i].value.len);
	idem_text_puts(t, "}");
	idem_header_end(&h);
}

void
hsink_add_key(IdemText *t, const HSinkEvent *e, size_t max)
{
	char		hex[HSINK_HASH_TEXT];
	size_t		start = t->len;
	size_t		i = start;

	idem_text_add(t, e->aggregate_type.data, e->aggregate_type.len);
	idem_text_puts(t, "/");
	idem_text_add(t, e->aggregate_id.data, e->aggregate_id.len);
	while (i < t->len && t->data[i] > ' ' && t->data[i] <= '~')
		i++;
	if (i == t->len && t->len - start <= max)
		return;
	hsink_hash(t->data + start, t->len - start, hex);
	t->len = start;
	idem_text_puts(t, hex);
}
