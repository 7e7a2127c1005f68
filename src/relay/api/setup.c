/*-------------------------------------------------------------------------
 *
 * setup.c
 *		What has to be run at a sink's target before a relay can work:
 *		sink_setup and sink_setup_sql.
 *
 * The functions print text and change nothing.  An operator runs the text at the
 * target, with the target's own tools.
 *
 * INVARIANT
 *		Text of the foreign server's owner stands in the output only as a quoted
 *		SQL name, as a quoted word of a shell, or as a JSON string in a comment.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/setup.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/json.h"

#include "compat.h"
#include "relay/api/api.h"
#include "relay/kind.h"
#include "shared/args.h"
#include "sink/kafka/options.h"
#include "sink/kafka/setup.h"
#include "sink/mqtt/options.h"
#include "sink/mqtt/setup.h"
#include "sink/nats/options.h"
#include "sink/nats/setup.h"
#include "sink/postgres/options.h"
#include "sink/postgres/setup_sql.h"
#include "sink/rabbitmq/options.h"
#include "sink/rabbitmq/setup.h"
#include "sink/redis/options.h"
#include "sink/redis/setup.h"

#define MAX_TOPIC	249			/* bytes that Kafka takes */

PG_FUNCTION_INFO_V1(idem_sink_setup_fn);
PG_FUNCTION_INFO_V1(idem_sink_setup_sql_fn);

/* Quote a qualified name for SQL text that the operator will run. */
static char *
quoted_name(const char *value)
{
	char		schema[NAMEDATALEN];
	char		name[NAMEDATALEN];

	if (!idem_sink_split_name(value, schema, name, NAMEDATALEN))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("\"%s\" is not a schema-qualified name", value)));
	return quote_qualified_identifier(schema, name);
}

/* The user that the caller's mapping names, else the caller's own name. */
static const char *
remote_user(Oid serverid)
{
	UserMapping *mapping = GetUserMapping(GetUserId(), serverid);
	const char *user = idem_sink_option_value(mapping->options, "user");

	return user ? user : GetUserNameFromId(GetUserId(), false);
}

/* SQL for a target of the postgres sink. */
static void
append_postgres(StringInfo sql, const ForeignServer *server)
{
	const char *table = idem_sink_option_value(server->options, "table");
	const char *position = idem_sink_option_value(server->options, "position_table");
	const char *role = quote_identifier(remote_user(server->serverid));

	position = quoted_name(position ? position : IDEM_SINK_POSTGRES_POSITION_TABLE);
	appendStringInfo(sql, IDEM_SINK_POSTGRES_SETUP_SQL, position, position, position, role);
	if (table != NULL)
	{
		const char *omitted = idem_sink_option_value(server->options, "omit_columns");
		char	   *inbox = quoted_name(table);
		StringInfoData columns;

		initStringInfo(&columns);
		for (int i = 0; i < lengthof(idem_sink_postgres_inbox); i++)
			if (!idem_sink_option_names(omitted, idem_sink_postgres_inbox[i].name))
				appendStringInfo(&columns, ",\n    %s %s",
								 idem_sink_postgres_inbox[i].name, idem_sink_postgres_inbox[i].type);
		appendStringInfo(sql, IDEM_SINK_POSTGRES_INBOX_SQL, inbox, columns.data, inbox, role);
	}
}

/* Quote a word for a shell. */
static char *
shell_word(const char *word)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '\'');
	for (; *word != '\0'; word++)
	{
		if (*word == '\'')
			appendStringInfoString(&buf, "'\\''");
		else
			appendStringInfoChar(&buf, *word);
	}
	appendStringInfoChar(&buf, '\'');
	return buf.data;
}

/* The option, in which {relay} stands for the relay. */
static char *
position_name(const ForeignServer *server, const char *option, const char *dflt, const char *relay)
{
	const char *template = idem_sink_option_value(server->options, option);
	char		name[MAX_TOPIC + 1];

	if (!idem_sink_kafka_position_topic(name, sizeof(name), template ? template : dflt, relay))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("%s of relay \"%s\" would have more than %d bytes", option, relay, MAX_TOPIC),
				 errhint("Set the option \"%s\" of server \"%s\".", option, server->servername)));
	return pstrdup(name);
}

