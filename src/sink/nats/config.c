/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of a nats sink into its settings.
 *
 * INVARIANT
 *		No message has the value of an option that may be a secret.
 *
 * MEMORY
 *		Settings live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/common/template.h"
#include "sink/nats/options.h"
#include "sink/nats/sink.h"

static bool
wrong(NSink *p, const char *option, const char *problem)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"%s\" %s", option, problem);
}

/* Make URLs of "host:port,host:port".  A login in them could be read by everybody. */
static bool
read_servers(NSink *p, const IdemProtoHello *hello)
{
	NSinkConfig *c = &p->config;
	char	   *text = idem_sink_option(hello, "servers", NULL);
	char	   *rest = NULL;

	if (text == NULL)
		return wrong(p, "servers", "is required");
	for (char *word = strtok_r(text, ", ", &rest); word != NULL; word = strtok_r(NULL, ", ", &rest))
	{
		size_t		size = strlen(word) + sizeof("nats://");

		if (strchr(word, '@') != NULL || strchr(word, '/') != NULL)
			return wrong(p, "servers", "must be host:port, several separated by commas, without scheme and login");
		c->servers = idem_sink_realloc(c->servers, (size_t) (c->n_servers + 1) * sizeof(char *));
		c->servers[c->n_servers] = idem_sink_alloc(size);
		snprintf(c->servers[c->n_servers++], size, "nats://%s", word);
	}
	free(text);
	return c->n_servers > 0 || wrong(p, "servers", "must name a server");
}

/* Fill the relay into the option position_subject, and find what stands before it. */
static bool
read_position_subject(NSink *p, const IdemProtoHello *hello)
{
	NSinkConfig *c = &p->config;
	char	   *template = idem_sink_option(hello, "position_subject", IDEM_SINK_NATS_POSITION_SUBJECT);
	const IdemTemplate how = {.relay = c->relay};
	const IdemSinkEvent none = {.flags = 0};
	IdemText	t = {NULL, 0, 0};
	IdemProtoStr at;

	(void) idem_template_fill(&how, template, &none, &t, &at);
	c->position_subject = idem_text_terminate(&t);
	c->position_prefix = idem_sink_strdup(template, strcspn(template, "{"));
	free(template);
	if (!nsink_is_subject(t.data, t.len))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "option \"position_subject\" makes no subject of the relay's name; set it to one of words and dots");
	return true;
}

/* Read the login.  False: p->failure. */
static bool
read_login(NSink *p, const IdemProtoHello *hello)
{
	NSinkConfig *c = &p->config;
	char	   *file = idem_sink_option(hello, "secret_file", NULL);
	char	  **secret;

	c->user = idem_sink_option(hello, "user", NULL);
	c->password = idem_sink_option(hello, "password", NULL);
	c->token = idem_sink_option(hello, "token", NULL);
	c->credentials = idem_sink_option(hello, "credentials_file", NULL);
	c->cert = idem_sink_option(hello, "sslcert", NULL);
	c->key = idem_sink_option(hello, "sslkey", NULL);
	if (file != NULL)
	{
		if (c->password != NULL || c->token != NULL)
			return wrong(p, "secret_file", "stands for \"password\" or \"token\"");
		secret = c->user != NULL ? &c->password : &c->token;
		*secret = idem_sink_read_secret(&p->sink, file);
		free(file);
	}
	idem_sink_keep_secret(c->password);
	idem_sink_keep_secret(c->token);
	if ((c->user != NULL) != (c->password != NULL))
		return wrong(p, "user", "needs \"password\", and the other way round");
	if ((c->user != NULL) + (c->token != NULL) + (c->credentials != NULL) > 1)
		return wrong(p, "user", "and \"token\" and \"credentials_file\" exclude each other");
	if ((c->cert != NULL) != (c->key != NULL))
		return wrong(p, "sslcert", "needs \"sslkey\", and the other way round");
	if (!c->tls && (c->cert != NULL || c->rootcert != NULL || c->tls_host != NULL))
		return wrong(p, "tls", "must be \"on\" for the options of certificates");
	if ((hello->flags & IDEM_PROTO_REQUIRE_PASSWORD) && c->user == NULL && c->token == NULL && c->credentials == NULL && c->cert == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "28000",
							  "the relay must log in, by options of the user mapping: server and relay are not both a superuser's");
	return true;
}

/* A file that the library reads has to be one that the program can read. */
static void
check_files(NSink *p)
{
	const struct
	{
		const char *option;
		const char *path;
	}			files[] = {
		{"sslrootcert", p->config.rootcert}, {"sslcert", p->config.cert}, {"sslkey", p->config.key},
		{"credentials_file", p->config.credentials}
	};

	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
		if (files[i].path != NULL)
			close(idem_sink_open_file(&p->sink, files[i].option, files[i].path));
}

bool
nsink_configure(NSink *p, const IdemProtoHello *hello)
{
	NSinkConfig *c = &p->config;

	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->incarnation = idem_sink_strdup(hello->incarnation.data, hello->incarnation.len);
	c->exactly_once = (hello->flags & IDEM_PROTO_WANT_POSITION) && !idem_sink_option_is(hello, "delivery", "at_least_once");
	c->stream = idem_sink_option(hello, "stream", "");
	c->subject = idem_sink_option(hello, "subject", IDEM_SINK_NATS_SUBJECT);
	c->source = idem_sink_option(hello, "source", "/idempotency/{relay}");
	c->format = idem_sink_option_is(hello, "format", "cloudevents_binary") ? NSINK_CE_BINARY :
		idem_sink_option_is(hello, "format", "cloudevents_structured") ? NSINK_CE_STRUCTURED : NSINK_PLAIN;
	c->timeout = (int) idem_sink_option_int(hello, "timeout", 30000);
	c->tls = idem_sink_option_on(hello, "tls");
	c->tls_host = idem_sink_option(hello, "tls_host", NULL);
	c->rootcert = idem_sink_option(hello, "sslrootcert", NULL);
	if (strchr(c->stream, '.') != NULL || !nsink_is_subject(c->stream, strlen(c->stream)))
		return wrong(p, "stream", "must be the name of a stream");
	if (strchr(c->subject, '{') == NULL && !nsink_is_subject(c->subject, strlen(c->subject)))
		return wrong(p, "subject", "must be a subject: words with dots between them, without * and >");
	if (!read_servers(p, hello) || !read_position_subject(p, hello) || !read_login(p, hello))
		return false;
	check_files(p);
	return true;
}
