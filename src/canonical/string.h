/*-------------------------------------------------------------------------
 *
 * string.h
 *		Strings of a document: canonical form, UTF-8, and the order of keys.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/string.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_STRING_H
#define IDEM_CANONICAL_STRING_H

#include "postgres.h"

/*
 * The string in UTF-8: s itself if its bytes stay the same, else a palloc'd
 * copy.  Error 22P05 if UTF-8 lacks a character, and 22021 if the database's
 * encoding is SQL_ASCII and the bytes are not UTF-8.
 */
extern const char *idem_canonical_utf8(const char *s, int len, int *utf8len);

/* Compare strings in UTF-8 by the UTF-16 code units that they stand for. */
extern int	idem_canonical_compare(const char *a, int alen, const char *b, int blen);

#endif							/* IDEM_CANONICAL_STRING_H */
