/*-------------------------------------------------------------------------
 *
 * receive.c
 *		Frames of a sink program -> results of the batches in flight.
 *
 * The program is not trusted.  Every number that it sends is checked against
 * what is in flight.  A program that breaks the protocol is killed.  Its
 * messages are cleaned before they go anywhere.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/receive.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/hashfn.h"
#include "mb/pg_wchar.h"

#include "relay/stream/state.h"
#include "relay/stream/stream.h"
#include "relay/worker_slots.h"
#include "shared/error.h"
#include "shared/fault.h"

/* Bytes read in one step, about; so that other relays have their turn. */
#define MAX_READ (256 * 1024)

/* How long a program may live after its socket has ended. */
#define END_GRACE_MS 1000

/*
 * A message of the program as one clean line in the server encoding; palloc'd.
 * A character that the server encoding lacks becomes "?" and raises no error:
 * the result that the message came with has to be taken.
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

char *
idem_receive_text(IdemProtoStr text)
{
	return clean_message(text);
}

/*
 * The program broke the protocol.  That counts as a death, since an event in
 * flight may have made the program do it.
 */
static IdemStreamVerdict
protocol_error(const char *how)
{
	return idem_stream_verdict(IDEM_STREAM_DIED,
							   psprintf("the sink program broke the protocol: %s", how));
}

/* Does the program say that events in flight took the target down? */
static bool
says_down(const char *sqlstate)
{
	return strcmp(sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE)) == 0;
}

/* What the result says of the event.  53400: the target asks for fewer events. */
static IdemBlameKind
kind_of_result(const IdemProtoResult *r)
{
	if (r->outcome == IDEM_PROTO_IMPOSSIBLE)
		return IDEM_BLAME_IMPOSSIBLE;
	if (r->outcome == IDEM_PROTO_REJECTED)
		return IDEM_BLAME_REJECTED;
	if (r->outcome != IDEM_PROTO_RETRY)
		return IDEM_BLAME_NOTHING;
	return strcmp(r->sqlstate, unpack_sql_state(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED)) == 0 ?
		IDEM_BLAME_ASKED : IDEM_BLAME_RETRY;
}

/* What the result says of an event that was not acked; the message is palloc'd. */
static IdemFailure
make_failure(const IdemProtoResult *r, int lane)
{
	IdemFailure f = {.kind = kind_of_result(r), .lane = lane};

	f.hopeless = f.kind == IDEM_BLAME_IMPOSSIBLE;
	f.retry_after_ms = (int) Min(r->retry_after, 24 * 3600 * 1000);
	memcpy(f.sqlstate, r->sqlstate, sizeof(f.sqlstate));
	if (f.kind != IDEM_BLAME_NOTHING && strcmp(f.sqlstate, "00000") == 0)
		strlcpy(f.sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_REJECTED), sizeof(f.sqlstate));
	f.crashed = r->outcome == IDEM_PROTO_REJECTED && says_down(r->sqlstate);
	f.message = clean_message(r->message);
	return f;
}

/* Add a failure to the batch; returns its index. */
static int
add_failure(IdemBatch *batch, const IdemProtoResult *r, int lane)
{
	MemoryContext old = MemoryContextSwitchTo(batch->cxt);

	if (batch->nfailures == batch->failures_allocated)
	{
		batch->failures_allocated = Max(8, batch->failures_allocated * 2);
		batch->failures = batch->failures == NULL ?
			palloc(sizeof(IdemFailure) * batch->failures_allocated) :
			repalloc(batch->failures, sizeof(IdemFailure) * batch->failures_allocated);
	}
	batch->failures[batch->nfailures] = make_failure(r, lane);
	MemoryContextSwitchTo(old);
	return batch->nfailures++;
}

/* The target took n events. */
static void
count_taken(IdemStream *stream, int n)
{
	IdemClock	now = idem_clock();

	if (now >= idem_clock_plus_ms(stream->slice_began, IDEM_SLICE_MS))
	{
		stream->taken_before = stream->taken;
		stream->taken = 0;
		stream->slice_began = now;
	}
	stream->taken += n;
}

