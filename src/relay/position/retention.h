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
#include "utils/hsearch.h"

#include "relay/config.h"
#include "relay/position/position.h"

/*
 * The snapshots (IdemSnap *) at which the relays hold the outbox: all
 * relays but those halted because they exceeded max_lag_size; the present
 * one, if all are.  NIL: there is no relay.  In a transaction.
 */
extern List *idem_retention_positions(void);

/*
 * The position by which a relay may be judged: the row's, or, if the relay has
 * no row or not a credible one, a position that has delivered nothing.
 */
extern const IdemPosition *idem_retention_position(const IdemRelayConfig *relay,
												   const IdemPositionRow *row);

/*
 * The position after which the relay holds the outbox: the earlier one of its own and that
 * of its blocked keys (idem_blocked_bases).
 */
extern IdemPosition idem_retention_held(const IdemPosition *pos, HTAB *bases, int relay_id);

/*
 * Halt the relays (IdemRelayConfig *) whose positions are ahead of the
 * cluster's transaction ids.  Ids go back only while the server is down, so a
 * process does this once, before its relays run.  False if another transaction
 * has a relay's row locked; then the halt is only in the list.  In a
 * transaction.
 */
extern bool idem_retention_check_history(List *configs);

/*
 * Error 55000 if the relay would exceed its max_lag_size at the position: it would be
 * halted, and its events could be emptied before they are sent.
 */
extern void idem_retention_check_move(const IdemRelayConfig *relay, const IdemPosition *to);

/*
 * Halt the relays whose lag exceeds their max_lag_size.  In a transaction of
 * its own.
 */
extern void idem_retention_check_lag(void);

#endif							/* IDEM_RELAY_POSITION_RETENTION_H */
