/*-------------------------------------------------------------------------
 *
 * keyed_hint.c
 *		Where the newest row of a key was when somebody looked last.
 *
 * An index scan reads all entries of a page that fit, though only the first one is wanted.
 * Of a partition that is claimed all the time these are hundreds.  A scan that ends at
 * the newest row that is remembered reads only what is newer.
 *
 * LOCKING: none.
 *
 * MEMORY: the caller's, of a fixed size.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_hint.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "shared/keyed_hint.h"

/* The place of a key, whose digest is as good as random. */
static int
place_of(const pg_uuid_t *digest)
{
	return digest->data[0] % IDEM_KEYED_HINTS;
}

int64
idem_keyed_hint(const IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest, char kind)
{
	const IdemKeyedHint *hint = &hints->places[place_of(digest)];

	if (hint->index != index || hint->kind != kind ||
		memcmp(&hint->digest, digest, sizeof(*digest)) != 0)
		return 0;
	return hint->number;
}

void
idem_keyed_hint_note(IdemKeyedHints *hints, Oid index, const pg_uuid_t *digest, char kind,
					 int64 number)
{
	IdemKeyedHint *hint = &hints->places[place_of(digest)];

	hint->digest = *digest;
	hint->number = number;
	hint->index = index;
	hint->kind = kind;
}
