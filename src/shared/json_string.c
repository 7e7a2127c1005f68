/*-------------------------------------------------------------------------
 *
 * json_string.c
 *		A string as JSON has it.
 *
 * Strings are copied by the stretches that need no escape; the server's
 * escape_json() appends them character by character.
 *
 * LOCKING: none.
 *
 * MEMORY: none of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/json_string.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shared/json_string.h"

/* The second character of the escape; 'u' for \u00xx, 0 for none. */
static const char escape_of[256] = {
	'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u',
	'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
	['"'] = '"',['\\'] = '\\'
};

/* Append a character as its escape. */
static void
write_escape(StringInfo out, unsigned char c)
{
	if (escape_of[c] == 'u')
		appendStringInfo(out, "\\u%04x", c);
	else
	{
		appendStringInfoCharMacro(out, '\\');
		appendStringInfoCharMacro(out, escape_of[c]);
	}
}

void
idem_json_write_string(StringInfo out, const char *s, int len)
{
	const char *end = s + len;

	appendStringInfoCharMacro(out, '"');
	while (s < end)
	{
		const char *from = s;

		while (s < end && escape_of[(unsigned char) *s] == 0)
			s++;
		appendBinaryStringInfo(out, from, s - from);
		if (s < end)
			write_escape(out, *s++);
	}
	appendStringInfoCharMacro(out, '"');
}
