/*-------------------------------------------------------------------------
 *
 * template.c
 *		Templates of options, filled with the fields of an event.
 *
 * MEMORY
 *		None of its own.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/template.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/program.h"
#include "sink/common/template.h"

/*
 * Add the text of the event's header: the content of a string, the JSON text of
 * another value.  False if there is no such header, or null.
 */
static bool
add_header(const IdemSinkEvent *e, const char *name, size_t name_len, IdemText *t)
{
	char	   *wanted = idem_sink_strdup(name, name_len);
	const char *value;
	size_t		len;
	bool		found = e->headers.len > 0 && idem_json_member(e->headers.data, e->headers.len, wanted, &value, &len) &&
	!(len == 4 && memcmp(value, "null", 4) == 0);

	free(wanted);
	if (found && value[0] == '"')
		idem_json_unquote(t, value, len);
	else if (found)
		idem_text_add(t, value, len);
	return found;
}

/* Add what the placeholder stands for; false if the event lacks the header. */
static bool
add_placeholder(const IdemTemplate *how, const IdemSinkEvent *e, const char *name, size_t len, IdemText *t)
{
	const size_t prefix = strlen(IDEM_SINK_HEADER_PREFIX);
	const struct
	{
		const char *name;
		IdemProtoStr value;
	}			fields[] = {
		{"aggregate_type", e->aggregate_type},
		{"aggregate_id", e->aggregate_id},
		{"event_type", e->event_type},
		{"id", IDEM_STR(e->id)},
		{"relay", IDEM_STR(how->relay)},
		{"token", IDEM_STR(how->token != NULL ? how->token : "")}
	};

	if (len > prefix && strncmp(name, IDEM_SINK_HEADER_PREFIX, prefix) == 0)
		return add_header(e, name + prefix, len - prefix, t);
	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (strlen(fields[i].name) == len && memcmp(name, fields[i].name, len) == 0)
			idem_text_add(t, fields[i].value.data, fields[i].value.len);
	return true;
}

IdemTemplateEnd
idem_template_fill(const IdemTemplate *how, const char *template, const IdemSinkEvent *e, IdemText *t,
				   IdemProtoStr *at)
{
	IdemText	value = {NULL, 0, 0};
	IdemTemplateEnd end = IDEM_TEMPLATE_FILLED;

	for (const char *s = template; *s != '\0' && end == IDEM_TEMPLATE_FILLED;)
	{
		size_t		plain = strcspn(s, "{");
		size_t		len;

		idem_text_add(t, s, plain);
		s += plain;
		if (*s == '\0')
			break;
		len = strcspn(s, "}") + 1;
		*at = (IdemProtoStr)
		{
			s, (uint32_t) len
		};
		value.len = 0;
		if (!add_placeholder(how, e, s + 1, len - 2, &value))
			end = IDEM_TEMPLATE_LACKS_HEADER;
		else if (how->add == NULL)
			idem_text_add(t, value.data, value.len);
		else if (!how->add(how->arg, t, value.data, value.len))
			end = IDEM_TEMPLATE_REFUSED;
		s += len;
	}
	free(value.data);
	return end;
}

void
idem_template_name(const IdemTemplate *how, const char *template, const IdemSinkEvent *e, char *buf, size_t cap)
{
	IdemText	t = {NULL, 0, 0};
	IdemProtoStr at;

	buf[0] = '\0';
	if (idem_template_fill(how, template, e, &t, &at) == IDEM_TEMPLATE_FILLED)
		snprintf(buf, cap, "%.*s", (int) t.len, t.data);
	free(t.data);
}

bool
idem_template_makes_destinations(const char *template)
{
	return strchr(template, '{') != NULL && strstr(template, "{aggregate_id}") == NULL;
}
