/*-------------------------------------------------------------------------
 *
 * cloudevent.c
 *		Writes an event as a CloudEvent 1.0: in headers, or in JSON.
 *
 * INVARIANT
 *		The payload is not changed: JSON stands in "data" as it is, bytes in
 *		"data_base64".
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/cloudevent.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define CE_PREFIX	"ce-"		/* of the headers of a CloudEvent */

/* The attributes of a CloudEvent, all but its data and their type. */
typedef struct CloudEvent
{
	struct
	{
		const char *header;		/* CE_PREFIX and the attribute's name */
		IdemProtoStr value;
	}			attributes[8];
	int			count;
	char		when[IDEM_TIME_TEXT];
	IdemText	source;			/* owned */
} CloudEvent;

static void
add_attribute(CloudEvent *ce, const char *header, const void *value, size_t len)
{
	/* attributes must not be empty; optional ones may be left out */
	if (len == 0)
		return;
	ce->attributes[ce->count].header = header;
	ce->attributes[ce->count++].value = (IdemProtoStr)
	{
		value, (uint32_t) len
	};
}

/* Take the attributes from the event, in the order in which they are written. */
static void
make_cloud_event(const HSink *p, const HSinkEvent *e, CloudEvent *ce)
{
	HSinkProblem problem;

	memset(ce, 0, sizeof(*ce));
	idem_write_time(ce->when, sizeof(ce->when), e->enqueued_at);
	hsink_expand(p, e, p->config.source, HSINK_IN_TEXT, &ce->source, &problem);
	add_attribute(ce, CE_PREFIX "specversion", "1.0", 3);
	add_attribute(ce, CE_PREFIX "id", e->id, strlen(e->id));
	add_attribute(ce, CE_PREFIX "source", ce->source.data, ce->source.len);
	add_attribute(ce, CE_PREFIX "type", e->event_type.data, e->event_type.len);
	add_attribute(ce, CE_PREFIX "subject", e->aggregate_id.data, e->aggregate_id.len);
	add_attribute(ce, CE_PREFIX "time", ce->when, strlen(ce->when));
	add_attribute(ce, CE_PREFIX "partitionkey", e->aggregate_id.data, e->aggregate_id.len);
}

IdemProtoStr
hsink_content_type(const HSink *p, const HSinkEvent *e)
{
	static const char json[] = "application/json";
	static const char bytes[] = "application/octet-stream";

	if (p->config.content_type != NULL)
		return (IdemProtoStr)
	{
		p->config.content_type, (uint32_t) strlen(p->config.content_type)
	};
	if (e->flags & IDEM_PROTO_HAS_CONTENT_TYPE)
		return e->content_type;
	if (e->flags & IDEM_PROTO_PAYLOAD_JSON)
		return (IdemProtoStr)
	{
		json, sizeof(json) - 1
	};
	return (IdemProtoStr)
	{
		bytes, sizeof(bytes) - 1
	};
}

/* Encode a value as CloudEvents' binding to HTTP has it. */
static void
encode(IdemText *t, IdemProtoStr value)
{
	static const char digits[] = "0123456789ABCDEF";

	for (uint32_t i = 0; i < value.len; i++)
	{
		unsigned char c = (unsigned char) value.data[i];
		char		code[3] = {'%', digits[c >> 4], digits[c & 15]};

		if (c <= ' ' || c == '"' || c == '%' || c > '~')
			idem_text_add(t, code, sizeof(code));
		else
			idem_text_add(t, value.data + i, 1);
	}
}

void
hsink_add_ce_headers(const HSink *p, HSinkRequest *r, const HSinkEvent *e)
{
	CloudEvent	ce;
	IdemText	value = {NULL, 0, 0};

	make_cloud_event(p, e, &ce);
	for (int i = 0; i < ce.count; i++)
	{
		value.len = 0;
		encode(&value, ce.attributes[i].value);
		hsink_add_header(r, ce.attributes[i].header, value.data, value.len);
	}
	free(value.data);
	free(ce.source.data);
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
hsink_add_cloud_event(const HSink *p, IdemText *t, const HSinkEvent *e)
{
	CloudEvent	ce;

	make_cloud_event(p, e, &ce);
	idem_text_puts(t, "{");
	for (int i = 0; i < ce.count; i++)
		add_member(t, ce.attributes[i].header + strlen(CE_PREFIX), ce.attributes[i].value);
	add_member(t, "datacontenttype", hsink_content_type(p, e));
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
	free(ce.source.data);
}
