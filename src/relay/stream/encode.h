/*-------------------------------------------------------------------------
 *
 * encode.h
 *		A relay and its events -> frames in the output.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/encode.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_ENCODE_H
#define IDEM_RELAY_STREAM_ENCODE_H

#include "postgres.h"

#include "outbox/reader.h"
#include "relay/stream/state.h"

/*
 * Begin a life of the program and append HELLO, which names the relay's
 * incarnation and the life.  The sink stores both with each position.  OK, or
 * UNUSABLE.
 */
extern IdemStreamVerdict idem_encode_hello(IdemStream *stream);

/*
 * Read the life from a sink's position; false if the position is of another
 * incarnation of the relay.
 */
extern bool idem_encode_life_of(const IdemStream *stream, IdemProtoStr incarnation, int64 *life);

/*
 * Append the frames of the batch's next event.  In a transaction.  Returns
 * false, and appends nothing, if the event cannot be converted to UTF-8.
 */
extern bool idem_encode_event(IdemStream *stream, const IdemBatch *batch, const IdemEvent *ev);

/* The batch is complete: append its END. */
extern void idem_encode_end(IdemStream *stream, const IdemBatch *batch);

#endif							/* IDEM_RELAY_STREAM_ENCODE_H */
