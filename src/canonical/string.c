/*-------------------------------------------------------------------------
 *
 * string.c
 *		Strings of a document: canonical form, UTF-8, and the order of keys.
 *
 * A text is written in the server's encoding, and becomes UTF-8 as a whole.
 * That is the same as strings that become UTF-8 one by one, because everything
 * that is written around them, and every character that is escaped, is ASCII:
 * in each encoding of a server an ASCII byte is never a part of another
 * character.
 *
 * In a database of the encoding SQL_ASCII nobody knows what the bytes mean.
 * JSON is UTF-8, so there bytes that are valid UTF-8 are taken for UTF-8.  Other
 * bytes are an error, since no text could be right for them.
 *
 * LOCKING: none.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/string.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "mb/pg_wchar.h"

#include "canonical/string.h"

/*
 * The first bytes of UTF-8 for U+E000 to U+FFFF, and for all characters above.
 * UTF-16 writes the latter as two surrogates, which are less than U+E000.
 */
#define FIRST_PRIVATE_BYTE	0xEE
#define FIRST_ASTRAL_BYTE	0xF0

static bool
is_ascii(const char *s, int len)
{
	for (int i = 0; i < len; i++)
	{
		if (IS_HIGHBIT_SET(s[i]))
			return false;
	}
	return true;
}

const char *
idem_canonical_utf8(const char *s, int len, int *utf8len)
{
	int			encoding = GetDatabaseEncoding();
	char	   *utf8;

	*utf8len = len;
	if (encoding == PG_UTF8 || is_ascii(s, len))
		return s;
	if (encoding == PG_SQL_ASCII)
	{
		if (!pg_verify_mbstr(PG_UTF8, s, len, true))
			ereport(ERROR,
					(errcode(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
					 errmsg("the document or a field contains bytes that are not UTF-8"),
					 errdetail("The encoding of the database is SQL_ASCII, so the server does not know what other bytes mean."),
					 errhint("Send UTF-8, or use a database with the encoding of its clients.")));
		return s;
	}
	utf8 = pg_server_to_any(s, len, PG_UTF8);
	*utf8len = strlen(utf8);
	return utf8;
}

int
idem_canonical_compare(const char *a, int alen, const char *b, int blen)
{
	for (int i = 0; i < Min(alen, blen); i++)
	{
		unsigned char x = a[i];
		unsigned char y = b[i];

		if (x == y)
			continue;
		if (x >= FIRST_PRIVATE_BYTE && y >= FIRST_PRIVATE_BYTE &&
			(x >= FIRST_ASTRAL_BYTE) != (y >= FIRST_ASTRAL_BYTE))
			return x >= FIRST_ASTRAL_BYTE ? -1 : 1;
		return x < y ? -1 : 1;
	}
	return alen < blen ? -1 : alen > blen;
}
