/*-------------------------------------------------------------------------
 *
 * stream_bye.c
 *		Lets programs that are no longer needed say their last words.
 *
 * A program whose relay is paused, dropped or changed has nothing in flight when
 * it is sent BYE.  It may then have a moment to log what it counted and to close
 * its connections; the relay does not wait for it, and a worker that is told to
 * end kills it as any other.
 *
 * MEMORY: one small context per program, below TopMemoryContext.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream_bye.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <sys/socket.h>

#include "lib/ilist.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "utils/memutils.h"
#include "utils/wait_event.h"

#include "relay/stream.h"
#include "shared/clock.h"

#define GRACE_MS 2000
#define POLL_MS 20

typedef struct Bye
{
	dlist_node	node;
	MemoryContext cxt;			/* of all of it */
	IdemSinkProcess process;
	IdemClock	deadline;
	bool		silent;			/* nothing more comes, or none of sense */
	uint8	   *in;
	size_t		in_end;
} Bye;

static dlist_head byes = DLIST_STATIC_INIT(byes);

/* Everything before is written and answered, so BYE fits into the socket. */
static bool
send_bye(IdemStream *stream)
{
	uint8		buf[32];
	size_t		n = idem_proto_encode_bye(buf, sizeof(buf));

	return send(stream->process.fd, buf, n, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t) n;
}

bool
idem_stream_say_bye(IdemStream *stream)
{
	MemoryContext cxt;
	Bye		   *bye;

	if (stream->phase != IDEM_STREAM_READY || stream->process.pid == 0 ||
		stream->nbatches > 0 || stream->out_start < stream->out_end || !send_bye(stream))
		return false;
	cxt = AllocSetContextCreate(TopMemoryContext, "last words", ALLOCSET_SMALL_SIZES);
	bye = MemoryContextAllocZero(cxt, sizeof(*bye));
	bye->cxt = cxt;
	bye->in = MemoryContextAlloc(cxt, 2 * IDEM_PROTO_MAX_FRAME);
	bye->in_end = stream->in_end - stream->in_start;
	memcpy(bye->in, stream->in + stream->in_start, bye->in_end);
	bye->deadline = idem_clock_plus_ms(idem_clock(), GRACE_MS);
	bye->process = stream->process;
	stream->process = (IdemSinkProcess) IDEM_SINK_PROCESS_NONE;
	/* The next program goes on with what the log may still get. */
	stream->process.printed = bye->process.printed;
	stream->process.printed.dropped = 0;
	dlist_push_tail(&byes, &bye->node);
	return true;
}

/* Log lines count, the rest has no addressee any more. */
static void
decode(Bye *bye)
{
	size_t		start = 0;

	for (;;)
	{
		IdemProtoFrame frame;
		size_t		consumed;
		IdemProtoStatus status = idem_proto_next(IDEM_PROTO_FROM_SINK, bye->in + start,
												 bye->in_end - start, &frame, &consumed);

		if (status == IDEM_PROTO_NEED_MORE)
			break;
		if (status != IDEM_PROTO_OK)
		{
			bye->silent = true;
			return;
		}
		start += consumed;
		if (frame.type == IDEM_PROTO_LOG)
			idem_stream_log(&bye->process.printed, &frame.u.log);
	}
	bye->in_end -= start;
	memmove(bye->in, bye->in + start, bye->in_end);
}

/* A bounded number of reads: it may talk without end. */
static void
listen_to(Bye *bye)
{
	for (int i = 0; i < 4 && !bye->silent; i++)
	{
		ssize_t		n = recv(bye->process.fd, bye->in + bye->in_end,
							 2 * IDEM_PROTO_MAX_FRAME - bye->in_end, MSG_DONTWAIT);

		if (n < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK))
			return;
		if (n <= 0)
			bye->silent = true;
		else
		{
			bye->in_end += n;
			decode(bye);
		}
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

		idem_process_log_output(&bye->process);
		listen_to(bye);
		if (idem_clock() < bye->deadline &&
			!(bye->silent && idem_process_ended(&bye->process, &how)))
			continue;
		idem_process_kill(&bye->process);
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