/* The answer to a late event; false: it has one, or there is no such event. */
static bool
on_late_result(IdemStream *stream, const IdemProtoResult *r, int index, int lane)
{
	IdemLateEvent *late = idem_late_find(stream, r->batch, index);
	MemoryContext old;

	if (late == NULL || late->flight.outcome != 0)
		return false;
	late->flight.outcome = r->outcome;
	late->flight.lane = lane;
	idem_report_got_on(stream->relay.entry);
	if (r->outcome != IDEM_PROTO_ACKED)
	{
		old = MemoryContextSwitchTo(stream->run_cxt);
		late->failure = make_failure(r, lane);
		MemoryContextSwitchTo(old);
	}
	idem_late_answered(stream, late);
	return true;
}

/* The answer to an event of a batch in flight. */
static void
on_batch_result(IdemStream *stream, IdemBatch *batch, IdemSentEvent *flight, const IdemProtoResult *r,
				int lane, int failure)
{
	flight->outcome = r->outcome;
	flight->lane = lane;
	flight->failure = failure;
	batch->unanswered--;
	stream->nunanswered--;
	batch->nonacks += failure >= 0;
}

/* Note in the batch which of its events have answers that are to be settled. */
static void
note_fresh(IdemBatch *batch, const IdemProtoResult *r)
{
	batch->fresh_first = batch->fresh_end == 0 ? r->first : Min(batch->fresh_first, r->first);
	batch->fresh_end = Max(batch->fresh_end, r->last + 1);
}

/* Show in stat_relay what the sink says of events that it did not take. */
static void
report_refusal(IdemStream *stream, const IdemProtoResult *r)
{
	char	   *message;

	if (r->outcome == IDEM_PROTO_ACKED || r->outcome == IDEM_PROTO_SKIPPED)
		return;
	message = clean_message(r->message);
	idem_report_refusal(stream->relay.entry, message[0] ? message : "the sink gave no reason");
	pfree(message);
}

/*
 * A result for a range of events of one batch.  The events are acted upon
 * later, in settle.c.
 */
static IdemStreamVerdict
on_result(IdemStream *stream, const IdemProtoResult *r)
{
	IdemBatch  *batch = idem_batch_find(stream, r->batch);
	bool		holds_up = batch != NULL && stream->nlate == 0 && batch == idem_batch_lacking(stream, IDEM_BATCH_UNANSWERED);
	int			failure = -1;
	int			lane = 0;

	if (r->first > r->last ||
		(batch != NULL ? r->last >= batch->n : idem_late_find(stream, r->batch, r->first) == NULL))
		return protocol_error("a result for events that are not in flight");
	if (r->outcome == IDEM_PROTO_OUTAGE)
		return idem_stream_verdict(IDEM_STREAM_OUTAGE, clean_message(r->message));
	if (r->outcome == IDEM_PROTO_FENCED)
		return idem_stream_verdict(IDEM_STREAM_FENCED, clean_message(r->message));
	if (r->destination.len > 0)
		lane = idem_blame_lane(&stream->relay.blame, stream->relay.cxt,
							   hash_bytes_extended((const unsigned char *) r->destination.data, r->destination.len, 0));
	if (batch != NULL && r->outcome != IDEM_PROTO_ACKED)
		failure = add_failure(batch, r, lane);
	report_refusal(stream, r);
	for (uint32 i = r->first; i <= r->last; i++)
	{
		IdemSentEvent *flight = batch != NULL ? &batch->flights[i] : NULL;

		if (flight != NULL && flight->outcome == 0 && !flight->settled)
			on_batch_result(stream, batch, flight, r, lane, failure);
		else if ((flight != NULL && flight->outcome != 0) || !on_late_result(stream, r, i, lane))
			return protocol_error("a second result for an event");
	}
	if (batch != NULL)
		note_fresh(batch, r);
	stream->news = true;
	if (r->outcome == IDEM_PROTO_ACKED)
	{
		count_taken(stream, (int) (r->last - r->first) + 1);
		idem_late_note_accepted(stream, r->batch, r->last);
	}

	/*
	 * The oldest batch that has not all results holds the relay up, whatever
	 * comes of later batches; and so does a late event.
	 */
	if (holds_up)
		idem_report_got_on(stream->relay.entry);
	IDEM_FAULT_POINT("relay-result-received");
	return IDEM_STREAM_GOES_ON;
}

