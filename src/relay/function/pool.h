/*-------------------------------------------------------------------------
 *
 * pool.h
 *		Function relays that have no worker now, and those that wait for one.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/pool.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_POOL_H
#define IDEM_RELAY_FUNCTION_POOL_H

#include "postgres.h"

#include "relay/engine/engine.h"

/*
 * A delegate: stands in for a function relay in the worker of the database, as
 * long as the relay has no process of its own.
 */
extern const IdemCourier idem_delegate_courier;

/*
 * Give workers to the relays that wait, in their order, and ask other relays to
 * give way.
 */
extern void idem_pool_serve(void);

#endif							/* IDEM_RELAY_FUNCTION_POOL_H */
