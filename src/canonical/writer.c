/*-------------------------------------------------------------------------
 *
 * writer.c
 *		JSON values in canonical form.
 *
 * Invariant: the text of a value depends on the value alone, not on how the
 * document was written, nor on the order in which jsonb keeps members, which is
 * by the length of the keys.  Two values have the same text if and only if they
 * are equal.
 *
 * A level of nesting is a level of recursion, which the server's check of the
 * stack bounds.
 *
 * LOCKING: none.
 *
 * MEMORY: the members of the objects that are open, in the caller's context;
 * freed with each object.  An array of members is no larger than the array that
 * jsonb itself needed to make the object.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/writer.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "port.h"
#include "port/pg_bswap.h"
#include "utils/fmgrprotos.h"

#include "compat.h"
#include "canonical/writer.h"
#include "shared/document.h"

/*
 * Strings of a document: canonical form, UTF-8, and the order of keys.
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
 */

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

/* Compare strings in UTF-8 by the UTF-16 code units that they stand for. */
static int
compare_utf16(const char *a, int alen, const char *b, int blen)
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

/*
 * Numbers of a document in canonical form.
 *
 * RFC 8785 writes a number as ECMAScript writes a double: take the shortest
 * digits that lead back to the double, and lay them out with or without an
 * exponent.  A number of jsonb is a decimal of any length, which a double may
 * not hold: 9007199254740993 and 9007199254740992 are one double.  So this file
 * takes the digits of the decimal itself, without zeros at either end, and lays
 * them out in the same way.
 *
 * Invariant: two numbers have the same form if and only if they are equal, since
 * a form can be read back as the number.  And the form is that of RFC 8785 if
 * the shortest digits of the nearest double are a decimal equal to the number:
 * then they are the number's own digits.  No double is ever computed.
 *
 * The digits come from numeric_send(), not from numeric_out(), which would write
 * 1e131071 with all its zeros: a document of a few kilobytes would take
 * gigabytes.
 */

/*
 * What numeric_send() writes: these 16-bit integers, then the base-10000 digits.
 * There may be up to 36,864 digits, so their number has no sign.
 */
enum
{
	SENT_NDIGITS,
	SENT_WEIGHT,				/* of the first digit: a power of 10000 */
	SENT_SIGN,
	SENT_SCALE,
	SENT_DIGITS
};

#define SENT_POSITIVE	0x0000
#define SENT_NEGATIVE	0x4000

/* Decimal digits in a digit of base 10000 */
#define DECIMALS		4

/* ECMAScript's bounds for a form without an exponent */
#define MAX_PLAIN_POINT 21
#define MIN_PLAIN_POINT (-5)

/* A number: 0.digits * 10^point.  Zero has no digits. */
typedef struct Decimal
{
	bool		negative;
	char	   *buffer;
	const char *digits;			/* in buffer; neither end is a zero */
	int			ndigits;
	int			point;
} Decimal;

static int16
sent_int16(const char *sent, int place)
{
	uint16		value;

	memcpy(&value, sent + place * sizeof(value), sizeof(value));
	return (int16) pg_ntoh16(value);
}

/* Leave out the zeros at both ends of the digits. */
static void
strip_zeros(Decimal *decimal)
{
	while (decimal->ndigits > 0 && decimal->digits[decimal->ndigits - 1] == '0')
		decimal->ndigits--;
	while (decimal->ndigits > 0 && decimal->digits[0] == '0')
	{
		decimal->digits++;
		decimal->ndigits--;
		decimal->point--;
	}
}

/* Take a number apart. */
static void
get_decimal(Numeric number, Decimal *decimal)
{
	bytea	   *value = DatumGetByteaPP(DirectFunctionCall1(numeric_send, NumericGetDatum(number)));
	const char *sent = VARDATA_ANY(value);
	uint16		sign = (uint16) sent_int16(sent, SENT_SIGN);
	int			ngroups = (uint16) sent_int16(sent, SENT_NDIGITS);
	char	   *p;

	if (sign != SENT_POSITIVE && sign != SENT_NEGATIVE)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("argument \"%s\" contains a number that is not finite", "document")));

	p = decimal->buffer = palloc(ngroups * DECIMALS + 1);
	for (int i = 0; i < ngroups; i++)
	{
		int			group = sent_int16(sent, SENT_DIGITS + i);

		for (int power = 1000; power > 0; power /= 10)
			*p++ = '0' + group / power % 10;
	}
	decimal->negative = sign == SENT_NEGATIVE;
	decimal->digits = decimal->buffer;
	decimal->ndigits = ngroups * DECIMALS;
	decimal->point = (sent_int16(sent, SENT_WEIGHT) + 1) * DECIMALS;
	strip_zeros(decimal);
	pfree(value);
}

static void
append_zeros(StringInfo out, int n)
{
	for (int i = 0; i < n; i++)
		appendStringInfoChar(out, '0');
}

