/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of a rabbitmq sink into its settings.
 *
 * INVARIANT
 *		No message has an option's value, except the relay's name.
 *
 * MEMORY
 *		Settings live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/common/template.h"
#include "sink/rabbitmq/options.h"
#include "sink/rabbitmq/sink.h"

static bool
wrong(BSink *p, const char *option, const char *problem)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"%s\" %s", option, problem);
}

/* Read the names of what the server has.  False: p->failure */
static bool
read_names(BSink *p, const IdemProtoHello *hello)
{
	BSinkConfig *c = &p->config;
	const IdemTemplate how = {.relay = c->relay};
	const IdemSinkEvent none = {.flags = 0};
	char	   *exchange = idem_sink_option(hello, "exchange", IDEM_SINK_RABBITMQ_EXCHANGE);
	IdemText	t = {NULL, 0, 0};
	IdemProtoStr at;

	c->vhost = idem_sink_option(hello, "vhost", IDEM_SINK_RABBITMQ_VHOST);
	c->routing_key = idem_sink_option(hello, "routing_key", IDEM_SINK_RABBITMQ_ROUTING_KEY);
	c->exchange = exchange;
	c->exchange_is_fixed = strstr(exchange, "_type}") == NULL && strstr(exchange, "{" IDEM_SINK_HEADER_PREFIX) == NULL;
	if (c->exchange_is_fixed)
	{
		(void) idem_template_fill(&how, exchange, &none, &t, &at);
		c->exchange = idem_text_terminate(&t);
		free(exchange);
	}
	if (strlen(c->vhost) > UINT8_MAX)
		return wrong(p, "vhost", "must have at most 255 bytes");
	if (c->exchange_is_fixed && t.len > UINT8_MAX)
		return wrong(p, "exchange", "must have at most 255 bytes");
	return true;
}

static bool
is_set(const IdemProtoHello *hello, const char *option)
{
	char	   *text = idem_sink_option(hello, option, NULL);
	bool		is = text != NULL;

	free(text);
	return is;
}

/* Read what is about a stream.  False: p->failure */
static bool
read_stream(BSink *p, const IdemProtoHello *hello)
{
	BSinkConfig *c = &p->config;

	c->stream = idem_sink_option(hello, "stream", NULL);
	c->exactly_once = c->stream != NULL && !idem_sink_option_is(hello, "delivery", "at_least_once");
	c->max_event_bytes = (uint64_t) idem_sink_option_int(hello, "max_event_bytes", 0);
	if (c->stream == NULL && idem_sink_option_is(hello, "delivery", "exactly_once"))
		return wrong(p, "delivery", "can be \"exactly_once\" with the option \"stream\" only");
	if (c->stream == NULL && c->max_event_bytes > 0)
		return wrong(p, "max_event_bytes", "needs the option \"stream\"");
	if (c->stream != NULL && (is_set(hello, "exchange") || is_set(hello, "routing_key")))
		return wrong(p, "stream", "and \"exchange\" or \"routing_key\" exclude each other");
	if (c->exactly_once && !(hello->flags & IDEM_PROTO_WANT_POSITION))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "the rabbitmq sink stores positions in a stream, unless the option \"delivery\" is \"at_least_once\"");
	return true;
}

/* Read what makes the connection safe.  False: p->failure */
static bool
read_tls(BSink *p, const IdemProtoHello *hello)
{
	BSinkConfig *c = &p->config;
	const struct
	{
		const char *option;
		char	  **path;
	}			files[] = {
		{"sslrootcert", &c->sslrootcert}, {"sslcert", &c->sslcert}, {"sslkey", &c->sslkey}
	};

	c->tls = idem_sink_option_on(hello, "tls");
	for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
	{
		*files[i].path = idem_sink_option(hello, files[i].option, NULL);
		if (*files[i].path == NULL)
			continue;
		if (!c->tls)
			return wrong(p, "tls", "must be \"on\" for the options of certificates");
		/* the library tells less of a file that it cannot read */
		close(idem_sink_open_file(&p->sink, files[i].option, *files[i].path));
	}
	c->sslpassword = idem_sink_option(hello, "sslpassword", NULL);
	idem_sink_keep_secret(c->sslpassword);
	if ((c->sslcert == NULL) != (c->sslkey == NULL))
		return wrong(p, "sslcert", "needs \"sslkey\", and the other way round");
	return true;
}

/* Read user and password, which the server asks of everybody.  False: p->failure */
static bool
read_login(BSink *p, const IdemProtoHello *hello)
{
	BSinkConfig *c = &p->config;

	if (!idem_login_read(&p->sink, hello, &c->user, &c->password, &p->failure))
		return false;
	if (c->user == NULL || c->password == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "28000",
							  "the user mapping of the relay's owner must have \"user\", and \"password\" or \"secret_file\"");
	return true;
}

bool
bsink_configure(BSink *p, const IdemProtoHello *hello)
{
	BSinkConfig *c = &p->config;

	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->incarnation = idem_sink_strdup(hello->incarnation.data, hello->incarnation.len);
	c->format = idem_sink_option_is(hello, "format", "cloudevents_binary") ? BSINK_CE_BINARY :
		idem_sink_option_is(hello, "format", "cloudevents_structured") ? BSINK_CE_STRUCTURED : BSINK_PLAIN;
	c->source = idem_sink_option(hello, "source", "/idempotency/{relay}");
	c->heartbeat = (int) idem_sink_option_int(hello, "heartbeat", 30);
	c->timeout = (int) idem_sink_option_int(hello, "timeout", 30000);
	c->n_servers = idem_servers_read(hello, c->servers, 0, &p->failure);
	return c->n_servers > 0 && read_names(p, hello) && read_stream(p, hello) && read_tls(p, hello) && read_login(p, hello);
}
