/*-------------------------------------------------------------------------
 *
 * sound.h
 *		Is a value of a row one that the extension could have written?
 *
 * Rows that a dump brings, or a role that may write all data, are only held to what the
 * tables' constraints say.  A constraint may be gone, so C asks as well.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/sound.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SOUND_H
#define IDEM_SOUND_H

#include "postgres.h"

#include "access/detoast.h"
#include "datatype/timestamp.h"

#include "shared/args.h"

/* No time, number of seconds or count of the extension's is as large; sums of a few do not overflow. */
#define IDEM_SOUND_NUMBER	(INT64CONST(1) << 60)
#define IDEM_SOUND_SECONDS	(INT64CONST(1) << 40)
#define IDEM_SOUND_COUNT	1000000000

/* A time of the clock's. */
static inline bool
idem_sound_time(Datum value, bool isnull)
{
	return !isnull && !TIMESTAMP_NOT_FINITE(DatumGetTimestampTz(value));
}

/* NULL, or such a time. */
static inline bool
idem_sound_time_or_null(Datum value, bool isnull)
{
	return isnull || idem_sound_time(value, isnull);
}

/* A bigint from min to max. */
static inline bool
idem_sound_number(Datum value, bool isnull, int64 min, int64 max)
{
	return !isnull && DatumGetInt64(value) >= min && DatumGetInt64(value) <= max;
}

/* NULL, or such a number. */
static inline bool
idem_sound_number_or_null(Datum value, bool isnull, int64 min, int64 max)
{
	return isnull || idem_sound_number(value, isnull, min, max);
}

/* When a row was written and for how long it is kept, in seconds of uptime.h; or both are NULL. */
static inline bool
idem_sound_expiry(Datum written, bool written_isnull, Datum kept, bool kept_isnull)
{
	return written_isnull == kept_isnull &&
		idem_sound_number_or_null(written, written_isnull, 0, IDEM_SOUND_SECONDS) &&
		idem_sound_number_or_null(kept, kept_isnull, 0, IDEM_SOUND_SECONDS);
}

/* An interval that is longer than nothing, and short enough to be computed with. */
static inline bool
idem_sound_duration(Datum value, bool isnull)
{
	int64		us = isnull ? 0 : idem_interval_us((const Interval *) DatumGetPointer(value));

	return us > 0 && us < IDEM_SOUND_NUMBER;
}

/* A text of min to max bytes, which is not detoasted. */
static inline bool
idem_sound_text(Datum value, bool isnull, Size min, Size max)
{
	Size		len = isnull ? 0 : toast_raw_datum_size(value) - VARHDRSZ;

	return !isnull && len >= min && len <= max;
}

/* NULL, or such a text. */
static inline bool
idem_sound_text_or_null(Datum value, bool isnull, Size min, Size max)
{
	return isnull || idem_sound_text(value, isnull, min, max);
}

#endif							/* IDEM_SOUND_H */
