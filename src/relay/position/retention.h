/*-------------------------------------------------------------------------
 *
 * retention.h
 *		Which part of the outbox the relays still need, and for how long.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/retention.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_RETENTION_H
#define IDEM_RELAY_POSITION_RETENTION_H

#include "postgres.h"

#include "nodes/pg_list.h"

/*
 * The "base" snapshots (IdemSnap *) of all relays that hold the outbox: all
 * relays but those halted because they exceeded max_lag_size.  In a
 * transaction.
 */
extern List *idem_retention_positions(void);

/*
 * Halt the relays whose lag exceeds their max_lag_size.  In a transaction of
 * its own.
 */
extern void idem_retention_check_lag(void);

#endif							/* IDEM_RELAY_POSITION_RETENTION_H */
