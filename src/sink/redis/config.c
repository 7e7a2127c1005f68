/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of a redis sink into its settings.
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
 *		src/sink/redis/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/common/template.h"
#include "sink/redis/options.h"
#include "sink/redis/sink.h"

/* Read user and password.  False: p->failure. */
static bool
read_login(RSink *p, const IdemProtoHello *hello)
{
	RSinkConfig *c = &p->config;

	if (!idem_login_read(&p->sink, hello, &c->user, &c->password, &p->failure))
		return false;
	if (c->user != NULL && c->password == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "option \"user\" needs the option \"password\" or \"secret_file\"");
	if ((hello->flags & IDEM_PROTO_REQUIRE_PASSWORD) && c->password == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "2F003",
							  "a login is required: the relay's owner is not a superuser; set password, and user, in his user mapping");
	return true;
}

/* Read what makes the connection safe.  False: p->failure. */
static bool
read_tls(RSink *p, const IdemProtoHello *hello)
{
	RSinkConfig *c = &p->config;

	c->tls = idem_sink_option_on(hello, "tls");
	c->sslrootcert = idem_sink_option(hello, "sslrootcert", NULL);
	c->sslcert = idem_sink_option(hello, "sslcert", NULL);
	c->sslkey = idem_sink_option(hello, "sslkey", NULL);
	c->sslpassword = idem_sink_option(hello, "sslpassword", NULL);
	idem_sink_keep_secret(c->sslpassword);
	if (c->tls && !RSINK_HAS_TLS)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "this program was built with hiredis %d.%d.%d, which has no TLS: hiredis 1.0 or later is needed",
							  HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
	if (!c->tls && (c->sslrootcert != NULL || c->sslcert != NULL || c->sslkey != NULL))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "options \"sslrootcert\", \"sslcert\" and \"sslkey\" need the option \"tls\"");
	if ((c->sslcert == NULL) != (c->sslkey == NULL))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "options \"sslcert\" and \"sslkey\" need each other");
	return true;
}

/* Read where the events and the position go.  False: p->failure. */
static bool
choose_keys(RSink *p, const IdemProtoHello *hello)
{
	RSinkConfig *c = &p->config;
	char	   *template = idem_sink_option(hello, "position_key", IDEM_SINK_REDIS_POSITION_KEY);
	IdemSinkEvent none;
	IdemTemplate how;
	IdemProtoStr at;
	IdemText	tag = {NULL, 0, 0};
	IdemText	key = {NULL, 0, 0};

	idem_text_puts(&tag, "{");
	idem_text_puts(&tag, c->relay);
	idem_text_puts(&tag, "}");
	c->tag = idem_text_terminate(&tag);
	memset(&none, 0, sizeof(none));
	memset(&how, 0, sizeof(how));
	how.relay = c->tag;
	(void) idem_template_fill(&how, template, &none, &key, &at);
	c->position_key = idem_text_terminate(&key);
	free(template);
	c->stream = idem_sink_option(hello, "stream", IDEM_SINK_REDIS_STREAM);
	c->stream_is_fixed = strstr(c->stream, "_type}") == NULL && strstr(c->stream, "{" IDEM_SINK_HEADER_PREFIX) == NULL;
	if (key.len > RSINK_MAX_KEY || strlen(c->stream) > RSINK_MAX_KEY / 2)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "option \"stream\" or \"position_key\" is too long");
	if (!c->exactly_once || !c->stream_is_fixed)
		return true;
	key = (IdemText)
	{
		NULL, 0, 0
	};
	(void) idem_template_fill(&how, c->stream, &none, &key, &at);
	if (strcmp(idem_text_terminate(&key), c->position_key) == 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "options \"stream\" and \"position_key\" name the same key");
	free(key.data);
	return true;
}

bool
rsink_configure(RSink *p, const IdemProtoHello *hello)
{
	RSinkConfig *c = &p->config;
	long		maxlen = idem_sink_option_int(hello, "maxlen", 0);

	c->exactly_once = !idem_sink_option_is(hello, "delivery", "at_least_once");
	if (c->exactly_once && !(hello->flags & IDEM_PROTO_WANT_POSITION))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "the redis sink stores positions, unless the option \"delivery\" is \"at_least_once\"");
	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->incarnation = idem_sink_strdup(hello->incarnation.data, hello->incarnation.len);
	c->database = idem_sink_option_int(hello, "database", 0);
	if (maxlen > 0)
		snprintf(c->maxlen, sizeof(c->maxlen), "%ld", maxlen);
	c->cloudevents = idem_sink_option_is(hello, "format", "cloudevents");
	c->source = idem_sink_option(hello, "source", "/idempotency/{relay}");
	c->max_event_bytes = (uint64_t) idem_sink_option_int(hello, "max_event_bytes", 16000000);
	c->wait_aof = idem_sink_option_is(hello, "wait_aof", "on") ? RSINK_AOF_ON :
		idem_sink_option_is(hello, "wait_aof", "off") ? RSINK_AOF_OFF : RSINK_AOF_AUTO;
	c->wait_replicas = (int) idem_sink_option_int(hello, "wait_replicas", 0);
	c->timeout = (int) idem_sink_option_int(hello, "timeout", 15000);
	c->n_servers = idem_servers_read(hello, c->servers, RSINK_PORT, &p->failure);
	return c->n_servers > 0 && choose_keys(p, hello) && read_tls(p, hello) && read_login(p, hello);
}
