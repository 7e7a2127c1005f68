/*-------------------------------------------------------------------------
 *
 * config.c
 *		Turns the options of a kafka sink into its settings.
 *
 * INVARIANT
 *		librdkafka gets the properties of this file and of producer.c, and no others.
 *		No message has an option's value, except the relay's name and the name of
 *		its position topic.
 *
 * MEMORY
 *		Settings live as long as the program.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/config.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/hide.h"
#include "sink/common/secret.h"
#include "sink/kafka/options.h"
#include "sink/kafka/setup.h"
#include "sink/kafka/sink.h"

/* Add a property of librdkafka. */
static void
add(KSinkConfig *c, const char *name, const char *value)
{
	int			n = 0;

	while (c->properties[n].name != NULL)
		n++;
	c->properties[n].name = name;
	c->properties[n].value = idem_sink_strdup(value, strlen(value));
}

/* Add a property that is an option, under its own name; false: no such option. */
static bool
add_option(KSinkConfig *c, const IdemProtoHello *hello, const char *option, const char *name)
{
	char	   *value = idem_sink_option(hello, option, NULL);

	if (value != NULL)
		add(c, name, value);
	free(value);
	return value != NULL;
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

/* The value of a boolean option. */
static bool
is_on(const IdemProtoHello *hello, const char *option, bool dflt)
{
	char	   *text = idem_sink_option(hello, option, dflt ? "on" : "off");
	bool		on = idem_sink_option_bool(text);

	free(text);
	return on;
}

/* Read the password, from its option or from secret_file.  False: p->failure. */
static bool
read_password(KSink *p, const IdemProtoHello *hello, char **password)
{
	char	   *file = idem_sink_option(hello, "secret_file", NULL);

	*password = idem_sink_option(hello, "password", NULL);
	if (*password != NULL && file != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "options \"password\" and \"secret_file\" exclude each other");
	if (file != NULL)
		*password = idem_sink_read_secret(&p->sink, file);
	free(file);
	return true;
}

/*
 * Take "name=value,name=value" apart into s->extensions.  False: the text is
 * nothing of that kind.
 */
static bool
split_extensions(KSinkTokenServer *s, char *text)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	char	   *rest = NULL;

	for (char *pair = strtok_r(text, ",", &rest); pair != NULL; pair = strtok_r(NULL, ",", &rest))
	{
		size_t		len = strspn(pair, letters);

		if (len == 0 || pair[len] != '=' || (len == 4 && memcmp(pair, "auth", 4) == 0))
			return false;
		for (const char *c = pair + len; *c != '\0'; c++)
			if (*c < ' ' || *c > '~')
				return false;
		pair[len] = '\0';
		s->extensions = idem_sink_realloc(s->extensions, (s->n_extensions + 2) * sizeof(char *));
		s->extensions[s->n_extensions++] = pair;
		s->extensions[s->n_extensions++] = pair + len + 1;
	}
	return s->n_extensions > 0;
}

/* Read where tokens come from.  False: p->failure. */
static bool
choose_token_server(KSink *p, const IdemProtoHello *hello, char *client, char *secret)
{
	KSinkTokenServer *s = &p->config.token_server;
	char	   *extensions;
	const char *problem;

	s->url = idem_sink_option(hello, "token_url", NULL);
	s->rootcert = idem_sink_option(hello, "token_rootcert", NULL);
	s->scope = idem_sink_option(hello, "token_scope", NULL);
	s->audience = idem_sink_option(hello, "token_audience", NULL);
	s->login_in_body = is_set_to(hello, "token_login", "body", "header");
	s->client = client;
	s->secret = secret;
	if (!KSINK_HAS_OAUTHBEARER)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "this program was built without libcurl: it cannot log in by OAUTHBEARER");
	if (s->url == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B", "a login by OAUTHBEARER needs the option \"token_url\"");
	problem = ksink_check_token_server(s);
	if (problem == NULL && s->plain && (hello->flags & IDEM_PROTO_REQUIRE_PASSWORD))
		problem = "must begin with https://: server and relay are not both a superuser's";
	if (problem != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"token_url\" %s", problem);
	extensions = idem_sink_option(hello, "sasl_extensions", NULL);
	if (extensions != NULL && !split_extensions(s, extensions))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "option \"sasl_extensions\" must be name=value, several separated by commas; names are of letters");
	return true;
}

/* Add user and password.  False: p->failure. */
static bool
add_login(KSink *p, const IdemProtoHello *hello, const char *protocol)
{
	KSinkConfig *c = &p->config;
	bool		sasl = strncmp(protocol, "sasl_", 5) == 0;
	char	   *mechanism = idem_sink_option(hello, "sasl_mechanism", NULL);
	char	   *user = idem_sink_option(hello, "user", NULL);
	char	   *password;

	if (!read_password(p, hello, &password))
		return false;
	if (!sasl && (mechanism != NULL || user != NULL || password != NULL))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "options for a login need the option \"security_protocol\" with \"sasl_ssl\" or \"sasl_plaintext\"");
	if (!sasl)
		return true;
	if (mechanism == NULL || user == NULL || password == NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "a login needs the options \"sasl_mechanism\", \"user\", and \"password\" or \"secret_file\"");
	idem_sink_keep_secret(password);
	c->scram = strncmp(mechanism, "SCRAM", 5) == 0;
	add(c, "sasl.mechanisms", mechanism);
	if (strcmp(mechanism, "OAUTHBEARER") == 0)
		return choose_token_server(p, hello, user, password);
	if (idem_sink_option(hello, "token_url", NULL) != NULL)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "option \"token_url\" needs the option \"sasl_mechanism\" with \"OAUTHBEARER\"");
	add(c, "sasl.username", user);
	add(c, "sasl.password", password);
	return true;
}

