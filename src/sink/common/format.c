/*-------------------------------------------------------------------------
 *
 * format.c
 *		Writes ids, times and bytes as text.
 *
 * MEMORY
 *		None of its own.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/format.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/format.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "sink/protocol/protocol.h"

void
idem_write_uuid(char *dst, const uint8_t *id)
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < IDEM_PROTO_ID_BYTES; i++)
	{
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*dst++ = '-';
		*dst++ = digits[id[i] >> 4];
		*dst++ = digits[id[i] & 15];
	}
	*dst = '\0';
}

void
idem_write_time(char *dst, size_t cap, int64_t us)
{
	int64_t		fraction = (us % 1000000 + 1000000) % 1000000;
	time_t		s = (time_t) ((us - fraction) / 1000000);
	struct tm	tm;

	gmtime_r(&s, &tm);
	snprintf(dst, cap, "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", tm.tm_year + 1900, tm.tm_mon + 1,
			 tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec, (int) fraction);
}

void
idem_text_add_base64(IdemText *t, const void *data, size_t len)
{
	static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
	const unsigned char *s = data;

	for (size_t i = 0; i < len; i += 3)
	{
		unsigned	v = (unsigned) s[i] << 16 | (i + 1 < len ? (unsigned) s[i + 1] << 8 : 0) |
		(i + 2 < len ? s[i + 2] : 0);
		char		four[4] = {digits[v >> 18], digits[v >> 12 & 63],
		i + 1 < len ? digits[v >> 6 & 63] : '=', i + 2 < len ? digits[v & 63] : '='};

		idem_text_add(t, four, 4);
	}
}

void
idem_text_add_encoded(IdemText *t, const void *data, size_t len)
{
	const char *value = data;
	static const char unreserved[] =
	"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
	static const char digits[] = "0123456789ABCDEF";

	for (size_t i = 0; i < len; i++)
	{
		unsigned char c = (unsigned char) value[i];
		char		code[3] = {'%', digits[c >> 4], digits[c & 15]};

		if (c != '\0' && strchr(unreserved, c) != NULL)
			idem_text_add(t, value + i, 1);
		else
			idem_text_add(t, code, sizeof(code));
	}
}
