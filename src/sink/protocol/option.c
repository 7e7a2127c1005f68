/*-------------------------------------------------------------------------
 *
 * option.c
 *		Finds and checks sink options, for the server and for the programs.
 *
 * INVARIANT
 *		No message contains a value, because the value may be a secret.
 *
 * MEMORY
 *		None of its own.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/protocol/option.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/protocol/option.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME_BYTES	64			/* NAMEDATALEN of a stock server */

const IdemSinkOption *
idem_sink_option_find(const IdemSinkOption *table, const char *name)
{
	for (; table->name != NULL; table++)
		if (strcmp(table->name, name) == 0)
			return table;
	return NULL;
}

const char *
idem_sink_option_reason(const IdemSinkOption *option)
{
	return option->reason != NULL ? option->reason :
		"It names a file or program that is used as the server's operating system user.";
}

/* Is the value one of the words for a boolean? */
static bool
is_bool(const char *value)
{
	return strcmp(value, "on") == 0 || strcmp(value, "true") == 0 ||
		strcmp(value, "off") == 0 || strcmp(value, "false") == 0;
}

bool
idem_sink_option_bool(const char *value)
{
	return strcmp(value, "on") == 0 || strcmp(value, "true") == 0;
}

/* Is the value a decimal number from min to max? */
static bool
is_int(const char *value, long min, long max)
{
	char	   *end;
	long		v;

	if (value[0] == '\0' || strspn(value, "0123456789") != strlen(value))
		return false;
	errno = 0;
	v = strtol(value, &end, 10);
	return errno == 0 && *end == '\0' && v >= min && v <= max;
}

/* Is the value one of the words in choices? */
static bool
is_choice(const char *value, const char *choices)
{
	size_t		len = strlen(value);

	if (len == 0 || strchr(value, ' ') != NULL)
		return false;
	for (const char *p = choices; (p = strstr(p, value)) != NULL; p += len)
		if ((p == choices || p[-1] == ' ') && (p[len] == '\0' || p[len] == ' '))
			return true;
	return false;
}

/*
 * Copy the next word of a list with commas to word, without the spaces around it.
 * Returns the place behind the word and its comma; NULL behind the last word.  A word
 * that is longer than cap is cut; no word of a list of choices is so long.
 */
static const char *
next_word(const char *list, char *word, size_t cap)
{
	size_t		len = strcspn(list, ",");
	const char *next = list[len] == ',' ? list + len + 1 : NULL;

	while (len > 0 && *list == ' ')
		list++, len--;
	while (len > 0 && list[len - 1] == ' ')
		len--;
	snprintf(word, cap, "%.*s", (int) len, list);
	return next;
}

/* Is each word of a list with commas one of the words in choices? */
static bool
are_choices(const char *value, const char *choices)
{
	char		word[NAME_BYTES];

	do
	{
		value = next_word(value, word, sizeof(word));
		if (!is_choice(word, choices))
			return false;
	} while (value != NULL);
	return true;
}

bool
idem_sink_option_names(const char *value, const char *word)
{
	char		other[NAME_BYTES];

	while (value != NULL)
	{
		value = next_word(value, other, sizeof(other));
		if (strcmp(other, word) == 0)
			return true;
	}
	return false;
}

/*
 * Copy the first part of a qualified name to dst, without quotes and folded as
 * SQL would.  Returns the place behind the part; NULL if the part is empty,
 * malformed or too long.
 */
static const char *
split_part(const char *p, char *dst, size_t cap)
{
	size_t		n = 0;
	bool		quoted = (*p == '"');

	if (quoted)
		p++;
	for (;; p++)
	{
		if (quoted && p[0] == '"')
		{
			if (p[1] != '"')
				break;
			p++;
		}
		else if (*p == '\0' || (!quoted && *p == '.'))
			break;
		else if (!quoted && (*p == '"' || *p == ' '))
			return NULL;
		if (n + 1 >= cap)
			return NULL;
		dst[n++] = (!quoted && *p >= 'A' && *p <= 'Z') ? (char) (*p + 32) : *p;
	}
	if (quoted && *p++ != '"')
		return NULL;
	dst[n] = '\0';
	return n > 0 ? p : NULL;
}

bool
idem_sink_split_name(const char *value, char *schema, char *name, size_t cap)
{
	const char *p = split_part(value, schema, cap);

	if (p == NULL || *p != '.')
		return false;
	p = split_part(p + 1, name, cap);
	return p != NULL && *p == '\0';
}

bool
idem_sink_option_check(const IdemSinkOption *option, const char *value,
					   char *problem, size_t cap)
{
	char		schema[NAME_BYTES];
	char		name[NAME_BYTES];

	switch (option->type)
	{
		case IDEM_OPTION_TEXT:
			snprintf(problem, cap, "must not be empty");
			return value[0] != '\0';
		case IDEM_OPTION_BOOL:
			snprintf(problem, cap, "must be \"on\" or \"off\"");
			return is_bool(value);
		case IDEM_OPTION_INT:
			snprintf(problem, cap, "must be an integer from %ld to %ld",
					 option->min, option->max);
			return is_int(value, option->min, option->max);
		case IDEM_OPTION_CHOICE:
			snprintf(problem, cap, "must be one of: %s", option->choices);
			return is_choice(value, option->choices);
		case IDEM_OPTION_CHOICES:
			snprintf(problem, cap, "must be a list, separated by commas, of: %s", option->choices);
			return are_choices(value, option->choices);
		case IDEM_OPTION_QUALIFIED:
			snprintf(problem, cap, "must be a name with its schema, as in app.on_order");
			return idem_sink_split_name(value, schema, name, NAME_BYTES);
		case IDEM_OPTION_WORD:
			snprintf(problem, cap, "must consist of lower-case letters, digits and underscores");
			return value[0] != '\0' &&
				strspn(value, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(value);
	}
	return false;
}