/* The value of an option that the kind requires. */
static const char *
required_option(const ForeignServer *server, const char *name)
{
	const char *value = idem_sink_option_value(server->options, name);

	if (value == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("server \"%s\" lacks the option \"%s\"", server->servername, name)));
	return value;
}

/*
 * Commands for a cluster that a relay of the kafka sink delivers to.  The
 * topics of a template are not known; their rights are given by what their
 * names begin with.
 */
static void
append_kafka(StringInfo out, const ForeignServer *server, const char *relay)
{
	const char *brokers;
	const char *delivery = idem_sink_option_value(server->options, "delivery");
	const char *topic = idem_sink_option_value(server->options, "topic");
	const char *brace;
	char	   *user = shell_word(psprintf("User:%s", remote_user(server->serverid)));
	char	   *position = shell_word(position_name(server, "position_topic", IDEM_SINK_KAFKA_POSITION_TOPIC, relay));

	brokers = shell_word(required_option(server, "brokers"));
	if (topic == NULL)
		topic = IDEM_SINK_KAFKA_TOPIC;
	brace = strchr(topic, '{');
	if (brace == NULL)
		appendStringInfo(out, IDEM_SINK_KAFKA_TOPIC_SETUP, brokers, shell_word(topic));
	if (delivery == NULL || strcmp(delivery, "exactly_once") == 0)
	{
		appendStringInfo(out, IDEM_SINK_KAFKA_POSITION_SETUP, brokers, position);
		appendStringInfo(out, IDEM_SINK_KAFKA_POSITION_ACL, brokers, user, position);
		appendStringInfo(out, IDEM_SINK_KAFKA_TRANSACTION_ACL, brokers, user, position);
	}
	if (brace == topic)
		appendStringInfo(out, IDEM_SINK_KAFKA_TOPIC_ACL, brokers, user, shell_word("*"), "literal");
	else
		appendStringInfo(out, IDEM_SINK_KAFKA_TOPIC_ACL, brokers, user,
						 shell_word(brace ? pnstrdup(topic, brace - topic) : topic), brace ? "prefixed" : "literal");
}

/*
 * The pattern of the subjects, or topics, that a template can make: a word with a
 * placeholder may be any word, and several, as values may have separators.
 */
static char *
name_pattern(const char *template, char separator, const char *rest)
{
	const char *brace = strchr(template, '{');
	int			n;

	if (brace == NULL)
		return pstrdup(template);
	for (n = brace - template; n > 0 && template[n - 1] != separator; n--)
		;
	return psprintf("%.*s%s", n, template, rest);
}

/* A word of a file of settings, whose lines a control character would end. */
static const char *
setting_word(const char *value)
{
	char	   *word = pstrdup(value);

	for (char *c = word; *c != '\0'; c++)
		if ((unsigned char) *c < ' ' || *c == 0x7F)
			*c = '?';
	return word;
}

/* Settings of a broker that a relay of the mqtt sink delivers to, and the rights of its user. */
static void
append_mqtt(StringInfo out, const ForeignServer *server)
{
	const char *topic = idem_sink_option_value(server->options, "topic");
	const char *in_flight = idem_sink_option_value(server->options, "in_flight");
	const char *user = idem_sink_option_value(GetUserMapping(GetUserId(), server->serverid)->options, "user");

	appendStringInfo(out, IDEM_SINK_MQTT_CONF_SETUP, in_flight ? in_flight : IDEM_SINK_MQTT_IN_FLIGHT);
	if (user != NULL)
		appendStringInfo(out, IDEM_SINK_MQTT_ACL_SETUP, setting_word(user),
						 setting_word(name_pattern(topic ? topic : IDEM_SINK_MQTT_TOPIC, '/', "#")));
}

