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

#define DEFAULT_PORT	6379

/* Does the option have this value?  dflt: the value if it is not set. */
static bool
is_set_to(const IdemProtoHello *hello, const char *option, const char *value, const char *dflt)
{
	char	   *text = idem_sink_option(hello, option, dflt);
	bool		same = strcmp(text, value) == 0;

	free(text);
	return same;
}

bool
rsink_read_address(RSinkAddress *address, const char *text, size_t len)
{
	const char *end = text + len;
	const char *host = text;
	const char *host_end;
	long		port = 0;

	if (len > 0 && *text == '[')
	{
		host++;
		host_end = memchr(text, ']', len);
		if (host_end == NULL)
			return false;
		text = host_end + 1;
	}
	else
	{
		host_end = memchr(text, ':', len);
		if (host_end == NULL)
			host_end = end;
		/* an IPv6 address without brackets: what is the port? */
		else if (memchr(host_end + 1, ':', (size_t) (end - host_end) - 1) != NULL)
			return false;
		text = host_end;
	}
	if (host_end == host || (size_t) (host_end - host) >= sizeof(address->host))
		return false;
	memcpy(address->host, host, (size_t) (host_end - host));
	address->host[host_end - host] = '\0';
	address->port = DEFAULT_PORT;
	if (text == end)
		return true;
	if (*text++ != ':' || text == end)
		return false;
	for (; text < end; text++)
	{
		if (*text < '0' || *text > '9' || port > 65535)
			return false;
		port = port * 10 + (*text - '0');
	}
	address->port = (int) port;
	return port > 0 && port <= 65535;
}

/* Take the option "servers" apart.  False: p->failure. */
static bool
read_servers(RSink *p, const IdemProtoHello *hello)
{
	RSinkConfig *c = &p->config;
	char	   *text = idem_sink_option(hello, "servers", NULL);

	if (text == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B", "the redis sink needs the option \"servers\"");
	for (const char *s = text;;)
	{
		size_t		len;

		s += strspn(s, " ");
		len = strcspn(s, ", ");
		if (c->n_servers == RSINK_MAX_ADDRESSES || !rsink_read_address(&c->servers[c->n_servers], s, len))
			return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
								  "option \"servers\" must be host:port, up to %d of them separated by commas",
								  RSINK_MAX_ADDRESSES);
		c->n_servers++;
		s += len;
		s += strspn(s, " ");
		if (*s == '\0')
			break;
		s += *s == ',';
	}
	free(text);
	return true;
}

/* Read user and password.  False: p->failure. */
static bool
read_login(RSink *p, const IdemProtoHello *hello)
{
	RSinkConfig *c = &p->config;
	char	   *file = idem_sink_option(hello, "secret_file", NULL);

	c->user = idem_sink_option(hello, "user", NULL);
	c->password = idem_sink_option(hello, "password", NULL);
	if (c->password != NULL && file != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "options \"password\" and \"secret_file\" exclude each other");
	if (file != NULL)
		c->password = idem_sink_read_secret(&p->sink, file);
	free(file);
	if (c->user != NULL && c->password == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "option \"user\" needs the option \"password\" or \"secret_file\"");
	idem_sink_keep_secret(c->password);
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

	c->tls = is_set_to(hello, "tls", "on", "off") || is_set_to(hello, "tls", "true", "off");
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

	c->exactly_once = is_set_to(hello, "delivery", "exactly_once", "exactly_once");
	if (c->exactly_once && !(hello->flags & IDEM_PROTO_WANT_POSITION))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "the redis sink stores positions, unless the option \"delivery\" is \"at_least_once\"");
	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->incarnation = idem_sink_strdup(hello->incarnation.data, hello->incarnation.len);
	c->database = idem_sink_option_int(hello, "database", 0);
	if (maxlen > 0)
		snprintf(c->maxlen, sizeof(c->maxlen), "%ld", maxlen);
	c->cloudevents = is_set_to(hello, "format", "cloudevents", "fields");
	c->source = idem_sink_option(hello, "source", "/idempotency/{relay}");
	c->max_event_bytes = (uint64_t) idem_sink_option_int(hello, "max_event_bytes", 16000000);
	c->wait_aof = is_set_to(hello, "wait_aof", "on", "auto") ? RSINK_AOF_ON :
		is_set_to(hello, "wait_aof", "off", "auto") ? RSINK_AOF_OFF : RSINK_AOF_AUTO;
	c->wait_replicas = (int) idem_sink_option_int(hello, "wait_replicas", 0);
	c->timeout = (int) idem_sink_option_int(hello, "timeout", 15000);
	return read_servers(p, hello) && choose_keys(p, hello) && read_tls(p, hello) && read_login(p, hello);
}
