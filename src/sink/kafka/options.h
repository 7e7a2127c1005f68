/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the kafka sink.
 *
 * The list is closed: properties of librdkafka that load code or read files of
 * the server's OS user (plugin.library.paths, ssl.engine.location, ...) have no
 * option.  Options that name a file are for superusers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/kafka/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_KAFKA_OPTIONS_H
#define IDEM_SINK_KAFKA_OPTIONS_H

#include "sink/protocol/option.h"

#define IDEM_SINK_KAFKA_TOPIC			"outbox.event.{aggregate_type}"
#define IDEM_SINK_KAFKA_POSITION_TOPIC	"idempotency.position.{relay}"

static const IdemSinkOption idem_sink_kafka_options[] = {
	/* host:port, several separated by commas */
	{.name = "brokers", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "delivery", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "exactly_once at_least_once"},

	/*
	 * a name, or a template with {aggregate_type}, {event_type},
	 * {header:NAME}
	 */
	{.name = "topic", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE,
	.choices = "{aggregate_type} {event_type} {header:NAME}"},
	/* a name, or a template with {relay}; also the transactional id */
	{.name = "position_topic", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay}"},
	/* create missing topics; off: an operator creates them */
	{.name = "create_topics", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},

	{.name = "format", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE,
	.choices = "debezium cloudevents_binary cloudevents_structured"},
	/* the key as plain text, or as a JSON string */
	{.name = "key_format", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "string json"},
	/* a payload that is JSON null becomes a record without a value */
	{.name = "tombstones", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},
	/* the source of CloudEvents; a template with {relay}, {aggregate_type} */
	{.name = "source", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay} {aggregate_type}"},

	{.name = "compression", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "none gzip snappy lz4 zstd"},
	/* largest record, and largest request, in bytes */
	{.name = "max_message_bytes", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 1000000000},

	/* milliseconds after which the broker aborts an open transaction */
	{.name = "transaction_timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 900000},
	/* no batch joins a transaction that is older, in ms, or has more events */
	{.name = "transaction_time", .where = IDEM_OPTION_SERVER,
		.type = IDEM_OPTION_INT, .min = 0, .max = 60000,
		.less_than = "transaction_timeout", .less_than_default = 30000,
	.unless = "delivery", .unless_is = "at_least_once"},
	{.name = "transaction_events", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 1000000},
	/* milliseconds without progress until the target counts as down */
	{.name = "timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 900000},

	{.name = "security_protocol", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "plaintext ssl sasl_plaintext sasl_ssl"},
	{.name = "sasl_mechanism", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "PLAIN SCRAM-SHA-256 SCRAM-SHA-512 OAUTHBEARER"},
	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},

	/* OAUTHBEARER: the token endpoint, asked with user and password */
	{.name = "token_url", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_URL},
	{.name = "token_scope", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "token_audience", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	/* where the request has user and password: a header, or its body */
	{.name = "token_login", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "header body"},
	{.name = "token_rootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},
	/* name=value, several separated by commas: sent to the brokers at login */
	{.name = "sasl_extensions", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},

	IDEM_SINK_LOGIN_OPTIONS,
	{.name = NULL}
};

#endif							/* IDEM_SINK_KAFKA_OPTIONS_H */
