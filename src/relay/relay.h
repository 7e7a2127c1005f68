/*-------------------------------------------------------------------------
 *
 * relay.h
 *		Entry point of the relay.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/relay.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_RELAY_H
#define IDEM_RELAY_RELAY_H

#include "postgres.h"

/* Defines the subsystem's settings and hooks; called once per process. */
extern void idem_relay_init(void);

#endif							/* IDEM_RELAY_RELAY_H */
