/*-------------------------------------------------------------------------
 *
 * template.c
 *		Templates of options, and members of headers as text.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/template.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/program.h"
#include "sink/common/template.h"

#define HEADER	"{" IDEM_SINK_HEADER_PREFIX

/* Is the placeholder at s, braces included, among the names? */
static bool
is_known(const char *s, size_t len, const char *names)
{
	if (len > strlen(HEADER "}") && strncmp(s, HEADER, strlen(HEADER)) == 0)
		return strstr(names, HEADER) != NULL;
	for (const char *known = names; (known = strchr(known, '{')) != NULL; known++)
		if (strncmp(known, s, len) == 0 && strncmp(s, HEADER, strlen(HEADER)) != 0)
			return true;
	return false;
}

const char *
idem_sink_check_template(const char *template, const char *names)
{
	for (const char *s = template; *s != '\0'; s++)
	{
		const char *end = *s == '{' ? strchr(s, '}') : NULL;

		if (*s == '}')
			return "has a closing brace without an opening brace";
		if (*s != '{')
			continue;
		if (end == NULL)
			return "has an opening brace without a closing brace";
		if (!is_known(s, (size_t) (end - s) + 1, names))
			return "has an unknown placeholder";
		s = end;
	}
	return NULL;
}

bool
idem_text_add_member(IdemText *t, const char *json, size_t len, const char *name, size_t name_len)
{
	char	   *wanted = idem_sink_strdup(name, name_len);
	const char *value;
	size_t		value_len;
	bool		found = len > 0 && idem_json_member(json, len, wanted, &value, &value_len) &&
	!(value_len == 4 && memcmp(value, "null", 4) == 0);

	free(wanted);
	if (found && value[0] == '"')
		idem_json_unquote(t, value, value_len);
	else if (found)
		idem_text_add(t, value, value_len);
	return found;
}
