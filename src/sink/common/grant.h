/*-------------------------------------------------------------------------
 *
 * grant.h
 *		The answers of OAuth 2.0 token servers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/grant.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_GRANT_H
#define IDEM_SINK_GRANT_H

#include <stddef.h>
#include <stdint.h>

/* What a token server gives. */
typedef struct IdemGrant
{
	char	   *token;			/* owned */
	int64_t		life;			/* ms */
} IdemGrant;

/* Read the answer of a token server.  Returns NULL, or what is wrong with it. */
extern const char *idem_read_grant(const char *answer, size_t len, IdemGrant *grant);

/* Which of the errors of RFC 6749 does the answer name?  NULL: none. */
extern const char *idem_read_denial(const char *answer, size_t len);

#endif							/* IDEM_SINK_GRANT_H */
