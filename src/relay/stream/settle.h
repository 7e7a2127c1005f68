/*-------------------------------------------------------------------------
 *
 * settle.h
 *		Results of batches -> the position, and the events that are parked.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/settle.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_SETTLE_H
#define IDEM_RELAY_STREAM_SETTLE_H

#include "postgres.h"

#include "relay/stream/state.h"

/* Settle the oldest batches, as far as they are answered. */
extern void idem_settle(IdemStream *stream);

/*
 * Try to lock the relay's parked events, and those named by parked_ids, so that
 * the transaction may change them.  If that fails, the relay tries again at
 * lock_retry_at, which is set here.
 */
extern bool idem_settle_try_lock(IdemStream *stream, const int64 *parked_ids, int n);

/*
 * The sink's target wants no more events: halt the relay until an operator acts.
 * message says what the sink said.  False if another transaction has the relay's
 * row; the caller asks the target again later.
 */
extern bool idem_settle_halt(IdemStream *stream, const char *message);

#endif							/* IDEM_RELAY_STREAM_SETTLE_H */
