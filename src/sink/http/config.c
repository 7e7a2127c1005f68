/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of an http sink into its settings.
 *
 * INVARIANT
 *		No message has an option's value, except scheme, host and port of the URL.
 *
 * MEMORY
 *		Settings live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/http/options.h"
#include "sink/http/sink.h"

#define TIMEOUT				15000	/* ms */
#define CONNECT_TIMEOUT		5000
#define CONCURRENCY			8
#define MAX_RESPONSE_BYTES	65536
#define SOURCE				"/idempotency/{relay}"

/* Note that an option is wrong.  Always false: p->failure. */
static bool
wrong(HSink *p, const char *option, const char *problem)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"%s\" %s", option, problem);
}

/* Note that options do not fit together.  Always false: p->failure. */
static bool
misfit(HSink *p, const char *problem)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B", "%s", problem);
}

/* Does the option have this value?  dflt: the value if it is not set. */
static bool
is_set_to(const IdemProtoHello *hello, const char *option, const char *value, const char *dflt)
{
	char	   *text = idem_sink_option(hello, option, dflt);
	bool		same = strcmp(text, value) == 0;

	free(text);
	return same;
}

/* Can the text stand in a header? */
static bool
is_clean(const char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char) *text < ' ' || *text == 0x7F)
			return false;
	return true;
}

/* Find the service.  False: p->failure. */
static bool
choose_service(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	char	   *name = idem_sink_option(hello, "service", "webhook");
	char	   *format = idem_sink_option(hello, "format", "plain");

	c->format = strcmp(format, "cloudevents_binary") == 0 ? HSINK_CE_BINARY :
		strcmp(format, "cloudevents_structured") == 0 ? HSINK_CE_STRUCTURED :
		strcmp(format, "cloudevents_batch") == 0 ? HSINK_CE_BATCH : HSINK_PLAIN;
	p->service = hsink_find_service(name);
	if (p->service == NULL)
		return wrong(p, "service", "names a service that this program does not know");
	if (c->format == HSINK_CE_BATCH && p->service != &hsink_webhook)
		return wrong(p, "format", "\"cloudevents_batch\" is for webhooks");
	if (c->format == HSINK_CE_BINARY && p->service != &hsink_webhook)
		return wrong(p, "format", "\"cloudevents_binary\" is for webhooks");
	if (c->format == HSINK_CE_BATCH)
		p->service = &hsink_webhook_batch;
	c->batch_events = (uint32_t) idem_sink_option_int(hello, "batch_events", p->service->usual);
	p->most = c->batch_events < p->service->most ? c->batch_events : p->service->most;
	free(name);
	free(format);
	return true;
}

/* Read where requests go.  False: p->failure. */
static bool
choose_url(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	const char *problem;
	const char *path;

	c->url = idem_sink_option(hello, "url", NULL);
	if (c->url == NULL)
		return misfit(p, "the http sink needs the option \"url\"");
	problem = hsink_check_url(c->url, c->origin, sizeof(c->origin));
	if (problem != NULL)
		return wrong(p, "url", problem);
	c->plain = strncmp(c->origin, "http:", 5) == 0;
	path = strstr(c->url, "://") + 3;
	path += strcspn(path, "/?");
	c->endpoint = idem_sink_strdup(c->url, (size_t) (path - c->url) + 1);
	c->endpoint[path - c->url] = '/';
	c->resource = idem_sink_strdup(path + (*path != '\0'), strlen(path + (*path != '\0')));
	return true;
}

/* Read what requests have in them.  False: p->failure. */
static bool
choose_content(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	char	   *headers = idem_sink_option(hello, "headers", NULL);
	char	   *secrets = idem_sink_option(hello, "signing_secrets", NULL);
	char	   *file = idem_sink_option(hello, "signing_secrets_file", NULL);
	const char *problem;

	c->method = idem_sink_option(hello, "method", "POST");
	c->source = idem_sink_option(hello, "source", SOURCE);
	c->content_type = idem_sink_option(hello, "content_type", NULL);
	if (c->content_type != NULL && !is_clean(c->content_type))
		return wrong(p, "content_type", "must not have control characters");
	if (headers != NULL && (problem = hsink_read_headers(c, headers)) != NULL)
		return wrong(p, "headers", problem);
	if (secrets != NULL && file != NULL)
		return misfit(p, "options \"signing_secrets\" and \"signing_secrets_file\" exclude each other");
	if (file != NULL)
		secrets = idem_sink_read_secret_of(&p->sink, "signing_secrets_file", file);
	if (secrets == NULL)
		return true;
	idem_sink_keep_secret(secrets);
	problem = hsink_read_signers(c, secrets);
	return problem == NULL || wrong(p, "signing_secrets", problem);
}

