/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the nats sink.
 *
 * The program and the validator in the server read this table.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/nats/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_NATS_OPTIONS_H
#define IDEM_SINK_NATS_OPTIONS_H

#include "sink/protocol/option.h"

#define IDEM_SINK_NATS_SUBJECT			"outbox.event.{aggregate_type}"
#define IDEM_SINK_NATS_POSITION_SUBJECT	"idempotency.position.{relay}"

static const IdemSinkOption idem_sink_nats_options[] = {
	/* host:port, several separated by commas */
	{.name = "servers", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "stream", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "delivery", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "exactly_once at_least_once"},
	{.name = "subject", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE,
	.choices = "{aggregate_type} {aggregate_id} {event_type} {header:NAME}"},
	{.name = "position_subject", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay}"},
	{.name = "format", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE,
	.choices = "plain cloudevents_binary cloudevents_structured"},
	/* the source of CloudEvents; a template with {relay}, {aggregate_type} */
	{.name = "source", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay} {aggregate_type}"},
	/* milliseconds without an answer until the target counts as down */
	{.name = "timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 900000},

	{.name = "tls", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},
	/* the name in the server's certificate, if it is not the host */
	{.name = "tls_host", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},

	{.name = "user", .where = IDEM_OPTION_USER_MAPPING, .type = IDEM_OPTION_TEXT},
	{.name = "password", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .secret = true},
	/* a file whose first line is the password, or the token */
	{.name = "secret_file", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .superuser = true},
	{.name = "token", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .secret = true},
	/* a file with a user's JWT and seed, as nsc writes it */
	{.name = "credentials_file", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_FILE, .superuser = true},
	{.name = "sslcert", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_FILE, .superuser = true},
	{.name = "sslkey", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_FILE, .superuser = true},
	{.name = NULL}
};

#endif							/* IDEM_SINK_NATS_OPTIONS_H */
