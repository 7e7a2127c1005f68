/*-------------------------------------------------------------------------
 *
 * bye.h
 *		Lets programs that are no longer needed say their last words.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/bye.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_BYE_H
#define IDEM_RELAY_STREAM_BYE_H

#include "postgres.h"

#include "relay/stream/state.h"

/*
 * Send the program BYE and take it away from the stream, if nothing is in flight;
 * else false.  idem_stream_serve_byes does the rest.
 */
extern bool idem_bye_say(IdemStream *stream);

/*
 * Programs that were sent BYE: pass on what they still have to say, forget those
 * that ended, kill those that take too long.  ..._next_time says when to call
 * it again, 0: no need.  ..._wait waits until none is left; interruptible.
 */
extern void idem_stream_serve_byes(void);
extern IdemClock idem_stream_byes_next_time(void);
extern void idem_stream_wait_byes(void);

#endif							/* IDEM_RELAY_STREAM_BYE_H */
