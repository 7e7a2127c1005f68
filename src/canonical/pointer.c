/*-------------------------------------------------------------------------
 *
 * pointer.c
 *		JSON pointers (RFC 6901) into a jsonb document.
 *
 * Each part of a document has exactly one pointer: a name has one spelling,
 * since "~" and "/" must be escaped and nothing else can be, and a place in an
 * array has no leading zeros.  So pointers are equal if their texts are.
 *
 * LOCKING: none.
 *
 * MEMORY: temporary data is in the caller's context, and freed.  Values point
 * into the document.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/pointer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "canonical/pointer.h"

bool
idem_pointer_is_valid(const char *pointer, int len)
{
	if (len > 0 && pointer[0] != '/')
		return false;
	for (int i = 0; i < len; i++)
	{
		if (pointer[i] == '~' &&
			(i + 1 == len || (pointer[i + 1] != '0' && pointer[i + 1] != '1')))
			return false;
	}
	return true;
}

/* Undo the escapes of a name, into a buffer of at least as many bytes. */
static int
unescape(const char *name, int len, char *buffer)
{
	int			n = 0;

	for (int i = 0; i < len; i++)
	{
		if (name[i] == '~')
			buffer[n++] = name[++i] == '0' ? '~' : '/';
		else
			buffer[n++] = name[i];
	}
	return n;
}

/* Read a place in an array; false if the name is none. */
static bool
read_index(const char *name, int len, uint32 *index)
{
	uint64		n = 0;

	if (len == 0 || (len > 1 && name[0] == '0'))
		return false;
	for (int i = 0; i < len; i++)
	{
		if (name[i] < '0' || name[i] > '9')
			return false;
		n = n * 10 + (name[i] - '0');
		if (n > JB_CMASK)
			return false;
	}
	*index = n;
	return true;
}

/* Go to a member or an element; false if there is none of the name. */
static bool
step(JsonbValue *value, const char *name, int len)
{
	JsonbContainer *container;
	JsonbValue *found = NULL;
	uint32		index;

	if (value->type != jbvBinary)
		return false;
	container = value->val.binary.data;
	if (JsonContainerIsObject(container))
		found = getKeyJsonValueFromContainer(container, name, len, NULL);
	else if (read_index(name, len, &index))
		found = getIthJsonbValueFromContainer(container, index);
	if (found == NULL)
		return false;
	*value = *found;
	pfree(found);
	return true;
}

bool
idem_pointer_follow(const char *pointer, int len, JsonbValue *value)
{
	const char *end = pointer + len;
	char	   *name = palloc(len + 1);
	bool		found = true;

	while (found && pointer < end)
	{
		const char *first = pointer + 1;	/* behind the slash */
		const char *next = memchr(first, '/', end - first);

		CHECK_FOR_INTERRUPTS();
		pointer = next != NULL ? next : end;
		found = step(value, name, unescape(first, pointer - first, name));
	}
	pfree(name);
	return found;
}
