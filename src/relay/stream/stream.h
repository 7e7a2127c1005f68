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
#include "shared/clock.h"

/* Only the files of this folder look into it, by state.h. */
struct IdemStream;

/* A stream as one of the relays of a worker. */
extern const IdemRunnerOps idem_stream_ops;

extern struct IdemStream *idem_stream_create(MemoryContext parent, IdemRelayConfig *config,
											 MemoryContext config_cxt);

/*
 * Take over a new configuration.  Restarts the program only if the sink has
 * changed.  acted: somebody acted on this relay, so an open breaker closes at
 * once.
 */
extern void idem_stream_configure(struct IdemStream *stream, IdemRelayConfig *config,
								  MemoryContext config_cxt, bool acted);
extern void idem_stream_destroy(struct IdemStream *stream);

/*
 * The configuration has not changed, but parked events or rights may have: look
 * at both again.
 */
extern void idem_stream_look_again(struct IdemStream *stream);

/*
 * Do everything that can be done now without waiting.  To be called when the
 * latch or the stream's socket is ready, and at idem_stream_next_time.
 */
extern void idem_stream_step(struct IdemStream *stream);

/*
 * A new stream, whose relay stands at the row, the last one of the log of
 * positions.  Let the relay rest there, unless its program has to be started
 * first.
 */
extern void idem_stream_rest_at(struct IdemStream *stream, const IdemPositionRow *row);

/* The relay has risen from its rest, and stands at the snapshot. */
extern void idem_stream_rise(struct IdemStream *stream, const IdemSnap *done);

/*
 * Other relays wait for room for a program.  ..._end_idle ends this relay's
 * program if the program has nothing to do.  ..._make_yield asks a program that
 * has had its time to end once what is in flight is settled.  True if the
 * program has ended or will end.
 */
extern bool idem_stream_end_idle(struct IdemStream *stream);
extern bool idem_stream_make_yield(struct IdemStream *stream);

/* The same for a program that is not ready a second after its start. */
extern bool idem_stream_end_slow_start(struct IdemStream *stream);

/*
 * Since when has the program had nothing to do, and since when does it run?  0: the
 * relay has no program that is ready, or was asked already to give it up.  The first
 * is 0 as well while the program has something to do.
 */
extern IdemClock idem_stream_idle_since(const struct IdemStream *stream);
extern IdemClock idem_stream_ready_since(const struct IdemStream *stream);

/*
 * Has the relay a program that it will not give up soon?  A relay that was asked
 * to yield is counted on for two seconds; after that it keeps its program.
 */
extern bool idem_stream_keeps_program(const struct IdemStream *stream);

/* Are batches of the relay in flight? */
extern bool idem_stream_is_sending(const struct IdemStream *stream);

/* Some transaction committed at that time; 0: the time is not known. */
extern void idem_stream_woken(struct IdemStream *stream, TimestampTz stamp);

/*
 * Write the position if it moved in memory only, for example over events of
 * other types.
 */
extern void idem_stream_persist(struct IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_STREAM_H */