/* Read the bounds of requests.  False: p->failure. */
static bool
choose_limits(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	char	   *allowed = idem_sink_option(hello, "allowed_addresses", NULL);
	const char *problem = allowed != NULL ? hsink_read_ranges(c, allowed) : NULL;

	free(allowed);
	if (problem != NULL)
		return wrong(p, "allowed_addresses", problem);
	c->concurrency = idem_sink_option_int(hello, "concurrency", CONCURRENCY);
	c->timeout = idem_sink_option_int(hello, "timeout", TIMEOUT);
	c->connect_timeout = idem_sink_option_int(hello, "connect_timeout",
											  c->timeout < CONNECT_TIMEOUT ? c->timeout : CONNECT_TIMEOUT);
	c->http2 = is_set_to(hello, "http_version", "2", "1.1");
	c->max_response_bytes = (size_t) idem_sink_option_int(hello, "max_response_bytes", MAX_RESPONSE_BYTES);
	return true;
}

/* Read files and password for TLS.  False: p->failure. */
static bool
choose_tls(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;

	c->rootcert = idem_sink_option(hello, "sslrootcert", NULL);
	c->token_rootcert = idem_sink_option(hello, "token_rootcert", NULL);
	c->sslcert = idem_sink_option(hello, "sslcert", NULL);
	c->sslkey = idem_sink_option(hello, "sslkey", NULL);
	c->sslpassword = idem_sink_option(hello, "sslpassword", NULL);
	idem_sink_keep_secret(c->sslpassword);
	if ((c->sslcert == NULL) != (c->sslkey == NULL))
		return misfit(p, "options \"sslcert\" and \"sslkey\" need each other");
	if (c->sslcert != NULL && c->plain)
		return misfit(p, "option \"sslcert\" needs an option \"url\" with https://");
	return true;
}

/* Read the secrets of the login.  False: p->failure. */
static bool
read_login(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	char	   *file = idem_sink_option(hello, "secret_file", NULL);
	char	   *account_file = idem_sink_option(hello, "service_account_file", NULL);
	char	  **secret = c->auth == HSINK_AUTH_BEARER ? &c->token : &c->password;

	c->user = idem_sink_option(hello, "user", NULL);
	c->password = idem_sink_option(hello, "password", NULL);
	c->token = idem_sink_option(hello, "token", NULL);
	c->session_token = idem_sink_option(hello, "session_token", NULL);
	c->service_account = idem_sink_option(hello, "service_account", NULL);
	if (*secret != NULL && file != NULL)
		return misfit(p, "option \"secret_file\" excludes \"password\", and \"token\" if \"auth\" is \"bearer\"");
	if (file != NULL)
		*secret = idem_sink_read_secret(&p->sink, file);
	free(file);
	if (c->service_account != NULL && account_file != NULL)
		return misfit(p, "options \"service_account\" and \"service_account_file\" exclude each other");
	if (account_file != NULL)
		c->service_account = idem_sink_read_secret_text(&p->sink, "service_account_file", account_file);
	free(account_file);
	idem_sink_keep_secret(c->password);
	idem_sink_keep_secret(c->token);
	idem_sink_keep_secret(c->session_token);
	idem_sink_keep_secret(c->service_account);
	if ((c->user != NULL && !is_clean(c->user)) || (c->password != NULL && !is_clean(c->password)) ||
		(c->token != NULL && !is_clean(c->token)) || (c->session_token != NULL && !is_clean(c->session_token)))
		return misfit(p, "user, password and tokens must not have control characters");
	return true;
}

/* Encode user and password for HTTP Basic; the text is a secret, too. */
static void
encode_login(HSink *p)
{
	HSinkConfig *c = &p->config;
	IdemText	login = {NULL, 0, 0};
	IdemText	encoded = {NULL, 0, 0};

	idem_text_puts(&login, c->user);
	idem_text_puts(&login, ":");
	idem_text_puts(&login, c->password);
	idem_text_add_base64(&encoded, login.data, login.len);
	c->authorization = idem_text_terminate(&encoded);
	idem_sink_keep_secret(c->authorization);
	free(login.data);
}

