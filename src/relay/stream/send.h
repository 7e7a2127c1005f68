/*-------------------------------------------------------------------------
 *
 * send.h
 *		Events of the log, and parked ones that are due -> batches.
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

/* Send as many batches as there is room for, while it is the relay's turn. */
extern void idem_send(IdemStream *stream);

/* When parked events are due that could be sent now; 0: none, or they cannot. */
extern IdemClock idem_send_repeats_at(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_SEND_H */
