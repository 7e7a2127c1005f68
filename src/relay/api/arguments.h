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

/* The arguments of both functions, in this order. */
enum
{
	IDEM_ARG_RELAY,
	IDEM_ARG_SERVER,
	IDEM_ARG_TYPES,
	IDEM_ARG_START,
	IDEM_ARG_ORDERING,
	IDEM_ARG_ON_DEAD,
	IDEM_ARG_MAX_ATTEMPTS,
	IDEM_ARG_MIN_BACKOFF,
	IDEM_ARG_MAX_BACKOFF,
	IDEM_ARG_BATCH_EVENTS,
	IDEM_ARG_BATCH_SIZE,
	IDEM_ARG_MAX_LAG,

	/*
	 * The arguments above are parameters of a statement.  The features of the
	 * arguments from here on are not built.
	 */
	IDEM_NSETTINGS,
	IDEM_ARG_LATER = IDEM_NSETTINGS
};

/* Types of the values that idem_relay_args_settings makes */
#define IDEM_SETTING_TYPES TEXTOID, TEXTOID, TEXTARRAYOID, TEXTOID, TEXTOID, TEXTOID, \
	INT4OID, INTERVALOID, INTERVALOID, INT4OID, INT8OID, INT8OID

/* The name of a relay, the first argument of every function that takes one. */
extern char *idem_relay_args_name(FunctionCallInfo fcinfo);

/* Error 22004 if an argument is NULL that has a default in relay_create. */
extern void idem_relay_args_require(FunctionCallInfo fcinfo);

/* Is start_at, which is not null, "latest"? */
extern bool idem_relay_args_latest(FunctionCallInfo fcinfo);

/*
 * Check all arguments but relay and server, and make parameters for SPI of
 * them: IDEM_NSETTINGS values, and as many characters of nulls.  Server and
 * start_at are no columns of "relays"; NULLs take their places.
 */
extern void idem_relay_args_settings(FunctionCallInfo fcinfo, Datum *values, char *nulls);

#endif							/* IDEM_RELAY_API_ARGUMENTS_H */
