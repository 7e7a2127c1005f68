/*-------------------------------------------------------------------------
 *
 * settle.c
 *		Results of batches -> the position, and the events that are parked.
 *
 * Batches are settled in the order in which they were sent.
 *
 * With a sink that stores nothing, one transaction parks the refused events of
 * a batch and moves the position past it.  The position of a batch with nothing
 * to park is written later (progress.c).
 *
 * With a sink that stores positions, the refused events are parked durably
 * first.  Then SETTLE lets the sink commit, and the sink's verdict moves the
 * position.  The log of positions has had the batch's row since before the
 * first frame.
 *
 * A crash before the parking repeats the batch.  After a crash between parking
 * and position the events are read again, and those that stand parked are
 * passed over.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/settle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/stream/state.h"
#include "shared/fault.h"
#include "shared/worker.h"

/*
 * The sink has made its first commit of an epoch: write that down.  From here
 * on a sink that does not know the relay, or that has another relay's position,
 * is a contradiction, also for programs that are started later.
 */
static void
end_freshness(IdemStream *stream)
{
	idem_txn_begin();
	idem_progress_append_stored(stream, IDEM_POSITION_NAMED);
	idem_txn_commit(true);
	IDEM_FAULT_POINT("relay-confirmed");
}

bool
idem_settle_try_lock(IdemStream *stream, const int64 *parked_ids, int n)
{
	if (idem_parked_try_lock(stream->relay.config, parked_ids, n))
		return true;
	stream->lock_retry_at = idem_clock_plus_ms(idem_clock(), IDEM_LOCK_RETRY_MS);
	return false;
}

/* The same for the parked events of a batch, if it has any. */
static bool
try_lock_batch(IdemStream *stream, const IdemBatch *batch)
{
	int64	   *ids;
	int			n;
	bool		locked;

	if (!batch->repeats)
		return idem_settle_try_lock(stream, NULL, 0);
	ids = idem_batch_parked_ids(batch, 0, &n);
	locked = idem_settle_try_lock(stream, ids, n);
	pfree(ids);
	return locked;
}

/* How many keys have the events that could be sent now, or are in flight?  See IdemBlameVerdict. */
static int
count_keys(IdemStream *stream)
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
	idem_pace_answered(&stream->relay.pace, idem_clock(), answer, verdict->key, wait_ms, stream->nevents);
}

/* An event was accepted. */
static void
judge_ack(IdemStream *stream, const IdemSentEvent *flight)
{
	IdemBlameVerdict verdict = {.kind = IDEM_BLAME_ACCEPTED, .lane = flight->lane, .key = flight->key};

	(void) idem_blame_judge(&stream->relay.blame, &verdict);
	note_pace(stream, &verdict, 0);
}

static void
judge_acks(IdemStream *stream, const IdemBatch *batch)
{
	for (int i = 0; i < batch->n; i++)
	{
		if (batch->flights[i].outcome == IDEM_PROTO_ACKED)
			judge_ack(stream, &batch->flights[i]);
	}
}

/* Whose fault is it that the event was not accepted?  keys: see count_keys. */
static IdemFailure
judge_flight(IdemStream *stream, const IdemBatch *batch, const IdemSentEvent *flight, int keys)
{
	IdemFailure failure = batch->failures[flight->failure];
	IdemBlameVerdict verdict = {.kind = failure.kind, .lane = flight->lane, .key = flight->key, .keys = keys,
		.names_time = failure.kind == IDEM_BLAME_RETRY && failure.retry_after_ms > 0,
	.first = flight->parked_id == 0 || !idem_parked_was_refused(stream->parked, flight->seq)};

	failure.counts = idem_blame_judge(&stream->relay.blame, &verdict);
	note_pace(stream, &verdict, failure.retry_after_ms);
	failure.backs_off = !failure.counts && failure.kind != IDEM_BLAME_NOTHING;
	return failure;
}

/* Park an event of the outbox that was not accepted. */
static void
park_flight(IdemStream *stream, const IdemBatch *batch, const IdemSentEvent *flight, const IdemFailure *failure)
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

