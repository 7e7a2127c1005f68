/*-------------------------------------------------------------------------
 *
 * judge.c
 *		What an answer says of its event and of the target; and an event is put on record.
 *
 * What both ways of settling share: event by event (settle.c), and batch by batch
 * (settle_batch.c).
 *
 * A crash leaves what the caller's transaction has committed.
 *
 * LOCKING: an operator's open transaction is not waited for; idem_settle_try_lock
 * says when to try again.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/judge.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/stream/state.h"
#include "shared/fault.h"

bool
idem_settle_try_lock(IdemStream *stream, const int64 *parked_ids, int n)
{
	if (idem_parked_try_lock(stream->relay.config, parked_ids, n))
		return true;
	stream->lock_retry_at = idem_clock_plus_ms(idem_clock(), IDEM_LOCK_RETRY_MS);
	return false;
}

/* How many keys have the events that could be sent now, or are in flight?  See IdemBlameVerdict. */
int
idem_settle_count_keys(IdemStream *stream)
{
	uint64		keys[IDEM_BLAME_KEYS];
	int			n = 0;
	dlist_iter	iter;

	if (stream->look != IDEM_LOOK_WHEN_WOKEN)
		return IDEM_BLAME_KEYS;
	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		for (int i = 0; i < batch->n && n < IDEM_BLAME_KEYS; i++)
		{
			if (batch->flights[i].outcome != IDEM_PROTO_ACKED)
				n = idem_blame_add_key(keys, n, IDEM_BLAME_KEYS, batch->flights[i].key);
		}
	}
	return Max(idem_parked_keys(stream->parked, keys, n, IDEM_BLAME_KEYS), 1);
}

/*
 * Tell the pace of a verdict.  Neither an event that is asked to wait alone, while others
 * pass, nor a probe of a target that is held says anything of the rate.
 */
static void
note_pace(IdemStream *stream, const IdemBlameVerdict *verdict, int wait_ms)
{
	IdemPaceAnswer answer = IDEM_PACE_OTHER;

	if (verdict->kind == IDEM_BLAME_ACCEPTED)
		answer = IDEM_PACE_ACCEPTED;
	else if (stream->relay.held)
		answer = IDEM_PACE_OTHER;
	else if (verdict->kind == IDEM_BLAME_ASKED && stream->relay.blame.whole.asked)
		answer = IDEM_PACE_ASKED;
	else if (verdict->names_time)
		answer = IDEM_PACE_NAMED;
	idem_pace_answered(&stream->relay.pace, idem_clock(), answer, verdict->key, wait_ms, stream->nunanswered);
}

/* An event was accepted. */
void
idem_settle_judge_ack(IdemStream *stream, const IdemSentEvent *flight)
{
	IdemBlameVerdict verdict = {.kind = IDEM_BLAME_ACCEPTED, .lane = flight->lane, .key = flight->key};

	(void) idem_blame_judge(&stream->relay.blame, &verdict);
	note_pace(stream, &verdict, 0);
}

/* Whose fault is it that the event was not accepted?  keys: see idem_settle_count_keys. */
IdemFailure
idem_settle_judge(IdemStream *stream, const IdemSentEvent *flight, const IdemFailure *answer, int keys)
{
	IdemFailure failure = *answer;
	IdemBlameVerdict verdict = {.kind = failure.kind, .lane = flight->lane, .key = flight->key, .keys = keys,
	.names_time = failure.kind == IDEM_BLAME_RETRY && failure.retry_after_ms > 0};

	verdict.first = flight->parked_id == 0 || !idem_parked_was_refused(stream->parked, flight->seq, &verdict.previous);
	failure.counts = idem_blame_judge(&stream->relay.blame, &verdict);
	failure.verdict = verdict.kind == IDEM_BLAME_NOTHING ? verdict.previous : stream->relay.blame.verdicts;
	note_pace(stream, &verdict, failure.retry_after_ms);
	failure.backs_off = !failure.counts && failure.kind != IDEM_BLAME_NOTHING;

	/*
	 * In the one transaction of a batch others would have no time, or it has
	 * no room beside them: from now on it is sent alone.
	 */
	failure.slow = stream->relay.walk.sink_stores &&
		((failure.kind == IDEM_BLAME_RETRY &&
		  strcmp(failure.sqlstate, unpack_sql_state(ERRCODE_QUERY_CANCELED)) == 0) ||
		 (failure.kind == IDEM_BLAME_NOTHING && strcmp(failure.sqlstate, unpack_sql_state(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED)) == 0));
	return failure;
}

/* Park an event of the outbox that was not accepted. */
void
idem_settle_park(IdemStream *stream, const IdemBatch *batch, const IdemSentEvent *flight, const IdemFailure *failure)
{
	IdemEvent	event;

	/*
	 * Refused itself or passed over: it comes from the outbox again, in the
	 * order of its key.
	 */
	if (idem_blocked_has_at(stream->parked, flight->key, flight->xid, flight->seq))
		return;
	if (!idem_reader_fetch(stream->reader, flight->xid, flight->seq, &event))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("event with seq " INT64_FORMAT " is no longer in the outbox",
						flight->seq)));
	if (flight->outcome == IDEM_PROTO_SKIPPED)
		idem_blocked_wait(stream->parked, stream->relay.config, &event, &batch->read);
	else
		idem_parked_refuse(stream->parked, stream->relay.config, &event, failure);
}

/* The rows of events that were not acked are written. */
void
idem_settle_parked(void)
{
	IDEM_FAULT_POINT("relay-parked-written");
}

/* Forget the rows of parked events that were acked. */
void
idem_settle_unpark(IdemStream *stream, int64 *ids, int n)
{
	idem_parked_done(stream->relay.config, ids, n);
	IDEM_FAULT_POINT("relay-unparked");
}

/* Tell the sink that the events of the range that were not acked are on record. */
void
idem_settle_tell(IdemStream *stream, uint64 batch, int first, int last)
{
	IdemProtoSettle settle = {batch, first, last};
	uint8	   *buf = idem_pipe_reserve(&stream->pipe, 32);

	idem_pipe_add(&stream->pipe, idem_proto_encode_settle(buf, 32, &settle));
	IDEM_FAULT_POINT("relay-settle-sent");
}
