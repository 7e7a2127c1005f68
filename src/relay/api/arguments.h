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

#include "fmgr.h"
#include "lib/stringinfo.h"

#include "relay/config.h"

/* The numbers of the arguments: IDEM_ARG_relay and so on */
#define IDEM_ARG_NUMBER(name, ...) IDEM_ARG_##name,
enum
{
	IDEM_RELAY_ARGUMENTS(IDEM_ARG_NUMBER, IDEM_ARG_NUMBER, IDEM_ARG_NUMBER)
	IDEM_RELAY_NARGS
};

/*
 * Columns of "relays" that a statement writes, with their values as the
 * statement's parameters: "relay, on_dead" and "$1, $2::%t.relay_on_dead".
 */
typedef struct IdemRelayColumns
{
	StringInfoData names;
	StringInfoData params;
	int			n;
	Oid			types[IDEM_RELAY_NARGS + 6];
	Datum		values[IDEM_RELAY_NARGS + 6];
	char		nulls[IDEM_RELAY_NARGS + 6];
} IdemRelayColumns;

/* Make the list empty. */
extern void idem_relay_columns_init(IdemRelayColumns *columns);

/* Add a column and its value, which is not NULL. */
extern void idem_relay_columns_add(IdemRelayColumns *columns, const char *name, Oid type, Datum value);

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
 * Check all arguments but relay and server, and add the columns of the options
 * that are given.  config: NULL in relay_create; in relay_alter the relay
 * before, and a backoff of 0 is the default.
 */
extern void idem_relay_args_options(FunctionCallInfo fcinfo, const IdemRelayConfig *config,
									IdemRelayColumns *columns);

#endif							/* IDEM_RELAY_API_ARGUMENTS_H */
