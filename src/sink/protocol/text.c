/*-------------------------------------------------------------------------
 *
 * text.c
 *		Makes text of an untrusted peer fit for a log line or a view.
 *
 * INVARIANT
 *		The result is one line of valid UTF-8, whatever the peer sent.
 *
 * MEMORY
 *		None of its own.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/protocol/text.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/protocol/protocol.h"

#include <string.h>

/* Bytes of the UTF-8 character at p; 0 if the bytes there are not valid. */
static size_t
utf8_length(const uint8_t *p, size_t len)
{
	static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
	size_t		n = p[0] < 0x80 ? 1 : p[0] < 0xC2 ? 0 : p[0] < 0xE0 ? 2 :
	p[0] < 0xF0 ? 3 : p[0] < 0xF5 ? 4 : 0;
	uint32_t	code = n > 1 ? p[0] & (0x7F >> n) : p[0];

	if (n == 0 || n > len)
		return 0;
	for (size_t i = 1; i < n; i++)
	{
		if ((p[i] & 0xC0) != 0x80)
			return 0;
		code = (code << 6) | (p[i] & 0x3F);
	}
	if (code < least[n] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
		return 0;
	return n;
}

size_t
idem_proto_clean_text(char *dst, size_t cap, IdemProtoStr src)
{
	const uint8_t *p = (const uint8_t *) src.data;
	size_t		out = 0;

	for (size_t i = 0; i < src.len;)
	{
		size_t		n = utf8_length(p + i, src.len - i);

		if (out + (n > 0 ? n : 1) >= cap)
			break;
		if (n == 0)
			dst[out++] = '?';
		else if (n == 1 && (p[i] < 0x20 || p[i] == 0x7F))
			dst[out++] = ' ';
		else
		{
			memcpy(dst + out, p + i, n);
			out += n;
		}
		i += n > 0 ? n : 1;
	}
	dst[out] = '\0';
	return out;
}
