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

#include "relay/engine/engine.h"
#include "sink/protocol/protocol.h"

/* Only the files of this folder look into it, by state.h. */
struct IdemStream;

/* The courier that sends events to a sink program. */
extern const IdemCourier idem_program_courier;

/*
 * The relay as a stream, for relays.c, which shares programs out.  NULL: the
 * relay has no program.
 */
static inline struct IdemStream *
idem_stream_of(IdemRelay *relay)
{
	return relay->courier == &idem_program_courier ? (struct IdemStream *) relay : NULL;
}

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

/* Are batches of the relay in flight?  ..._may_be_answered: to a target that is not known to refuse all. */
extern bool idem_stream_is_sending(const struct IdemStream *stream);
extern bool idem_stream_may_be_answered(const struct IdemStream *stream);

/*
 * Serve the programs that were sent BYE: log their last lines, forget those
 * that ended, kill those that take too long.  ..._next_time says when to serve
 * them again; 0: no need.  ..._wait serves them until all have ended; it can be
 * interrupted.
 */
extern void idem_stream_serve_byes(void);
extern IdemClock idem_stream_byes_next_time(void);
extern void idem_stream_wait_byes(void);

/*
 * For a look at the target, in a transaction of any session: write the LOOK of a relay
 * to buf, of IDEM_PROTO_MAX_FRAME bytes.  Returns its size; 0 or more than that, if its
 * options cannot be converted to UTF-8 or do not fit.  And a program's text as one clean
 * line, palloc'd.
 */
extern size_t idem_encode_look(const IdemRelayConfig *config, uint8 *buf);
extern char *idem_receive_text(IdemProtoStr text);

#endif							/* IDEM_RELAY_STREAM_STREAM_H */
