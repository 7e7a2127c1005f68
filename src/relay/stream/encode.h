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
 * Begin a life of the program: its HELLO names the relay's incarnation and the life,
 * which the sink stores with each position.  OK, or UNUSABLE.
 */
extern IdemStreamVerdict idem_encode_hello(IdemStream *stream);

/* The life in a sink's position; false if the position is of another incarnation. */
extern bool idem_encode_life_of(const IdemStream *stream, IdemProtoStr incarnation, int64 *life);

/*
 * Append the frames of the batch's next event; in a transaction.  False, and nothing
 * appended, if the event cannot be converted to UTF-8.
 */
extern bool idem_encode_event(IdemStream *stream, const IdemBatch *batch, const IdemEvent *ev);

/* The batch is complete: append its END. */
extern void idem_encode_end(IdemStream *stream, const IdemBatch *batch);

#endif							/* IDEM_RELAY_STREAM_ENCODE_H */
