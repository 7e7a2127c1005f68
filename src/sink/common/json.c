/*-------------------------------------------------------------------------
 *
 * json.c
 *		JSON text: members of an object, and strings.
 *
 * The worker sends an event's headers as the text of one JSON object, which
 * PostgreSQL wrote.  The reader here takes any valid JSON, and stops at the end of
 * the text whatever the text is.
 *
 * MEMORY
 *	An IdemText grows; its owner frees data.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/json.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/program.h"

void
idem_text_add(IdemText *t, const void *data, size_t len)
{
	if (t->size - t->len < len)
	{
		do
			t->size = t->size > 0 ? t->size * 2 : 256;
		while (t->size - t->len < len);
		t->data = idem_sink_realloc(t->data, t->size);
	}
	if (len > 0)
		memcpy(t->data + t->len, data, len);
	t->len += len;
}

void
idem_text_puts(IdemText *t, const char *s)
{
	idem_text_add(t, s, strlen(s));
}

char *
idem_text_terminate(IdemText *t)
{
	idem_text_add(t, "", 1);
	t->len--;
	return t->data;
}

/*
 * Add the escape of the character at s, if it has one, by the rules of Jackson: Kafka
 * Connect's JsonConverter writes keys by them, and a key with other bytes goes to
 * another partition.  Returns how many bytes of s the escape stands for, or 0.
 */
static size_t
add_escape(IdemText *t, const unsigned char *s, size_t len)
{
	static const char meant[] = "\"\\\b\f\n\r\t";
	static const char names[] = "\"\\bfnrt";
	const char *found = s[0] != '\0' ? strchr(meant, s[0]) : NULL;
	char		escape[16];
	size_t		taken = 1;

	if (found != NULL)
		snprintf(escape, sizeof(escape), "\\%c", names[found - meant]);
	else if (s[0] < 0x20)
		snprintf(escape, sizeof(escape), "\\u%04X", s[0]);
	else if (s[0] >= 0xF0 && len >= 4)
	{
		unsigned	c = ((s[0] & 0x07u) << 18 | (s[1] & 0x3Fu) << 12 | (s[2] & 0x3Fu) << 6 | (s[3] & 0x3Fu)) - 0x10000;

		snprintf(escape, sizeof(escape), "\\u%04X\\u%04X", 0xD800 + (c >> 10 & 0x3FF), 0xDC00 + (c & 0x3FF));
		taken = 4;
	}
	else
		return 0;
	idem_text_puts(t, escape);
	return taken;
}

void
idem_text_add_json(IdemText *t, const void *data, size_t len)
{
	const unsigned char *s = data;
	size_t		taken;

	idem_text_puts(t, "\"");
	for (size_t i = 0; i < len; i += taken)
	{
		taken = add_escape(t, s + i, len - i);
		if (taken == 0)
		{
			idem_text_add(t, s + i, 1);
			taken = 1;
		}
	}
	idem_text_puts(t, "\"");
}

/* Pass blanks. */
static size_t
skip_blanks(const char *json, size_t len, size_t at)
{
	while (at < len && strchr(" \t\r\n", json[at]) != NULL && json[at] != '\0')
		at++;
	return at;
}

/* Pass a string, which begins at its quote.  Returns the place behind it. */
static size_t
skip_string(const char *json, size_t len, size_t at)
{
	for (at++; at < len && json[at] != '"'; at++)
		if (json[at] == '\\')
			at++;
	return at < len ? at + 1 : len;
}

/* Pass a value: up to a comma or a closing bracket of the object around it. */
static size_t
skip_value(const char *json, size_t len, size_t at)
{
	int			depth = 0;

	while (at < len)
	{
		char		c = json[at];

		if (c == '"')
		{
			at = skip_string(json, len, at);
			continue;
		}
		if (depth == 0 && (c == ',' || c == '}' || c == ']'))
			break;
		if (c == '{' || c == '[')
			depth++;
		else if (c == '}' || c == ']')
			depth--;
		at++;
	}
	return at;
}

