/*-------------------------------------------------------------------------
 *
 * expiry.c
 *		Is an event too old to be claimed?
 *
 * An event that was completed longer ago than its consumer's retention may be
 * forgotten, and a late delivery of the event looks like an event that was never
 * seen.  Two things tell how old an event is: the caller's valid_until, and an
 * id that is a UUID of version 7, which begins with the time when the id was
 * made.  The id counts only for consumers that say so (expire_by_id_age).
 *
 * Invariant: an event that the store may have forgotten, by a retention that is
 * over, has an id of at least the retention's age: the id was made before the
 * completion was, and the store's time does not run faster than the clock.  So
 * the exact retention is compared, and not the class that the store rounds it up
 * to.  A clock that was set back breaks this for as long as it is behind.
 *
 * A crash leaves nothing, because nothing is written.
 *
 * LOCKING, MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/expiry.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "claim/expiry.h"

#define UUID_TEXT_LENGTH	36

/* Where the canonical text of a UUID has its version, its variant and its time. */
#define VERSION_AT			14
#define VARIANT_AT			19
#define TIME_DIGITS			12	/* hexadecimal, with a hyphen among them */

/* The value of a digit of the canonical text, which is lower case; -1: none. */
static int
digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool
is_hyphen_place(int at)
{
	return at == 8 || at == 13 || at == 18 || at == 23;
}

/* Is the id the canonical text of a UUID of version 7? */
static bool
is_uuid7(const char *id, int idlen)
{
	if (idlen != UUID_TEXT_LENGTH)
		return false;
	for (int i = 0; i < UUID_TEXT_LENGTH; i++)
	{
		if (is_hyphen_place(i) ? id[i] != '-' : digit_value(id[i]) < 0)
			return false;
	}
	return id[VERSION_AT] == '7' && (digit_value(id[VARIANT_AT]) & 0xC) == 0x8;
}

/* When a UUID of version 7 was made, by its first 48 bits: milliseconds since 1970. */
static TimestampTz
uuid7_time(const char *id)
{
	int64		ms = 0;

	for (int i = 0, digits = 0; digits < TIME_DIGITS; i++)
	{
		if (is_hyphen_place(i))
			continue;
		ms = ms << 4 | (digit_value(id[i]) & 0xF);
		digits++;
	}
	return ms * 1000 -
		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
}

bool
idem_expiry_passed(const TimestampTz *valid_until, const IdemConsumerPolicy *policy,
				   const char *id, int idlen, TimestampTz now)
{
	if (valid_until != NULL)
		return *valid_until < now;
	if (!policy->expire_by_id_age || policy->retention == 0 || !is_uuid7(id, idlen))
		return false;
	return now - uuid7_time(id) > policy->retention * USECS_PER_SEC;
}
