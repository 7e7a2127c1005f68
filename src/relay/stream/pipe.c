/*-------------------------------------------------------------------------
 *
 * pipe.c
 *		A sink program and the bytes to and from it: buffers, gate, deadlines.
 *
 * The gate keeps invariant 2 (no phantom): bytes are written only when every
 * transaction that they tell of is flushed and, where synchronous standbys are
 * configured, has reached them.  A closed gate holds back all bytes, also those
 * that were put before the transaction's, so the order is kept.
 *
 * A program that has not answered HELLO or a PING within
 * idempotency.sink_timeout hangs.  No PING is sent while the gate is closed,
 * since the gate would hold the PING back.
 *
 * MEMORY: the buffers have a context below the one given to idem_pipe_allocate,
 * so that a list of a worker's contexts tells their size.  The input holds two frames.  The output grows with what is put into it, which the
 * sink's credit and the limits of a batch bound.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/pipe.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <sys/socket.h>

#include "utils/memutils.h"

#include "relay/stream/pipe.h"
#include "relay/witness.h"
#include "shared/durable.h"
#include "shared/fault.h"

int			idem_sink_timeout_ms = 30000;

void
idem_pipe_allocate(IdemPipe *pipe, MemoryContext cxt)
{
	pipe->cxt = AllocSetContextCreate(cxt, "sink pipe", ALLOCSET_DEFAULT_SIZES);
	pipe->in = MemoryContextAlloc(pipe->cxt, IDEM_PIPE_IN_SIZE);
}

void
idem_pipe_close(IdemPipe *pipe)
{
	idem_process_kill(&pipe->process);
	pipe->out_start = pipe->out_end = 0;
	pipe->in_start = pipe->in_end = 0;
	pipe->writable_wanted = false;
	pipe->gate = InvalidXLogRecPtr;
	pipe->deadline = 0;
}

bool
idem_pipe_is_open(const IdemPipe *pipe)
{
	return pipe->process.fd >= 0;
}

uint8 *
idem_pipe_reserve(IdemPipe *pipe, size_t n)
{
	if (pipe->out_start > 0 && pipe->out_start == pipe->out_end)
		pipe->out_start = pipe->out_end = 0;
	if (pipe->out_end + n > pipe->out_allocated && pipe->out_start > 0)
	{
		memmove(pipe->out, pipe->out + pipe->out_start, pipe->out_end - pipe->out_start);
		pipe->out_end -= pipe->out_start;
		pipe->out_start = 0;
	}
	if (pipe->out_end + n > pipe->out_allocated)
	{
		size_t		size = Max(pipe->out_allocated * 2, pipe->out_end + n);

		size = Max(size, 2 * IDEM_PROTO_MAX_FRAME);
		if (pipe->out == NULL)
			pipe->out = MemoryContextAllocHuge(pipe->cxt, size);
		else
			pipe->out = repalloc_huge(pipe->out, size);
		pipe->out_allocated = size;
	}
	return pipe->out + pipe->out_end;
}

void
idem_pipe_add(IdemPipe *pipe, size_t n)
{
	pipe->out_end += n;
}

size_t
idem_pipe_bytes_waiting(const IdemPipe *pipe)
{
	return pipe->out_end - pipe->out_start;
}

void
idem_pipe_hold(IdemPipe *pipe, XLogRecPtr lsn)
{
	XLogRecPtr	target = idem_durable_target(lsn);

	if (!idem_durable_reached(target))
		pipe->gate = Max(pipe->gate, target);
}

bool
idem_pipe_is_held(const IdemPipe *pipe)
{
	return pipe->gate != InvalidXLogRecPtr;
}

void
idem_pipe_flush(IdemPipe *pipe)
{
	pipe->writable_wanted = false;

	/*
	 * Open the gate if all WAL up to its place is safe to be seen outside.
	 */
	if (idem_pipe_is_held(pipe) && idem_durable_reached(pipe->gate))
		pipe->gate = InvalidXLogRecPtr;
	if (idem_pipe_is_held(pipe) || !idem_witness_allows())
		return;
	while (pipe->out_start < pipe->out_end)
	{
		ssize_t		n = send(pipe->process.fd, pipe->out + pipe->out_start,
							 pipe->out_end - pipe->out_start, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n > 0)
		{
			pipe->out_start += n;
			if (pipe->out_start < pipe->out_end)
				IDEM_FAULT_POINT("relay-half-written");
		}
		else if (n < 0 && errno == EINTR)
			continue;
		else if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
		{
			pipe->writable_wanted = true;
			return;
		}
		else
			return;				/* idem_pipe_read will see the end of file */
	}
}

ssize_t
idem_pipe_read(IdemPipe *pipe)
{
	for (;;)
	{
		ssize_t		n = recv(pipe->process.fd, pipe->in + pipe->in_end,
							 IDEM_PIPE_IN_SIZE - pipe->in_end, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return 0;
		if (n <= 0)
			return -1;
		pipe->in_end += n;
		return n;
	}
}

IdemProtoStatus
idem_pipe_next_frame(IdemPipe *pipe, IdemProtoFrame *frame)
{
	size_t		consumed;
	IdemProtoStatus status = idem_proto_next(IDEM_PROTO_FROM_SINK, pipe->in + pipe->in_start,
											 pipe->in_end - pipe->in_start, frame, &consumed);

	if (status == IDEM_PROTO_OK)
		pipe->in_start += consumed;
	return status;
}

void
idem_pipe_compact(IdemPipe *pipe)
{
	memmove(pipe->in, pipe->in + pipe->in_start, pipe->in_end - pipe->in_start);
	pipe->in_end -= pipe->in_start;
	pipe->in_start = 0;
}

void
idem_pipe_heard(IdemPipe *pipe)
{
	pipe->deadline = 0;
	pipe->next_ping = idem_clock_plus_ms(idem_clock(), idem_sink_timeout_ms / 2);
}

bool
idem_pipe_serve_timers(IdemPipe *pipe, bool may_ping, IdemClock now)
{
	/* A program cannot have answered a frame that the gate holds back. */
	if (pipe->deadline != 0 && idem_pipe_is_held(pipe))
		pipe->deadline = idem_clock_plus_ms(now, idem_sink_timeout_ms);
	if (pipe->deadline != 0 && now >= pipe->deadline)
		return false;
	if (may_ping && pipe->deadline == 0 && now >= pipe->next_ping && !idem_pipe_is_held(pipe))
	{
		idem_pipe_add(pipe, idem_proto_encode_ping(idem_pipe_reserve(pipe, 32), 32,
												   ++pipe->ping_nonce));
		pipe->deadline = idem_clock_plus_ms(now, idem_sink_timeout_ms);
	}
	return true;
}