/* The value of four hexadecimal digits; they may be missing. */
static unsigned
read_hex(const char *s, size_t len)
{
	unsigned	value = 0;

	for (size_t i = 0; i < 4 && i < len; i++)
	{
		char		c = s[i];

		value = value * 16 + (unsigned) (c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
	}
	return value;
}

/* Add a character as UTF-8. */
static void
add_character(IdemText *t, unsigned c)
{
	unsigned char u[4];

	if (c < 0x80)
	{
		u[0] = (unsigned char) c;
		idem_text_add(t, u, 1);
	}
	else if (c < 0x800)
	{
		u[0] = (unsigned char) (0xC0 | c >> 6);
		u[1] = (unsigned char) (0x80 | (c & 0x3F));
		idem_text_add(t, u, 2);
	}
	else if (c < 0x10000)
	{
		u[0] = (unsigned char) (0xE0 | c >> 12);
		u[1] = (unsigned char) (0x80 | (c >> 6 & 0x3F));
		u[2] = (unsigned char) (0x80 | (c & 0x3F));
		idem_text_add(t, u, 3);
	}
	else
	{
		u[0] = (unsigned char) (0xF0 | c >> 18);
		u[1] = (unsigned char) (0x80 | (c >> 12 & 0x3F));
		u[2] = (unsigned char) (0x80 | (c >> 6 & 0x3F));
		u[3] = (unsigned char) (0x80 | (c & 0x3F));
		idem_text_add(t, u, 4);
	}
}

/* Add the character of the escape at s, behind the backslash; its length. */
static size_t
add_escaped(IdemText *t, const char *s, size_t len)
{
	static const char names[] = "bfnrt";
	static const char meant[] = "\b\f\n\r\t";
	const char *found = strchr(names, s[0]);
	unsigned	c;

	if (s[0] != 'u')
	{
		idem_text_add(t, found != NULL && s[0] != '\0' ? meant + (found - names) : s, 1);
		return 1;
	}
	c = read_hex(s + 1, len - 1);
	if (c >= 0xD800 && c < 0xDC00 && len >= 11 && s[5] == '\\' && s[6] == 'u')
	{
		add_character(t, 0x10000 + ((c - 0xD800) << 10) + (read_hex(s + 7, len - 7) - 0xDC00));
		return 11;
	}
	add_character(t, c);
	return len < 5 ? len : 5;
}

void
idem_json_unquote(IdemText *t, const char *s, size_t len)
{
	size_t		end = len > 1 ? len - 1 : len;

	for (size_t i = 1; i < end;)
	{
		if (s[i] == '\\' && i + 1 < end)
			i += 1 + add_escaped(t, s + i + 1, end - i - 1);
		else
			idem_text_add(t, s + i++, 1);
	}
}

/* The length of a value without the blanks behind it. */
static size_t
trim(const char *value, size_t len)
{
	while (len > 0 && value[len - 1] != '\0' && strchr(" \t\r\n", value[len - 1]) != NULL)
		len--;
	return len;
}

bool
idem_json_is_object(const char *json, size_t len)
{
	size_t		first = skip_blanks(json, len, 0);

	len = trim(json, len);
	return first + 2 <= len && json[first] == '{' && json[len - 1] == '}';
}

bool
idem_json_next(const char *json, size_t len, size_t *at, IdemText *name,
			   const char **value, size_t *value_len)
{
	size_t		i = skip_blanks(json, len, *at);
	size_t		start;

	if (i < len && (json[i] == '{' || json[i] == ','))
		i = skip_blanks(json, len, i + 1);
	if (i >= len || json[i] != '"')
		return false;
	start = i;
	i = skip_string(json, len, i);
	name->len = 0;
	idem_json_unquote(name, json + start, i - start);
	i = skip_blanks(json, len, i);
	if (i >= len || json[i] != ':')
		return false;
	start = skip_blanks(json, len, i + 1);
	i = skip_value(json, len, start);
	*at = i;
	*value = json + start;
	*value_len = trim(json + start, i - start);
	return *value_len > 0;
}

bool
idem_json_next_element(const char *json, size_t len, size_t *at,
					   const char **value, size_t *value_len)
{
	size_t		i = skip_blanks(json, len, *at);
	size_t		start;

	if (i >= len || json[i] != (*at == 0 ? '[' : ','))
		return false;
	start = skip_blanks(json, len, i + 1);
	i = skip_value(json, len, start);
	*at = i;
	*value = json + start;
	*value_len = trim(json + start, i - start);
	return *value_len > 0;
}

bool
idem_json_member(const char *json, size_t len, const char *name,
				 const char **value, size_t *value_len)
{
	IdemText	found = {NULL, 0, 0};
	const char *v;
	size_t		n;
	size_t		at = 0;
	bool		ok = false;

	while (idem_json_next(json, len, &at, &found, &v, &n))
	{
		if (found.len == 0 || found.len != strlen(name) || memcmp(found.data, name, found.len) != 0)
			continue;
		*value = v;
		*value_len = n;
		ok = true;
	}
	free(found.data);
	return ok;
}

char *
idem_json_string(const char *json, size_t len, const char *name)
{
	IdemText	t = {NULL, 0, 0};
	const char *value;
	size_t		value_len;

	if (!idem_json_member(json, len, name, &value, &value_len) || value[0] != '"')
		return NULL;
	idem_json_unquote(&t, value, value_len);
	idem_text_terminate(&t);
	if (strlen(t.data) == t.len)
		return t.data;
	free(t.data);
	return NULL;
}
