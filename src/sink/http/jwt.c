/*-------------------------------------------------------------------------
 *
 * jwt.c
 *		The assertion with which a service account of Google asks for a token.
 *
 * A JSON Web Token by RFC 7523, signed with the account's RSA key (RS256).
 *
 * INVARIANT
 *		No message has a byte of the account's key.
 *
 * MEMORY
 *		Key and texts of the account live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/jwt.c
 *
 *-------------------------------------------------------------------------
 */
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "sink/http/sink.h"

#define SCOPE		"https://www.googleapis.com/auth/pubsub"
#define LIFE		3600		/* s; Google allows an hour */

struct HSinkAccount
{
	char	   *email;
	char	   *key_id;			/* or NULL */
	char	   *token_uri;
	EVP_PKEY   *key;
};

/* A key with a password would make OpenSSL ask the terminal for it. */
static int
no_password(char *buf, int size, int writing, void *opaque)
{
	(void) buf;
	(void) size;
	(void) writing;
	(void) opaque;
	return -1;
}

/* Read the key; NULL if the text is none. */
static EVP_PKEY *
read_key(const char *pem)
{
	BIO		   *bio = BIO_new_mem_buf(pem, -1);
	EVP_PKEY   *key = bio != NULL ? PEM_read_bio_PrivateKey(bio, NULL, no_password, NULL) : NULL;

	BIO_free(bio);
	if (key != NULL && EVP_PKEY_base_id(key) == EVP_PKEY_RSA)
		return key;
	EVP_PKEY_free(key);
	return NULL;
}

const char *
hsink_read_account(HSinkConfig *c)
{
	const char *json = c->service_account;
	size_t		len = strlen(json);
	HSinkAccount *a = idem_sink_alloc(sizeof(*a));
	char	   *pem = idem_json_string(json, len, "private_key");

	a->email = idem_json_string(json, len, "client_email");
	a->key_id = idem_json_string(json, len, "private_key_id");
	a->token_uri = idem_json_string(json, len, "token_uri");
	a->key = pem != NULL ? read_key(pem) : NULL;
	free(pem);
	if (a->email == NULL || a->token_uri == NULL || a->key == NULL)
		return "must be the JSON of a service account's key, with client_email, private_key (RSA) and token_uri";
	c->account = a;
	c->token_url = a->token_uri;
	return NULL;
}

/* Add bytes in base64url, without padding, as RFC 7515 has it. */
static void
add_base64url(IdemText *t, const void *data, size_t len)
{
	size_t		start = t->len;

	idem_text_add_base64(t, data, len);
	while (t->len > start && t->data[t->len - 1] == '=')
		t->len--;
	for (size_t i = start; i < t->len; i++)
		t->data[i] = t->data[i] == '+' ? '-' : t->data[i] == '/' ? '_' : t->data[i];
}

/* Add header and claims. */
static void
add_claims(IdemText *t, const HSinkAccount *a)
{
	IdemText	json = {NULL, 0, 0};
	char		times[96];
	long long	now = (long long) time(NULL);

	idem_text_puts(&json, "{\"alg\":\"RS256\",\"typ\":\"JWT\"");
	if (a->key_id != NULL)
	{
		idem_text_puts(&json, ",\"kid\":");
		idem_text_add_json(&json, a->key_id, strlen(a->key_id));
	}
	idem_text_puts(&json, "}");
	add_base64url(t, json.data, json.len);
	idem_text_puts(t, ".");
	json.len = 0;
	idem_text_puts(&json, "{\"iss\":");
	idem_text_add_json(&json, a->email, strlen(a->email));
	idem_text_puts(&json, ",\"scope\":\"" SCOPE "\",\"aud\":");
	idem_text_add_json(&json, a->token_uri, strlen(a->token_uri));
	snprintf(times, sizeof(times), ",\"iat\":%lld,\"exp\":%lld}", now, now + LIFE);
	idem_text_puts(&json, times);
	add_base64url(t, json.data, json.len);
	free(json.data);
}

bool
hsink_add_assertion(IdemText *t, const HSinkConfig *c)
{
	size_t		start = t->len;
	EVP_MD_CTX *md = EVP_MD_CTX_new();
	size_t		len = 0;
	uint8_t    *signature = NULL;
	bool		ok;

	add_claims(t, c->account);
	ok = md != NULL && EVP_DigestSignInit(md, NULL, EVP_sha256(), NULL, c->account->key) == 1 &&
		EVP_DigestSign(md, NULL, &len, (const uint8_t *) t->data + start, t->len - start) == 1;
	if (ok)
	{
		signature = idem_sink_alloc(len);
		ok = EVP_DigestSign(md, signature, &len, (const uint8_t *) t->data + start, t->len - start) == 1;
	}
	if (ok)
	{
		idem_text_puts(t, ".");
		add_base64url(t, signature, len);
	}
	free(signature);
	EVP_MD_CTX_free(md);
	return ok;
}
