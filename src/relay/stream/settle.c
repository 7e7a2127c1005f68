/*-------------------------------------------------------------------------
 *
 * settle.c
 *		Results of events -> the position, and the events that are parked.
 *
 * Of a sink that stores nothing each result counts by itself, also in a batch
 * that is not answered in full: an event that was refused is parked, and SETTLE
 * tells the sink.  The events of a key are settled in their order, so the SETTLE
 * of the last one tells of those before it.  The position passes what is settled
 * up to the oldest event that is not.  One transaction parks what has come in and
 * moves the position; where nothing is to be parked, it is written later
 * (progress.c).  An event that keeps the sink waiting while others pass is parked
 * with the state in_flight (late.c), so that the position passes it, too.
 *
 * A crash before the parking repeats the events since the position.  After a
 * crash between parking and position the events are read again, and those that
 * stand parked are passed over.
 *
 * A sink that stores positions is settled batch by batch: settle_batch.c.
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

/* What a turn settles. */
typedef struct Settling
{
	IdemStream *stream;
	bool		begun;			/* a transaction is open */
	bool		parks;			/* its commit has to be flushed */
	int			keys;			/* see idem_settle_count_keys; 0: not counted
								 * yet */
	HTAB	   *open;			/* keys of events in the window without an
								 * answer; NULL: not made yet */

	/* of the events at hand */
	int			acked;
	int			others;
	int			repeated;		/* those that had been parked when they were
								 * sent */
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

/* The event at this place has no answer; places come in their order. */
static void
add_open_key(HTAB *open, uint64 key, uint64 batch, int index)
{
	bool		found;
	OpenKey    *entry = hash_search(open, &key, HASH_ENTER, &found);

	if (found)
		return;
	entry->batch = batch;
	entry->index = index;
}

/* Collect the keys of the events in the window that have no answer. */
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
			/* Late events have a list of their own. */
			if (batch->flights[i].outcome == 0 && !batch->flights[i].settled)
				add_open_key(open, batch->flights[i].key, batch->no, i);
		}
	}
	return open;
}

/* Is an earlier event of the key without an answer?  Then this one is not settled yet. */
static bool
is_behind_open(Settling *s, uint64 hash, uint64 batch, int index)
{
	const IdemBatch *waiting;
	const OpenKey *key;

	if (s->stream->relay.config->ordering != IDEM_ORDERING_KEY)
		return false;
	if (idem_late_blocks(s->stream, hash, batch, index))
		return true;
	waiting = idem_batch_lacking(s->stream, IDEM_BATCH_UNANSWERED);
	if (waiting == NULL || waiting->no > batch)
		return false;
	if (s->open == NULL)
		s->open = list_open_keys(s->stream);
	key = hash_search(s->open, &hash, HASH_FIND, NULL);
	return key != NULL && (key->batch < batch || (key->batch == batch && key->index < index));
}

/* Is the event to be settled now? */
static bool
is_fresh(const IdemSentEvent *flight)
{
	return flight->outcome != 0 && !flight->settled;
}

/* Have a transaction, and the locks to change these rows.  False if somebody has one of them. */
static bool
begin_settling(Settling *s, const int64 *ids, int n)
{
	if (s->stream->lock_retry_at != 0)
		return false;
	if (!s->begun)
	{
		idem_txn_begin();
		idem_reader_suspend(s->stream->reader);
		s->begun = true;
	}
	return idem_settle_try_lock(s->stream, ids, n);
}

/* Begin with so many events. */
static void
begin_events(Settling *s, int n)
{
	s->acked = s->others = s->repeated = s->wait_ms = 0;
	s->naccepted = s->nskipped = 0;
	s->accepted = s->begun ? palloc(sizeof(int64) * n) : NULL;
	s->skipped = s->begun ? palloc(sizeof(int64) * n) : NULL;
}

/* Does settling the fresh answers of the batch write rows? */
static bool
writes_rows(const IdemBatch *batch)
{
	for (int i = batch->fresh_first; i < batch->fresh_end; i++)
	{
		if (is_fresh(&batch->flights[i]) && (batch->repeats || batch->flights[i].outcome != IDEM_PROTO_ACKED))
			return true;
	}
	return false;
}

