/*-------------------------------------------------------------------------
 *
 * hide.c
 *		Keeps secrets and events out of messages.
 *
 * A target learns the login of a sink, and the events.  It may repeat either in
 * an answer or an error, and the text of that becomes a line of the server log,
 * a value of stat_relay, or the text of a dead letter.  So a program gives each
 * secret to this file, and asks it about each text that a target has written.
 *
 * A part of a secret is enough to hide a text: targets cut what they repeat.  A
 * secret that is shorter than a run counts as a whole.
 *
 * INVARIANT
 *		The time is linear in the texts, as long as the target did not choose the
 *		data as well; then it is bounded by the kilobyte of a message.
 *
 * LOCKING
 *		secrets_lock, around all variables of this file: libraries have threads
 *		of their own that write messages.  Nothing else is locked inside.
 * MEMORY
 *		Copies of the secrets, which live as long as the program.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/hide.c
 *
 *-------------------------------------------------------------------------
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE				/* memmem */
#endif

#include "sink/common/hide.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/program.h"

#define SECRET_RUN		12		/* characters that count as the secret */
#define EVENT_RUN		16		/* bytes that count as the event */
#define LEAST_EVENT		8		/* less is in many texts by chance */
#define TOKENS			8		/* a late answer may repeat a former token */
#define HASH_BITS		16
#define HASH_BASE		0x01000193u

static pthread_mutex_t secrets_lock = PTHREAD_MUTEX_INITIALIZER;
static char **secrets;
static int	n_secrets;
static char *tokens[TOKENS];	/* the newest first */

/*
 * The hash of the run bytes that end at data[i], from that of those one byte
 * before; power is HASH_BASE to the power of run.
 */
static uint32_t
roll(uint32_t hash, const uint8_t *data, size_t i, size_t run, uint32_t power)
{
	hash = hash * HASH_BASE + data[i];
	return i >= run ? hash - power * data[i - run] : hash;
}

/* The bit of a hash, among 2^HASH_BITS. */
static uint32_t
bit_of(uint32_t hash)
{
	return (hash * 0x9E3779B1u) >> (32 - HASH_BITS);
}

/*
 * Have text and data so many bytes in a row in common?  A bit for each run of
 * the text tells which runs of the data are worth a look.
 */
static bool
share_run(const char *text, size_t len, const void *data, size_t data_len, size_t run)
{
	const uint8_t *a = (const uint8_t *) text;
	const uint8_t *b = data;
	uint64_t	bits[(1 << HASH_BITS) / 64] = {0};
	uint32_t	power = 1;
	uint32_t	hash = 0;

	if (len < run || data_len < run)
		return false;
	for (size_t i = 0; i < run; i++)
		power *= HASH_BASE;
	for (size_t i = 0; i < len; i++)
	{
		hash = roll(hash, a, i, run, power);
		if (i + 1 >= run)
			bits[bit_of(hash) / 64] |= UINT64_C(1) << bit_of(hash) % 64;
	}
	hash = 0;
	for (size_t i = 0; i < data_len; i++)
	{
		hash = roll(hash, b, i, run, power);
		if (i + 1 >= run && (bits[bit_of(hash) / 64] >> bit_of(hash) % 64 & 1) != 0 &&
			memmem(a, len, b + i + 1 - run, run) != NULL)
			return true;
	}
	return false;
}

/* Has the text the data in it as a whole if they are short, else a run of them? */
static bool
has_part_of(const char *text, size_t len, const void *data, size_t data_len, size_t run)
{
	if (len == 0)
		return false;
	return data_len < run ? memmem(text, len, data, data_len) != NULL :
		share_run(text, len, data, data_len, run);
}

void
idem_sink_keep_secret(const char *secret)
{
	if (secret == NULL || secret[0] == '\0')
		return;
	pthread_mutex_lock(&secrets_lock);
	secrets = idem_sink_realloc(secrets, (size_t) (n_secrets + 1) * sizeof(char *));
	secrets[n_secrets++] = idem_sink_strdup(secret, strlen(secret));
	pthread_mutex_unlock(&secrets_lock);
}

void
idem_sink_keep_token(const char *token)
{
	if (token == NULL || token[0] == '\0')
		return;
	pthread_mutex_lock(&secrets_lock);
	free(tokens[TOKENS - 1]);
	memmove(tokens + 1, tokens, (TOKENS - 1) * sizeof(char *));
	tokens[0] = idem_sink_strdup(token, strlen(token));
	pthread_mutex_unlock(&secrets_lock);
}

bool
idem_sink_has_secret(const char *text, size_t len)
{
	bool		found = false;

	pthread_mutex_lock(&secrets_lock);
	for (int i = 0; i < n_secrets && !found; i++)
		found = has_part_of(text, len, secrets[i], strlen(secrets[i]), SECRET_RUN);
	for (int i = 0; i < TOKENS && !found; i++)
		found = tokens[i] != NULL && has_part_of(text, len, tokens[i], strlen(tokens[i]), SECRET_RUN);
	pthread_mutex_unlock(&secrets_lock);
	return found;
}

const char *
idem_sink_without_secrets(const char *text)
{
	size_t		len = strnlen(text, IDEM_SINK_LOOKED_AT(IDEM_PROTO_MAX_MESSAGE));

	return idem_sink_has_secret(text, len) ? "the text " IDEM_SINK_HIDES_SECRET : text;
}

bool
idem_sink_repeats(const char *text, size_t len, const void *data, size_t data_len)
{
	return data_len >= LEAST_EVENT && has_part_of(text, len, data, data_len, EVENT_RUN);
}
