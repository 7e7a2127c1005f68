/*-------------------------------------------------------------------------
 *
 * sql.c
 *		Names and statements as SQL text.
 *
 * MEMORY
 *		Results are on the heap and belong to the caller.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/sql.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "sink/postgres/sink.h"

char *
pgsink_quote(const char *name)
{
	char	   *dst = idem_sink_alloc(2 * strlen(name) + 3);
	char	   *d = dst;

	*d++ = '"';
	for (; *name; name++)
	{
		if (*name == '"')
			*d++ = '"';
		*d++ = *name;
	}
	*d++ = '"';
	*d = '\0';
	return dst;
}

char *
pgsink_format(const char *fmt,...)
{
	va_list		ap;
	char	   *s;
	int			len;

	va_start(ap, fmt);
	len = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	s = idem_sink_alloc((size_t) len + 1);
	va_start(ap, fmt);
	vsnprintf(s, (size_t) len + 1, fmt, ap);
	va_end(ap);
	return s;
}
