/*-------------------------------------------------------------------------
 *
 * hide.c
 *		Knows the secrets, so that no message has one.
 *
 * A target learns the login with each request, and may repeat it in an answer
 * that becomes the text of a dead letter.
 *
 * MEMORY
 *		The secrets belong to the configuration, or to the token.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/hide.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memmem */
#endif

#include <string.h>

#include "sink/http/sink.h"

#define SECRET_RUN	12			/* characters of a secret that count as the
								 * secret */

void
hsink_keep_secret(HSink *p, const char *secret)
{
	if (secret == NULL || secret[0] == '\0')
		return;
	for (int i = 0; i < HSINK_MAX_SECRETS; i++)
		if (p->secrets[i] == NULL)
		{
			p->secrets[i] = secret;
			return;
		}
}

/* Has the text the secret in it, or a run of its characters? */
static bool
has_part_of(const char *text, size_t len, const char *secret)
{
	size_t		secret_len = strlen(secret);

	if (secret_len < SECRET_RUN)
		return memmem(text, len, secret, secret_len) != NULL;
	for (size_t i = 0; i + SECRET_RUN <= len; i++)
		if (memmem(secret, secret_len, text + i, SECRET_RUN) != NULL)
			return true;
	return false;
}

bool
hsink_has_secret(const HSink *p, const char *text, size_t len)
{
	for (int i = 0; i < HSINK_MAX_SECRETS; i++)
		if (p->secrets[i] != NULL && has_part_of(text, len, p->secrets[i]))
			return true;
	for (int i = 0; i < HSINK_FORMER_TOKENS; i++)
		if (p->token.former[i] != NULL && has_part_of(text, len, p->token.former[i]))
			return true;
	if (p->signature != NULL && has_part_of(text, len, p->signature))
		return true;
	return p->token.value != NULL && has_part_of(text, len, p->token.value);
}
