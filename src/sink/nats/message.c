/*-------------------------------------------------------------------------
 *
 * message.c
 *		Makes a NATS message of an event: subject, headers, body.
 *
 * INVARIANT
 *		An event is decided before its batch is sent: the server refuses an atomic
 *		batch as a whole, and does not say which message it dislikes.  No event goes
 *		to a subject outside of the stream, to one of JetStream's own, or to that of
 *		a position.
 *
 * MEMORY
 *		The caller frees a message.  Subjects and headers are written into texts that
 *		stay.  LOCKING: none; messages are made in the main thread or in a job.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/message.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/cloudevent.h"
#include "sink/common/header.h"
#include "sink/common/template.h"
#include "sink/nats/sink.h"

/* What JetStream's own headers of a message take, at most. */
#define ROOM_FOR_HEADERS	512
#define MAX_HEADERS			65535	/* bytes of a message's headers in a
									 * stream */

bool
nsink_is_subject(const char *subject, size_t len)
{
	bool		begun = false;	/* the token has a character */

	if (len == 0 || len > NSINK_MAX_SUBJECT / 2 || subject[0] == '$' || (len >= 6 && memcmp(subject, "_INBOX", 6) == 0))
		return false;
	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) subject[i];

		if (c <= ' ' || c == 0x7F || c == '*' || c == '>' || (c == '.' && !begun))
			return false;
		begun = c != '.';
	}
	return begun;
}

/* Does the subject match the pattern, which may have * and > as tokens? */
static bool
matches(const char *pattern, const char *subject)
{
	for (;;)
	{
		size_t		a = strcspn(pattern, ".");
		size_t		b = strcspn(subject, ".");

		if (a == 1 && pattern[0] == '>')
			return b > 0;
		if (!(a == 1 && pattern[0] == '*') && (a != b || memcmp(pattern, subject, a) != 0))
			return false;
		if (pattern[a] == '\0' || subject[b] == '\0')
			return pattern[a] == subject[b];
		pattern += a + 1;
		subject += b + 1;
	}
}

bool
nsink_has_subject(const IdemText *patterns, const char *subject)
{
	for (size_t at = 0; at < patterns->len; at += strlen(patterns->data + at) + 1)
		if (matches(patterns->data + at, subject))
			return true;
	return false;
}

static bool
refuse(NSinkProblem *problem, const char *sqlstate, const char *text)
{
	problem->sqlstate = sqlstate;
	snprintf(problem->text, sizeof(problem->text), "%s", text);
	return false;
}

/* Fill in the subject.  False: *problem. */
static bool
make_subject(const NSink *p, const IdemSinkEvent *e, IdemText *t, NSinkProblem *problem)
{
	const NSinkConfig *c = &p->config;
	const IdemTemplate how = {.relay = c->relay};
	size_t		prefix = strlen(c->position_prefix);
	IdemProtoStr at;

	if (idem_template_fill(&how, c->subject, e, t, &at) != IDEM_TEMPLATE_FILLED)
		return refuse(problem, "22023", "event lacks a header that the option \"subject\" names");
	if (!nsink_is_subject(t->data, t->len))
		return refuse(problem, "22023", "event makes no subject: words with dots between them, without blanks, * and >");
	idem_text_terminate(t);
	if (strcmp(t->data, c->position_subject) == 0 || (prefix > 0 && strncmp(t->data, c->position_prefix, prefix) == 0))
		return refuse(problem, "42501", "event has the subject of a position");
	if (!nsink_has_subject(&p->stream.subjects, t->data))
	{
		problem->outcome = IDEM_PROTO_REJECTED;
		problem->sqlstate = "42704";
		snprintf(problem->text, sizeof(problem->text), "stream \"%.60s\" does not have the subject \"%.120s\"", c->stream, t->data);
		return false;
	}
	return true;
}

/* Add a header, and count its bytes. */
static natsStatus
add_header(natsMsg *msg, const char *name, const char *value, size_t *size)
{
	*size += strlen(name) + strlen(value) + 4;
	return natsMsgHeader_Add(msg, name, value);
}

/* Add a header whose value may have any bytes: percent-encoded. */
static natsStatus
add_encoded(natsMsg *msg, const char *name, IdemProtoStr value, size_t *size)
{
	static IdemText t;

	t.len = 0;
	idem_ce_add_header_value(&t, value);
	return add_header(msg, name, idem_text_terminate(&t), size);
}

/* Add the event's own headers.  False: *problem. */
static bool
add_own(natsMsg *msg, const IdemSinkEvent *e, size_t *size, NSinkProblem *problem)
{
	IdemHeader	h = {.at = 0};
	bool		ok = true;

	while (ok && idem_header_next(&h, e, IDEM_HEADERS_OF_NATS))
	{
		if (h.is_null)
			continue;
		if (!idem_header_is_token(h.name.data, h.name.len))
			ok = refuse(problem, "22023", "event has a header whose name NATS does not take");
		else if (idem_header_has_control(h.value.data, h.value.len))
			ok = refuse(problem, "22023", "event has a control character in a header");
		else if (add_header(msg, h.name.data, h.value.data, size) != NATS_OK)
			ok = refuse(problem, "22023", "event has a header that the library does not take");
	}
	idem_header_end(&h);
	return ok;
}

