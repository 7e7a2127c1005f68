/*-------------------------------------------------------------------------
 *
 * number.c
 *		Numbers of a document in canonical form.
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
 *
 * LOCKING: none.
 *
 * MEMORY: temporary data is in the caller's context, and freed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/number.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "fmgr.h"
#include "port/pg_bswap.h"
#include "utils/fmgrprotos.h"

#include "compat.h"
#include "canonical/number.h"

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

void
idem_canonical_write_number(StringInfo out, Numeric number)
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
