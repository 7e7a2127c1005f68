/*-------------------------------------------------------------------------
 *
 * options.h
 *		The options of the postgres sink.
 *
 * An option that is a parameter of libpq has libpq's name and goes to libpq
 * unchanged.  The list is closed: other parameters of libpq (service, passfile,
 * options, ...) would let a relay's owner use files of the server's OS user.
 * The program requires dbname and exactly one of function and table.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/options.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SINK_POSTGRES_OPTIONS_H
#define IDEM_SINK_POSTGRES_OPTIONS_H

#include "sink/protocol/option.h"

#define IDEM_SINK_POSTGRES_POSITION_TABLE "public.idempotency_sink_position"

static const IdemSinkOption idem_sink_postgres_options[] = {
	/* parameters of libpq */
	{.name = "host", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "hostaddr", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "port", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "dbname", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT, .required = true},
	{.name = "application_name", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	{.name = "connect_timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 2, .max = 3600},
	{.name = "tcp_user_timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 3600000},
	{.name = "target_session_attrs", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "any read-write primary"},
	{.name = "channel_binding", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "disable prefer require"},
	{.name = "sslmode", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICE,
	.choices = "disable allow prefer require verify-ca verify-full"},
	{.name = "ssl_min_protocol_version", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "TLSv1.2 TLSv1.3"},
	/* from libpq 16 on, "system" stands for the certificates of the machine */
	{.name = "sslrootcert", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true, .choices = "system"},
	{.name = "sslcrl", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_FILE, .superuser = true},

	/* where an event goes: one of these two */
	{.name = "function", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_QUALIFIED},
	{.name = "table", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_QUALIFIED},

	/*
	 * the columns that the table leaves out on purpose; without this option a
	 * column that was renamed would mean events without their payload
	 */
	{.name = "omit_columns", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_CHOICES,
	.choices = "seq aggregate_type aggregate_id event_type content_type payload payload_bytes headers enqueued_at"},

	{.name = "position_table", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_QUALIFIED},

	/*
	 * claim the events at the target; auto: for a function, if the extension
	 * is installed there
	 */
	{.name = "claim", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_CHOICE, .choices = "auto on off"},
	/* the consumer of these claims; default: the relay's name */
	{.name = "consumer", .where = IDEM_OPTION_SERVER, .type = IDEM_OPTION_TEXT},
	/* milliseconds for all calls of a batch together; 0: no limit */
	{.name = "statement_timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 0, .max = 86400000},
	/* milliseconds until the target gives up a transaction of a silent sink */
	{.name = "idle_timeout", .where = IDEM_OPTION_SERVER,
	.type = IDEM_OPTION_INT, .min = 1000, .max = 3600000},

	IDEM_SINK_LOGIN_OPTIONS,
	{.name = NULL}
};

#endif							/* IDEM_SINK_POSTGRES_OPTIONS_H */
