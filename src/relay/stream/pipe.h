/*-------------------------------------------------------------------------
 *
 * pipe.h
 *		A sink program and the bytes to and from it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/pipe.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_PIPE_H
#define IDEM_RELAY_STREAM_PIPE_H

#include "postgres.h"

#include "access/xlogdefs.h"

#include "relay/program/process.h"
#include "shared/clock.h"
#include "sink/protocol/protocol.h"

/* The GUC idempotency.sink_timeout: milliseconds a sink has to say anything. */
extern int	idem_sink_timeout_ms;

typedef struct IdemPipe
{
	IdemSinkProcess process;
	MemoryContext cxt;			/* of the buffers; NULL: there are none */
	uint8	   *out;
	size_t		out_start;
	size_t		out_end;
	size_t		out_allocated;
	uint8	   *in;
	size_t		in_start;
	size_t		in_end;
	bool		writable_wanted;	/* the socket did not take everything */
	XLogRecPtr	gate;			/* nothing is written before it is safe */
	IdemClock	deadline;		/* READY, PONG or the end has to come by then;
								 * 0: nothing is awaited */
	IdemClock	next_ping;
	uint64		ping_nonce;
} IdemPipe;

#define IDEM_PIPE_IN_SIZE (2 * IDEM_PROTO_MAX_FRAME)

/* Room for the buffers, in a context that outlives ..._close; and without it. */
extern void idem_pipe_allocate(IdemPipe *pipe, MemoryContext cxt);
extern void idem_pipe_forget_buffers(IdemPipe *pipe);

/* Kill the program, if there is one, and drop all bytes. */
extern void idem_pipe_close(IdemPipe *pipe);

/* Is a program there whose socket is open?  Or one that has only to end yet? */
extern bool idem_pipe_is_open(const IdemPipe *pipe);
extern bool idem_pipe_is_ending(const IdemPipe *pipe);

/*
 * Room for n more bytes at the end of the output; ..._add says how many of them
 * were used.
 */
extern uint8 *idem_pipe_reserve(IdemPipe *pipe, size_t n);
extern void idem_pipe_add(IdemPipe *pipe, size_t n);
extern size_t idem_pipe_bytes_waiting(const IdemPipe *pipe);

/*
 * Keep all output back until what is at that place of the log, or before it, is
 * safe to be seen outside (shared/durable.h).
 */
extern void idem_pipe_hold(IdemPipe *pipe, XLogRecPtr lsn);
extern bool idem_pipe_is_held(const IdemPipe *pipe);

/* Write what can be written without waiting. */
extern void idem_pipe_flush(IdemPipe *pipe);

/*
 * Read once into "in"; the bytes read, 0: none are there, -1: the socket has ended.
 */
extern ssize_t idem_pipe_read(IdemPipe *pipe);

/* The next whole frame of the input, whose strings point into it. */
extern IdemProtoStatus idem_pipe_next_frame(IdemPipe *pipe, IdemProtoFrame *frame);

/* All frames were taken: make room. */
extern void idem_pipe_compact(IdemPipe *pipe);

/* The program has from now on so long for READY, PONG or its end. */
extern void idem_pipe_expect(IdemPipe *pipe, int64 ms);

/* It has said READY, or PONG to the nonce; a PING follows in half the timeout. */
extern void idem_pipe_heard(IdemPipe *pipe);
extern void idem_pipe_on_pong(IdemPipe *pipe, uint64 nonce);

/* Send a PING if it is time; false if the program has let its deadline pass. */
extern bool idem_pipe_serve_timers(IdemPipe *pipe, bool may_ping, IdemClock now);

#endif							/* IDEM_RELAY_STREAM_PIPE_H */
