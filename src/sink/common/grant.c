/*-------------------------------------------------------------------------
 *
 * grant.c
 *		Reads the answer of a token server.
 *
 * INVARIANT
 *		The answer is not trusted.  A token consists of the characters that RFC 6750
 *		allows, so it cannot end the field of the login that carries it.  What is said
 *		of an answer is a text of this file: an answer may hold a secret.
 *
 * MEMORY
 *		The token of a grant belongs to the caller.  LOCKING: none; reentrant.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/grant.c
 *
 *-------------------------------------------------------------------------
 */
#include "sink/common/grant.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "sink/common/json.h"
#include "sink/common/program.h"

#define MAX_TOKEN		(32 * 1024)
#define DEFAULT_LIFE	300		/* s, of a token whose life is not told */
#define MAX_LIFE		86400	/* s */

/* What RFC 6749 lets a token server say of a request that it refuses. */
static const char *const denials[] = {
	"invalid_request", "invalid_client", "invalid_grant", "unauthorized_client",
	"unsupported_grant_type", "invalid_scope", NULL
};

/* The members of an answer that matter here. */
typedef struct Answer
{
	IdemText	token;
	IdemText	type;
	IdemText	life;
	IdemText	error;
} Answer;

/* Take the members; of several with one name the last one counts. */
static void
take_members(const char *json, size_t len, Answer *a)
{
	IdemText	name = {NULL, 0, 0};
	const char *value;
	size_t		value_len;
	size_t		at = 0;

	while (idem_json_next(json, len, &at, &name, &value, &value_len))
	{
		IdemText   *to = name.len == 12 && memcmp(name.data, "access_token", 12) == 0 ? &a->token :
		name.len == 10 && memcmp(name.data, "token_type", 10) == 0 ? &a->type :
		name.len == 10 && memcmp(name.data, "expires_in", 10) == 0 ? &a->life :
		name.len == 5 && memcmp(name.data, "error", 5) == 0 ? &a->error : NULL;

		if (to == NULL)
			continue;
		to->len = 0;
		if (value[0] == '"')
			idem_json_unquote(to, value, value_len);
		else if (to == &a->life)	/* some servers send a string */
			idem_text_add(to, value, value_len);
	}
	free(name.data);
}

static void
free_answer(Answer *a)
{
	free(a->token.data);
	free(a->type.data);
	free(a->life.data);
	free(a->error.data);
}

/* Is the text a token as RFC 6750 writes them? */
static bool
is_token(const IdemText *t)
{
	static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/";
	size_t		n = 0;

	while (n < t->len && t->data[n] != '\0' && strchr(letters, t->data[n]) != NULL)
		n++;
	if (n == 0 || t->len > MAX_TOKEN)
		return false;
	while (n < t->len && t->data[n] == '=')
		n++;
	return n == t->len;
}

/* Read a life in seconds; a fraction is left out.  0: it is none. */
static int64_t
read_life(const IdemText *t)
{
	int64_t		life = 0;
	size_t		n = 0;

	for (; n < t->len && t->data[n] >= '0' && t->data[n] <= '9'; n++)
		life = life < MAX_LIFE ? life * 10 + (t->data[n] - '0') : MAX_LIFE;
	if (n < t->len && t->data[n] == '.')
		for (n++; n < t->len && t->data[n] >= '0' && t->data[n] <= '9';)
			n++;
	return n < t->len ? 0 : life < MAX_LIFE ? life : MAX_LIFE;
}

/* What is wrong with the answer, or NULL. */
static const char *
judge(const Answer *a, IdemGrant *grant)
{
	int64_t		life = a->life.len > 0 ? read_life(&a->life) : DEFAULT_LIFE;

	if (a->token.len == 0)
		return "its answer has no access_token";
	if (!is_token(&a->token))
		return "the access_token of its answer is not valid";
	if (a->type.len > 0 && (a->type.len != 6 || strncasecmp(a->type.data, "bearer", 6) != 0))
		return "the token_type of its answer is not Bearer";
	if (life == 0)
		return "the expires_in of its answer is not a number above 0";
	grant->token = idem_sink_strdup(a->token.data, a->token.len);
	grant->life = life * 1000;
	return NULL;
}

const char *
idem_read_grant(const char *answer, size_t len, IdemGrant *grant)
{
	Answer		a = {0};
	const char *problem;

	if (!idem_json_is_object(answer, len))
		return "its answer is not a JSON object";
	take_members(answer, len, &a);
	problem = judge(&a, grant);
	free_answer(&a);
	return problem;
}

const char *
idem_read_denial(const char *answer, size_t len)
{
	Answer		a = {0};
	const char *found = NULL;

	if (!idem_json_is_object(answer, len))
		return NULL;
	take_members(answer, len, &a);
	for (int i = 0; denials[i] != NULL && found == NULL; i++)
		if (a.error.len == strlen(denials[i]) && memcmp(a.error.data, denials[i], a.error.len) == 0)
			found = denials[i];
	free_answer(&a);
	return found;
}
