/*-------------------------------------------------------------------------
 *
 * template.c
 *		Fills the fields of an event into templates.
 *
 * INVARIANT
 *		A field of an event cannot leave its place.  In a URL each of its bytes
 *		but the unreserved ones of RFC 3986 is percent-encoded; url.c looks after
 *		segments of dots.  In a header it has no control character, or the event
 *		is refused.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/template.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/template.h"
#include "sink/http/sink.h"

/* Add what the placeholder between braces stands for; false if nothing. */
static bool
add_placeholder(const HSink *p, const HSinkEvent *e, const char *name, size_t len, IdemText *t)
{
	const struct
	{
		const char *name;
		IdemProtoStr value;
	}			fields[] = {
		{"aggregate_type", e->aggregate_type},
		{"aggregate_id", e->aggregate_id},
		{"event_type", e->event_type},
		{"id", {e->id, IDEM_UUID_TEXT - 1}},
		{"relay", {p->config.relay, (uint32_t) strlen(p->config.relay)}},
		{"token", {p->config.token, p->config.token != NULL ? (uint32_t) strlen(p->config.token) : 0}}
	};

	if (len > strlen(IDEM_SINK_HEADER_PREFIX) && strncmp(name, IDEM_SINK_HEADER_PREFIX, strlen(IDEM_SINK_HEADER_PREFIX)) == 0)
		return idem_text_add_member(t, e->headers.data, e->headers.len, name + strlen(IDEM_SINK_HEADER_PREFIX),
									len - strlen(IDEM_SINK_HEADER_PREFIX));
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (strlen(fields[i].name) == len && memcmp(name, fields[i].name, len) == 0)
			idem_text_add(t, fields[i].value.data, fields[i].value.len);
	return true;
}

/* Add a value for its place.  False: it cannot stand there. */
static bool
add_value(IdemText *t, HSinkPlace place, const char *value, size_t len, HSinkProblem *problem)
{
	problem->sqlstate = "22023";
	if (place == HSINK_IN_URL)
	{
		snprintf(problem->text, sizeof(problem->text), "event has an empty value for a placeholder of the option \"url\"");
		idem_text_add_encoded(t, value, len);
		return len > 0;
	}
	for (size_t i = 0; i < len && place == HSINK_IN_HEADER; i++)
	{
		if (((unsigned char) value[i] >= ' ' && value[i] != 0x7F) || value[i] == '\t')
			continue;
		snprintf(problem->text, sizeof(problem->text),
				 "event has a control character in a value for the option \"headers\"");
		return false;
	}
	idem_text_add(t, value, len);
	return true;
}

bool
hsink_expand(const HSink *p, const HSinkEvent *e, const char *template, HSinkPlace place,
			 IdemText *t, HSinkProblem *problem)
{
	IdemText	value = {NULL, 0, 0};
	bool		ok = true;

	for (const char *s = template; *s != '\0' && ok;)
	{
		size_t		plain = strcspn(s, "{");
		const char *end;

		idem_text_add(t, s, plain);
		s += plain;
		if (*s == '\0')
			break;
		end = strchr(s, '}');
		value.len = 0;
		if (!add_placeholder(p, e, s + 1, (size_t) (end - s) - 1, &value))
		{
			problem->sqlstate = "22023";
			snprintf(problem->text, sizeof(problem->text), "event lacks the header of the placeholder \"%.*s\"",
					 (int) (end - s) + 1, s);
			ok = false;
		}
		else
			ok = add_value(t, place, value.data, value.len, problem);
		s = end + 1;
	}
	free(value.data);
	return ok;
}
