/*-------------------------------------------------------------------------
 *
 * document.c
 *		How long the text of a jsonb may be.
 *
 * A jsonb that is stored will be text again: in a dump, in a view, at a sink.  Its
 * binary form does not bound that text.  The number 1e131071 has 16 bytes in an
 * array, and 131,072 digits as text: a document of 130 kB has a text of more than 1 GB,
 * which the server cannot make.  Whoever stored such a document would stop each
 * relay and each pg_dump that comes to it.  So it is refused when it comes in.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING: none.
 *
 * MEMORY: the document, if it came compressed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/document.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "utils/jsonb.h"
#include "utils/numeric.h"

#include "shared/document.h"

/* The longest text of a number, and the fewest bytes that a number takes. */
#define NUMBER_TEXT		(131072 + 16383 + 2)
#define NUMBER_BYTES	12

/*
 * The first 16 bits of a numeric, as they stand on disk since PostgreSQL 9.1.  The server
 * keeps the names to itself, and numeric_send() costs more than all else here.  A
 * long numeric has its weight in the 16 bits that follow.
 */
#define NUMERIC_IS_SHORT		0x8000
#define NUMERIC_IS_SPECIAL		0xC000
#define SHORT_DSCALE(head)		((head) >> 7 & 0x3F)
#define SHORT_WEIGHT(head)		(((head) & 0x40) != 0 ? -1 : (head) & 0x3F)
#define LONG_DSCALE(head)		((head) & 0x3FFF)

/* The length of a number's text, at most: 4 digits for each digit before the point. */
static int64
number_length(Numeric number)
{
	const char *data = VARDATA_ANY(number);
	uint16		head;
	int16		weight;
	int			dscale;

	memcpy(&head, data, sizeof(head));
	if ((head & NUMERIC_IS_SPECIAL) == NUMERIC_IS_SPECIAL)
		return strlen("-Infinity");
	if ((head & NUMERIC_IS_SHORT) != 0)
	{
		weight = SHORT_WEIGHT(head);
		dscale = SHORT_DSCALE(head);
	}
	else
	{
		memcpy(&weight, data + sizeof(head), sizeof(weight));
		dscale = LONG_DSCALE(head);
	}
	return 1 + 4 * (int64) Max(weight + 1, 1) + 1 + dscale;
}

/* The length of a string's text, at most. */
static int64
string_length(const char *s, int len)
{
	int64		result = len + 2;

	for (int i = 0; i < len; i++)
	{
		if ((unsigned char) s[i] < ' ')
			result += 5;
		else if (s[i] == '"' || s[i] == '\\')
			result++;
	}
	return result;
}

/* The length of what a token adds to the text, with what separates it. */
static int64
token_length(JsonbIteratorToken token, const JsonbValue *value)
{
	if (token != WJB_KEY && token != WJB_VALUE && token != WJB_ELEM)
		return 2;
	if (value->type == jbvString)
		return 2 + string_length(value->val.string.val, value->val.string.len);
	if (value->type == jbvNumeric)
		return 2 + number_length(value->val.numeric);
	return 2 + strlen("false");
}

/* Is the text of a document at most so long? */
static bool
text_fits(Jsonb *document, int64 max)
{
	JsonbIterator *it = JsonbIteratorInit(&document->root);
	JsonbIteratorToken token;
	JsonbValue	value;

	while (max >= 0 && (token = JsonbIteratorNext(&it, &value, false)) != WJB_DONE)
		max -= token_length(token, &value);
	return max >= 0;
}

void
idem_check_document(const char *name, Datum jsonb, int64 max_binary)
{
	int64		max = Min(max_binary * IDEM_DOCUMENT_GROWTH, IDEM_MAX_DOCUMENT_TEXT);

	/* too small for so long a text, as most are */
	if ((int64) toast_raw_datum_size(jsonb) / NUMBER_BYTES * NUMBER_TEXT <= max)
		return;
	if (!text_fits(DatumGetJsonbP(jsonb), max))
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("argument \"%s\" is too long as text", name),
				 errdetail("Its text has more than " INT64_FORMAT " bytes.", max),
				 errhint("Give numbers with thousands of digits as strings, or store the data elsewhere and give a reference.")));
}

/*
 * A string as JSON has it.
 *
 * Strings are copied by the stretches that need no escape; the server's
 * escape_json() appends them character by character.
 */

/* The second character of the escape; 'u' for \u00xx, 0 for none. */
static const char escape_of[256] = {
	'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'b', 't', 'n', 'u', 'f', 'r', 'u', 'u',
	'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u', 'u',
	['"'] = '"',['\\'] = '\\'
};

/* Append a character as its escape. */
static void
write_escape(StringInfo out, unsigned char c)
{
	if (escape_of[c] == 'u')
		appendStringInfo(out, "\\u%04x", c);
	else
	{
		appendStringInfoCharMacro(out, '\\');
		appendStringInfoCharMacro(out, escape_of[c]);
	}
}

void
idem_json_write_string(StringInfo out, const char *s, int len)
{
	const char *end = s + len;

	appendStringInfoCharMacro(out, '"');
	while (s < end)
	{
		const char *from = s;

		while (s < end && escape_of[(unsigned char) *s] == 0)
			s++;
		appendBinaryStringInfo(out, from, s - from);
		if (s < end)
			write_escape(out, *s++);
	}
	appendStringInfoCharMacro(out, '"');
}
