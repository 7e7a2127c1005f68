/*-------------------------------------------------------------------------
 *
 * cloudevent.h
 *		An event as a CloudEvent 1.0: its attributes, and the whole in JSON.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/cloudevent.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_CLOUDEVENT_H
#define IDEM_SINK_CLOUDEVENT_H

#include "sink/common/event.h"
#include "sink/common/json.h"

#define IDEM_CE_JSON_TYPE		"application/cloudevents+json; charset=UTF-8"
#define IDEM_CE_MAX_ATTRIBUTES	7

/*
 * The attributes, all but data and their type, in the order in which they are
 * written.  Optional ones that would be empty are left out, because CloudEvents
 * have no empty attributes.
 */
typedef struct IdemCloudEvent
{
	struct
	{
		const char *name;
		IdemProtoStr value;
	}			attributes[IDEM_CE_MAX_ATTRIBUTES];
	int			count;
	char		when[IDEM_TIME_TEXT];
	IdemText	source;
} IdemCloudEvent;

/* Take the attributes from the event.  source: the template of the option. */
extern void idem_ce_make(IdemCloudEvent *ce, const IdemSinkEvent *e, const char *source, const char *relay);

/* Free what idem_ce_make allocated. */
extern void idem_ce_free(IdemCloudEvent *ce);

/*
 * Add the event as JSON.  The payload is not changed: JSON stands in "data" as it
 * is, bytes in "data_base64".
 */
extern void idem_ce_add_json(IdemText *t, const IdemSinkEvent *e, const char *source, const char *relay,
							 IdemProtoStr content_type);

/* Add the value of an attribute for a header, as the bindings to HTTP and NATS have it. */
extern void idem_ce_add_header_value(IdemText *t, IdemProtoStr value);

/* The type of the payload's bytes: the event's, or what is usual. */
extern IdemProtoStr idem_content_type(const IdemSinkEvent *e);

#endif							/* IDEM_SINK_CLOUDEVENT_H */
