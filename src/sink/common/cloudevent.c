/*-------------------------------------------------------------------------
 *
 * cloudevent.c
 *		An event as a CloudEvent 1.0: its attributes, and the whole in JSON.
 *
 * MEMORY
 *		The attributes point into the event, and into the struct itself.
 *		LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/cloudevent.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/template.h"

static void
add_attribute(IdemCloudEvent *ce, const char *name, IdemProtoStr value)
{
	if (value.len == 0)
		return;
	ce->attributes[ce->count].name = name;
	ce->attributes[ce->count++].value = value;
}

void
idem_ce_make(IdemCloudEvent *ce, const IdemSinkEvent *e, const char *source, const char *relay)
{
	const IdemTemplate how = {.relay = relay};
	IdemProtoStr source_text;
	IdemProtoStr at;

	memset(ce, 0, sizeof(*ce));
	idem_write_time(ce->when, sizeof(ce->when), e->enqueued_at);
	(void) idem_template_fill(&how, source, e, &ce->source, &at);
	source_text.data = ce->source.data;
	source_text.len = (uint32_t) ce->source.len;
	add_attribute(ce, "specversion", IDEM_STR("1.0"));
	add_attribute(ce, "id", IDEM_STR(e->id));
	add_attribute(ce, "source", source_text);
	add_attribute(ce, "type", e->event_type);
	add_attribute(ce, "subject", e->aggregate_id);
	add_attribute(ce, "time", IDEM_STR(ce->when));
	add_attribute(ce, "partitionkey", e->aggregate_id);
}

void
idem_ce_free(IdemCloudEvent *ce)
{
	free(ce->source.data);
}

IdemProtoStr
idem_content_type(const IdemSinkEvent *e)
{
	if (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE)
		return e->content_type;
	if (e->flags & IDEM_PROTO_PAYLOAD_JSON)
		return IDEM_STR("application/json");
	return IDEM_STR("application/octet-stream");
}

void
idem_ce_add_header_value(IdemText *t, IdemProtoStr value)
{
	static const char digits[] = "0123456789ABCDEF";
	uint32_t	plain = 0;		/* where the bytes begin that stay as they are */

	for (uint32_t i = 0; i < value.len; i++)
	{
		unsigned char c = (unsigned char) value.data[i];
		char		code[3] = {'%', digits[c >> 4], digits[c & 15]};

		if (c > ' ' && c != '"' && c != '%' && c <= '~')
			continue;
		idem_text_add(t, value.data + plain, i - plain);
		idem_text_add(t, code, sizeof(code));
		plain = i + 1;
	}
	idem_text_add(t, value.data + plain, value.len - plain);
}

/* Add a member of the CloudEvent, with a string as its value. */
static void
add_member(IdemText *t, const char *name, IdemProtoStr value)
{
	idem_text_puts(t, "\"");
	idem_text_puts(t, name);
	idem_text_puts(t, "\":");
	idem_text_add_json(t, value.data, value.len);
	idem_text_puts(t, ",");
}

void
idem_ce_add_json(IdemText *t, const IdemSinkEvent *e, const char *source, const char *relay, IdemProtoStr content_type)
{
	IdemCloudEvent ce;

	idem_ce_make(&ce, e, source, relay);
	idem_text_puts(t, "{");
	for (int i = 0; i < ce.count; i++)
		add_member(t, ce.attributes[i].name, ce.attributes[i].value);
	add_member(t, "datacontenttype", content_type);
	if (e->flags & IDEM_PROTO_PAYLOAD_JSON)
	{
		idem_text_puts(t, "\"data\":");
		idem_text_add(t, e->payload.data, e->payload.len);
	}
	else
	{
		idem_text_puts(t, "\"data_base64\":\"");
		idem_text_add_base64(t, e->payload.data, e->payload.len);
		idem_text_puts(t, "\"");
	}
	idem_text_puts(t, "}");
	idem_ce_free(&ce);
}
