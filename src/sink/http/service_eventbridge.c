/*-------------------------------------------------------------------------
 *
 * service_eventbridge.c
 *		Buses of Amazon EventBridge: PutEvents.
 *
 * The path of the option url is the name or ARN of the bus; without it events
 * go to the bus "default".  The detail of an event is its payload, or a
 * CloudEvent; its resources have the event's id, since EventBridge gives it an
 * id of its own at each try.
 *
 * INVARIANT
 *		EventBridge takes or refuses each event of a request alone.  So a request
 *		has one event of a key.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/service_eventbridge.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define MAX_EVENTS		10
#define MAX_BYTES		(256 * 1024)	/* of all events */
#define TYPE			"application/x-amz-json-1.1"
#define TARGET			"AWSEvents.PutEvents"

/* Add the event as an entry. */
static void
add_entry(HSink *p, HSinkRequest *r, const HSinkEvent *e)
{
	IdemText	text = {NULL, 0, 0};
	IdemText   *t = &r->body;
	HSinkProblem problem;
	char		buf[64];

	snprintf(buf, sizeof(buf), "%s{\"Time\":%lld", r->count == 0 ? "{\"Entries\":[" : ",",
			 (long long) (e->enqueued_at / 1000000));
	idem_text_puts(t, buf);
	hsink_expand(p, e, p->config.source, HSINK_IN_TEXT, &text, &problem);
	hsink_add_string(t, ",\"Source\":", text.data, text.len);
	hsink_add_string(t, ",\"DetailType\":", e->event_type.data, e->event_type.len);
	snprintf(buf, sizeof(buf), "urn:uuid:%s", e->id);
	hsink_add_string(t, ",\"Resources\":[", buf, strlen(buf));
	idem_text_puts(t, "]");
	if (p->config.resource[0] != '\0')
		hsink_add_string(t, ",\"EventBusName\":", p->config.resource, strlen(p->config.resource));
	text.len = 0;
	(void) hsink_add_message(p, &text, e);
	hsink_add_string(t, ",\"Detail\":", text.data, text.len);
	idem_text_puts(t, "}");
	free(text.data);
}

static bool
add(HSink *p, HSinkRequest *r, const HSinkEvent *e, HSinkProblem *problem)
{
	if (p->config.format == HSINK_PLAIN &&
		(!(e->flags & IDEM_PROTO_PAYLOAD_JSON) || e->payload.len == 0 || e->payload.data[0] != '{'))
	{
		snprintf(problem->text, sizeof(problem->text),
				 "EventBridge takes JSON objects only; set the option \"format\" to \"cloudevents_structured\" for other payloads");
		return false;
	}
	add_entry(p, r, e);
	r->weight = r->body.len;
	return true;
}

static void
finish(HSink *p, HSinkRequest *r)
{
	idem_text_puts(&r->body, "]}");
	hsink_begin_request(p, r, "");
	hsink_add_header(r, "Content-Type", TYPE, strlen(TYPE));
	hsink_add_header(r, "X-Amz-Target", TARGET, strlen(TARGET));
}

/* Answer an event by its entry in the response. */
static void
read_entry(HSink *p, HSinkRequest *r, uint32_t index, const char *json, size_t len)
{
	char	   *id = idem_json_string(json, len, "EventId");
	char	   *code = idem_json_string(json, len, "ErrorCode");
	char	   *message = idem_json_string(json, len, "ErrorMessage");

	if (code != NULL)
		hsink_answer_refused(p, r, index, true, code, message != NULL ? message : "");
	else if (id != NULL)
	{
		hsink_answer(p, r->events[index], IDEM_PROTO_ACKED, NULL, 0, NULL);
		r->events[index] = NULL;
	}
	free(id);
	free(code);
	free(message);
}

/* The entries of the response are in the order of the request. */
static void
read_response(HSink *p, HSinkRequest *r)
{
	const char *list;
	const char *entry;
	size_t		list_len;
	size_t		len;
	size_t		at = 0;

	if (r->answer.len == 0 || !idem_json_is_object(r->answer.data, r->answer.len) ||
		!idem_json_member(r->answer.data, r->answer.len, "Entries", &list, &list_len))
		return;
	for (uint32_t i = 0; i < r->count && idem_json_next_element(list, list_len, &at, &entry, &len); i++)
		read_entry(p, r, i, entry, len);
}

const HSinkService hsink_eventbridge = {
	.name = "eventbridge", .most = MAX_EVENTS, .most_weight = MAX_BYTES, .usual = MAX_EVENTS, .reads_answer = true, .aws = "events",
	.configure = hsink_configure_aws, .add = add, .finish = finish, .read = read_response, .blame = hsink_blame_aws
};
