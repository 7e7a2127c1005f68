/*-------------------------------------------------------------------------
 *
 * settle_batch.c
 *		Verdicts of a sink that stores positions -> the position, and the events that are parked.
 *
 * Batches are settled in the order in which they were sent.  The refused events of
 * a batch are parked durably first.  Then SETTLE lets the sink commit, and the
 * sink's verdict moves the position.  The log of positions has had the batch's row
 * since before the first frame.
 *
 * After a crash between parking and the commit at the sink the events are read
 * again, and those that stand parked are passed over.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/settle_batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"

#include "relay/stream/state.h"
#include "shared/fault.h"
#include "shared/worker.h"

/* After so many batches, on average, twice the size is tried that had no room. */
#define WIDEN_AFTER 256

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

static void
judge_acks(IdemStream *stream, const IdemBatch *batch)
{
	for (int i = 0; i < batch->n; i++)
	{
		if (batch->flights[i].outcome == IDEM_PROTO_ACKED)
			idem_settle_judge_ack(stream, &batch->flights[i]);
	}
}

/*
 * The sink skipped these events for an earlier event of their key: let them
 * wait.  Their rows say that they are part of a batch, so each row is changed, also
 * of an event that has waited before.
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
		ids[n++] = flight->parked_id;
		idem_parked_index_give_back(stream->parked, flight->seq, true);
	}
	idem_parked_skipped(stream->relay.config, ids, n);
	pfree(ids);
}

/*
 * Park the events of the batch that were not acked, or update their rows.  In a
 * transaction.
 */
static void
park_nonacks(IdemStream *stream, IdemBatch *batch)
{
	int			keys = idem_settle_count_keys(stream);

	for (int i = 0; i < batch->n; i++)
	{
		IdemSentEvent *flight = &batch->flights[i];
		IdemFailure failure;

		if (flight->outcome == IDEM_PROTO_ACKED)
			continue;
		failure = idem_settle_judge(stream, flight, &batch->failures[flight->failure], keys);
		if (!batch->repeats)
			idem_settle_park(stream, batch, flight, &failure);
		else if (flight->outcome != IDEM_PROTO_SKIPPED)
			idem_parked_refuse_again(stream->parked, stream->relay.config, flight->seq, flight->xid,
									 flight->parked_id, &failure);
	}
	if (batch->repeats)
		let_wait(stream, batch);
	idem_settle_parked();
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
	idem_settle_unpark(stream, ids, n);
	pfree(ids);
}

/*
 * A batch of the size that is allowed has passed.  Twice as many are, up to half of what had no
 * room; and that is tried again now and then, since calls change.
 */
static void
widen_room(IdemStream *stream)
{
	if (2 * stream->room < stream->crowded_at)
		stream->room *= 2;
	else if (pg_prng_uint64_range(&pg_global_prng_state, 1, WIDEN_AFTER) == 1)
		stream->crowded_at = Min(2 * stream->crowded_at, IDEM_STREAM_MAX_EVENTS);
}

/* The batch is committed, so earlier failures count no more. */
static void
on_batch_done(IdemStream *stream, const IdemBatch *batch)
{
	int			wait_ms = 0;

	judge_acks(stream, batch);
	idem_engine_progressed(&stream->relay, batch->nonacks < batch->n, true);
	for (int i = 0; i < batch->nfailures; i++)
	{
		if (batch->failures[i].kind == IDEM_BLAME_ASKED)
			wait_ms = Max(wait_ms, batch->failures[i].retry_after_ms);
	}
	if (idem_engine_judged(&stream->relay, wait_ms))
		idem_parked_index_hurry_all(stream->parked);
	if (batch->repeats && batch->nonacks == 0)
		stream->few_repeats = false;
	if (stream->room > 0 && batch->n >= stream->room)
		widen_room(stream);
	idem_hunt_settled(&stream->hunt, batch->n);
	idem_report_counts(stream->relay.entry, batch->n - batch->nonacks, batch->repeats ? batch->n : 0);
	idem_report_got_on(stream->relay.entry);
}

/*
 * Begin the transaction that settles the batch; false if somebody has a lock on
 * rows that it changes.
 */
static bool
begin_locked(IdemStream *stream, const IdemBatch *batch)
{
	int64	   *ids = NULL;
	int			n = 0;

	if (stream->lock_retry_at != 0)
		return false;
	idem_txn_begin();
	if (batch->repeats)
		ids = idem_batch_parked_ids(batch, 0, &n);
	if (idem_settle_try_lock(stream, ids, n))
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
		idem_settle_tell(stream, batch->no, 0, batch->n - 1);
		batch->settle_sent = true;
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
	on_batch_done(stream, batch);
	idem_batch_free(stream, batch);
	return true;
}

void
idem_settle_batches(IdemStream *stream)
{
	IdemBatch  *oldest;

	while ((oldest = idem_batch_oldest(stream)) != NULL)
	{
		if (oldest->unanswered > 0 || !settle_storing(stream, oldest))
			break;
	}
	idem_progress_write_if_time(stream);
}
