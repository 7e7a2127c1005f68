/*-------------------------------------------------------------------------
 *
 * send.h
 *		Events of the outbox, and parked ones that are due -> batches.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/send.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_SEND_H
#define IDEM_RELAY_STREAM_SEND_H

#include "postgres.h"

#include "relay/stream/state.h"

/* Send batches while there is room for them and the relay's turn lasts. */
extern void idem_send(IdemStream *stream);

/*
 * When the next parked event is due; 0: none, or something that will wake us
 * comes first.
 */
extern IdemClock idem_send_repeats_at(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_SEND_H */