/* Add a JSON string to a list. */
static void
append_json(StringInfo list, const char *s)
{
	if (list->len > 0)
		appendStringInfoString(list, ", ");
	escape_json(list, s);
}

/*
 * A stream for a relay of the nats sink, and the rights of its user.  One line each:
 * JSON has no line end in a string, and so a comment has none.
 */
static void
append_nats(StringInfo out, const ForeignServer *server, const char *relay)
{
	const char *servers = required_option(server, "servers");
	const char *stream = required_option(server, "stream");
	const char *delivery = idem_sink_option_value(server->options, "delivery");
	const char *subject = idem_sink_option_value(server->options, "subject");
	char	   *position = position_name(server, "position_subject", IDEM_SINK_NATS_POSITION_SUBJECT, relay);
	char	   *pattern = name_pattern(subject ? subject : IDEM_SINK_NATS_SUBJECT, '.', ">");
	bool		exactly = delivery == NULL || strcmp(delivery, "exactly_once") == 0;
	StringInfoData subjects;
	StringInfoData rights;
	StringInfoData json;

	initStringInfo(&subjects);
	initStringInfo(&rights);
	initStringInfo(&json);
	append_json(&subjects, pattern);
	if (exactly)
		append_json(&subjects, position);
	appendStringInfoString(&rights, subjects.data);
	append_json(&rights, psprintf("$JS.API.STREAM.INFO.%s", stream));
	if (exactly)
		append_json(&rights, psprintf("$JS.API.STREAM.MSG.GET.%s", stream));
	/* for relay_check */
	append_json(&rights, "$SYS.REQ.USER.INFO");
	appendStringInfoString(&json, "{\"name\": ");
	escape_json(&json, stream);
	appendStringInfo(&json, ", \"subjects\": [%s], \"retention\": \"limits\", \"storage\": \"file\"%s}", subjects.data,
					 exactly ? ", \"allow_atomic\": true, \"allow_rollup_hdrs\": true, \"allow_msg_ttl\": true" : "");
	appendStringInfoString(out, IDEM_SINK_NATS_CONF_SETUP);
	appendStringInfo(out, IDEM_SINK_NATS_STREAM_SETUP, shell_word(servers),
					 shell_word(psprintf("$JS.API.STREAM.CREATE.%s", stream)), shell_word(json.data));
	appendStringInfo(out, IDEM_SINK_NATS_RIGHTS_SETUP, rights.data);
}

/*
 * A pattern of Redis for the keys of a template, quoted for a shell.  The relay's name
 * is a hash tag; what an event fills in is not known.
 */
static char *
key_pattern(const char *template, const char *relay)
{
	StringInfoData buf;

	initStringInfo(&buf);
	appendStringInfoChar(&buf, '~');
	while (*template != '\0')
	{
		const char *text = template;
		size_t		len = 1;

		if (*template == '{')
		{
			bool		is_relay = strncmp(template, "{relay}", 7) == 0;

			template += strcspn(template, "}") + 1;
			if (!is_relay)
			{
				appendStringInfoChar(&buf, '*');
				continue;
			}
			text = psprintf("{%s}", relay);

			len = strlen(text);
		}
		else
			template++;
		for (size_t i = 0; i < len; i++)
		{
			if (strchr("*?[]\\", text[i]) != NULL)
				appendStringInfoChar(&buf, '\\');
			appendStringInfoChar(&buf, text[i]);
		}
	}
	return shell_word(buf.data);
}

