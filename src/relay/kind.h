/*-------------------------------------------------------------------------
 *
 * kind.h
 *		The kinds of sink that the core knows: wrapper, options, program.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/kind.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_KIND_H
#define IDEM_RELAY_KIND_H

#include "postgres.h"

#include "nodes/pg_list.h"

#include "sink/http/options.h"
#include "sink/kafka/options.h"
#include "sink/mqtt/options.h"
#include "sink/nats/options.h"
#include "sink/null/options.h"
#include "sink/postgres/options.h"
#include "sink/protocol/option.h"
#include "sink/rabbitmq/options.h"
#include "sink/redis/options.h"

/*
 * One line per kind: name, table of options, flags.  The line defines the
 * validator idem_sink_<name>_validator.  sql/install/60_relay.sql has a line
 * per kind, too, in the same order; "make lint" compares them.
 */
#define IDEM_SINK_KINDS(KIND) \
	KIND(function, idem_sink_function_options, 0) \
	KIND(postgres, idem_sink_postgres_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(kafka, idem_sink_kafka_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(http, idem_sink_http_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(nats, idem_sink_nats_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(redis, idem_sink_redis_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(rabbitmq, idem_sink_rabbitmq_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(mqtt, idem_sink_mqtt_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(null, idem_sink_null_options, IDEM_KIND_HAS_PROGRAM) \
	KIND(program, idem_sink_program_options, IDEM_KIND_OPEN)

/*
 * The project builds a program idempotency-sink-<name> and packages it under
 * that name.
 */
#define IDEM_KIND_HAS_PROGRAM	0x01

/* The program has options of its own, which the core cannot check. */
#define IDEM_KIND_OPEN			0x02

typedef struct IdemSinkKind
{
	const char *name;
	const IdemSinkOption *options;	/* ended by a NULL name */
	int			flags;
} IdemSinkKind;

/* The kind of that name.  NULL if there is none. */
extern const IdemSinkKind *idem_sink_kind(const char *name);

/* The name in "idempotency_<name>".  NULL if the wrapper is not ours. */
extern const char *idem_sink_wrapper_kind(const char *wrapper);

/* The names of the wrappers, for a hint. */
extern char *idem_sink_wrappers(void);

/*
 * The value of an option in a list of DefElem.  NULL if the list lacks the
 * option.
 */
extern const char *idem_sink_option_value(List *options, const char *name);

/* The first required option of the kind that a server's list lacks, or NULL. */
extern const char *idem_sink_missing_option(const IdemSinkKind *kind, List *options);

/*
 * Could one of a server's options be a secret, judged by its name?  A mistyped
 * name counts.  An option that the kind knows as no secret does not.
 */
extern bool idem_sink_options_look_secret(const IdemSinkKind *kind, List *options);

#endif							/* IDEM_RELAY_KIND_H */
