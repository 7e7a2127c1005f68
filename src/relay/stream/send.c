/*-------------------------------------------------------------------------
 *
 * send.c
 *		Events of the outbox, and parked ones that are due -> batches.
 *
 * A batch is read in one short transaction, encoded into the output buffer, and
 * written after that transaction has ended and the gate is open.  The same
 * transaction parks three kinds of events: an event whose key has a parked event
 * is parked behind that event; an event that cannot be sent at all is parked as
 * dead; and events that a probe passes over wait.
 *
 * For a sink that stores positions, the row of a difference is flushed before
 * the difference's first frame, and a difference begins only when the one
 * before is settled.  So the "base" of the last row is always settled, and
 * emptying the outbox can rely on it.
 *
 * MEMORY: each batch keeps what it has to know of its events in a context of
 * its own.  Events are read one by one.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/send.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"

#include "outbox/segment.h"
#include "relay/stream/state.h"
#include "shared/durable.h"
#include "shared/fault.h"
#include "shared/worker.h"

/* How many events are read in one transaction at most, wanted or not. */
#define MAX_SCANNED 100000

/*
 * After so long a relay lets the others have their turn, if it has many batches
 * to send or many events to pass over.  It looks at the clock between batches,
 * and every LOOK_EVERY events as long as no wanted event was found.  So the
 * clock does not decide how large a batch gets.
 */
#define TURN_MS 10
#define LOOK_EVERY 256

/*
 * A program may take what all events of a batch meet for the state of its
 * target, and events that fail each time may fill a batch: parked ones, which
 * come without others, or those of one difference.  So after its failure parked
 * events are sent in batches so small that it parks them again, and of the
 * outbox one such batch is sent first.  In an outage this parks so many events
 * per try; no more once half of those are parked that may wait.
 */

/* The batch that is being put together. */
typedef struct Builder
{
	IdemStream *stream;
	IdemBatch  *batch;			/* NULL: no event yet */
	IdemClock	turn_ends;
	int			limit;			/* most events that the batch may have, and
								 * most that are parked instead of sent */
	int			window;			/* the same for the batch, as the target's
								 * state has it */
	int			unseen;			/* events behind a probe that may be parked
								 * unseen */
	int64		bytes;			/* bytes of the batch's frames, and of events
								 * that were parked unseen */
	XLogRecPtr	lsn;			/* largest commit LSN of its events */
	FullTransactionId last_xid;
	bool		synchronous;	/* the transaction wrote something that must
								 * be flushed */
	int			parked;			/* events of the outbox that were parked
								 * instead of sent */
	bool		dead;			/* one of the parked events cannot be sent at
								 * all */
} Builder;

/* Add an event to the batch; false if the event cannot be sent at all. */
static bool
add_event(Builder *b, const IdemEvent *ev, int64 parked_id)
{
	IdemBatch  *batch = b->batch;
	IdemSentEvent *flight = &batch->flights[batch->n];
	size_t		waiting = idem_pipe_bytes_waiting(&b->stream->pipe);

	if (!idem_encode_event(b->stream, batch, ev))
		return false;
	b->bytes += idem_pipe_bytes_waiting(&b->stream->pipe) - waiting;
	flight->xid = ev->xid;
	flight->seq = ev->seq;
	flight->key = idem_parked_key(b->stream->relay.config, ev);
	flight->parked_id = parked_id;
	flight->outcome = 0;
	flight->lane = 0;
	flight->settled = false;
	flight->failure = -1;
	batch->n++;
	batch->unanswered++;
	batch->unsettled++;

	/*
	 * Parked events are durable already.  Events of one transaction follow
	 * each other, so its commit LSN is looked up once.
	 */
	if (!batch->repeats && !FullTransactionIdEquals(b->last_xid, ev->xid))
	{
		XLogRecPtr	lsn = idem_durable_commit_lsn(ev->xid);

		b->lsn = Max(b->lsn, lsn);
		b->last_xid = ev->xid;
	}
	return true;
}

