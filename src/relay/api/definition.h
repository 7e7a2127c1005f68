/*-------------------------------------------------------------------------
 *
 * definition.h
 *		What the SQL functions on relays share.
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

#include "relay/config.h"
#include "relay/position/position.h"

/* The relay, its row locked against a concurrent change; 42704 if there is none. */
extern IdemRelayConfig *idem_relay_get_locked(const char *name);

/*
 * An operator moves the position, which counts under a new epoch.  What an adoption
 * has accepted stays accepted as long as no sink has confirmed anything after it.
 */
extern void idem_relay_move_position(const IdemRelayConfig *c, IdemPositionFresh fresh,
									 const IdemPosition *pos);

#endif							/* IDEM_RELAY_API_DEFINITION_H */
