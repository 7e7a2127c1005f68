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

#include "relay/runner_ops.h"

/* In the worker of a database: a relay to a function that has no process now. */
extern const IdemRunnerOps idem_delegate_ops;

/* Give workers to those that wait, in their order; ask others to give way. */
extern void idem_pool_serve(void);

#endif							/* IDEM_RELAY_FUNCTION_POOL_H */