/*
 * Park an event as dead that no sink program can be sent, now or later.  If the
 * event is parked already, the index looks again at the events behind it.
 */
static void
park_not_convertible(Builder *b, const IdemEvent *ev, int64 parked_id)
{
	IdemStream *stream = b->stream;
	IdemFailure failure = {.counts = true, .hopeless = true,
	.message = "the event cannot be converted to UTF-8"};

	strlcpy(failure.sqlstate, unpack_sql_state(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			sizeof(failure.sqlstate));
	idem_report_error(stream->relay.entry, failure.message);
	if (parked_id != 0)
	{
		idem_parked_refuse_again(stream->parked, stream->relay.config, ev->seq, ev->xid,
								 parked_id, &failure);
		return;
	}
	idem_parked_refuse(stream->parked, stream->relay.config, ev, &failure);
	b->synchronous = true;
	b->parked++;
	b->dead = true;
}

/* Give up the batch if none of its events could be added.  Its number is used again. */
static void
drop_empty_batch(Builder *b)
{
	if (b->batch == NULL || b->batch->n > 0)
		return;
	b->stream->next_batch--;
	MemoryContextDelete(b->batch->cxt);
	b->batch = NULL;
}

/* Has the batch as many events as may be sent at once? */
static bool
is_full(const Builder *b)
{
	return b->batch != NULL && (b->batch->n >= b->limit || b->batch->n >= b->window);
}

/* May the builder read another event? */
static bool
builder_has_room(Builder *b)
{
	/*
	 * With on_dead = stop a dead event halts the relay: read nothing after
	 * it.
	 */
	if (b->parked >= b->limit || (b->dead && b->stream->relay.config->on_dead == IDEM_ON_DEAD_STOP))
		return false;
	return (!is_full(b) || b->unseen > 0) && b->bytes < b->stream->max_batch_bytes &&
		b->stream->credit_messages > 0 && b->stream->credit_bytes > 0;
}

/*
 * The batch is complete: append its END, and hold the output until the batch's
 * transactions are flushed and a synchronous standby has them.
 */
static void
launch(Builder *b, int64 k)
{
	IdemStream *stream = b->stream;

	b->batch->row_id = stream->relay.walk.sink_stores ? stream->row_id : 0;
	b->batch->k = k;
	idem_encode_end(stream, b->batch);
	idem_batch_launch(stream, b->batch);
	idem_pace_sent(&stream->relay.pace, idem_clock(), b->batch->n);
	IDEM_FAULT_POINT("relay-before-gate");
	idem_pipe_hold(&stream->pipe, b->lsn);
	IDEM_FAULT_POINT("relay-after-gate");
}

/*
 * Note the earliest time at which an event of the next difference can have
 * committed: after the last snapshot, and not before the first commit that woke
 * us since.  So the age of an event, counted from that time, is never too
 * small.
 */
static void
stamp_difference(IdemStream *stream)
{
	stream->stamp = stream->looked_at == 0 ? 0 :
		Max(stream->looked_at, stream->woken_at);
	stream->looked_at = GetCurrentStatementStartTimestamp();
	stream->woken_at = 0;
}

/* Begin the next difference; false if nothing is new. */
static bool
begin_difference(IdemStream *stream)
{
	bool		newest;
	bool		begun = idem_walk_begin(&stream->relay.walk, &newest);

	if (begun)
	{
		stream->row_id = 0;
		stamp_difference(stream);
		if (stream->relay.walk.catching_up)
			stream->stamp = stream->looked_at = 0;

		/*
		 * The difference ends before the newest snapshot, so events after it
		 * may have committed before now.
		 */
		if (!newest)
			stream->looked_at = 0;
	}
	else if (newest)
	{
		if (stream->looked_at != 0)
			stream->looked_at = GetCurrentStatementStartTimestamp();
		stream->woken_at = 0;	/* the events of that commit were sent already */
	}
	return begun;
}

/* Read events into the batch; true if the difference came to its end. */
static bool
read_events(Builder *b, int64 *last_seq)
{
	IdemStream *stream = b->stream;
	IdemEvent	ev;
	bool		wanted;
	bool		blocked;

	for (int scanned = 0; scanned < MAX_SCANNED && builder_has_room(b); scanned++)
	{
		CHECK_FOR_INTERRUPTS();
		if (b->batch == NULL && scanned % LOOK_EVERY == LOOK_EVERY - 1 &&
			idem_clock() >= b->turn_ends)
			return false;
		if (!idem_reader_next(stream->reader, &ev))
			return true;
		wanted = idem_relay_wants(stream->relay.config, &ev) &&
			!idem_parked_has_seq(stream->parked, ev.seq) && !idem_blocked_has(stream->parked, &ev);
		blocked = wanted && idem_parked_blocks(stream->parked, &ev);
		if (wanted && (blocked || is_full(b)) && !idem_settle_try_lock(stream, NULL, 0))
		{
			idem_reader_unget(stream->reader);
			return false;
		}
		*last_seq = ev.seq;
		if (!wanted)
			continue;
		if (blocked)
		{
			idem_blocked_wait(stream->parked, stream->relay.config, &ev, &stream->relay.walk.read);
			b->parked++;
			IDEM_FAULT_POINT("relay-parked-waiting");
			b->synchronous = true;
			continue;
		}
		if (is_full(b))
		{
			idem_parked_wait(stream->parked, stream->relay.config, &ev);
			b->synchronous = true;
			b->unseen--;
			b->bytes += idem_event_size(&ev);
			continue;
		}
		if (b->batch == NULL)
		{
			b->batch = idem_batch_make(stream, b->limit, false);
			idem_position_assign(b->batch->cxt, &b->batch->read, &stream->relay.walk.read);
		}
		if (!add_event(b, &ev, 0))
			park_not_convertible(b, &ev, 0);
		else if (stream->relay.walk.sink_stores && stream->row_id == 0)
		{
			idem_progress_append_sent(stream);
			b->synchronous = true;
		}
	}
	return false;
}

/*
 * Move the cursor over what was read.  "settled" follows when the batch is
 * settled; if only events that are not sent were read, when the newest batch in
 * flight is settled, or now if nothing is in flight.
 */
static void
advance(IdemStream *stream, const Builder *b, bool ended, int64 last_seq)
{
	IdemBatch  *batch = b->batch;
	const IdemPosition *after = &stream->relay.walk.read;

	idem_walk_read(&stream->relay.walk, ended, last_seq);
	if (batch != NULL)
		idem_position_assign(batch->cxt, &batch->after, after);
	else if (stream->nbatches == 0)
	{
		idem_walk_advance(&stream->relay.walk, after);

		/*
		 * Write the position soon.  Until then a relay that starts again
		 * reads the dead event again, and parks it once more if an operator
		 * has discarded it.
		 */
		if (b->dead && !stream->relay.walk.sink_stores)
			idem_progress_note_unwritten(stream, 0);
	}
	else
	{
		IdemBatch  *last = dlist_tail_element(IdemBatch, node, &stream->batches);

		if (!last->repeats)
			idem_position_assign(last->cxt, &last->after, after);
	}
}

/*
 * How many more events may be in flight, as the target's state has it?  A held target has times of its own.
 * A program that shares its place with others' has no more than its target seems to take within
 * a slice, since it gives way only when all is answered.
 */
static int
window(IdemStream *stream)
{
	int			room = idem_blame_limit(&stream->relay.blame, PG_INT32_MAX) - stream->nunanswered;

	if (idem_schedule_shares_places())
		room = Min(room, 2 * Max(IDEM_STREAM_FEW_EVENTS, Max(stream->taken, stream->taken_before)) -
				   stream->nunanswered - stream->nlate);
	return idem_engine_is_held(&stream->relay) ? room :
		Min(room, idem_pace_room(&stream->relay.pace, idem_clock()));
}

/* Most events of a batch. */
static int
batch_limit(const IdemStream *stream)
{
	int			limit = stream->room > 0 ? Min(stream->room, stream->max_batch_events) : stream->max_batch_events;

	return idem_hunt_limit(&stream->hunt, limit);
}

/* Send one batch of the outbox; true if there may be more at once. */
static bool
send_log_batch(IdemStream *stream, IdemClock turn_ends)
{
	Builder		b = {stream, NULL, turn_ends};
	bool		begins = stream->relay.walk.read.target == NULL;
	bool		ended;
	int64		last_seq = stream->relay.walk.read.seq;

	b.window = window(stream);
	b.limit = batch_limit(stream);
	if (stream->few_next && stream->parked->total < idem_max_parked / 2)
		b.limit = Min(b.limit, IDEM_STREAM_FEW_EVENTS);
	if (idem_engine_is_held(&stream->relay) && !idem_hunt_is_on(&stream->hunt))
		b.unseen = Min(idem_blame_unseen(&stream->relay.blame), idem_parked_unseen_room(stream->parked));

	idem_txn_begin();
	if (begins && !begin_difference(stream))
	{
		stream->look = IDEM_LOOK_WHEN_WOKEN;
		idem_parked_index_log_moved(stream->parked);
		idem_txn_commit(false);
		return false;
	}
	IDEM_FAULT_POINT("relay-snapshot-taken");
	idem_reader_seek(stream->reader, &stream->relay.walk.read);
	ended = read_events(&b, &last_seq);
	drop_empty_batch(&b);
	idem_reader_suspend(stream->reader);
	IDEM_FAULT_POINT("relay-batch-read");
	idem_txn_commit(b.synchronous);

	if (b.batch != NULL)
	{
		launch(&b, last_seq);
		stream->few_next = false;
	}
	advance(stream, &b, ended, last_seq);
	idem_parked_index_log_moved(stream->parked);

	/*
	 * The outbox has nothing left, so wait for a wake-up.  The next snapshot
	 * differs whenever any transaction of the cluster has ended in between,
	 * but only a transaction that enqueued is a reason to look again, and
	 * such a transaction wakes us.  Only the call that took the newest
	 * snapshot may decide to wait: an event that committed after an older
	 * snapshot has spent its wake-up.
	 */
	if (begins && ended && b.batch == NULL && !stream->relay.walk.catching_up)
		stream->look = IDEM_LOOK_WHEN_WOKEN;
	return stream->look != IDEM_LOOK_WHEN_WOKEN;
}

/*
 * May the parked event be sent: has the outbox been read past it?  An event is
 * parked durably before its batch is committed at a sink that stores positions.
 * If the batch does not commit, the event is read again, and passed over
 * because it stands parked.  If it were sent and forgotten before that, the
 * outbox would bring it a second time.
 */
static bool
is_passed(const IdemParkedNote *note, void *arg)
{
	return idem_position_passed(&((const IdemStream *) arg)->relay.walk.read, note->xid, note->seq);
}

/*
 * Lock the rows of the taken events, which are changed when the batch is sent
 * or settled.  If somebody else has one of them locked, all are given back;
 * false.
 */
static bool
try_lock_repeats(IdemStream *stream, List *taken)
{
	int64	   *ids = palloc(sizeof(int64) * list_length(taken));
	int			n = 0;
	ListCell   *lc;

	foreach(lc, taken)
		ids[n++] = ((IdemParkedEvent *) lfirst(lc))->parked_id;
	if (idem_settle_try_lock(stream, ids, n))
		return true;
	foreach(lc, taken)
		idem_parked_index_give_back(stream->parked, ((IdemParkedEvent *) lfirst(lc))->event.seq, false);
	return false;
}

/*
 * Begin the batch of the taken events.  Events that it has no room for are
 * given back.
 */
static void
add_repeats(Builder *b, List *taken)
{
	ListCell   *lc;
	bool		goes_on = true;

	b->batch = idem_batch_make(b->stream, b->limit, true);
	foreach(lc, taken)
	{
		IdemParkedEvent *p = lfirst(lc);

		if (goes_on && builder_has_room(b))
		{
			goes_on = add_event(b, &p->event, p->parked_id);
			if (!goes_on)
				park_not_convertible(b, &p->event, p->parked_id);
		}
		else
			idem_parked_index_give_back(b->stream->parked, p->event.seq, false);
	}
	drop_empty_batch(b);
}

/*
 * Send the parked events that can be sent, as a batch of their own.  An event
 * that is known to kill the program is sent with nothing else in flight.  False
 * if no batch was sent.
 */
static bool
send_repeats(IdemStream *stream)
{
	Builder		b = {stream, NULL};
	MemoryContext work = AllocSetContextCreate(stream->run_cxt, "repeats", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(work);
	IdemParkedTaking taking = {.may = is_passed, .arg = stream,
	.lone = !idem_stream_has_flights(stream), .max_bytes = stream->max_batch_bytes};
	List	   *taken;

	b.limit = batch_limit(stream);
	if (stream->few_repeats)
		b.limit = Min(b.limit, IDEM_STREAM_FEW_EVENTS);
	b.window = window(stream);
	taking.limit = Min(b.limit, b.window);
	idem_txn_begin();
	MemoryContextSwitchTo(work);
	taken = idem_parked_take(stream->parked, &taking);
	if (taken != NIL && !try_lock_repeats(stream, taken))
		taken = NIL;
	if (taken != NIL)
		add_repeats(&b, taken);

	/*
	 * An event that has to be sent alone, and was left for now, is sent when
	 * the batches in flight are settled.
	 */
	stream->exclusive = taking.lone_left || (taking.alone && b.batch != NULL);
	if (b.batch != NULL)
	{
		if (stream->relay.walk.sink_stores)
		{
			/* Note the SENT row of the batch with each of its parked events. */
			int			n;
			int64	   *ids = idem_batch_parked_ids(b.batch, 0, &n);

			idem_progress_append_sent(stream);
			b.synchronous = true;
			idem_parked_mark(ids, n, stream->row_id, stream->life);
		}
		stream->repeats_in_flight = true;
		IDEM_FAULT_POINT("relay-repeats-read");
	}
	idem_txn_commit(b.synchronous);
	if (b.batch != NULL)
	{
		/*
		 * The gate holds for parked events, too: an event may have been
		 * parked before it was ever let through.
		 */
		launch(&b, stream->relay.walk.read.seq);
		IDEM_FAULT_POINT("relay-repeats-gated");
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(work);
	return b.batch != NULL;
}

/*
 * Read the index of parked events anew.  The events of a batch in flight stay
 * taken.
 */
static void
reload_parked(IdemStream *stream)
{
	dlist_iter	iter;

	idem_txn_begin();
	idem_parked_index_load(stream->parked, stream->relay.config, stream->relay.walk.settled.base);
	idem_txn_commit(false);
	stream->parked_dirty = false;
	idem_late_retake(stream);
	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		/*
		 * What is settled belongs to the index again; so do, while the sink's
		 * verdict is awaited, the events that the batch refused or skipped.
		 */
		for (int i = 0; batch->repeats && i < batch->n; i++)
		{
			const IdemSentEvent *flight = &batch->flights[i];

			if (!flight->settled && (!batch->settle_sent || flight->outcome == IDEM_PROTO_ACKED))
				idem_parked_index_retake(stream->parked, batch->flights[i].seq);
		}
	}
}

/* May another batch be sent now?  A hunt, an error or a killer allows no batch beside another. */
static bool
has_room(IdemStream *stream)
{
	bool		may_pipeline = !idem_hunt_is_on(&stream->hunt) && !stream->exclusive &&
	stream->relay.breaker.stepwise == 0;

	return idem_batch_has_room(stream) && (stream->nbatches == 0 || may_pipeline) && window(stream) > 0 &&
		idem_pipe_bytes_waiting(&stream->pipe) < stream->max_batch_bytes &&
		stream->credit_messages > 0 && stream->credit_bytes > 0 &&
		!idem_pipe_is_held(&stream->pipe) && stream->lock_retry_at == 0;
}

/*
 * May a batch of parked events be sent now?  For a sink that stores positions,
 * such a batch has a row that says that all before it is done; so nothing else
 * may be in flight.
 */
static bool
may_repeat(const IdemStream *stream)
{
	return !stream->repeats_in_flight && (stream->parked->total > 0 || idem_parked_wants_refill(stream->parked)) &&
		!(stream->relay.walk.sink_stores && stream->nbatches > 0);
}

/*
 * Is there anything to read in the outbox, and room for events that are refused?  If
 * parked events wait until the outbox has been read past them, the outbox is read however
 * many are refused.
 */
static bool
log_is_open(const IdemStream *stream)
{
	return stream->look != IDEM_LOOK_WHEN_WOKEN &&
		(!idem_parked_is_full(stream->parked) || !dlist_is_empty(&stream->parked->held));
}

/* Park events of keys that nothing blocks any more.  False if a lock is in the way. */
static bool
refill(IdemStream *stream)
{
	MemoryContext work = AllocSetContextCreate(stream->run_cxt, "refill", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old;
	bool		wrote = false;
	bool		done;

	idem_txn_begin();
	old = MemoryContextSwitchTo(work);
	done = idem_settle_try_lock(stream, NULL, 0) &&
		idem_blocked_refill(stream->parked, stream->relay.config, &stream->relay.walk.read, false, &wrote);
	MemoryContextSwitchTo(old);
	idem_txn_commit(wrote);
	MemoryContextDelete(work);
	if (!done && stream->lock_retry_at == 0)
		stream->lock_retry_at = idem_clock_plus_ms(idem_clock(), IDEM_LOCK_RETRY_MS);
	return done;
}

/*
 * When to send by the clock: parked events that are due, or a probe, which an event of the
 * outbox may be, too.  Anything else that holds events back ends with an event that wakes us.
 */
IdemClock
idem_send_next_at(IdemStream *stream)
{
	if (!has_room(stream))
		return 0;
	if (idem_engine_is_held(&stream->relay) && idem_clock() < stream->relay.probe_at)
		return may_repeat(stream) || log_is_open(stream) ? stream->relay.probe_at : 0;
	return may_repeat(stream) ? idem_parked_index_next(stream->parked) : 0;
}

IdemClock
idem_send_paced_until(IdemStream *stream)
{
	IdemClock	at = idem_engine_is_held(&stream->relay) ? 0 : idem_pace_next(&stream->relay.pace, idem_clock());
	IdemClock	due = idem_parked_index_next(stream->parked);

	if (at == 0 || stream->look != IDEM_LOOK_WHEN_WOKEN)
		return at;
	return due == 0 ? 0 : Max(at, due);
}

typedef enum Filled
{
	FILLED_BATCH,				/* a batch was sent */
	FILLED_NOTHING,				/* nothing can be sent now */
	FILLED_UNSEEN				/* events were read, and no batch was sent */
} Filled;

/*
 * Probe by the parked event that was refused longest ago, if it may be, of another lane and
 * of another key than the last: a missing topic may have refused most of them.
 */
static bool
probe_parked(IdemStream *stream)
{
	const IdemBlame *blame = &stream->relay.blame;

	if (!(blame->refused_lane > 0 && idem_parked_index_hurry(stream->parked, NULL, blame->refused_lane)) &&
		!idem_parked_index_hurry(stream->parked, &blame->whole.refused.key, 0) &&
		!idem_parked_index_hurry(stream->parked, NULL, 0))
		return false;
	stream->log_turn = send_repeats(stream);
	return stream->log_turn;
}

/*
 * Send one event to a target that is down, or that asks for fewer: a parked one and one of
 * the outbox by turns, since the refused ones may all be bad.  For the same reason the next
 * ones of the outbox are parked unseen, ever more of them (blame.c).  While few keys were refused,
 * an event of another key need not wait for the pause.
 */
static Filled
probe(IdemStream *stream, IdemClock turn_ends)
{
	bool		is_time = idem_clock() >= stream->relay.probe_at;
	bool		log = log_is_open(stream) && (is_time || idem_blame_spares(&stream->relay.blame));
	bool		more = false;

	if (is_time && may_repeat(stream) && !(log && stream->log_turn) && probe_parked(stream))
		return FILLED_BATCH;
	if (log)
	{
		stream->log_turn = false;
		more = send_log_batch(stream, turn_ends);
	}
	if (stream->nbatches > 0)
		return FILLED_BATCH;
	if (more)
		return FILLED_UNSEEN;
	return is_time && may_repeat(stream) && probe_parked(stream) ? FILLED_BATCH : FILLED_NOTHING;
}

/*
 * Do parked events come before the outbox now?  The two take turns.  For a sink that stores
 * positions parked events need the window for themselves, so the outbox stops for those that could
 * be sent once what is in flight is settled.  At another sink they go beside the outbox: a parked
 * event whose answer takes long stops nobody.
 */
static bool
parked_go_first(IdemStream *stream)
{
	if (stream->log_turn && log_is_open(stream))
		return false;
	return stream->relay.walk.sink_stores ? idem_parked_index_wants_turn(stream->parked) :
		may_repeat(stream) && idem_parked_index_is_due(stream->parked);
}

/* Send one batch, of parked events or of the outbox. */
static Filled
fill_once(IdemStream *stream, IdemClock turn_ends)
{
	int			before = stream->nbatches;

	if (idem_engine_is_held(&stream->relay))
		return probe(stream, turn_ends);
	if (parked_go_first(stream))
	{
		if (!may_repeat(stream))
			return FILLED_NOTHING;
		if (send_repeats(stream))
		{
			stream->log_turn = true;
			return FILLED_BATCH;
		}
		if (stream->exclusive)
			return FILLED_NOTHING;
	}
	/* A sink that stores positions is sent one difference at a time. */
	if (stream->relay.walk.sink_stores && stream->relay.walk.read.target == NULL && stream->nbatches > 0)
		return FILLED_NOTHING;
	stream->log_turn = false;
	if (!log_is_open(stream) || !send_log_batch(stream, turn_ends))
		return FILLED_NOTHING;
	return stream->nbatches == before ? FILLED_UNSEEN : FILLED_BATCH;
}

void
idem_send(IdemStream *stream)
{
	IdemClock	turn_ends = idem_clock_plus_ms(idem_clock(), TURN_MS);

	if (stream->look == IDEM_LOOK_AT_ONCE)
		stream->look = IDEM_LOOK_WITH_ROOM;
	while (has_room(stream))
	{
		Filled		filled;

		if (stream->parked_dirty || stream->parked->stale)
			reload_parked(stream);
		if (idem_parked_wants_refill(stream->parked) && !refill(stream))
			break;
		filled = fill_once(stream, turn_ends);
		if (filled == FILLED_NOTHING)
			break;

		/* The other relays have their turn first. */
		if (filled == FILLED_UNSEEN || idem_clock() >= turn_ends)
		{
			stream->look = IDEM_LOOK_AT_ONCE;
			break;
		}

		/*
		 * Write the batch at once: the sink works on it while the next batch
		 * is read.
		 */
		idem_pipe_flush(&stream->pipe);
	}
}
