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
 * May the transaction change the relay's parked events, and those that it names?
 * Else the relay waits by itself, and tries again at lock_retry_at.
 */
extern bool idem_settle_try_lock(IdemStream *stream, const int64 *parked_ids, int n);

#endif							/* IDEM_RELAY_STREAM_SETTLE_H */
