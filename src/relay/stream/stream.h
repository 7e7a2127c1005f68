/*-------------------------------------------------------------------------
 *
 * stream.h
 *		A relay to a sink program, as its worker runs it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/stream.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_STREAM_H
#define IDEM_RELAY_STREAM_STREAM_H

#include "postgres.h"

#include "relay/config.h"
#include "relay/position/position.h"
#include "relay/runner_ops.h"
#include "relay/stream/state.h"
#include "shared/clock.h"

/* A stream as one of the relays of a worker. */
extern const IdemRunnerOps idem_stream_ops;

extern IdemStream *idem_stream_create(MemoryContext parent, IdemRelayConfig *config,
									  MemoryContext config_cxt);

/*
 * Take a new configuration over; restarts the sink only if it must.  If
 * somebody acted on this relay, an open breaker closes at once.
 */
extern void idem_stream_configure(IdemStream *stream, IdemRelayConfig *config,
								  MemoryContext config_cxt, bool acted);
extern void idem_stream_destroy(IdemStream *stream);

/*
 * Its configuration is what it was; its parked events may have changed, and so
 * may what it is allowed to do.
 */
extern void idem_stream_look_again(IdemStream *stream);

/*
 * Do everything that can be done now without waiting; called when the latch
 * or the stream's socket has something, and at the time it asked for.
 */
extern void idem_stream_step(IdemStream *stream);

/*
 * A new stream whose relay stands at the row, the last one of the log: let it
 * rest there if nothing says that its program has to be started now.
 */
extern void idem_stream_rest_at(IdemStream *stream, const IdemPositionRow *row);

/* It rose, and stands where "base" says. */
extern void idem_stream_rise(IdemStream *stream, const IdemSnap *done);

/*
 * Others wait for a program: end this one's if it has nothing to do; else, if it
 * has had its time, have it given up once what is in flight is settled.  True if
 * that was or will be done.
 */
extern bool idem_stream_end_idle(IdemStream *stream);
extern bool idem_stream_make_yield(IdemStream *stream);

/* The same of a program that has not become ready for a second. */
extern bool idem_stream_end_slow_start(IdemStream *stream);

/* It was asked to, lately; true no more where it has not come to that in time. */
extern bool idem_stream_yields_soon(const IdemStream *stream);

/* Something committed at that time; 0: not known when. */
extern void idem_stream_woken(IdemStream *stream, TimestampTz stamp);

/* A step raised an error: start over from the settled position, later. */
extern void idem_stream_failed(IdemStream *stream, const char *message);

/* Write the position down if it moved without that, e.g. over other types. */
extern void idem_stream_persist(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_STREAM_H */
