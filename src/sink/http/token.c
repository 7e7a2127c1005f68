/*-------------------------------------------------------------------------
 *
 * token.c
 *		Keeps an access token for requests: OAuth 2.0, with the client's
 *		credentials or an assertion that a service account signs.
 *
 * The token is asked for at the start, and by the next event when 4/5 of its
 * life have passed.  While the old one lives, requests go on with it.
 *
 * INVARIANT
 *		The token server is not trusted with more than the client's id and secret:
 *		the bounds of transfer.c and the check of addresses hold for it, too.  No
 *		message has a byte of its answer, except by name an error of RFC 6749.
 *
 * MEMORY
 *		The request for the token keeps its slot.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/token.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/form.h"
#include "sink/common/grant.h"
#include "sink/common/hide.h"
#include "sink/http/sink.h"

#define ASK_AGAIN		10000	/* ms between failed tries to replace a token */
#define MAX_ANSWER		(64 * 1024)

static bool
needs_token(const HSink *p)
{
	return p->config.auth == HSINK_AUTH_OAUTH2 || p->config.auth == HSINK_AUTH_SERVICE_ACCOUNT;
}

/* Add the header with the client's login, as RFC 6749 2.3.1 encodes it. */
static void
add_client(HSinkRequest *r, const HSinkConfig *c)
{
	IdemText	login = {NULL, 0, 0};
	IdemText	value = {NULL, 0, 0};

	idem_text_add_encoded(&login, c->user, strlen(c->user));
	idem_text_puts(&login, ":");
	idem_text_add_encoded(&login, c->password, strlen(c->password));
	idem_text_puts(&value, "Basic ");
	idem_text_add_base64(&value, login.data, login.len);
	hsink_add_header(r, "Authorization", value.data, value.len);
	free(login.data);
	free(value.data);
}

/* Fill in the form of client credentials. */
static void
ask_with_credentials(HSinkRequest *r, const HSinkConfig *c)
{
	idem_form_ask_by_credentials(&r->body, c->token_scope, c->token_audience);
	if (c->login_in_body)
		idem_form_add_login(&r->body, c->user, c->password);
	else
		add_client(r, c);
}

/* Fill in the form of a signed assertion.  False: OpenSSL fails. */
static bool
ask_with_assertion(HSinkRequest *r, const HSinkConfig *c)
{
	idem_form_add(&r->body, "grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer");
	idem_text_puts(&r->body, "&assertion=");
	return hsink_add_assertion(&r->body, c);
}

/* The slot of the request; it is made once. */
static HSinkRequest *
token_request(HSink *p)
{
	HSinkRequest *r = p->token_request;

	if (r != NULL)
		return r;
	r = idem_sink_alloc(sizeof(*r));
	memset(r, 0, sizeof(*r));
	r->p = p;
	r->is_token = true;
	r->keep = r->max_bytes = MAX_ANSWER;
	p->token_request = r;
	return r;
}

/* Ask the token server. */
static void
ask(HSink *p)
{
	HSinkRequest *r = token_request(p);

	idem_text_puts(&r->url, p->config.token_url);
	hsink_add_header(r, "Accept", "application/json", strlen("application/json"));
	hsink_add_header(r, "Content-Type", "application/x-www-form-urlencoded", strlen("application/x-www-form-urlencoded"));
	if (p->config.auth == HSINK_AUTH_OAUTH2)
		ask_with_credentials(r, &p->config);
	else if (!ask_with_assertion(r, &p->config))
	{
		hsink_free_request(p, r);
		idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "28000", "could not sign with the key of the service account");
		return;
	}
	if (hsink_start_request(p, r))
		p->token.asking = true;
}

/* Use the token no more. */
static void
retire(HSinkToken *t)
{
	free(t->value);
	t->value = NULL;
}

bool
hsink_has_token(HSink *p)
{
	HSinkToken *t = &p->token;
	int64_t		now;

	if (!needs_token(p))
		return true;
	now = idem_sink_clock();
	if (t->value != NULL && now >= t->expires_at)
	{
		retire(t);
	}
	if (!t->asking && (t->value == NULL || now >= t->refresh_at) && now >= t->ask_at)
		ask(p);
	return t->value != NULL;
}