/* Commands for a server that a relay of the redis sink delivers to. */
static void
append_redis(StringInfo out, const ForeignServer *server, const char *relay)
{
	const char *servers = required_option(server, "servers");
	const char *stream = idem_sink_option_value(server->options, "stream");
	const char *position = idem_sink_option_value(server->options, "position_key");
	const char *delivery = idem_sink_option_value(server->options, "delivery");
	UserMapping *mapping = GetUserMapping(GetUserId(), server->serverid);
	const char *user = idem_sink_option_value(mapping->options, "user");
	char	   *host;
	char	   *port;

	host = pnstrdup(servers, strcspn(servers, ", "));
	port = strrchr(host, ':');
	if (port != NULL)
		*port++ = '\0';
	if (*host == '[' && host[strlen(host) - 1] == ']')
		host = pnstrdup(host + 1, strlen(host) - 2);
	host = shell_word(host);
	port = shell_word(port ? port : "6379");
	appendStringInfo(out, IDEM_SINK_REDIS_SERVER_SETUP, host, port);
	if (user == NULL)
		return;
	user = shell_word(user);
	appendStringInfo(out, IDEM_SINK_REDIS_ACL, host, port, user,
					 key_pattern(stream ? stream : IDEM_SINK_REDIS_STREAM, relay));
	if (delivery == NULL || strcmp(delivery, "exactly_once") == 0)
		appendStringInfo(out, IDEM_SINK_REDIS_POSITION_ACL, host, port, user,
						 key_pattern(position ? position : IDEM_SINK_REDIS_POSITION_KEY, relay));
	appendStringInfo(out, IDEM_SINK_REDIS_ACL_END, host, port, user);
}

/*
 * The names that a template makes for the relay, as a regular expression, or, with
 * expression false, as the template with the relay's name in it.
 */
static char *
template_names(const char *template, const char *relay, bool expression)
{
	StringInfoData buf;

	initStringInfo(&buf);
	while (*template != '\0')
	{
		size_t		len = *template == '{' ? strcspn(template, "}") + 1 : 1;
		const char *part = strncmp(template, "{relay}", 7) == 0 ? relay : pnstrdup(template, len);

		if (expression && *template == '{' && part != relay)
			part = ".*";
		else if (expression)
		{
			StringInfoData quoted;

			initStringInfo(&quoted);
			for (; *part != '\0'; part++)
				appendStringInfo(&quoted, strchr("\\^$.[]|()?*+{}", *part) != NULL ? "\\%c" : "%c", *part);
			part = quoted.data;
		}
		appendStringInfoString(&buf, part);
		template += len;
	}
	return buf.data;
}

/* Commands for a server whose stream a relay of the rabbitmq sink delivers to.  user: or NULL */
static void
append_rabbitmq_stream(StringInfo out, const ForeignServer *server, const char *relay, const char *vhost, const char *user)
{
	const char *stream = idem_sink_option_value(server->options, "stream");
	const char *delivery = idem_sink_option_value(server->options, "delivery");
	const char *pattern = shell_word(psprintf("^%s$", template_names(stream, relay, true)));
	bool		reads = delivery == NULL || strcmp(delivery, "at_least_once") != 0;
	StringInfoData host;
	StringInfoData name;

	initStringInfo(&host);
	initStringInfo(&name);
	escape_json(&host, vhost);
	escape_json(&name, template_names(stream, relay, false));
	appendStringInfoString(out, IDEM_SINK_RABBITMQ_PLUGIN_SETUP);
	appendStringInfo(out, IDEM_SINK_RABBITMQ_OBJECTS_SETUP,
					 shell_word(psprintf("{\"queues\": [{\"vhost\": %s, \"name\": %s, \"durable\": true, \"auto_delete\": false, "
										 "\"arguments\": {\"x-queue-type\": \"stream\"}}]}", host.data, name.data)));
	if (user != NULL)
		appendStringInfo(out, IDEM_SINK_RABBITMQ_STREAM_RIGHTS_SETUP, shell_word(vhost), shell_word(user), pattern,
						 reads ? pattern : "'^$'");
}