/* The same for the batch's fresh answers, if these change rows. */
static bool
begin_batch(Settling *s, const IdemBatch *batch)
{
	int64	   *ids;
	int			n = 0;

	if (!writes_rows(batch))
		return true;
	ids = palloc(sizeof(int64) * (batch->fresh_end - batch->fresh_first));
	for (int i = batch->fresh_first; batch->repeats && i < batch->fresh_end; i++)
	{
		if (is_fresh(&batch->flights[i]))
			ids[n++] = batch->flights[i].parked_id;
	}
	return begin_settling(s, ids, n);
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

/* Settle an event that was not acked; batch: NULL if it is parked. */
static void
settle_other(Settling *s, const IdemBatch *batch, const IdemSentEvent *flight, const IdemFailure *answer)
{
	IdemStream *stream = s->stream;
	IdemFailure failure;

	if (s->keys == 0)
		s->keys = idem_settle_count_keys(stream);
	failure = idem_settle_judge(stream, flight, answer, s->keys);
	if (failure.kind == IDEM_BLAME_ASKED)
		s->wait_ms = Max(s->wait_ms, failure.retry_after_ms);
	if (flight->parked_id == 0)
		idem_settle_park(stream, batch, flight, &failure);
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
	idem_settle_judge_ack(s->stream, flight);
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
		idem_settle_parked();
	if (s->naccepted > 0)
		idem_settle_unpark(s->stream, s->accepted, s->naccepted);
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

		if (i < end && flight->settled && flight->outcome != 0)
		{
			from = from < 0 ? i : from;
			others |= flight->outcome != IDEM_PROTO_ACKED;
			continue;
		}
		if (others)
			idem_settle_tell(stream, batch->no, from, i - 1);
		from = -1;
		others = false;
	}
}

/*
 * What was settled tells of the target, so earlier failures count no more.  But if none of the
 * events was acked, the target may be down all the same.  whole: the last of a batch.
 */
static void
on_progress(Settling *s, bool whole)
{
	IdemStream *stream = s->stream;

	idem_engine_progressed(&stream->relay, s->acked > 0, whole);
	if (idem_engine_judged(&stream->relay, s->wait_ms))
		idem_parked_index_hurry_all(stream->parked);
	idem_report_counts(stream->relay.entry, s->acked, s->repeated);
}

/* Settle the events of the batch that were answered since the last turn. */
static void
settle_fresh(Settling *s, IdemBatch *batch)
{
	int			first = batch->fresh_first;
	int			end = batch->fresh_end;

	if (end == 0 || !begin_batch(s, batch))
		return;
	batch->fresh_first = batch->fresh_end = 0;
	begin_events(s, end - first);
	for (int i = first; i < end; i++)
	{
		IdemSentEvent *flight = &batch->flights[i];

		if (!is_fresh(flight))
			continue;
		if (flight->outcome == IDEM_PROTO_ACKED)
			settle_ack(s, flight);
		else if (is_behind_open(s, flight->key, batch->no, i))
		{
			/* Look at it again with the next answer. */
			batch->fresh_first = batch->fresh_end == 0 ? i : batch->fresh_first;
			batch->fresh_end = i + 1;
			continue;
		}
		else
			settle_other(s, batch, flight, &batch->failures[flight->failure]);
		flight->settled = true;
		batch->unsettled--;
		s->repeated += batch->repeats;
	}
	write_settled(s);
	if (s->others > 0)
	{
		send_settles(s->stream, batch, first, end);
		s->parks = true;
	}
	if (s->acked + s->others > 0)
		on_progress(s, batch->unsettled == 0);
}

/*
 * Late events
 */

/* Put a late event on record.  False if that cannot be now. */
static bool
park_late_event(Settling *s, const IdemBatch *batch, IdemSentEvent *flight)
{
	IdemStream *stream = s->stream;
	IdemEvent	event;

	if (batch->repeats)
		return true;
	if (!begin_settling(s, NULL, 0) ||
		idem_blocked_has_at(stream->parked, flight->key, flight->xid, flight->seq) ||
		!idem_reader_fetch(stream->reader, flight->xid, flight->seq, &event))
		return false;
	flight->parked_id = idem_parked_in_flight(stream->parked, stream->relay.config, &event);
	s->parks |= flight->parked_id != 0;
	IDEM_FAULT_POINT("relay-late-parked");
	return flight->parked_id != 0;
}

/*
 * Take late events out of the window, and those that are answered but not settled, because an
 * earlier event of their key is late.  If one cannot be taken, the position cannot pass it, and
 * nothing is gained by taking those behind it.
 */
