/*-------------------------------------------------------------------------
 *
 * settle.c
 *		Results of batches -> the position, and the events that are parked.
 *
 * With a sink that stores nothing, each result counts by itself, also in a batch
 * that is not answered in full: an event that was refused is parked, and SETTLE
 * tells the sink.  The events of a key are settled in their order, so the SETTLE
 * of the last one tells of those before it.  The position passes what is settled
 * up to the oldest event that is not.  One transaction parks what has come in and
 * moves the position; where nothing is to be parked, it is written later
 * (progress.c).
 *
 * With a sink that stores positions, batches are settled in the order in which
 * they were sent.  The refused events of a batch are parked durably
 * first.  Then SETTLE lets the sink commit, and the sink's verdict moves the
 * position.  The log of positions has had the batch's row since before the
 * first frame.
 *
 * A crash before the parking repeats the events since the position.  After a
 * crash between parking and position the events are read again, and those that
 * stand parked are passed over.
 *
 * MEMORY: what a turn needs is in its transaction's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/settle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "relay/stream/state.h"
#include "shared/fault.h"
#include "shared/worker.h"

bool
idem_settle_try_lock(IdemStream *stream, const int64 *parked_ids, int n)
{
	if (idem_parked_try_lock(stream->relay.config, parked_ids, n))
		return true;
	stream->lock_retry_at = idem_clock_plus_ms(idem_clock(), IDEM_LOCK_RETRY_MS);
	return false;
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

/* Whose fault is it that the event was not accepted?  keys: see count_keys. */
static IdemFailure
judge_flight(IdemStream *stream, const IdemSentEvent *flight, const IdemFailure *answer, int keys)
{
	IdemFailure failure = *answer;
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

/* Tell the sink that the events of the range that were not acked are on record. */
static void
send_settle(IdemStream *stream, uint64 batch, int first, int last)
{
	IdemProtoSettle settle = {batch, first, last};
	uint8	   *buf = idem_pipe_reserve(&stream->pipe, 32);

	idem_pipe_add(&stream->pipe, idem_proto_encode_settle(buf, 32, &settle));
	IDEM_FAULT_POINT("relay-settle-sent");
}

/*
 * Of a sink that stores nothing: each event
 */

/* What a turn settles. */
typedef struct Settling
{
	IdemStream *stream;
	bool		begun;			/* a transaction is open */
	bool		parks;			/* its commit has to be flushed */
	int			keys;			/* see count_keys; 0: not counted yet */
	HTAB	   *open;			/* keys of events without an answer; NULL: not
								 * made yet */

	/* of the events at hand */
	int			acked;
	int			others;
	int			wait_ms;		/* for so long the target asks to wait */
	int64	   *accepted;		/* rows of parked events that were acked */
	int			naccepted;
	int64	   *skipped;		/* and of those that wait for others */
	int			nskipped;
} Settling;

/* A key that has an event without an answer, and the first such event. */
typedef struct OpenKey
{
	uint64		key;			/* hash key */
	uint64		batch;
	int			index;
} OpenKey;

/* Collect the keys of the events that have no answer. */
static HTAB *
list_open_keys(IdemStream *stream)
{
	HASHCTL		ctl = {.keysize = sizeof(uint64), .entrysize = sizeof(OpenKey), .hcxt = CurrentMemoryContext};
	HTAB	   *open = hash_create("keys without an answer", 256, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	dlist_iter	iter;

	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		for (int i = 0; batch->unanswered > 0 && i < batch->n; i++)
		{
			OpenKey    *key;
			bool		found;

			if (batch->flights[i].outcome != 0)
				continue;
			key = hash_search(open, &batch->flights[i].key, HASH_ENTER, &found);
			if (found)
				continue;
			key->batch = batch->no;
			key->index = i;
		}
	}
	return open;
}

/* Is an earlier event of the key without an answer?  Then this one is not settled yet. */
static bool
is_behind_open(Settling *s, const IdemBatch *batch, int i)
{
	const IdemBatch *waiting = idem_batch_waiting(s->stream);
	const OpenKey *key;

	if (s->stream->relay.config->ordering != IDEM_ORDERING_KEY || waiting == NULL || waiting->no > batch->no)
		return false;
	if (s->open == NULL)
		s->open = list_open_keys(s->stream);
	key = hash_search(s->open, &batch->flights[i].key, HASH_FIND, NULL);
	return key != NULL && (key->batch < batch->no || (key->batch == batch->no && key->index < i));
}

/* Is the event to be settled now? */
static bool
is_fresh(const IdemSentEvent *flight)
{
	return flight->outcome != 0 && !flight->settled;
}

/*
 * Have a transaction that may change the rows of the batch's fresh events, if it changes any.
 * False if somebody has a lock.
 */
static bool
begin_settling(Settling *s, const IdemBatch *batch)
{
	int64	   *ids = NULL;
	int			n = 0;
	bool		writes = false;

	for (int i = batch->fresh_first; i < batch->fresh_end; i++)
		writes |= is_fresh(&batch->flights[i]) && (batch->repeats || batch->flights[i].outcome != IDEM_PROTO_ACKED);
	if (!writes)
		return true;
	if (s->stream->lock_retry_at != 0)
		return false;
	if (!s->begun)
	{
		idem_txn_begin();
		idem_reader_suspend(s->stream->reader);
		s->begun = true;
	}
	s->naccepted = s->nskipped = 0;
	s->accepted = palloc(sizeof(int64) * (batch->fresh_end - batch->fresh_first));
	s->skipped = palloc(sizeof(int64) * (batch->fresh_end - batch->fresh_first));
	if (batch->repeats)
		ids = idem_batch_parked_ids(batch, 0, &n);
	return idem_settle_try_lock(s->stream, ids, n);
}

/* The sink skipped a parked event for an earlier event of its key. */
static void
let_event_wait(Settling *s, const IdemSentEvent *flight)
{
	IdemParkedIndex *parked = s->stream->parked;

	if (idem_parked_index_state(parked, flight->seq) != IDEM_PARKED_WAITING)
		s->skipped[s->nskipped++] = flight->parked_id;
	idem_parked_index_give_back(parked, flight->seq, true);
}

/* Settle an event that was not acked. */
static void
settle_other(Settling *s, const IdemBatch *batch, const IdemSentEvent *flight)
{
	IdemStream *stream = s->stream;
	IdemFailure failure;

	if (s->keys == 0)
		s->keys = count_keys(stream);
	failure = judge_flight(stream, flight, &batch->failures[flight->failure], s->keys);
	if (failure.kind == IDEM_BLAME_ASKED)
		s->wait_ms = Max(s->wait_ms, failure.retry_after_ms);
	if (flight->parked_id == 0)
		park_flight(stream, batch, flight, &failure);
	else if (flight->outcome == IDEM_PROTO_SKIPPED)
		let_event_wait(s, flight);
	else
		idem_parked_refuse_again(stream->parked, stream->relay.config, flight->seq, flight->xid,
								 flight->parked_id, &failure);
	s->others++;
}

/* Settle an event that was acked: it is done, and evidence for what comes behind it. */
static void
settle_ack(Settling *s, const IdemSentEvent *flight)
{
	judge_ack(s->stream, flight);
	s->acked++;
	if (flight->parked_id == 0)
		return;
	idem_parked_index_drop(s->stream->parked, flight->seq);
	s->accepted[s->naccepted++] = flight->parked_id;
}

/* Change the rows of parked events that were settled. */
static void
write_settled(Settling *s)
{
	const IdemRelayConfig *config = s->stream->relay.config;

	if (s->nskipped > 0)
		idem_parked_skipped(config, s->skipped, s->nskipped);
	if (s->others > 0)
		IDEM_FAULT_POINT("relay-parked-written");
	if (s->naccepted == 0)
		return;
	idem_parked_done(config, s->accepted, s->naccepted);
	IDEM_FAULT_POINT("relay-unparked");
}

/* Send SETTLE for what is settled in the range from first to end. */
static void
send_settles(IdemStream *stream, const IdemBatch *batch, int first, int end)
{
	int			from = -1;
	bool		others = false;

	for (int i = first; i <= end; i++)
	{
		const IdemSentEvent *flight = &batch->flights[i];

		if (i < end && flight->settled)
		{
			from = from < 0 ? i : from;
			others |= flight->outcome != IDEM_PROTO_ACKED;
			continue;
		}
		if (others)
			send_settle(stream, batch->no, from, i - 1);
		from = -1;
		others = false;
	}
}

/*
 * What was settled of the batch tells of the target, so earlier failures count no more.  But if
 * none of the events was acked, the target may be down all the same.
 */
static void
on_progress(Settling *s, const IdemBatch *batch)
{
	IdemStream *stream = s->stream;

	idem_engine_progressed(&stream->relay, s->acked > 0, batch->unsettled == 0);
	if (idem_engine_judged(&stream->relay, s->wait_ms))
		stream->parked->hurries = stream->parked_dirty = true;
	idem_report_counts(stream->relay.entry, s->acked, batch->repeats ? s->acked + s->others : 0);
}

/* Settle the events of the batch that were answered since the last turn. */
static void
settle_fresh(Settling *s, IdemBatch *batch)
{
	int			first = batch->fresh_first;
	int			end = batch->fresh_end;

	if (end == 0 || !begin_settling(s, batch))
		return;
	batch->fresh_first = batch->fresh_end = 0;
	s->acked = s->others = s->wait_ms = 0;
	for (int i = first; i < end; i++)
	{
		IdemSentEvent *flight = &batch->flights[i];

		if (!is_fresh(flight))
			continue;
		if (flight->outcome == IDEM_PROTO_ACKED)
			settle_ack(s, flight);
		else if (is_behind_open(s, batch, i))
		{
			/* Look at it again with the next answer. */
			batch->fresh_first = batch->fresh_end == 0 ? i : batch->fresh_first;
			batch->fresh_end = i + 1;
			continue;
		}
		else
			settle_other(s, batch, flight);
		flight->settled = true;
		batch->unsettled--;
	}
	write_settled(s);
	if (s->others > 0)
	{
		send_settles(s->stream, batch, first, end);
		s->parks = true;
	}
	on_progress(s, batch);
}

/*
 * Move "settled" past what is settled at the head of the batch, to which it has come; the row
 * follows soon.
 */
static void
pass_prefix(IdemStream *stream, IdemBatch *batch)
{
	int			before = batch->prefix;

	while (batch->prefix < batch->n && batch->flights[batch->prefix].settled)
		batch->prefix++;
	if (batch->prefix == before)
		return;
	if (batch->prefix == batch->n)
		idem_walk_advance(&stream->relay.walk, &batch->after);
	else
	{
		IdemPosition pos = {batch->read.base, batch->read.target, batch->flights[batch->prefix - 1].seq};

		idem_walk_advance(&stream->relay.walk, &pos);
	}
	stream->relay.walk.fresh = IDEM_FRESH_CONFIRMED;
	stream->nevents -= batch->prefix - before;
	idem_progress_note_unwritten(stream, batch->prefix - before);
}

/* All events of the batch are settled, and the position has passed them, if they are the outbox's. */
static void
end_batch(IdemStream *stream, IdemBatch *batch)
{
	if (batch->repeats && batch->nonacks == 0)
		stream->few_repeats = false;
	idem_hunt_settled(&stream->hunt, batch->n);
	idem_batch_free(stream, batch);
	IDEM_FAULT_POINT("relay-passed");
}

/*
 * Settle what was answered, in at most one transaction.  If it fails, "settled" is ahead of
 * the log of positions; idem_stream_failed sees to that.
 */
static void
settle_plain(IdemStream *stream)
{
	Settling	s = {.stream = stream};
	bool		passes = true;
	bool		writes;
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		settle_fresh(&s, batch);
		if (!batch->repeats && passes)
			pass_prefix(stream, batch);
		passes &= batch->repeats || batch->unsettled == 0;
		if (batch->unsettled == 0 && (batch->repeats || passes))
			end_batch(stream, batch);
	}
	if (!s.begun && !idem_progress_must_write(stream))
		return;
	if (!s.begun)
		idem_txn_begin();
	writes = stream->unwritten > 0;
	if (writes)
		idem_progress_append_settled(stream);
	idem_reader_suspend(stream->reader);
	idem_txn_commit(s.parks);
	if (writes)
		idem_progress_forget_unwritten(stream);
	IDEM_FAULT_POINT("relay-position-committed");
}

/*
 * Of a sink that stores positions: batch by batch
 */

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
			judge_ack(stream, &batch->flights[i]);
	}
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
 * transaction.
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
			continue;
		failure = judge_flight(stream, flight, &batch->failures[flight->failure], keys);
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

/* The batch is committed; see on_progress. */
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
		stream->parked->hurries = stream->parked_dirty = true;
	if (batch->repeats && batch->nonacks == 0)
		stream->few_repeats = false;
	idem_hunt_settled(&stream->hunt, batch->n);
	idem_report_counts(stream->relay.entry, batch->n - batch->nonacks, batch->repeats ? batch->n : 0);
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
		send_settle(stream, batch->no, 0, batch->n - 1);
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
