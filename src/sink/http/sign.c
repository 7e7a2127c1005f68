/*-------------------------------------------------------------------------
 *
 * sign.c
 *		Signatures of Standard Webhooks, and hashes.
 *
 * A signature is over id, time of the try and body.  Each secret signs, so a
 * receiver verifies during a rotation with the old one or the new one.
 *
 * MEMORY
 *		The secrets live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/sign.c
 *
 *-------------------------------------------------------------------------
 */
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sink/http/sink.h"

#define PREFIX			"whsec_"
#define MAX_SIGNERS		8
#define LEAST_KEY		24		/* bytes, by the standard */
#define MOST_KEY		64
#define MAC_BYTES		32

/* Decode a secret.  False: it is none. */
static bool
decode(const char *text, HSinkSigner *s)
{
	size_t		len = strlen(text);
	uint8_t		buf[128];
	int			n;

	if (len == 0 || len % 4 != 0 || len / 4 * 3 > sizeof(buf))
		return false;
	n = EVP_DecodeBlock(buf, (const unsigned char *) text, (int) len);
	if (n < 0)
		return false;
	n -= text[len - 1] == '=';
	n -= text[len - 2] == '=';
	if (n < LEAST_KEY || n > MOST_KEY)
		return false;
	s->key = idem_sink_alloc((size_t) n);
	memcpy(s->key, buf, (size_t) n);
	s->len = (size_t) n;
	return true;
}

const char *
hsink_read_signers(HSinkConfig *c, char *text)
{
	char	   *rest = NULL;

	c->signers = idem_sink_alloc(MAX_SIGNERS * sizeof(HSinkSigner));
	for (char *word = strtok_r(text, " \t\r\n", &rest); word != NULL; word = strtok_r(NULL, " \t\r\n", &rest))
	{
		if (c->n_signers == MAX_SIGNERS)
			return "has too many secrets";
		if (strncmp(word, PREFIX, strlen(PREFIX)) != 0 ||
			!decode(word + strlen(PREFIX), &c->signers[c->n_signers++]))
			return "must be \"" PREFIX "\" and 24 to 64 bytes in base64, or several such secrets separated by blanks";
	}
	return c->n_signers > 0 ? NULL : "has no secret";
}

void
hsink_hmac(const void *key, size_t key_len, const IdemProtoStr *parts, int n, uint8_t *mac)
{
	IdemText	all = {NULL, 0, 0};
	unsigned	len = 0;

	for (int i = 0; i < n; i++)
		idem_text_add(&all, parts[i].data, parts[i].len);
	if (HMAC(EVP_sha256(), key, (int) key_len, (const unsigned char *) all.data, all.len, mac, &len) == NULL)
		memset(mac, 0, MAC_BYTES);	/* no memory; the receiver refuses it */
	free(all.data);
}

void
hsink_add_webhook_headers(const HSink *p, HSinkRequest *r, const char *id)
{
	char		seconds[24];
	uint8_t		mac[MAC_BYTES];
	IdemText	signatures = {NULL, 0, 0};
	IdemProtoStr parts[] = {
		{id, (uint32_t) strlen(id)}, {".", 1}, {seconds, 0}, {".", 1}, {r->payload, (uint32_t) r->payload_len}
	};

	snprintf(seconds, sizeof(seconds), "%lld", (long long) time(NULL));
	parts[2].len = (uint32_t) strlen(seconds);
	hsink_add_header(r, "webhook-id", id, strlen(id));
	hsink_add_header(r, "Idempotency-Key", id, strlen(id));
	hsink_add_header(r, "webhook-timestamp", seconds, strlen(seconds));
	for (int i = 0; i < p->config.n_signers; i++)
	{
		hsink_hmac(p->config.signers[i].key, p->config.signers[i].len, parts, 5, mac);
		idem_text_puts(&signatures, i > 0 ? " v1," : "v1,");
		idem_text_add_base64(&signatures, mac, sizeof(mac));
	}
	if (signatures.len > 0)
		hsink_add_header(r, "webhook-signature", signatures.data, signatures.len);
	free(signatures.data);
}

void
hsink_hash(const void *data, size_t len, char *hex)
{
	uint8_t		hash[EVP_MAX_MD_SIZE] = {0};
	unsigned	n = 0;

	(void) EVP_Digest(data, len, hash, &n, EVP_sha256(), NULL);
	for (int i = 0; i < MAC_BYTES; i++)
		snprintf(hex + 2 * i, 3, "%02x", hash[i]);
}

void
hsink_hash_ids(const HSinkRequest *r, char *hex)
{
	IdemText	ids = {NULL, 0, 0};

	for (uint32_t i = 0; i < r->count; i++)
		idem_text_add(&ids, r->events[i]->id, IDEM_UUID_TEXT);
	hsink_hash(ids.data, ids.len, hex);
	free(ids.data);
}