/* Add what makes the connection safe.  False: p->failure. */
static bool
add_security(KSink *p, const IdemProtoHello *hello)
{
	KSinkConfig *c = &p->config;
	char	   *protocol = idem_sink_option(hello, "security_protocol", "plaintext");
	char	   *sslpassword = idem_sink_option(hello, "sslpassword", NULL);
	bool		tls = strstr(protocol, "ssl") != NULL;
	bool		certificate;

	add(c, "security.protocol", protocol);
	if (!add_login(p, hello, protocol))
		return false;
	add_option(c, hello, "sslrootcert", "ssl.ca.location");
	certificate = add_option(c, hello, "sslcert", "ssl.certificate.location");
	if (add_option(c, hello, "sslkey", "ssl.key.location") != certificate)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "options \"sslcert\" and \"sslkey\" need each other");
	idem_sink_keep_secret(sslpassword);
	free(sslpassword);
	add_option(c, hello, "sslpassword", "ssl.key.password");
	if (certificate && !tls)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B",
							  "option \"sslcert\" needs the option \"security_protocol\" with \"ssl\" or \"sasl_ssl\"");
	if ((hello->flags & IDEM_PROTO_REQUIRE_PASSWORD) && !certificate && strncmp(protocol, "sasl_", 5) != 0)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "2F003",
							  "a login is required: the relay's owner is not a superuser; set \"security_protocol\", and user and password in his user mapping");
	free(protocol);
	return true;
}

/* Read where the records go.  False: p->failure. */
static bool
choose_topics(KSink *p, const IdemProtoHello *hello)
{
	KSinkConfig *c = &p->config;
	char	   *position = idem_sink_option(hello, "position_topic", IDEM_SINK_KAFKA_POSITION_TOPIC);
	char		name[KSINK_MAX_TOPIC + 1];

	c->topic = idem_sink_option(hello, "topic", IDEM_SINK_KAFKA_TOPIC);
	c->topic_is_fixed = strchr(c->topic, '{') == NULL;
	c->topic_needs_headers = strstr(c->topic, "{header:") != NULL;
	c->source = idem_sink_option(hello, "source", "/idempotency/{relay}");
	c->create_topics = false;
	if (c->topic_is_fixed && !ksink_is_topic(c->topic))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024", "option \"topic\" is not the name of a topic");
	if (!idem_sink_kafka_position_topic(name, sizeof(name), position, c->relay) || !ksink_is_topic(name))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "position topic of relay \"%s\" would have no valid name; set the option \"position_topic\"",
							  c->relay);
	c->position_topic = idem_sink_strdup(name, strlen(name));
	free(position);
	return true;
}

bool
ksink_configure(KSink *p, const IdemProtoHello *hello)
{
	KSinkConfig *c = &p->config;

	if (rd_kafka_version() < KSINK_LEAST_VERSION)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "librdkafka %s of this machine is too old: the kafka sink needs " KSINK_LEAST_VERSION_TEXT " or later",
							  rd_kafka_version_str());
	c->key_order = (hello->flags & IDEM_PROTO_KEY_ORDER) != 0;
	c->exactly_once = is_set_to(hello, "delivery", "exactly_once", "exactly_once");
	if (c->exactly_once && !(hello->flags & IDEM_PROTO_WANT_POSITION))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "0A000",
							  "the kafka sink stores positions, unless the option \"delivery\" is \"at_least_once\"");
	c->relay = idem_sink_strdup(hello->relay.data, hello->relay.len);
	c->incarnation = idem_sink_strdup(hello->incarnation.data, hello->incarnation.len);
	c->transaction_timeout = (int) idem_sink_option_int(hello, "transaction_timeout", 30000);
	c->transaction_time = (int) idem_sink_option_int(hello, "transaction_time", 500);
	c->transaction_events = (uint32_t) idem_sink_option_int(hello, "transaction_events", 50000);
	c->timeout = (int) idem_sink_option_int(hello, "timeout", 30000);
	if (c->exactly_once && c->transaction_time >= c->transaction_timeout)
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV024",
							  "option \"transaction_time\" must be less than \"transaction_timeout\" (30000 if it is not set): the brokers abort a transaction that is older; lower the one or raise the other");
	c->tombstones = is_on(hello, "tombstones", true);
	c->json_key = is_set_to(hello, "key_format", "json", "string");
	c->format = is_set_to(hello, "format", "cloudevents_binary", "") ? KSINK_CE_BINARY :
		is_set_to(hello, "format", "cloudevents_structured", "") ? KSINK_CE_STRUCTURED : KSINK_DEBEZIUM;
	if (!choose_topics(p, hello))
		return false;
	c->would_create = is_on(hello, "create_topics", false);
	c->create_topics = c->would_create && !idem_sink_looks(&p->sink);
	if (!add_option(c, hello, "brokers", "bootstrap.servers"))
		return idem_sink_fail(&p->failure, IDEM_PROTO_REJECTED, "HV00B", "the kafka sink needs the option \"brokers\"");
	add(c, "client.id", "idempotency");
	add(c, "reconnect.backoff.max.ms", "1000");
	add(c, "socket.keepalive.enable", "true");
	add(c, "allow.auto.create.topics", c->create_topics ? "true" : "false");
	add_option(c, hello, "compression", "compression.type");
	if (!add_option(c, hello, "max_message_bytes", "message.max.bytes"))
		add(c, "message.max.bytes", "1000000");
	return add_security(p, hello);
}
