/*-------------------------------------------------------------------------
 *
 * utf8.c
 *		Text of the server in UTF-8, which sink programs speak.
 *
 * The server's own pg_server_to_any() raises an error for text that cannot be
 * converted.  The error, caught or not, would end the transaction, and the
 * relay would stop at an event that alone is at fault.  The functions of this
 * file return false instead.
 *
 * MEMORY: text in another encoding takes four bytes per byte, in the caller's
 * current context, until that is reset.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/utf8.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "catalog/namespace.h"
#include "mb/pg_wchar.h"
#include "utils/jsonb.h"
#include "utils/memutils.h"

#include "relay/stream/json_text.h"
#include "relay/stream/utf8.h"

/*
 * Convert text of an encoding other than UTF-8; false if that is not possible.
 */
static bool
convert(const char *data, int len, IdemProtoStr *out)
{
	int			encoding = GetDatabaseEncoding();
	Size		room = ((Size) len + 1) * MAX_CONVERSION_GROWTH + 1;
	Oid			conversion;
	unsigned char *converted;

	if (encoding == PG_SQL_ASCII)
		return pg_verify_mbstr(PG_UTF8, data, len, true);

	conversion = FindDefaultConversionProc(encoding, PG_UTF8);
	if (!OidIsValid(conversion) || room > INT_MAX)
		return false;
	converted = MemoryContextAllocHuge(CurrentMemoryContext, room);
	if (pg_do_encoding_conversion_buf(conversion, encoding, PG_UTF8, (unsigned char *) data,
									  len, converted, (int) room, true) < len)
		return false;
	out->data = (char *) converted;
	out->len = strlen((char *) converted);
	return true;
}

bool
idem_utf8_text(IdemEventText text, IdemProtoStr *out)
{
	out->data = text.data;
	out->len = text.len;
	return text.len == 0 || GetDatabaseEncoding() == PG_UTF8 ||
	convert(text.data, text.len, out);
}

bool
idem_utf8_cstring(const char *s, IdemProtoStr *out)
{
	IdemEventText text = {s, strlen(s)};

	return idem_utf8_text(text, out);
}

bool
idem_utf8_jsonb(Datum jsonb, IdemProtoStr *out)
{
	StringInfoData buf;
	IdemEventText document;

	initStringInfo(&buf);
	idem_json_text(&buf, DatumGetJsonbP(jsonb));
	document.data = buf.data;
	document.len = buf.len;
	return idem_utf8_text(document, out);
}
