/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the redis sink.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/redis/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_REDIS_OPTIONS_H
#define IDEM_SINK_REDIS_OPTIONS_H

#include "sink/protocol/option.h"

/* {relay} becomes the relay's name in braces: the hash tag of a cluster. */
#define IDEM_SINK_REDIS_STREAM			"outbox.{relay}"
#define IDEM_SINK_REDIS_POSITION_KEY	"idempotency.position.{relay}"

static const IdemSinkOption idem_sink_redis_options[] = {
	/* host:port, several separated by commas; each is tried in turn */
	{.name = "servers", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "database", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 0, .max = 65535},
	{.name = "delivery", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "exactly_once at_least_once"},

	{.name = "stream", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE,
	.choices = "{relay} {aggregate_type} {event_type} {header:NAME}"},
	{.name = "position_key", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay}"},
	/* entries that a stream keeps, about; 0: all */
	{.name = "maxlen", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 0, .max = 2147483647},

	{.name = "format", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE, .choices = "fields cloudevents"},
	/* the source of CloudEvents; a template with {relay}, {aggregate_type} */
	{.name = "source", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEMPLATE, .choices = "{relay} {aggregate_type}"},
	/* largest event, in bytes of its data; not above what the server takes */
	{.name = "max_event_bytes", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 1000, .max = 500000000},

	/* wait until the server has synced its append-only file */
	{.name = "wait_aof", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE, .choices = "auto on off"},
	/* replicas that must have a batch before it counts as delivered */
	{.name = "wait_replicas", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 0, .max = 100},
	/* milliseconds without an answer until the target counts as down */
	{.name = "timeout", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_INT, .min = 1000, .max = 900000},

	{.name = "tls", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_BOOL},
	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_FILE, .superuser = true},

	IDEM_SINK_LOGIN_OPTIONS,
	{.name = NULL}
};

#endif							/* IDEM_SINK_REDIS_OPTIONS_H */
