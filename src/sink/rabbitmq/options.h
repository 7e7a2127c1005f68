/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the rabbitmq sink.
 *
 * The program and the validator in the server read this table.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/rabbitmq/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_RABBITMQ_OPTIONS_H
#define IDEM_SINK_RABBITMQ_OPTIONS_H

#include "sink/protocol/option.h"

#define IDEM_SINK_RABBITMQ_VHOST		"/"
#define IDEM_SINK_RABBITMQ_EXCHANGE		"outbox"
#define IDEM_SINK_RABBITMQ_ROUTING_KEY	"{aggregate_type}"

static const IdemSinkOption idem_sink_rabbitmq_options[] = {
	/* host:port, several separated by commas */
	{.name = "servers", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "vhost", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "exchange", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE,
	.choices = "{relay} {aggregate_type} {event_type} {header:NAME}"},
	{.name = "routing_key", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE,
	.choices = "{relay} {aggregate_type} {aggregate_id} {event_type} {header:NAME}"},

	/*
	 * a stream, over the stream protocol, in the place of exchange and
	 * routing key
	 */
	{.name = "stream", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay}"},
	/* of a stream */
	{.name = "delivery", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "exactly_once at_least_once"},
	/* largest event, in bytes of its data; 0: what the server takes */
	{.name = "max_event_bytes", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 0, .max = 500000000},
	{.name = "format", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE,
	.choices = "plain cloudevents_binary cloudevents_structured"},
	/* the source of CloudEvents; a template with {relay}, {aggregate_type} */
	{.name = "source", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay} {aggregate_type}"},
	/* seconds; a server that is silent for twice as long counts as down */
	{.name = "heartbeat", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 3600},
	/* milliseconds without an answer until the target counts as down */
	{.name = "timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 900000},

	{.name = "tls", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},
	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},

	IDEM_SINK_LOGIN_OPTIONS,
	{.name = NULL}
};

#endif							/* IDEM_SINK_RABBITMQ_OPTIONS_H */
