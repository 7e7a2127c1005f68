/*-------------------------------------------------------------------------
 *
 * end.h
 *		Ends the program of a stream.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/end.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_END_H
#define IDEM_RELAY_STREAM_END_H

#include "postgres.h"

#include "relay/stream/state.h"

/*
 * Go to OFF from any state.  The caller sets what keeps the stream off, if
 * anything does.
 */
extern void idem_stream_turn_off(IdemStream *stream);

/*
 * Go to OFF where the program did nothing wrong.  If nothing is in flight, the
 * program may end by itself after BYE.
 */
extern void idem_stream_dismiss(IdemStream *stream);

/* Does the stream go on after the verdict?  If not, end its program. */
extern bool idem_stream_goes_on(IdemStream *stream, IdemStreamVerdict verdict);

/*
 * A step raised an error: end the program, and go on from the settled position
 * after the backoff.
 */
extern void idem_stream_failed(IdemRelay *relay, int sqlerrcode, const char *message);

#endif							/* IDEM_RELAY_STREAM_END_H */
