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

#include "relay/child/process.h"
#include "shared/clock.h"
#include "sink/protocol/protocol.h"

/*
 * The GUC idempotency.sink_timeout: milliseconds in which a program has to
 * answer.
 */
extern int	idem_sink_timeout_ms;

typedef struct IdemPipe
{
	IdemSinkProcess process;
	MemoryContext cxt;			/* of the buffers */
	uint8	   *out;
	size_t		out_start;
	size_t		out_end;
	size_t		out_allocated;
	uint8	   *in;
	size_t		in_start;
	size_t		in_end;
	bool		writable_wanted;	/* the socket did not take everything */
	XLogRecPtr	gate;			/* write nothing before WAL up to here is
								 * safe; invalid: the gate is open */
	IdemClock	deadline;		/* READY, PONG or the program's end has to
								 * come by then; 0: nothing is awaited */
	IdemClock	next_ping;
	uint64		ping_nonce;
} IdemPipe;

#define IDEM_PIPE_IN_SIZE (2 * IDEM_PROTO_MAX_FRAME)

/*
 * Put the buffers below the context, which has to outlive ..._close.
 */
extern void idem_pipe_allocate(IdemPipe *pipe, MemoryContext cxt);

/* Kill the program, if there is one, and drop all bytes. */
extern void idem_pipe_close(IdemPipe *pipe);

/* Does a program run whose socket is open? */
extern bool idem_pipe_is_open(const IdemPipe *pipe);

/*
 * Make room for n more bytes at the end of the output; ..._add says how many of
 * them were used.
 */
extern uint8 *idem_pipe_reserve(IdemPipe *pipe, size_t n);
extern void idem_pipe_add(IdemPipe *pipe, size_t n);
extern size_t idem_pipe_bytes_waiting(const IdemPipe *pipe);

/*
 * Hold all output back until WAL up to lsn is safe to be seen outside
 * (shared/durable.h).
 */
extern void idem_pipe_hold(IdemPipe *pipe, XLogRecPtr lsn);
extern bool idem_pipe_is_held(const IdemPipe *pipe);

/* Write what can be written without waiting. */
extern void idem_pipe_flush(IdemPipe *pipe);

/*
 * Read once from the socket.  Returns the number of bytes, 0 if there are none
 * now, -1 if the socket has ended.
 */
extern ssize_t idem_pipe_read(IdemPipe *pipe);

/*
 * Take the next whole frame of the input.  Its strings point into the input
 * buffer.
 */
extern IdemProtoStatus idem_pipe_next_frame(IdemPipe *pipe, IdemProtoFrame *frame);

/* All whole frames were taken: make room for more input. */
extern void idem_pipe_compact(IdemPipe *pipe);

/*
 * The program has said READY, or PONG with the nonce of the PING.  The next PING
 * follows after half the timeout.
 */
extern void idem_pipe_heard(IdemPipe *pipe);

/* Send a PING if it is time.  False if the program has missed its deadline. */
extern bool idem_pipe_serve_timers(IdemPipe *pipe, bool may_ping, IdemClock now);

#endif							/* IDEM_RELAY_STREAM_PIPE_H */
