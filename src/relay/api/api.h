/*-------------------------------------------------------------------------
 *
 * api.h
 *		What the SQL functions on relays share.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/api.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_API_API_H
#define IDEM_RELAY_API_API_H

#include "postgres.h"

#include "fmgr.h"
#include "foreign/foreign.h"
#include "lib/stringinfo.h"

#include "relay/config.h"
#include "relay/position/position.h"

/* The arguments of relay_create and relay_alter */

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

/* The same, for a command that must not run in a read-only transaction. */
extern char *idem_relay_args_begin(FunctionCallInfo fcinfo, const char *command);

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
 * before, and a backoff of 0 is the default.  server: the one that is given, or NULL.
 */
extern void idem_relay_args_options(FunctionCallInfo fcinfo, const IdemRelayConfig *config,
									const ForeignServer *server, IdemRelayColumns *columns);

/* Of definition.c */

/*
 * The relay, with its row locked against a concurrent change; error 42704 if
 * there is none.
 */
extern IdemRelayConfig *idem_relay_get_locked(const char *name);

/* The same without a lock. */
extern IdemRelayConfig *idem_relay_get(const char *name);

/* The server of that name; an error if the caller may not use it. */
extern ForeignServer *idem_relay_usable_server(const char *name);

/*
 * A command of relays has done its work: at its commit the workers read the
 * relays again.  It is logged if log_statement asks for DDL: no event trigger sees
 * it, and to log_statement it is a SELECT.
 */
extern void idem_relay_command_done(const char *command, const char *relay);

/*
 * Append a position that an operator sets; it counts under a new epoch.  After
 * an adoption, as long as no sink has confirmed anything, a move keeps the
 * adoption's leniency: what the sink has stored is accepted as the adoption
 * accepts it.  other_server: from now on the relay sends to another server, as
 * far as anybody knows.
 */
extern void idem_relay_move_position(const IdemRelayConfig *c, IdemPositionFresh fresh,
									 bool other_server, const IdemPosition *pos);

/* Of target.c: what is known of a relay's target at once */

/* Refuse a relay whose options or function are not fit; ..._options looks at the options only. */
extern void idem_target_check(const IdemRelayConfig *relay);
extern void idem_target_check_options(const IdemRelayConfig *relay);

/* Warn of what only the target can tell. */
extern void idem_target_warn(const IdemRelayConfig *relay);

/* Note which of these types of aggregates, a text[], no recent event has.  None, if there is no event. */
extern void idem_target_note_types(Datum types);

/* Of statistics.c */

/*
 * A restore brings events: from its commit on all relays wait for relay_adopt.
 */
extern void idem_relay_hold_for_restore(void);

/* Of validator.c: lets only superusers change servers' options that are for superusers */

/* An object was created or altered; looks at its class first. */
extern void idem_option_guard_check(Oid classid, Oid objid, bool created);

#endif							/* IDEM_RELAY_API_API_H */
