/*-------------------------------------------------------------------------
 *
 * delegate.h
 *		A function relay in the worker of its database: it has no worker of its own now.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/delegate.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_DELEGATE_H
#define IDEM_RELAY_FUNCTION_DELEGATE_H

#include "postgres.h"

#include "relay/engine/engine.h"

/*
 * A delegate: stands in for a function relay in the worker of the database, as
 * long as the relay has no process of its own.
 */
extern const IdemCourier idem_delegate_courier;

#endif							/* IDEM_RELAY_FUNCTION_DELEGATE_H */
