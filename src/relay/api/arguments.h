/*-------------------------------------------------------------------------
 *
 * arguments.h
 *		The arguments of relay_create and relay_alter.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/arguments.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_API_ARGUMENTS_H
#define IDEM_RELAY_API_ARGUMENTS_H

#include "postgres.h"

#include "catalog/pg_type.h"
#include "fmgr.h"

#include "relay/config.h"

/* The arguments of both functions, in this order. */
enum
{
	IDEM_ARG_RELAY,
	IDEM_ARG_SERVER,
	IDEM_ARG_AGGREGATE_TYPES,
	IDEM_ARG_EVENT_TYPES,
	IDEM_ARG_FILTER,
	IDEM_ARG_START,
	IDEM_ARG_ORDERING,
	IDEM_ARG_ON_DEAD,
	IDEM_ARG_RETRY_FOR,
	IDEM_ARG_MAX_ATTEMPTS,
	IDEM_ARG_MIN_BACKOFF,
	IDEM_ARG_MAX_BACKOFF,
	IDEM_ARG_BATCH_EVENTS,
	IDEM_ARG_BATCH_SIZE,
	IDEM_ARG_MAX_LAG,
	IDEM_ARG_MAX_RATE,
	IDEM_ARG_MAX_KEY_RATE,
	IDEM_ARG_MAX_IN_FLIGHT
};

/*
 * The values that idem_relay_args_settings makes: the first parameters of the
 * statements that write "relays", in this order.
 */
enum
{
	IDEM_SET_RELAY,
	IDEM_SET_AGGREGATE_TYPES,
	IDEM_SET_ORDERING,
	IDEM_SET_ON_DEAD,
	IDEM_SET_MAX_ATTEMPTS,
	IDEM_SET_MIN_BACKOFF,
	IDEM_SET_MAX_BACKOFF,
	IDEM_SET_BATCH_EVENTS,
	IDEM_SET_BATCH_SIZE,
	IDEM_SET_MAX_LAG,
	IDEM_NSETTINGS
};

/* Their types */
#define IDEM_SETTING_TYPES TEXTOID, TEXTARRAYOID, TEXTOID, TEXTOID, INT4OID, \
	INTERVALOID, INTERVALOID, INT4OID, INT8OID, INT8OID

/* The name of a relay, the first argument of every function that takes one. */
extern char *idem_relay_args_name(FunctionCallInfo fcinfo);

/* Error 22004 if an argument is NULL that has a default in relay_create. */
extern void idem_relay_args_require(FunctionCallInfo fcinfo);

/* Is start_at, which is not null, "latest"? */
extern bool idem_relay_args_latest(FunctionCallInfo fcinfo);

/*
 * Check a list of types or ids of aggregates, or of types of events: no NULL
 * element, and no longer than those of an event may be.  NULL is accepted.
 */
extern void idem_relay_args_check_names(FunctionCallInfo fcinfo, int argno, const char *name);

/*
 * Check all arguments but relay and server, and make parameters for SPI of
 * them: IDEM_NSETTINGS values, and as many characters of nulls.  config:
 * NULL in relay_create; in relay_alter the relay before, and a backoff of 0 is
 * the default.
 */
extern void idem_relay_args_settings(FunctionCallInfo fcinfo, const IdemRelayConfig *config,
									 Datum *values, char *nulls);

#endif							/* IDEM_RELAY_API_ARGUMENTS_H */