/* Commands for a server that a relay of the rabbitmq sink delivers to. */
static void
append_rabbitmq(StringInfo out, const ForeignServer *server, const char *relay)
{
	const char *vhost = idem_sink_option_value(server->options, "vhost");
	const char *exchange = idem_sink_option_value(server->options, "exchange");
	const char *user = idem_sink_option_value(GetUserMapping(GetUserId(), server->serverid)->options, "user");
	StringInfoData host;
	StringInfoData name;
	StringInfoData queue;

	vhost = vhost ? vhost : IDEM_SINK_RABBITMQ_VHOST;
	exchange = exchange ? exchange : IDEM_SINK_RABBITMQ_EXCHANGE;
	if (idem_sink_option_value(server->options, "stream") != NULL)
	{
		append_rabbitmq_stream(out, server, relay, vhost, user);
		return;
	}
	initStringInfo(&host);
	initStringInfo(&name);
	initStringInfo(&queue);
	escape_json(&host, vhost);
	escape_json(&name, template_names(exchange, relay, false));
	escape_json(&queue, relay);
	if (strstr(exchange, "_type}") != NULL || strstr(exchange, "{" IDEM_SINK_HEADER_PREFIX) != NULL)
		appendStringInfoString(out, IDEM_SINK_RABBITMQ_NAMES_SETUP);
	appendStringInfo(out, IDEM_SINK_RABBITMQ_OBJECTS_SETUP,
					 shell_word(psprintf("{\"exchanges\": [{\"vhost\": %1$s, \"name\": %2$s, \"type\": \"topic\", \"durable\": true, "
										 "\"auto_delete\": false, \"internal\": false, \"arguments\": {}}],\n"
										 " \"queues\": [{\"vhost\": %1$s, \"name\": %3$s, \"durable\": true, \"auto_delete\": false, "
										 "\"arguments\": {\"x-queue-type\": \"quorum\"}}],\n"
										 " \"bindings\": [{\"vhost\": %1$s, \"source\": %2$s, \"destination\": %3$s, "
										 "\"destination_type\": \"queue\", \"routing_key\": \"#\", \"arguments\": {}}]}",
										 host.data, name.data, queue.data)));
	if (user != NULL)
		appendStringInfo(out, IDEM_SINK_RABBITMQ_RIGHTS_SETUP, shell_word(vhost), shell_word(user),
						 shell_word(psprintf("^%s$", template_names(exchange, relay, true))));
}

Datum
idem_sink_setup_sql_fn(PG_FUNCTION_ARGS)
{
	ForeignServer *server = idem_relay_usable_server(text_to_cstring(idem_get_text_arg(fcinfo, 0, "server", NAMEDATALEN - 1)));
	StringInfoData sql;

	initStringInfo(&sql);
	if (strcmp(GetForeignDataWrapper(server->fdwid)->fdwname, "idempotency_postgres") == 0)
		append_postgres(&sql, server);
	else
		appendStringInfoString(&sql, IDEM_SINK_NO_SETUP_SQL);
	PG_RETURN_TEXT_P(cstring_to_text(sql.data));
}

Datum
idem_sink_setup_fn(PG_FUNCTION_ARGS)
{
	ForeignServer *server = idem_relay_usable_server(text_to_cstring(idem_get_text_arg(fcinfo, 0, "server", NAMEDATALEN - 1)));
	const char *wrapper = GetForeignDataWrapper(server->fdwid)->fdwname;
	const char *relay = server->servername;
	StringInfoData out;

	if (!PG_ARGISNULL(1))
		relay = text_to_cstring(idem_get_text_arg(fcinfo, 1, "relay", NAMEDATALEN - 1));
	initStringInfo(&out);
	if (strcmp(wrapper, "idempotency_postgres") == 0)
		append_postgres(&out, server);
	else if (strcmp(wrapper, "idempotency_kafka") == 0)
		append_kafka(&out, server, relay);
	else if (strcmp(wrapper, "idempotency_nats") == 0)
		append_nats(&out, server, relay);
	else if (strcmp(wrapper, "idempotency_mqtt") == 0)
		append_mqtt(&out, server);
	else if (strcmp(wrapper, "idempotency_redis") == 0)
		append_redis(&out, server, relay);
	else if (strcmp(wrapper, "idempotency_rabbitmq") == 0)
		append_rabbitmq(&out, server, relay);
	else
		appendStringInfoString(&out, IDEM_SINK_NO_SETUP);
	PG_RETURN_TEXT_P(cstring_to_text(out.data));
}
