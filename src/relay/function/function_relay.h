/*-------------------------------------------------------------------------
 *
 * function_relay.h
 *		A relay to a SQL function of its own database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/function_relay.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_FUNCTION_RELAY_H
#define IDEM_RELAY_FUNCTION_FUNCTION_RELAY_H

#include "postgres.h"

#include "relay/engine/engine.h"

/* In a worker of its own: a relay to a function. */
extern const IdemCourier idem_function_courier;

#endif							/* IDEM_RELAY_FUNCTION_FUNCTION_RELAY_H */
