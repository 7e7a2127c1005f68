/*-------------------------------------------------------------------------
 *
 * bye.h
 *		Lets programs that are no longer needed end by themselves.
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

#include "shared/clock.h"

struct IdemStream;

/*
 * If nothing is in flight, send the program BYE, take the program away from the
 * stream, and return true; idem_stream_serve_byes does the rest.  Else return
 * false.
 */
extern bool idem_bye_say(struct IdemStream *stream);

/*
 * Serve the programs that were sent BYE: log their last lines, forget those
 * that ended, kill those that take too long.  ..._next_time says when to serve
 * them again; 0: no need.  ..._wait serves them until all have ended; it can be
 * interrupted.
 */
extern void idem_stream_serve_byes(void);
extern IdemClock idem_stream_byes_next_time(void);
extern void idem_stream_wait_byes(void);

#endif							/* IDEM_RELAY_STREAM_BYE_H */
