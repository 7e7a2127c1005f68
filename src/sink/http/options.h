/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the http sink.
 *
 * The list is closed: no option names a proxy, a unix socket or an interface,
 * and none turns the check of certificates off.  Options that name a file, or
 * that widen what may be connected to, are for superusers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_HTTP_OPTIONS_H
#define IDEM_SINK_HTTP_OPTIONS_H

#include "sink/protocol/option.h"

/* What templates may have in braces */
#define HSINK_URL_NAMES		"{aggregate_type} {aggregate_id} {event_type} {id} {header:NAME}"
#define HSINK_HEADER_NAMES	"{aggregate_type} {aggregate_id} {event_type} {id} {relay} {token} {header:NAME}"
#define HSINK_SOURCE_NAMES	"{relay} {aggregate_type}"

static const IdemSinkOption idem_sink_http_options[] = {
	/*
	 * http:// or https://; path and query may be a template with
	 * {aggregate_type}, {aggregate_id}, {event_type}, {id}, {header:NAME}
	 */
	{.name = "url", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_URL, .required = true,
	.choices = HSINK_URL_NAMES},
	{.name = "service", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "webhook sqs sns eventbridge pubsub servicebus"},
	{.name = "method", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "POST PUT PATCH"},

	{.name = "format", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE,
	.choices = "plain cloudevents_binary cloudevents_structured cloudevents_batch"},
	/* the source of CloudEvents; a template with {relay}, {aggregate_type} */
	{.name = "source", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = HSINK_SOURCE_NAMES},
	/* lines "Name: value"; a value is a template, as the path of url */
	{.name = "headers", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = HSINK_HEADER_NAMES},
	/* of plain bodies; instead of the event's own */
	{.name = "content_type", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	/* events in a request, at most, where a request takes several */
	{.name = "batch_events", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 1000},

	/* requests at once */
	{.name = "concurrency", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 256},
	/* milliseconds for a request as a whole, and for its connection */
	{.name = "timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 900000},
	{.name = "connect_timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1, .max = 900000},
	{.name = "http_version", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "1.1 2"},
	/* bytes of a response that are read, body and headers each */
	{.name = "max_response_bytes", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1024, .max = 16777216},

	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},
	/* ranges "10.1.0.0/16, ::1" that may be connected to though not public */
	{.name = "allowed_addresses", .where = IDEM_OPTION_SERVER,
		.type = IDEM_OPTION_TEXT, .superuser = true,
	.reason = "It opens addresses of the inside network to the owner of the foreign server."},

	{.name = "auth", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "none basic bearer oauth2"},
	/* oauth2: the token endpoint, asked with user and password */
	{.name = "token_url", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_URL},
	{.name = "token_scope", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "token_audience", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	/* where the request has user and password: a header, or its body */
	{.name = "token_login", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "header body"},
	{.name = "token_rootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},
	/* of AWS, as in eu-central-1 */
	{.name = "region", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},

	/*
	 * user and password: of basic, the client of oauth2, the access key of
	 * AWS, the policy of Service Bus.  secret_file: the password, or the
	 * token of bearer.
	 */
	IDEM_SINK_LOGIN_OPTIONS,
	{.name = "token", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .secret = true},
	{.name = "session_token", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .secret = true},
	/* "whsec_... whsec_..."; each of them signs */
	{.name = "signing_secrets", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_SIGNING_SECRETS, .secret = true},
	/* a file with the same in its first line */
	{.name = "signing_secrets_file", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .superuser = true},
	/* of Google: the JSON text of a service account's key, or a file with it */
	{.name = "service_account", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .secret = true},
	{.name = "service_account_file", .where = IDEM_OPTION_USER_MAPPING,
	.type = IDEM_OPTION_TEXT, .superuser = true},
	{.name = NULL}
};

#endif							/* IDEM_SINK_HTTP_OPTIONS_H */
