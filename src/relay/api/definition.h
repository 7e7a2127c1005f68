/*-------------------------------------------------------------------------
 *
 * definition.h
 *		Functions that the SQL functions on relays share.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/definition.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_API_DEFINITION_H
#define IDEM_RELAY_API_DEFINITION_H

#include "postgres.h"

#include "foreign/foreign.h"

#include "relay/config.h"
#include "relay/position/position.h"

/*
 * The relay, with its row locked against a concurrent change; error 42704 if
 * there is none.
 */
extern IdemRelayConfig *idem_relay_get_locked(const char *name);

/* The server of that name; an error if the caller may not use it. */
extern ForeignServer *idem_relay_usable_server(const char *name);

/*
 * Log a command of relays that has done its work, if log_statement asks for DDL:
 * no event trigger sees it, and to log_statement it is a SELECT.
 */
extern void idem_relay_log_command(const char *command, const char *relay);

/*
 * Append a position that an operator sets; it counts under a new epoch.  After
 * an adoption, as long as no sink has confirmed anything, a move keeps the
 * adoption's leniency: what the sink has stored is accepted as the adoption
 * accepts it.  other_server: from now on the relay sends to another server, as
 * far as anybody knows.
 */
extern void idem_relay_move_position(const IdemRelayConfig *c, IdemPositionFresh fresh,
									 bool other_server, const IdemPosition *pos);

#endif							/* IDEM_RELAY_API_DEFINITION_H */
