/*-------------------------------------------------------------------------
 *
 * bye.c
 *		Lets programs that are no longer needed end by themselves.
 *
 * A program is sent BYE if nothing is in flight and its relay is paused,
 * dropped, changed or unwitnessed, rests, or gives way to other relays.  The
 * program then has two seconds to log its counts and to close its connections.
 * The relay does not wait for the program.  A worker that is told to end kills
 * the program like any other.
 *
 * MEMORY: one small context per program, below TopMemoryContext.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/bye.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <sys/socket.h>

#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "relay/stream/stream.h"
#include "relay/stream/state.h"

#define GRACE_MS 2000
#define POLL_MS 20

typedef struct Bye
{
	dlist_node	node;
	MemoryContext cxt;			/* holds this struct and the buffers */
	IdemPipe	pipe;			/* only read from */
	IdemClock	deadline;
	bool		silent;			/* the socket ended, or a frame is broken:
								 * stop reading */
} Bye;

static dlist_head byes = DLIST_STATIC_INIT(byes);

bool
idem_bye_say(IdemStream *stream)
{
	IdemPipe   *pipe = &stream->pipe;
	uint8		frame[32];
	ssize_t		n = idem_proto_encode_bye(frame, sizeof(frame));
	MemoryContext cxt;
	Bye		   *bye;

	/*
	 * BYE goes past the output buffer, which is empty.  BYE fits into the
	 * socket, since the program has answered everything and so has read
	 * everything.
	 */
	if (stream->phase != IDEM_STREAM_READY || !idem_pipe_is_open(pipe) ||
		idem_stream_has_flights(stream) || idem_pipe_bytes_waiting(pipe) > 0 ||
		send(pipe->process.fd, frame, n, MSG_DONTWAIT | MSG_NOSIGNAL) != n)
		return false;
	cxt = AllocSetContextCreate(TopMemoryContext, "last words", ALLOCSET_SMALL_SIZES);
	bye = MemoryContextAllocZero(cxt, sizeof(*bye));
	bye->cxt = cxt;
	bye->deadline = idem_clock_plus_ms(idem_clock(), GRACE_MS);
	idem_pipe_allocate(&bye->pipe, cxt);
	bye->pipe.in_end = pipe->in_end - pipe->in_start;
	memcpy(bye->pipe.in, pipe->in + pipe->in_start, bye->pipe.in_end);
	bye->pipe.process = pipe->process;
	pipe->process = (IdemSinkProcess) IDEM_SINK_PROCESS_NONE;
	/* The relay's next program inherits the allowance of log lines. */
	pipe->process.printed = bye->pipe.process.printed;
	pipe->process.printed.dropped = 0;
	dlist_push_tail(&byes, &bye->node);
	return true;
}

/*
 * Read at most four times: the program may send without end.  Log the LOG frames;
 * ignore all others, since the stream is gone.
 */
static void
listen_to(Bye *bye)
{
	IdemProtoFrame frame;
	IdemProtoStatus status;

	for (int i = 0; i < 4 && !bye->silent; i++)
	{
		ssize_t		n = idem_pipe_read(&bye->pipe);

		if (n == 0)
			return;
		bye->silent = n < 0;
		if (bye->silent)
			return;
		while ((status = idem_pipe_next_frame(&bye->pipe, &frame)) == IDEM_PROTO_OK)
		{
			if (frame.type == IDEM_PROTO_LOG)
				idem_receive_log(&bye->pipe.process.printed, &frame.u.log);
		}
		bye->silent = status != IDEM_PROTO_NEED_MORE;
		idem_pipe_compact(&bye->pipe);
	}
}

void
idem_stream_serve_byes(void)
{
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &byes)
	{
		Bye		   *bye = dlist_container(Bye, node, iter.cur);
		char	   *how;

		idem_process_log_output(&bye->pipe.process);
		listen_to(bye);
		if (idem_clock() < bye->deadline &&
			!(bye->silent && idem_process_ended(&bye->pipe.process, &how)))
			continue;
		idem_process_kill(&bye->pipe.process);
		dlist_delete(&bye->node);
		MemoryContextDelete(bye->cxt);
	}
}

IdemClock
idem_stream_byes_next_time(void)
{
	return dlist_is_empty(&byes) ? 0 :
		idem_clock_plus_ms(idem_clock(), POLL_MS);
}

void
idem_stream_wait_byes(void)
{
	for (;;)
	{
		idem_stream_serve_byes();
		if (dlist_is_empty(&byes))
			return;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 POLL_MS, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
	}
}