/*
 * The verdict of a sink that stores positions on a whole batch.  Verdicts come
 * in the order of the batches, also when batches share a transaction of the
 * target: a batch is done only if all batches before it are.
 */
static IdemStreamVerdict
on_batch_verdict(IdemStream *stream, const IdemProtoVerdict *v)
{
	IdemBatch  *batch = idem_batch_lacking(stream, IDEM_BATCH_UNCOMMITTED);
	IdemStreamVerdict verdict = IDEM_STREAM_GOES_ON;

	if (batch == NULL || batch->no != v->batch || !stream->relay.walk.sink_stores || batch->unanswered > 0)
		return protocol_error("an unexpected verdict");
	if (v->kind == IDEM_PROTO_COMMITTED)
	{
		batch->committed = true;
		IDEM_FAULT_POINT("relay-verdict-received");
		return verdict;
	}
	if (v->kind == IDEM_PROTO_VERDICT_FENCED)
		verdict.outcome = IDEM_STREAM_FENCED;
	else if (v->kind == IDEM_PROTO_ABORTED)
		verdict.outcome = IDEM_STREAM_ABORTED;
	else
		verdict.outcome = IDEM_STREAM_OUTAGE;
	verdict.message = clean_message(v->message);
	verdict.batch = batch->no;
	return verdict;
}

/* FAILED: how the stream goes on depends on the outcome that it names. */
static IdemStreamVerdict
on_failed(const IdemProtoFailed *f)
{
	IdemStreamOutcome outcome = says_down(f->sqlstate) ? IDEM_STREAM_DIED : IDEM_STREAM_OUTAGE;

	if (f->outcome == IDEM_PROTO_FENCED)
		outcome = IDEM_STREAM_FENCED;
	else if (f->outcome == IDEM_PROTO_HALTED)
		outcome = IDEM_STREAM_HALTED;
	else if (f->outcome == IDEM_PROTO_OUTAGE && strcmp(f->sqlstate, unpack_sql_state(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED)) == 0)
		outcome = IDEM_STREAM_CROWDED;
	else if (f->outcome == IDEM_PROTO_REJECTED)
		outcome = IDEM_STREAM_MISCONFIGURED;	/* options, or objects at the
												 * target, are wrong */
	return idem_stream_verdict(outcome, clean_message(f->message));
}

/* READY: find where the relay goes on, and let the stream send. */
static IdemStreamVerdict
on_ready(IdemStream *stream, const IdemProtoReady *ready)
{
	IdemStreamVerdict verdict;

	if (stream->phase != IDEM_STREAM_HELLO)
		return protocol_error("a second READY");
	idem_blame_answered(&stream->relay.blame);
	verdict = idem_resume(stream, ready);
	if (verdict.outcome != IDEM_STREAM_OK)
		return verdict;
	stream->phase = IDEM_STREAM_READY;
	idem_schedule_withdraw(&stream->relay.ticket);
	stream->proven = true;
	stream->slow_start = false;
	if (!stream->fell_ready && !stream->relay.blame.whole.open)
		idem_engine_disprove(&stream->relay);
	idem_report_got_on(stream->relay.entry);
	idem_pipe_heard(&stream->pipe);
	return verdict;
}

