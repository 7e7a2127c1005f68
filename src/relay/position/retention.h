/*-------------------------------------------------------------------------
 *
 * retention.h
 *		Which part of the log the relays still need, and for how long.
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
 * The "base" snapshot (IdemSnap *) of every relay that holds the log: all but
 * those halted because they exceeded max_lag_size.  In a transaction.
 */
extern List *idem_retention_positions(void);

/* Halt the relays whose lag exceeds their max_lag_size.  Own transaction. */
extern void idem_retention_check_lag(void);

#endif							/* IDEM_RELAY_POSITION_RETENTION_H */