/*
 * The sink skipped these events for an earlier event of their key: let them
 * wait.  An event whose state is "waiting" already needs no new row, unless its
 * row says that the event is part of a batch.
 */
static void
let_wait(IdemStream *stream, const IdemBatch *batch)
{
	int64	   *ids = palloc(sizeof(int64) * batch->n);
	int			n = 0;

	for (int i = 0; i < batch->n; i++)
	{
		IdemSentEvent *flight = &batch->flights[i];

		if (flight->outcome != IDEM_PROTO_SKIPPED)
			continue;
		if (stream->relay.walk.sink_stores ||
			idem_parked_index_state(stream->parked, flight->seq) != IDEM_PARKED_WAITING)
			ids[n++] = flight->parked_id;
		idem_parked_index_give_back(stream->parked, flight->seq, true);
	}
	idem_parked_skipped(stream->relay.config, ids, n);
	pfree(ids);
}

/*
 * Park the events of the batch that were not acked, or update their rows.  In a
 * transaction.  Where the sink stores nothing, what was acked is done already, and is
 * evidence for what comes behind it.
 */
static void
park_nonacks(IdemStream *stream, IdemBatch *batch)
{
	int			keys = count_keys(stream);

	for (int i = 0; i < batch->n; i++)
	{
		IdemSentEvent *flight = &batch->flights[i];
		IdemFailure failure;

		if (flight->outcome == IDEM_PROTO_ACKED)
		{
			if (!stream->relay.walk.sink_stores)
				judge_ack(stream, flight);
			continue;
		}
		failure = judge_flight(stream, batch, flight, keys);
		if (!batch->repeats)
			park_flight(stream, batch, flight, &failure);
		else if (flight->outcome != IDEM_PROTO_SKIPPED)
			idem_parked_refuse_again(stream->parked, stream->relay.config, flight->seq, flight->xid,
									 flight->parked_id, &failure);
	}
	if (batch->repeats)
		let_wait(stream, batch);
	IDEM_FAULT_POINT("relay-parked-written");
}

/* Forget the parked events of the batch that were acked.  In a transaction. */
static void
unpark_acks(IdemStream *stream, IdemBatch *batch)
{
	int			n;
	int64	   *ids = idem_batch_parked_ids(batch, IDEM_PROTO_ACKED, &n);

	for (int i = 0; i < batch->n; i++)
	{
		if (batch->flights[i].outcome == IDEM_PROTO_ACKED)
			idem_parked_index_drop(stream->parked, batch->flights[i].seq);
	}
	idem_parked_done(stream->relay.config, ids, n);
	pfree(ids);
	IDEM_FAULT_POINT("relay-unparked");
}

/* Tell the sink that the events that were not acked are on record. */
static void
send_settle(IdemStream *stream, IdemBatch *batch)
{
	IdemProtoSettle settle = {batch->no};
	uint8	   *buf = idem_pipe_reserve(&stream->pipe, 32);

	idem_pipe_add(&stream->pipe, idem_proto_encode_settle(buf, 32, &settle));
	batch->settle_sent = true;
	IDEM_FAULT_POINT("relay-settle-sent");
}

/*
 * A batch is settled, so earlier failures count no more.  But if none of its
 * events was acked, the target may be down all the same.
 */
static void
on_progress(IdemStream *stream, IdemBatch *batch)
{
	int			wait_ms = 0;

	if (stream->relay.walk.sink_stores || batch->nonacks == 0)
		judge_acks(stream, batch);
	idem_engine_progressed(&stream->relay, batch->nonacks < batch->n, true);
	for (int i = 0; i < batch->nfailures; i++)
	{
		if (batch->failures[i].kind == IDEM_BLAME_ASKED)
			wait_ms = Max(wait_ms, batch->failures[i].retry_after_ms);
	}
	if (idem_engine_judged(&stream->relay, wait_ms))
		stream->parked->hurries = stream->parked_dirty = true;
	if (batch->repeats && batch->nonacks == 0)
		stream->few_repeats = false;
	idem_hunt_settled(&stream->hunt, batch->n);
	idem_report_counts(stream->relay.entry, batch->n - batch->nonacks, batch->repeats ? batch->n : 0);
}