static void
park_late(Settling *s)
{
	IdemStream *stream = s->stream;
	dlist_iter	iter;

	if (!idem_late_look(stream))
		return;
	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		for (int i = batch->prefix; batch->unsettled > 0 && i < batch->n; i++)
		{
			if (!idem_late_is(stream, batch, i))
				continue;
			if (!park_late_event(s, batch, &batch->flights[i]))
				return;
			idem_late_add(stream, batch, i);
		}
	}
}

/* The rows of the late events that can be settled, *n; palloc'd. */
static int64 *
list_late_fresh(IdemStream *stream, int *n)
{
	int64	   *ids;
	dlist_iter	iter;

	*n = 0;
	dlist_foreach(iter, &stream->late_fresh)
		(*n)++;
	ids = palloc(sizeof(int64) * *n);
	*n = 0;
	dlist_foreach(iter, &stream->late_fresh)
		ids[(*n)++] = dlist_container(IdemLateEvent, order_node, iter.cur)->flight.parked_id;
	return ids;
}

/* Settle a late event that was answered. */
static void
settle_late_event(Settling *s, IdemLateEvent *late)
{
	s->repeated += late->repeated;
	if (late->flight.outcome == IDEM_PROTO_ACKED)
		settle_ack(s, &late->flight);
	else
	{
		settle_other(s, NULL, &late->flight, &late->failure);
		idem_settle_tell(s->stream, late->place.batch, late->place.index, late->place.index);
		s->parks = true;
	}
	idem_late_remove(s->stream, late);
}

/* Settle the late events that were answered. */
static void
settle_late(Settling *s)
{
	IdemStream *stream = s->stream;
	dlist_mutable_iter iter;
	int64	   *ids;
	int			n;

	if (dlist_is_empty(&stream->late_fresh))
		return;
	ids = list_late_fresh(stream, &n);
	if (!begin_settling(s, ids, n))
		return;
	begin_events(s, n);
	dlist_foreach_modify(iter, &stream->late_fresh)
		settle_late_event(s, dlist_container(IdemLateEvent, order_node, iter.cur));
	write_settled(s);
	IDEM_FAULT_POINT("relay-late-settled");
	on_progress(s, false);
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

/*
 * All events of the batch are settled, and the position has passed them, if they are the outbox's.
 * waits: an event that was sent before has no answer.
 */
static void
end_batch(IdemStream *stream, IdemBatch *batch, bool waits)
{
	if (batch->repeats && batch->nonacks == 0)
		stream->few_repeats = false;

	/*
	 * While an earlier event has no answer, or had none when the program
	 * before ended, others tell nothing of it: it may be what the program
	 * dies of.
	 */
	if (idem_hunt_is_on(&stream->hunt) ||
		(!waits && stream->nlate == 0 && stream->parked->counts[IDEM_PARKED_IN_FLIGHT] == 0))
		idem_hunt_settled(&stream->hunt, batch->n);
	idem_batch_free(stream, batch);
	IDEM_FAULT_POINT("relay-passed");
}

/*
 * Settle the answers in the window, and move the position.  Without news nothing has changed
 * since the last look: an answer that waits for another one still does.
 */
static void
settle_window(Settling *s)
{
	IdemStream *stream = s->stream;
	bool		passes = true;
	bool		waits = false;
	dlist_mutable_iter iter;

	if (!stream->news)
		return;
	dlist_foreach_modify(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		settle_fresh(s, batch);
		if (!batch->repeats && passes)
			pass_prefix(stream, batch);
		passes &= batch->repeats || batch->unsettled == 0;
		waits |= batch->unanswered > 0;
		if (batch->unsettled == 0 && (batch->repeats || passes))
			end_batch(stream, batch, waits);
	}

	/* What could not be locked is still to be settled. */
	stream->news = stream->lock_retry_at != 0;
}

/*
 * Settle what was answered, in at most one transaction.  If it fails, "settled" is ahead of
 * the log of positions; idem_stream_failed sees to that.
 */
static void
settle_events(IdemStream *stream)
{
	Settling	s = {.stream = stream};
	bool		writes;

	settle_late(&s);
	park_late(&s);
	settle_window(&s);
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

void
idem_settle(IdemStream *stream)
{
	if (stream->relay.walk.sink_stores)
		idem_settle_batches(stream);
	else
		settle_events(stream);
}
