/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of an mqtt sink into its settings.
 *
 * INVARIANT
 *		No message has the value of an option.
 *
 * MEMORY
 *		Settings live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/common/template.h"
#include "sink/mqtt/options.h"
#include "sink/mqtt/sink.h"

#define PORT		1883
#define PORT_TLS	8883

static bool
wrong(MSink *p, const char *option, const char *problem)
{
	return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"%s\" %s", option, problem);
}

/* Read login and certificates.  False: p->failure. */
static bool
read_login(MSink *p, const IdemProtoHello *hello)
{
	MSinkConfig *c = &p->config;

	if (!idem_login_read(&p->sink, hello, &c->user, &c->password, &p->failure))
		return false;
	c->sslrootcert = idem_sink_option(hello, "sslrootcert", NULL);
	c->sslcert = idem_sink_option(hello, "sslcert", NULL);
	c->sslkey = idem_sink_option(hello, "sslkey", NULL);
	c->sslpassword = idem_sink_option(hello, "sslpassword", NULL);
	idem_sink_keep_secret(c->sslpassword);
	if ((c->user != NULL) != (c->password != NULL))
		return wrong(p, "user", "needs \"password\" or \"secret_file\", and the other way round");
	if ((c->sslcert != NULL) != (c->sslkey != NULL))
		return wrong(p, "sslcert", "needs \"sslkey\", and the other way round");
	if (!c->tls && (c->sslcert != NULL || c->sslrootcert != NULL))
		return wrong(p, "tls", "must be \"on\" for the options of certificates");
	if (c->sslcert != NULL && c->sslrootcert == NULL)
		return wrong(p, "sslcert", "needs \"sslrootcert\": the library takes both or none");
	if ((hello->flags & IDEM_PROTO_REQUIRE_PASSWORD) && c->user == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "2F003",
							  "a login is required: server and relay are not both a superuser's; set user and password in the user mapping");
	return true;
}

/* Files that the library reads have to be readable.  The program ends if one is not. */
static void
check_files(MSink *p)
{
	const MSinkConfig *c = &p->config;

	if (c->sslrootcert != NULL)
		close(idem_sink_open_file(&p->sink, "sslrootcert", c->sslrootcert));
	if (c->sslcert != NULL)
		close(idem_sink_open_file(&p->sink, "sslcert", c->sslcert));
	if (c->sslkey != NULL)
		close(idem_sink_open_file(&p->sink, "sslkey", c->sslkey));
}

/* Fill the relay into the option client_id.  False: p->failure. */
static bool
read_client_id(MSink *p, const IdemProtoHello *hello)
{
	char	   *template = idem_sink_option(hello, "client_id", IDEM_SINK_MQTT_CLIENT_ID);
	const IdemTemplate how = {.relay = p->config.relay};
	const IdemSinkEvent none = {.flags = 0};
	IdemText	t = {NULL, 0, 0};
	IdemProtoStr at;

	(void) idem_template_fill(&how, template, &none, &t, &at);
	p->config.client_id = idem_text_terminate(&t);
	free(template);
	return (t.len <= MSINK_MAX_STRING && mosquitto_validate_utf8(t.data, (int) t.len) == MOSQ_ERR_SUCCESS) ||
		wrong(p, "client_id", "makes no client id of the relay's name: it has a control character, or too many bytes");
}

bool
msink_configure(MSink *p, const IdemProtoHello *hello)
{
	MSinkConfig *c = &p->config;

	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->topic = idem_sink_option(hello, "topic", IDEM_SINK_MQTT_TOPIC);
	c->qos = idem_sink_option_is(hello, "qos", "2") ? 2 : 1;
	c->retain = idem_sink_option_on(hello, "retain");
	c->expiry = (uint32_t) idem_sink_option_int(hello, "message_expiry", 0);
	c->format = idem_sink_option_is(hello, "format", "cloudevents_binary") ? MSINK_CE_BINARY :
		idem_sink_option_is(hello, "format", "cloudevents_structured") ? MSINK_CE_STRUCTURED : MSINK_PLAIN;
	c->source = idem_sink_option(hello, "source", "/idempotency/{relay}");
	c->keepalive = (int) idem_sink_option_int(hello, "keepalive", 60);
	c->in_flight = idem_sink_option_int(hello, "in_flight", strtol(IDEM_SINK_MQTT_IN_FLIGHT, NULL, 10));
	c->timeout = (int) idem_sink_option_int(hello, "timeout", 30000);
	c->tls = idem_sink_option_on(hello, "tls");
	if (strchr(c->topic, '{') == NULL && !msink_is_topic(c->topic, strlen(c->topic)))
		return wrong(p, "topic", "must be a topic: without + and #, and not one that begins with $");
	c->n_servers = idem_servers_read(hello, c->servers, c->tls ? PORT_TLS : PORT, &p->failure);
	if (c->n_servers == 0 || !read_client_id(p, hello) || !read_login(p, hello))
		return false;
	check_files(p);
	return true;
}
