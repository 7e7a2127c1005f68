/*-------------------------------------------------------------------------
 *
 * writer.h
 *		JSON values in canonical form.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/canonical/writer.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CANONICAL_WRITER_H
#define IDEM_CANONICAL_WRITER_H

#include "postgres.h"

#include "lib/stringinfo.h"
#include "utils/jsonb.h"

/* A member of an object. */
typedef struct IdemMember
{
	const char *key;			/* in the server's encoding */
	const char *utf8;			/* the same in UTF-8, for the order */
	int			keylen;
	int			utf8len;
	JsonbValue	value;
} IdemMember;

/* Set the key of a member.  Errors as idem_canonical_utf8. */
extern void idem_canonical_set_key(IdemMember *member, const char *key, int keylen);

/* Put members into the order in which an object has them. */
extern void idem_canonical_sort(IdemMember *members, int n);

/* Append an object of members that are in order. */
extern void idem_canonical_write_object(StringInfo out, const IdemMember *members, int n);

/* Append a value.  Error 54001 if it is nested too deep for the stack. */
extern void idem_canonical_write(StringInfo out, const JsonbValue *value);

/*
 * The string in UTF-8: s itself if its bytes stay the same, else a palloc'd
 * copy.  Error 22P05 if UTF-8 lacks a character, and 22021 if the database's
 * encoding is SQL_ASCII and the bytes are not UTF-8.
 */
extern const char *idem_canonical_utf8(const char *s, int len, int *utf8len);

#endif							/* IDEM_CANONICAL_WRITER_H */