/* Append digits, with a decimal point behind the first n if there are more. */
static void
append_pointed(StringInfo out, const Decimal *decimal, int n)
{
	appendBinaryStringInfo(out, decimal->digits, Min(n, decimal->ndigits));
	append_zeros(out, n - decimal->ndigits);
	if (decimal->ndigits > n)
	{
		appendStringInfoChar(out, '.');
		appendBinaryStringInfo(out, decimal->digits + n, decimal->ndigits - n);
	}
}

/*
 * Append the canonical form of a number.  Error 22023 if it is not finite,
 * which JSON has no form for.
 */
static void
write_number(StringInfo out, Numeric number)
{
	Decimal		decimal;

	get_decimal(number, &decimal);
	if (decimal.ndigits == 0)
		appendStringInfoChar(out, '0');
	else
	{
		if (decimal.negative)
			appendStringInfoChar(out, '-');
		if (decimal.point > MAX_PLAIN_POINT || decimal.point < MIN_PLAIN_POINT)
		{
			append_pointed(out, &decimal, 1);
			appendStringInfo(out, "e%+d", decimal.point - 1);
		}
		else if (decimal.point > 0)
			append_pointed(out, &decimal, decimal.point);
		else
		{
			appendStringInfoString(out, "0.");
			append_zeros(out, -decimal.point);
			appendBinaryStringInfo(out, decimal.digits, decimal.ndigits);
		}
	}
	pfree(decimal.buffer);
}

StaticAssertDecl(sizeof(IdemMember) <= sizeof(JsonbPair),
				 "any object of jsonb has room as an array of IdemMember");

void
idem_canonical_set_key(IdemMember *member, const char *key, int keylen)
{
	member->key = key;
	member->keylen = keylen;
	member->utf8 = idem_canonical_utf8(key, keylen, &member->utf8len);
}

/* Order of members (callback of qsort_interruptible) */
static int
compare_members(const void *a, const void *b, void *arg)
{
	const IdemMember *x = a;
	const IdemMember *y = b;

	return compare_utf16(x->utf8, x->utf8len, y->utf8, y->utf8len);
}

void
idem_canonical_sort(IdemMember *members, int n)
{
	qsort_interruptible(members, n, sizeof(IdemMember), compare_members, NULL);
}

void
idem_canonical_write_object(StringInfo out, const IdemMember *members, int n)
{
	appendStringInfoChar(out, '{');
	for (int i = 0; i < n; i++)
	{
		if (i > 0)
			appendStringInfoChar(out, ',');
		idem_json_write_string(out, members[i].key, members[i].keylen);
		appendStringInfoChar(out, ':');
		idem_canonical_write(out, &members[i].value);
	}
	appendStringInfoChar(out, '}');
}

/* Append an object of the document. */
static void
write_object(StringInfo out, JsonbContainer *container)
{
	int			n = JsonContainerSize(container);
	IdemMember *members = palloc(Max(n, 1) * sizeof(IdemMember));
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbValue	value;
	int			i = 0;

	(void) JsonbIteratorNext(&it, &value, true);	/* WJB_BEGIN_OBJECT */
	while (JsonbIteratorNext(&it, &value, true) == WJB_KEY)
	{
		CHECK_FOR_INTERRUPTS();
		idem_canonical_set_key(&members[i], value.val.string.val, value.val.string.len);
		(void) JsonbIteratorNext(&it, &members[i].value, true); /* WJB_VALUE */
		i++;
	}
	Assert(i == n);
	idem_canonical_sort(members, n);
	idem_canonical_write_object(out, members, n);

	for (i = 0; i < n; i++)
	{
		if (members[i].utf8 != members[i].key)
			pfree(unconstify(char *, members[i].utf8));
	}
	pfree(members);
}

/* Append an array of the document. */
static void
write_array(StringInfo out, JsonbContainer *container)
{
	JsonbIterator *it = JsonbIteratorInit(container);
	JsonbValue	value;
	bool		first = true;

	appendStringInfoChar(out, '[');
	(void) JsonbIteratorNext(&it, &value, true);	/* WJB_BEGIN_ARRAY */
	while (JsonbIteratorNext(&it, &value, true) == WJB_ELEM)
	{
		if (!first)
			appendStringInfoChar(out, ',');
		first = false;
		idem_canonical_write(out, &value);
	}
	appendStringInfoChar(out, ']');
}

void
idem_canonical_write(StringInfo out, const JsonbValue *value)
{
	check_stack_depth();
	CHECK_FOR_INTERRUPTS();

	switch (value->type)
	{
		case jbvNull:
			appendStringInfoString(out, "null");
			break;
		case jbvBool:
			appendStringInfoString(out, value->val.boolean ? "true" : "false");
			break;
		case jbvNumeric:
			write_number(out, value->val.numeric);
			break;
		case jbvString:
			idem_json_write_string(out, value->val.string.val, value->val.string.len);
			break;
		case jbvBinary:
			if (JsonContainerIsObject(value->val.binary.data))
				write_object(out, value->val.binary.data);
			else
				write_array(out, value->val.binary.data);
			break;
		default:
			elog(ERROR, "unexpected type of a JSON value: %d", (int) value->type);
	}
}
