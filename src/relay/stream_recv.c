/*-------------------------------------------------------------------------
 *
 * stream_recv.c
 *		Frames of a sink program -> results of the batches in flight.
 *
 * The program is not trusted: every number it names is checked against what
 * is in flight, and one that breaks the protocol is killed.  Its messages are
 * cleaned before they go anywhere.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream_recv.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <errno.h>
#include <sys/socket.h>

#include "mb/pg_wchar.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/report.h"
#include "relay/stream.h"
#include "shared/clock.h"
#include "shared/error.h"
#include "shared/fault.h"

/* At most about this much is read in one step, so that other relays have their turn. */
#define MAX_READ (256 * 1024)

/* How long a program may live without its socket. */
#define END_GRACE_MS 1000

/*
 * A message of the peer as one clean line in the server encoding; palloc'd.
 * It raises no error for a character that this encoding has not: the result
 * that it belongs to has to be taken.
 */
static char *
clean_message(IdemProtoStr message)
{
	char		buf[IDEM_PROTO_MAX_MESSAGE + 1];
	size_t		len = idem_proto_clean_text(buf, sizeof(buf), message);

	for (size_t i = 0; GetDatabaseEncoding() != PG_UTF8 && i < len; i++)
	{
		if (IS_HIGHBIT_SET(buf[i]))
			buf[i] = '?';
	}
	return pstrdup(buf);
}

/*
 * The program says that it cannot go on: what it answered before counts, or
 * it would be sent again each time.  A sink that stores positions tells at the
 * next hello.
 */
static void
settle_before_end(IdemStream *stream)
{
	if (stream->phase == IDEM_STREAM_READY && !stream->storing)
		idem_stream_settle(stream);
}

static void
protocol_error(IdemStream *stream, const char *what)
{
	idem_stream_died(stream, psprintf("the sink program broke the protocol: %s", what));
}

static IdemBatch *
find_batch(IdemStream *stream, uint64 no)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		if (batch->no == no)
			return batch;
	}
	return NULL;
}

static int
add_failure(IdemBatch *batch, const IdemProtoResult *r)
{
	MemoryContext old = MemoryContextSwitchTo(batch->cxt);
	IdemFailure *f;

	if (batch->nfailures == batch->failures_allocated)
	{
		batch->failures_allocated = Max(8, batch->failures_allocated * 2);
		batch->failures = batch->failures == NULL ?
			palloc(sizeof(*f) * batch->failures_allocated) :
			repalloc(batch->failures, sizeof(*f) * batch->failures_allocated);
	}
	f = &batch->failures[batch->nfailures];
	memset(f, 0, sizeof(*f));
	f->counts = r->outcome == IDEM_PROTO_RETRY || r->outcome == IDEM_PROTO_REJECTED;
	f->retry_after_ms = (int) Min(r->retry_after, 24 * 3600 * 1000);
	memcpy(f->sqlstate, r->sqlstate, sizeof(f->sqlstate));
	if (f->counts && strcmp(f->sqlstate, "00000") == 0)
		strlcpy(f->sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_REJECTED),
				sizeof(f->sqlstate));
	f->message = clean_message(r->message);
	MemoryContextSwitchTo(old);
	return batch->nfailures++;
}

/* False if the stream was turned off. */
static bool
on_result(IdemStream *stream, const IdemProtoResult *r)
{
	IdemBatch  *batch = find_batch(stream, r->batch);
	int			failure = -1;

	if (batch == NULL || r->first > r->last || r->last >= batch->n)
	{
		protocol_error(stream, "a result for events that are not in flight");
		return false;
	}
	if (r->outcome == IDEM_PROTO_OUTAGE || r->outcome == IDEM_PROTO_FENCED)
		settle_before_end(stream);
	if (r->outcome == IDEM_PROTO_OUTAGE)
	{
		idem_stream_break(stream, clean_message(r->message));
		return false;
	}
	if (r->outcome == IDEM_PROTO_FENCED)
	{
		idem_stream_stick(stream, IDEM_RELAY_FENCED, clean_message(r->message));
		return false;
	}
	if (r->outcome != IDEM_PROTO_ACKED)
		failure = add_failure(batch, r);
	for (uint32 i = r->first; i <= r->last; i++)
	{
		IdemFlight *flight = &batch->flights[i];

		if (flight->outcome != 0)
		{
			protocol_error(stream, "a second result for an event");
			return false;
		}
		flight->outcome = r->outcome;
		flight->failure = failure;
		batch->open--;
		if (failure >= 0)
			batch->nonacks++;
	}
	IDEM_FAULT_POINT("relay-result-received");
	return true;
}

static bool
on_verdict(IdemStream *stream, const IdemProtoVerdict *v)
{
	IdemBatch  *batch = find_batch(stream, v->batch);

	if (batch == NULL || !stream->storing || batch->committed || batch->open > 0)
	{
		protocol_error(stream, "an unexpected verdict");
		return false;
	}
	if (v->kind == IDEM_PROTO_COMMITTED)
	{
		batch->committed = true;
		IDEM_FAULT_POINT("relay-verdict-received");
		return true;
	}
	if (v->kind == IDEM_PROTO_VERDICT_FENCED)
		idem_stream_stick(stream, IDEM_RELAY_FENCED, clean_message(v->message));
	else if (v->kind == IDEM_PROTO_ABORTED)
		idem_stream_aborted(stream, batch, clean_message(v->message));
	else
		idem_stream_break(stream, clean_message(v->message));
	return false;
}