int64_t
hsink_token_wake(const HSink *p)
{
	if (!needs_token(p) || p->token.asking || (p->ready.first == NULL && p->slow.first == NULL) || p->token.value != NULL)
		return -1;
	return p->token.ask_at;
}

bool
hsink_judge_token(HSink *p, const HSinkRequest *r)
{
	HSinkToken *t = &p->token;

	if (!needs_token(p) || r->code != CURLE_OK)
		return false;
	if (r->token != t->number)
		return r->status == 401;
	if (r->status != 401)
		t->proven = true;
	else if (t->proven)
	{
		retire(t);
		t->proven = false;
		return true;
	}
	return false;
}

/* Keep what the token server gave. */
static void
keep(HSinkToken *t, const IdemGrant *grant)
{
	int64_t		now = idem_sink_clock();

	retire(t);
	t->value = grant->token;
	idem_sink_keep_token(t->value);
	t->number++;
	t->proven = false;
	t->refresh_at = now + grant->life / 5 * 4;
	t->expires_at = now + grant->life;
	t->ask_at = 0;
}

/* There is no new token; that is a failure unless the old one lives. */
static void
lack(HSink *p, IdemProtoOutcome outcome, const char *what)
{
	p->token.ask_at = idem_sink_clock() + ASK_AGAIN;
	if (p->token.value == NULL)
		idem_sink_fail(&p->failure, outcome, outcome == IDEM_PROTO_OUTAGE ? "08001" : "28000",
					   "could not get a token: token server %s: %s", p->config.token_origin, what);
}

/* Judge a request without an answer. */
static void
judge_failure(HSink *p, const HSinkRequest *r)
{
	char		what[256];

	if (r->cut || r->headers_cut)
		lack(p, IDEM_PROTO_REJECTED, "its answer is too large");
	else if (r->refused != NULL && !r->was_sent)
	{
		snprintf(what, sizeof(what), "it is %s, which is not connected to unless a superuser lists it in the option \"allowed_addresses\"",
				 r->refused);
		lack(p, IDEM_PROTO_REJECTED, what);
	}
	else if (r->code == CURLE_PEER_FAILED_VERIFICATION)
		lack(p, IDEM_PROTO_REJECTED, "its certificate is not trusted, or not for this host; see the option \"token_rootcert\"");
	else
	{
		/* curl_easy_strerror has fixed texts */
		snprintf(what, sizeof(what), "%s", curl_easy_strerror(r->code));
		lack(p, r->code == CURLE_WEIRD_SERVER_REPLY || r->code == CURLE_SSL_CACERT_BADFILE ?
			 IDEM_PROTO_REJECTED : IDEM_PROTO_OUTAGE, what);
	}
}

/* Judge an answer by its status. */
static void
judge_answer(HSink *p, const HSinkRequest *r)
{
	IdemGrant	grant;
	const char *wrong;
	char		what[256];

	if (r->status == 200)
	{
		wrong = idem_read_grant(r->answer.data != NULL ? r->answer.data : "", r->answer.len, &grant);
		if (wrong == NULL)
			keep(&p->token, &grant);
		else
			lack(p, IDEM_PROTO_REJECTED, wrong);
		return;
	}
	if (r->status >= 300 && r->status < 400)
		snprintf(what, sizeof(what), "it answers with a redirect, HTTP %ld, which is not followed", r->status);
	else
	{
		wrong = r->status >= 400 && r->status < 500 ? idem_read_denial(r->answer.data != NULL ? r->answer.data : "", r->answer.len) : NULL;
		snprintf(what, sizeof(what), "it answers with HTTP %ld%s%s", r->status, wrong != NULL ? ", " : "", wrong != NULL ? wrong : "");
	}
	lack(p, r->status >= 500 || r->status == 408 || r->status == 425 || r->status == 429 ?
		 IDEM_PROTO_OUTAGE : IDEM_PROTO_REJECTED, what);
}

void
hsink_token_done(HSink *p, HSinkRequest *r)
{
	p->token.asking = false;
	if (r->code == CURLE_OK)
		judge_answer(p, r);
	else
		judge_failure(p, r);
	hsink_free_request(p, r);
}
