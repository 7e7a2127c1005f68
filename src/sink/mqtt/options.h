/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the mqtt sink.
 *
 * The program and the validator in the server read this table.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/mqtt/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_MQTT_OPTIONS_H
#define IDEM_SINK_MQTT_OPTIONS_H

#include "sink/protocol/option.h"

#define IDEM_SINK_MQTT_TOPIC		"outbox/event/{aggregate_type}"
#define IDEM_SINK_MQTT_CLIENT_ID	"idempotency-{relay}"
#define IDEM_SINK_MQTT_IN_FLIGHT	"100"

static const IdemSinkOption idem_sink_mqtt_options[] = {
	/* host:port, several separated by commas; each is tried in turn */
	{.name = "servers", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "topic", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE,
	.choices = "{relay} {aggregate_type} {aggregate_id} {event_type} {header:NAME}"},
	{.name = "qos", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE, .choices = "1 2"},
	{.name = "retain", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},
	/* seconds that the broker keeps a message for a subscriber; 0: for ever */
	{.name = "message_expiry", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 0, .max = 2147483647},
	{.name = "format", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE,
	.choices = "plain cloudevents_binary cloudevents_structured"},
	/* the source of CloudEvents; a template with {relay}, {aggregate_type} */
	{.name = "source", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay} {aggregate_type}"},

	/* a client id that another connection uses ends this one */
	{.name = "client_id", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay}"},
	/* seconds of silence after which the connection is tried */
	{.name = "keepalive", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 5, .max = 65535},
	/* messages without an answer; the broker's Receive Maximum may be less */
	{.name = "in_flight", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 1, .max = 10000},
	/* milliseconds without an answer until the target counts as down */
	{.name = "timeout", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 1000, .max = 900000},

	{.name = "tls", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},
	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_FILE, .superuser = true},

	IDEM_SINK_LOGIN_OPTIONS,
	{.name = NULL}
};

#endif							/* IDEM_SINK_MQTT_OPTIONS_H */