static void
on_failed(IdemStream *stream, const IdemProtoFailed *f)
{
	char	   *message = clean_message(f->message);

	settle_before_end(stream);
	if (f->outcome == IDEM_PROTO_FENCED)
		idem_stream_stick(stream, IDEM_RELAY_FENCED, message);
	else if (f->outcome == IDEM_PROTO_REJECTED)
	{
		/*
		 * Options or objects of the target are wrong.  They may be put right
		 * over there, where we do not see it, so it is tried again.
		 */
		idem_stream_break_as(stream, IDEM_RELAY_MISCONFIGURED, message);
	}
	else
		idem_stream_break(stream, message);
}

void
idem_stream_log(IdemPrinted *printed, const IdemProtoLog *log)
{
	int			elevel = log->level == IDEM_PROTO_LOG_DEBUG ? DEBUG1 : LOG;

	if (!message_level_is_interesting(elevel) || !idem_process_may_log(printed))
		return;
	ereport(elevel,
			(errmsg("relay \"%s\": sink says: %s", printed->relay, clean_message(log->message))));
}

/* False if the stream was turned off. */
static bool
on_frame(IdemStream *stream, const IdemProtoFrame *frame)
{
	if (stream->phase == IDEM_STREAM_HELLO &&
		frame->type != IDEM_PROTO_READY && frame->type != IDEM_PROTO_FAILED &&
		frame->type != IDEM_PROTO_LOG)
	{
		protocol_error(stream, "a frame before READY");
		return false;
	}
	switch (frame->type)
	{
		case IDEM_PROTO_READY:
			if (stream->phase != IDEM_STREAM_HELLO)
			{
				protocol_error(stream, "a second READY");
				return false;
			}
			idem_stream_on_ready(stream, &frame->u.ready);
			return stream->phase == IDEM_STREAM_READY;
		case IDEM_PROTO_FAILED:
			on_failed(stream, &frame->u.failed);
			return false;
		case IDEM_PROTO_RESULT:
			return on_result(stream, &frame->u.result);
		case IDEM_PROTO_VERDICT:
			return on_verdict(stream, &frame->u.verdict);
		case IDEM_PROTO_CREDIT:
			stream->credit_messages += frame->u.credit.messages;
			stream->credit_bytes += frame->u.credit.bytes;
			return true;
		case IDEM_PROTO_PONG:
			if (frame->u.ping.nonce == stream->ping_nonce)
			{
				stream->deadline = 0;
				stream->next_ping = idem_clock_plus_ms(idem_clock(),
													   idem_sink_timeout_ms / 2);
			}
			return true;
		case IDEM_PROTO_LOG:
			idem_stream_log(&stream->process.printed, &frame->u.log);
			return true;
		default:
			protocol_error(stream, "a frame that only workers send");
			return false;
	}
}

/* Decode what is in the buffer; false if the stream was turned off. */
static bool
decode_all(IdemStream *stream)
{
	for (;;)
	{
		IdemProtoFrame frame;
		size_t		consumed;
		IdemProtoStatus status = idem_proto_next(IDEM_PROTO_FROM_SINK,
												 stream->in + stream->in_start,
												 stream->in_end - stream->in_start,
												 &frame, &consumed);

		if (status == IDEM_PROTO_NEED_MORE)
			break;
		if (status != IDEM_PROTO_OK)
		{
			protocol_error(stream, idem_proto_status_text(status));
			return false;
		}
		stream->in_start += consumed;
		if (!on_frame(stream, &frame))
			return false;
	}
	memmove(stream->in, stream->in + stream->in_start, stream->in_end - stream->in_start);
	stream->in_end -= stream->in_start;
	stream->in_start = 0;
	return true;
}

/*
 * The socket has ended, and the program does so in a moment, or lives on without
 * it.  False if the stream was turned off.
 */
bool
idem_stream_await_end(IdemStream *stream)
{
	char	   *how;

	if (idem_process_ended(&stream->process, &how))
	{
		/* Somebody may install it, which nothing tells us: it is tried again. */
		if (stream->process.missing)
			idem_stream_break_as(stream, IDEM_RELAY_MISCONFIGURED, how);
		else
			idem_stream_died(stream, how);
	}
	else if (idem_clock() >= stream->deadline)
		idem_stream_died(stream, "the sink program closed its socket");
	return stream->phase != IDEM_STREAM_OFF;
}

static void
on_end_of_file(IdemStream *stream)
{
	IDEM_FAULT_POINT("relay-end-of-file");
	idem_process_hang_up(&stream->process);
	stream->deadline = idem_clock_plus_ms(idem_clock(), END_GRACE_MS);
	(void) idem_stream_await_end(stream);
}

/* Read and handle what is there; false if the stream was turned off, or its socket ended. */
bool
idem_stream_receive(IdemStream *stream)
{
	size_t		total = 0;

	while (stream->process.fd >= 0 && total < MAX_READ)
	{
		ssize_t		n = recv(stream->process.fd, stream->in + stream->in_end,
							 2 * IDEM_PROTO_MAX_FRAME - stream->in_end, MSG_DONTWAIT);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
			return true;
		if (n <= 0)
		{
			on_end_of_file(stream);
			return false;
		}
		stream->in_end += n;
		total += n;
		if (!decode_all(stream))
			return false;
	}
	return stream->process.fd >= 0;
}
