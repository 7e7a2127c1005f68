/*-------------------------------------------------------------------------
 *
 * json.h
 *		Growing texts, and JSON in them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/json.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_JSON_H
#define IDEM_SINK_JSON_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that grow; not terminated.  The owner frees data. */
typedef struct IdemText
{
	char	   *data;			/* NULL: nothing was added yet */
	size_t		len;
	size_t		size;
} IdemText;

extern void idem_text_add(IdemText *t, const void *data, size_t len);
extern void idem_text_puts(IdemText *t, const char *s);

/* Add a NUL that does not count; the text can then be used as a string. */
extern char *idem_text_terminate(IdemText *t);

/* Add a JSON string with this content. */
extern void idem_text_add_json(IdemText *t, const void *data, size_t len);

/* Is the text as a whole in the braces of an object? */
extern bool idem_json_is_object(const char *json, size_t len);

/*
 * The members of a JSON object one after the other.  *at is 0 at first.  The
 * value's text is given as it stands.  False at the end.
 */
extern bool idem_json_next(const char *json, size_t len, size_t *at, IdemText *name,
						   const char **value, size_t *value_len);

/* The same for the elements of a JSON array. */
extern bool idem_json_next_element(const char *json, size_t len, size_t *at,
								   const char **value, size_t *value_len);

/*
 * The value of an object's member, as it stands; false if the object has no
 * such member.  Of several members with the name the last one counts.
 */
extern bool idem_json_member(const char *json, size_t len, const char *name,
							 const char **value, size_t *value_len);

/*
 * The content of a member that is a string, terminated.  NULL if there is no
 * such string, or if it has a NUL in it.  The caller owns the result.
 */
extern char *idem_json_string(const char *json, size_t len, const char *name);

/* Add the content of the JSON string s. */
extern void idem_json_unquote(IdemText *t, const char *s, size_t len);

#endif							/* IDEM_SINK_JSON_H */
