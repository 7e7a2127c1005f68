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
 *		SQL name or as a quoted word of a shell.
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

#include "compat.h"
#include "relay/api/api.h"
#include "relay/kind.h"
#include "shared/args.h"
#include "sink/kafka/options.h"
#include "sink/kafka/setup.h"
#include "sink/postgres/options.h"
#include "sink/postgres/setup_sql.h"

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

/* The name of a relay's position topic, quoted for a shell. */
static char *
position_topic(const ForeignServer *server, const char *relay)
{
	const char *template = idem_sink_option_value(server->options, "position_topic");
	char		name[MAX_TOPIC + 1];

	if (!idem_sink_kafka_position_topic(name, sizeof(name),
										template ? template : IDEM_SINK_KAFKA_POSITION_TOPIC, relay))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_NAME),
				 errmsg("position topic of relay \"%s\" would have more than %d bytes", relay, MAX_TOPIC),
				 errhint("Set the option \"position_topic\" of server \"%s\".", server->servername)));
	return shell_word(name);
}

/*
 * Commands for a cluster that a relay of the kafka sink delivers to.  The
 * topics of a template are not known; their rights are given by what their
 * names begin with.
 */
static void
append_kafka(StringInfo out, const ForeignServer *server, const char *relay)
{
	const char *brokers = idem_sink_option_value(server->options, "brokers");
	const char *delivery = idem_sink_option_value(server->options, "delivery");
	const char *topic = idem_sink_option_value(server->options, "topic");
	const char *brace;
	char	   *user = shell_word(psprintf("User:%s", remote_user(server->serverid)));
	char	   *position = position_topic(server, relay);

	if (brokers == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("server \"%s\" lacks the option \"brokers\"", server->servername)));
	brokers = shell_word(brokers);
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
	else
		appendStringInfoString(&out, IDEM_SINK_NO_SETUP);
	PG_RETURN_TEXT_P(cstring_to_text(out.data));
}
