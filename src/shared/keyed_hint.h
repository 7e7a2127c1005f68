/*-------------------------------------------------------------------------
 *
 * keyed_hint.h
 *		Where the newest row of a key was when somebody looked last.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_hint.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_HINT_H
#define IDEM_KEYED_HINT_H

#include "postgres.h"

#include "utils/uuid.h"

#define IDEM_KEYED_HINTS	64

typedef struct IdemKeyedHint
{
	pg_uuid_t	digest;
	int64		number;			/* 0: the place is free */
	Oid			index;
	char		kind;
} IdemKeyedHint;

/* What one reader remembers: zeroed, it remembers nothing. */
typedef struct IdemKeyedHints
{
	IdemKeyedHint places[IDEM_KEYED_HINTS];
} IdemKeyedHints;

/* The number that was noted of a digest and kind in an index; 0: none is remembered. */
extern int64 idem_keyed_hint(const IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest,
							 char kind);

/* Note a number.  The key takes the place of another one. */
extern void idem_keyed_hint_note(IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest,
								 char kind, int64 number);

#endif							/* IDEM_KEYED_HINT_H */
