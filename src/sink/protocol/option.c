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
#include <strings.h>

#define NAME_BYTES	64			/* NAMEDATALEN of a stock server */

/* Secrets of Standard Webhooks, as in src/sink/http/sign.c */
#define SECRET_PREFIX	"whsec_"
#define LEAST_KEY	24
#define MOST_KEY	64
#define BLANKS		" \t\r\n"

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

/* Where the host of a URL begins; NULL unless it is http:// or https:// */
static const char *
host_of(const char *url)
{
	if (strncasecmp(url, "https://", 8) == 0)
		return url + 8;
	return strncasecmp(url, "http://", 7) == 0 ? url + 7 : NULL;
}

bool
idem_sink_url_has_login(const char *url)
{
	const char *host = strstr(url, "://");

	return host != NULL && memchr(host + 3, '@', strcspn(host + 3, "/?")) != NULL;
}

/*
 * What is wrong with a URL, or NULL.  The program asks its own parser as well,
 * which knows more.
 */
static const char *
check_url(const char *url, const char *names)
{
	const char *host = host_of(url);
	size_t		len;

	if (host == NULL)
		return "must be a URL that begins with https:// or http://";
	len = strcspn(host, "/?");
	if (len == 0)
		return "must be a URL with a host";
	if (idem_sink_url_has_login(url))
		return "must not have a user or a password in it";
	if (memchr(host, '{', len) != NULL || (names == NULL && strchr(host, '{') != NULL))
		return names == NULL ? "must not have placeholders" : "must not have a placeholder before the path";
	return names == NULL ? NULL : idem_sink_check_template(host + len, names);
}

/* Is the word "whsec_" and LEAST_KEY to MOST_KEY bytes in base64? */
static bool
is_signing_secret(const char *word, size_t len)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	size_t		padding = 0;
	size_t		bytes;

	if (len < strlen(SECRET_PREFIX) || strncmp(word, SECRET_PREFIX, strlen(SECRET_PREFIX)) != 0)
		return false;
	word += strlen(SECRET_PREFIX);
	len -= strlen(SECRET_PREFIX);
	while (padding < 2 && padding < len && word[len - padding - 1] == '=')
		padding++;
	bytes = len / 4 * 3 - padding;
	return len % 4 == 0 && len > 0 && strspn(word, digits) >= len - padding &&
		bytes >= LEAST_KEY && bytes <= MOST_KEY;
}

/* Is each word a signing secret, and is there one? */
static bool
are_signing_secrets(const char *value)
{
	int			n = 0;

	for (value += strspn(value, BLANKS); *value != '\0'; value += strspn(value, BLANKS), n++)
	{
		size_t		len = strcspn(value, BLANKS);

		if (!is_signing_secret(value, len))
			return false;
		value += len;
	}
	return n > 0;
}

/* Set the problem; true: there is none. */
static bool
judge(const char *wrong, const char *names, char *problem, size_t cap)
{
	if (wrong != NULL)
		snprintf(problem, cap, names != NULL && strstr(wrong, "unknown") != NULL ?
				 "%s; placeholders are %s" : "%s", wrong, names);
	return wrong == NULL;
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
		case IDEM_OPTION_FILE:
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
		case IDEM_OPTION_TEMPLATE:
			return judge(value[0] == '\0' ? "must not be empty" :
						 idem_sink_check_template(value, option->choices), option->choices, problem, cap);
		case IDEM_OPTION_URL:
			return judge(check_url(value, option->choices), option->choices, problem, cap);
		case IDEM_OPTION_SIGNING_SECRETS:
			snprintf(problem, cap, "must be \"" SECRET_PREFIX "\" and %d to %d bytes in base64, or several such secrets separated by blanks",
					 LEAST_KEY, MOST_KEY);
			return are_signing_secrets(value);
	}
	return false;
}