/* Add the headers that tell what the event is. */
static natsStatus
add_fields(const NSink *p, natsMsg *msg, const IdemSinkEvent *e, size_t *size)
{
	IdemProtoStr type = p->config.format == NSINK_CE_STRUCTURED ? IDEM_STR(IDEM_CE_JSON_TYPE) : idem_content_type(e);
	static IdemText t;
	IdemCloudEvent ce;
	natsStatus	s;
	char		name[32];

	t.len = 0;

	/* a type is readable as it is, but for characters that no type has */
	for (uint32_t i = 0; i < type.len; i++)
		if ((unsigned char) type.data[i] >= ' ' && type.data[i] != 0x7F)
			idem_text_add(&t, type.data + i, 1);
	s = add_header(msg, "Content-Type", idem_text_terminate(&t), size);
	if (s == NATS_OK)
		s = add_header(msg, "Event-Id", e->id, size);
	if (s == NATS_OK && p->config.format == NSINK_PLAIN)
		s = add_encoded(msg, "Event-Type", e->event_type, size);
	if (s == NATS_OK && p->config.format == NSINK_PLAIN)
		s = add_encoded(msg, "Aggregate-Type", e->aggregate_type, size);
	if (s == NATS_OK && p->config.format == NSINK_PLAIN)
		s = add_encoded(msg, "Aggregate-Id", e->aggregate_id, size);
	if (p->config.format != NSINK_CE_BINARY)
		return s;
	idem_ce_make(&ce, e, p->config.source, p->config.relay);
	for (int i = 0; i < ce.count && s == NATS_OK; i++)
	{
		snprintf(name, sizeof(name), "ce-%s", ce.attributes[i].name);
		s = add_encoded(msg, name, ce.attributes[i].value, size);
	}
	idem_ce_free(&ce);
	return s;
}

/* At least once: a repeat within the stream's duplicate_window is dropped. */
static natsStatus
add_window(const NSink *p, natsMsg *msg, const IdemSinkEvent *e)
{
	natsStatus	s = natsMsgHeader_Set(msg, "Nats-Msg-Id", e->id);

	return s == NATS_OK ? natsMsgHeader_Set(msg, "Nats-Expected-Stream", p->config.stream) : s;
}

/* Make the message of an event with this subject.  NULL: *problem. */
static natsMsg *
make_message(const NSink *p, const IdemSinkEvent *e, const char *subject, const char *reply, NSinkProblem *problem)
{
	IdemText	body = {NULL, 0, 0};
	IdemProtoStr data = e->payload;
	natsMsg    *msg = NULL;
	size_t		size = ROOM_FOR_HEADERS;
	int64_t		limit = natsConnection_GetMaxPayload(p->nc);
	bool		ok;

	if (p->config.format == NSINK_CE_STRUCTURED)
	{
		idem_ce_add_json(&body, e, p->config.source, p->config.relay, idem_content_type(e));
		data.data = body.data;
		data.len = (uint32_t) body.len;
	}
	if (p->stream.max_message >= 0 && (limit < 0 || p->stream.max_message < limit))
		limit = p->stream.max_message;
	ok = natsMsg_Create(&msg, subject, reply, data.data, (int) data.len) == NATS_OK;
	free(body.data);
	if (!ok)
		(void) refuse(problem, "54000", "event makes a message that the library does not take");
	else if (!add_own(msg, e, &size, problem))
		ok = false;
	else if (add_fields(p, msg, e, &size) != NATS_OK || (!p->config.exactly_once && add_window(p, msg, e) != NATS_OK))
		ok = refuse(problem, "22023", "event has a field that the library does not take as a header");
	else if (size > MAX_HEADERS)
		ok = refuse(problem, "54000", "event has headers of more than 64 kB");
	else if (limit >= 0 && (int64_t) (size + data.len) > limit)
	{
		problem->sqlstate = "54000";
		snprintf(problem->text, sizeof(problem->text), "message would have more than the %lld bytes that server and stream take", (long long) limit);
		ok = false;
	}
	if (ok)
		return msg;
	natsMsg_Destroy(msg);
	return NULL;
}

natsMsg *
nsink_make_message(const NSink *p, const IdemBatchEvent *e, const char *reply, NSinkProblem *problem)
{
	static IdemText subject;
	IdemSinkEvent view = idem_batch_view(e);

	problem->outcome = IDEM_PROTO_IMPOSSIBLE;
	subject.len = 0;
	if (!make_subject(p, &view, &subject, problem))
		return NULL;
	return make_message(p, &view, subject.data, reply, problem);
}

void
nsink_destination(void *p, const IdemBatchEvent *e, char buf[IDEM_SINK_DESTINATION + 1])
{
	const NSinkConfig *c = &((NSink *) p)->config;
	const IdemTemplate how = {.relay = c->relay};
	IdemSinkEvent view = idem_batch_view(e);

	idem_template_name(&how, c->subject, &view, buf, IDEM_SINK_DESTINATION + 1);
}