/* Do lines of the option "headers" have the token in them? */
static bool
headers_have_token(const HSinkConfig *c)
{
	for (int i = 0; i < c->n_headers; i++)
		if (strstr(c->headers[i].value, "{token}") != NULL)
			return true;
	return false;
}

/* Check what the login by OAuth 2.0 needs.  False: p->failure. */
static bool
choose_token_server(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	const char *problem;

	c->token_url = idem_sink_option(hello, "token_url", NULL);
	c->token_scope = idem_sink_option(hello, "token_scope", NULL);
	c->token_audience = idem_sink_option(hello, "token_audience", NULL);
	c->login_in_body = is_set_to(hello, "token_login", "body", "header");
	if ((c->token_url != NULL) != (c->auth == HSINK_AUTH_OAUTH2))
		return misfit(p, "the option \"auth\" with \"oauth2\" and the option \"token_url\" need each other");
	if (c->token_url == NULL)
		return true;
	problem = hsink_check_url(c->token_url, c->token_origin, sizeof(c->token_origin));
	if (problem != NULL)
		return wrong(p, "token_url", problem);
	c->token_plain = strncmp(c->token_origin, "http:", 5) == 0;
	return true;
}

/* Read how requests log in.  False: p->failure. */
static bool
choose_login(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	char	   *auth = idem_sink_option(hello, "auth", "none");
	bool		is_webhook = p->service == &hsink_webhook || p->service == &hsink_webhook_batch;

	c->auth = strcmp(auth, "basic") == 0 ? HSINK_AUTH_BASIC : strcmp(auth, "bearer") == 0 ? HSINK_AUTH_BEARER :
		strcmp(auth, "oauth2") == 0 ? HSINK_AUTH_OAUTH2 : HSINK_AUTH_NONE;
	free(auth);
	c->region = idem_sink_option(hello, "region", NULL);
	if (!read_login(p, hello) || !choose_token_server(p, hello))
		return false;
	if (c->auth != HSINK_AUTH_NONE && !is_webhook)
		return misfit(p, "option \"auth\" is for webhooks; other services have a login of their own");
	if (c->auth == HSINK_AUTH_BASIC && c->password == NULL)
		c->password = idem_sink_strdup("", 0);	/* some servers want an API
												 * key as the user */
	if ((c->auth == HSINK_AUTH_BASIC || c->auth == HSINK_AUTH_OAUTH2) && (c->user == NULL || c->password == NULL))
		return misfit(p, "a login needs the options \"user\", and \"password\" or \"secret_file\"");
	if (c->auth == HSINK_AUTH_BASIC && strchr(c->user, ':') != NULL)
		return wrong(p, "user", "must not have a colon: a login by \"basic\" ends the user's name with it");
	if (c->auth == HSINK_AUTH_BASIC)
		encode_login(p);
	if (c->auth == HSINK_AUTH_BEARER && c->token == NULL)
		return misfit(p, "a login by \"bearer\" needs the option \"token\" or \"secret_file\"");
	if (headers_have_token(c) && c->token == NULL)
		return misfit(p, "option \"headers\" has the placeholder {token}, and there is no option \"token\"");
	if (is_webhook && c->auth == HSINK_AUTH_NONE && (c->user != NULL || c->password != NULL))
		return misfit(p, "a user or a password needs the option \"auth\"");
	if (is_webhook && c->auth != HSINK_AUTH_BEARER && c->token != NULL && !headers_have_token(c))
		return misfit(p, "option \"token\" needs the option \"auth\" with \"bearer\", or {token} in \"headers\"");
	return true;
}

bool
hsink_configure(HSink *p, const IdemProtoHello *hello)
{
	HSinkConfig *c = &p->config;
	const char *problem;

	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->key_order = (hello->flags & IDEM_PROTO_KEY_ORDER) != 0;
	if (!choose_service(p, hello) || !choose_url(p, hello) || !choose_content(p, hello) ||
		!choose_limits(p, hello) || !choose_tls(p, hello) || !choose_login(p, hello))
		return false;
	if (c->service_account != NULL && p->service != &hsink_pubsub)
		return misfit(p, "option \"service_account\" is for the service \"pubsub\"");
	if (c->session_token != NULL && p->service->aws == NULL)
		return misfit(p, "option \"session_token\" is for services of AWS");
	problem = p->service->configure(p);
	c->has_login = c->auth != HSINK_AUTH_NONE || headers_have_token(c);
	return problem == NULL || misfit(p, problem);
}