void
idem_receive_log(IdemPrinted *printed, const IdemProtoLog *log)
{
	int			elevel = log->level == IDEM_PROTO_LOG_DEBUG ? DEBUG1 : LOG;

	if (!message_level_is_interesting(elevel) || !idem_process_may_log(printed))
		return;
	ereport(elevel,
			(errmsg("relay \"%s\": sink says: %s", printed->relay, clean_message(log->message))));
}

static IdemStreamVerdict
on_frame(IdemStream *stream, const IdemProtoFrame *frame)
{
	if (stream->phase == IDEM_STREAM_HELLO &&
		frame->type != IDEM_PROTO_READY && frame->type != IDEM_PROTO_FAILED &&
		frame->type != IDEM_PROTO_LOG)
		return protocol_error("a frame before READY");
	switch (frame->type)
	{
		case IDEM_PROTO_READY:
			return on_ready(stream, &frame->u.ready);
		case IDEM_PROTO_FAILED:
			return on_failed(&frame->u.failed);
		case IDEM_PROTO_RESULT:
			return on_result(stream, &frame->u.result);
		case IDEM_PROTO_VERDICT:
			return on_batch_verdict(stream, &frame->u.verdict);
		case IDEM_PROTO_CREDIT:
			stream->credit_messages += frame->u.credit.messages;
			stream->credit_bytes += frame->u.credit.bytes;
			return IDEM_STREAM_GOES_ON;
		case IDEM_PROTO_PONG:
			if (frame->u.ping.nonce == stream->pipe.ping_nonce)
				idem_pipe_heard(&stream->pipe);
			return IDEM_STREAM_GOES_ON;
		case IDEM_PROTO_LOG:
			idem_receive_log(&stream->pipe.process.printed, &frame->u.log);
			return IDEM_STREAM_GOES_ON;
		default:
			return protocol_error("a frame that only workers send");
	}
}

/* Handle all whole frames of the input. */
static IdemStreamVerdict
decode_all(IdemStream *stream)
{
	IdemStreamVerdict verdict = IDEM_STREAM_GOES_ON;
	IdemProtoFrame frame;
	IdemProtoStatus status;

	while ((status = idem_pipe_next_frame(&stream->pipe, &frame)) == IDEM_PROTO_OK)
	{
		verdict = on_frame(stream, &frame);
		if (verdict.outcome != IDEM_STREAM_OK)
			return verdict;
	}
	if (status != IDEM_PROTO_NEED_MORE)
		return protocol_error(idem_proto_status_text(status));
	idem_pipe_compact(&stream->pipe);
	return verdict;
}

IdemStreamVerdict
idem_receive_end(IdemStream *stream)
{
	char	   *how;

	if (idem_process_ended(&stream->pipe.process, &how))
	{
		/*
		 * A missing program is tried again: nothing tells us when it is
		 * installed.
		 */
		return idem_stream_verdict(stream->pipe.process.missing ? IDEM_STREAM_MISCONFIGURED :
								   IDEM_STREAM_DIED, how);
	}
	if (idem_clock() >= stream->pipe.deadline)
		return idem_stream_verdict(IDEM_STREAM_DIED, "the sink program closed its socket");
	return IDEM_STREAM_GOES_ON;
}

IdemStreamVerdict
idem_receive(IdemStream *stream)
{
	IdemStreamVerdict verdict = IDEM_STREAM_GOES_ON;
	size_t		total = 0;

	while (idem_pipe_is_open(&stream->pipe) && total < MAX_READ)
	{
		ssize_t		n = idem_pipe_read(&stream->pipe);

		if (n == 0)
			break;
		if (n < 0)
		{
			IDEM_FAULT_POINT("relay-end-of-file");
			idem_process_hang_up(&stream->pipe.process);
			stream->pipe.deadline = idem_clock_plus_ms(idem_clock(), END_GRACE_MS);
			return idem_receive_end(stream);
		}
		total += n;
		verdict = decode_all(stream);
		if (verdict.outcome != IDEM_STREAM_OK)
			break;
	}
	return verdict;
}
