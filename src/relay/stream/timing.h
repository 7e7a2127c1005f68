/*-------------------------------------------------------------------------
 *
 * timing.h
 *		When a stream has something to do.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/timing.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_TIMING_H
#define IDEM_RELAY_STREAM_TIMING_H

#include "postgres.h"

#include "relay/stream/state.h"

/* When to step next if nothing happens before; 0: no need. */
extern IdemClock idem_stream_next_time(IdemRelay *relay);

/*
 * Is nothing in flight, nothing to be sent, and nothing left that only a
 * program can tell?
 */
extern bool idem_stream_is_idle(const IdemStream *stream);

/* When to end the program because it has nothing to do; 0: not to be ended. */
extern IdemClock idem_stream_rest_time(const IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_TIMING_H */