/*
 * Settle the answered batches at the head, for a sink that stores nothing, in
 * at most one transaction.  If it fails, "settled" is ahead of the log of
 * positions; idem_stream_failed sees to that.
 */
static void
settle_plain(IdemStream *stream)
{
	bool		begun = false;
	bool		parks = false;
	bool		writes;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		bool		parked = batch->nonacks > 0 || batch->repeats;

		if (batch->unanswered > 0 || (parked && stream->lock_retry_at != 0))
			break;
		if (!begun && parked)
		{
			idem_txn_begin();
			idem_reader_suspend(stream->reader);
			begun = true;
		}
		if (parked && !try_lock_batch(stream, batch))
			break;
		if (batch->nonacks > 0)
		{
			park_nonacks(stream, batch);
			send_settle(stream, batch);
			parks = true;
		}
		if (batch->repeats)
			unpark_acks(stream, batch);
		else
		{
			/* Move "settled" past the batch; the row follows soon. */
			idem_walk_advance(&stream->relay.walk, &batch->after);
			stream->relay.walk.fresh = IDEM_FRESH_CONFIRMED;
			idem_progress_note_unwritten(stream, batch->n);
		}
		on_progress(stream, batch);
		idem_batch_free(stream, batch);
		IDEM_FAULT_POINT("relay-passed");
	}
	if (!begun && !idem_progress_must_write(stream))
		return;
	if (!begun)
		idem_txn_begin();
	writes = stream->unwritten > 0;
	if (writes)
		idem_progress_append_settled(stream);
	idem_reader_suspend(stream->reader);
	idem_txn_commit(parks);
	if (writes)
		idem_progress_forget_unwritten(stream);
	IDEM_FAULT_POINT("relay-position-committed");
}

/*
 * Begin the transaction that settles the batch; false if somebody has a lock on
 * rows that it changes.
 */
static bool
begin_locked(IdemStream *stream, const IdemBatch *batch)
{
	if (stream->lock_retry_at != 0)
		return false;
	idem_txn_begin();
	if (try_lock_batch(stream, batch))
		return true;
	idem_txn_commit(false);
	return false;
}

/*
 * Settle the oldest batch, for a sink that stores positions.  True if the batch
 * is done.
 */
static bool
settle_storing(IdemStream *stream, IdemBatch *batch)
{
	if (batch->nonacks > 0 && !batch->settle_sent)
	{
		if (!begin_locked(stream, batch))
			return false;
		park_nonacks(stream, batch);
		idem_reader_suspend(stream->reader);
		idem_txn_commit(true);

		/*
		 * Hold SETTLE until a synchronous standby has the parked events.  The
		 * sink's position will pass them, so a failover must not lose them.
		 */
		idem_pipe_hold(&stream->pipe, InvalidXLogRecPtr);
		send_settle(stream, batch);
	}
	if (!batch->committed)
		return false;
	idem_progress_note_stored(stream, batch->row_id, batch->k);
	if (stream->relay.walk.fresh != IDEM_FRESH_CONFIRMED)
		end_freshness(stream);
	if (batch->repeats)
	{
		if (!begin_locked(stream, batch))
			return false;
		unpark_acks(stream, batch);
		idem_progress_append_stored(stream, IDEM_POSITION_REPEATED);
		idem_txn_commit(false);
	}
	else
	{
		idem_walk_advance(&stream->relay.walk, &batch->after);
		idem_progress_write_later(stream);
		IDEM_FAULT_POINT("relay-settled");
	}
	on_progress(stream, batch);
	idem_batch_free(stream, batch);
	return true;
}

void
idem_settle(IdemStream *stream)
{
	IdemBatch  *oldest;

	if (!stream->relay.walk.sink_stores)
	{
		settle_plain(stream);
		return;
	}
	while ((oldest = idem_batch_oldest(stream)) != NULL)
	{
		if (oldest->unanswered > 0 || !settle_storing(stream, oldest))
			break;
	}
	idem_progress_write_if_time(stream);
}
