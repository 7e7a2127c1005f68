/*-------------------------------------------------------------------------
 *
 * send.c
 *		Events of the log, and parked ones that are due -> batches.
 *
 * A batch is read in one short transaction, encoded into the output buffer,
 * and written after that transaction has ended and the gate is open.  What
 * cannot be sent because an earlier event of its key is parked, is parked
 * behind it in the same transaction; what cannot be sent at all, as dead.
 *
 * To a sink that stores positions, the row of a difference is flushed before
 * its first frame, and a difference is begun only when the one before is
 * settled; so the last row's "base" is settled always, and emptying the
 * outbox can go by it.
 *
 * MEMORY: what is in flight of each batch, in a context of its own.  Events are
 * read one by one.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/send.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/xact.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "outbox/segment.h"
#include "relay/position/position.h"
#include "relay/report.h"
#include "relay/stream/batch.h"
#include "relay/stream/encode.h"
#include "relay/stream/progress.h"
#include "relay/stream/send.h"
#include "relay/stream/settle.h"
#include "relay/target.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/fault.h"
#include "shared/txn.h"

/* Events read in one transaction at most, whatever is filtered out. */
#define MAX_SCANNED 100000

/*
 * A relay that has many batches to send, or many events to pass over, lets the
 * others have their turn after so long.  It is looked at between batches, and while
 * no event for a batch is found: how large a batch gets is not the clock's.
 */
#define TURN_MS 10
#define LOOK_EVERY 256

/* What is being put together. */
typedef struct Builder
{
	IdemStream *stream;
	IdemBatch  *batch;			/* NULL: no event yet */
	IdemClock	turn_ends;
	int			limit;			/* events */
	int64		bytes;			/* of frames */
	XLogRecPtr	lsn;			/* largest commit LSN of what is in it */
	FullTransactionId last_xid;
	bool		synchronous;	/* the transaction wrote what must be durable */
	int			parked;			/* events of the log that are not sent */
	bool		dead;			/* one of them cannot be sent at all */
} Builder;

/* How many events may the next batch have? */
static int
batch_limit(const IdemStream *stream)
{
	return idem_hunt_limit(&stream->hunt, stream->max_batch_events);
}

/* False if it cannot be sent at all. */
static bool
add_event(Builder *b, const IdemEvent *ev, int64 parked_id)
{
	IdemBatch  *batch = b->batch;
	IdemFlight *flight = &batch->flights[batch->n];
	size_t		waiting = idem_pipe_bytes_waiting(&b->stream->pipe);

	if (!idem_encode_event(b->stream, batch, ev))
		return false;
	b->bytes += idem_pipe_bytes_waiting(&b->stream->pipe) - waiting;
	flight->xid = ev->xid;
	flight->seq = ev->seq;
	flight->parked_id = parked_id;
	flight->outcome = 0;
	flight->failure = -1;
	batch->n++;
	batch->unanswered++;

	/* What was parked is durable; events of one transaction stand together. */
	if (!batch->repeats && !FullTransactionIdEquals(b->last_xid, ev->xid))
	{
		XLogRecPtr	lsn = idem_durable_commit_lsn(ev->xid);

		b->lsn = Max(b->lsn, lsn);
		b->last_xid = ev->xid;
	}
	return true;
}

/* No sink program can be sent the event, now or later. */
static IdemFailure
not_convertible(void)
{
	IdemFailure failure = {.counts = true, .hopeless = true,
	.message = "the event cannot be converted to UTF-8"};

	strlcpy(failure.sqlstate, unpack_sql_state(ERRCODE_CHARACTER_NOT_IN_REPERTOIRE),
			sizeof(failure.sqlstate));
	return failure;
}

static void
park_not_convertible(Builder *b, const IdemEvent *ev)
{
	IdemStream *stream = b->stream;
	IdemFailure failure = not_convertible();

	idem_report_error(stream->entry, failure.message);
	idem_parked_refuse(stream->parked, stream->config, ev, &failure);
	b->synchronous = true;
	b->parked++;
	b->dead = true;
}

/* None of the events that the batch was begun for could be added. */
static void
drop_empty_batch(Builder *b)
{
	if (b->batch == NULL || b->batch->n > 0)
		return;
	idem_batch_drop_empty(b->stream, b->batch);
	b->batch = NULL;
}

static bool
builder_has_room(Builder *b)
{
	/* One that is dead halts the relay, where that is wanted: none after it. */
	if (b->parked >= b->limit || (b->dead && b->stream->config->on_dead == IDEM_ON_DEAD_STOP))
		return false;
	return (b->batch == NULL || b->batch->n < b->limit) &&
		b->bytes < b->stream->max_batch_bytes &&
		b->stream->credit_messages > 0 && b->stream->credit_bytes > 0;
}

/*
 * The batch is complete.  Its transactions are flushed, and it is held back until a
 * standby has them.
 */
static void
launch(Builder *b, int64 k)
{
	IdemStream *stream = b->stream;

	b->batch->row_id = stream->sink_stores ? stream->row_id : 0;
	b->batch->k = k;
	idem_encode_end(stream, b->batch);
	idem_batch_launch(stream, b->batch);
	IDEM_FAULT_POINT("relay-before-gate");
	idem_pipe_hold(&stream->pipe, b->lsn);
	IDEM_FAULT_POINT("relay-after-gate");
}

/*
 * When were the events of the next difference committed?  After the snapshot
 * before, and not before the commit that woke us since; so their age, from
 * here, is not told too small.
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
	bool		begun = idem_cursor_begin(&stream->cursor, &newest);

	if (begun)
	{
		stream->row_id = 0;
		stamp_difference(stream);
		if (stream->cursor.catching_up)
			stream->stamp = stream->looked_at = 0;
		/* What comes after the difference may have been committed before now. */
		if (!newest)
			stream->looked_at = 0;
	}
	else if (newest)
	{
		if (stream->looked_at != 0)
			stream->looked_at = GetCurrentStatementStartTimestamp();
		stream->woken_at = 0;	/* by what was sent already */
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
		wanted = idem_relay_wants(stream->config, &ev) &&
			!idem_parked_has_seq(stream->parked, ev.seq);
		blocked = wanted && idem_parked_blocks(stream->parked, &ev);
		if (blocked && !idem_settle_try_lock(stream, NULL, 0))
		{
			idem_reader_unget(stream->reader);
			return false;
		}
		*last_seq = ev.seq;
		if (!wanted)
			continue;
		if (blocked)
		{
			idem_parked_wait(stream->parked, stream->config, &ev);
			b->parked++;
			IDEM_FAULT_POINT("relay-parked-waiting");
			b->synchronous = true;
			continue;
		}
		if (b->batch == NULL)
			b->batch = idem_batch_make(stream, b->limit, false);
		if (!add_event(b, &ev, 0))
			park_not_convertible(b, &ev);
		else if (stream->sink_stores && stream->row_id == 0)
		{
			idem_progress_append_sent(stream);
			b->synchronous = true;
		}
	}
	return false;
}

/*
 * The cursor passes the batch, or events that are not to be sent; once the batch is
 * settled, "settled" follows.  If nothing is in flight it follows now.
 */
static void
advance(IdemStream *stream, const Builder *b, bool ended, int64 last_seq)
{
	IdemBatch  *batch = b->batch;
	const IdemPosition *after = &stream->cursor.pos;

	idem_cursor_advance(&stream->cursor, ended, last_seq);
	if (batch != NULL)
		idem_position_assign(batch->cxt, &batch->after, after);
	else if (stream->nbatches == 0)
	{
		idem_position_assign(stream->cxt, &stream->settled, after);
		stream->settled_dirty = true;

		/* Read again after it was discarded, it would be dead once more. */
		if (b->dead && !stream->sink_stores)
			idem_progress_note_unwritten(stream);
	}
	else
	{
		IdemBatch  *last = idem_batch_newest(stream);

		if (!last->repeats)
			idem_position_assign(last->cxt, &last->after, after);
	}
}

/* One batch of the log; true if there may be more at once. */
static bool
send_log_batch(IdemStream *stream, IdemClock turn_ends)
{
	Builder		b = {stream, NULL, turn_ends};
	bool		begins = stream->cursor.pos.target == NULL;
	bool		ended;
	int64		last_seq = stream->cursor.pos.seq;

	b.limit = batch_limit(stream);

	idem_txn_begin();
	if (begins && !begin_difference(stream))
	{
		stream->look = IDEM_LOOK_WHEN_WOKEN;
		idem_parked_index_log_moved(stream->parked);
		idem_txn_commit(false);
		return false;
	}
	IDEM_FAULT_POINT("relay-snapshot-taken");
	idem_reader_seek(stream->reader, &stream->cursor.pos);
	ended = read_events(&b, &last_seq);
	drop_empty_batch(&b);
	idem_reader_suspend(stream->reader);
	IDEM_FAULT_POINT("relay-batch-read");
	idem_txn_commit(b.synchronous);

	if (b.batch != NULL)
		launch(&b, last_seq);
	advance(stream, &b, ended, last_seq);
	idem_parked_index_log_moved(stream->parked);

	/*
	 * The next snapshot differs whenever any transaction of the cluster came
	 * to an end in between.  One that enqueued wakes us: others are no reason
	 * to look again.  Only the call that took the newest snapshot may say so:
	 * an event that committed after an older one has spent its wake-up.
	 */
	if (begins && ended && b.batch == NULL && !stream->cursor.catching_up)
		stream->look = IDEM_LOOK_WHEN_WOKEN;
	return stream->look != IDEM_LOOK_WHEN_WOKEN;
}

/*
 * Has the log been read past it?  What was parked durably while its batch was
 * not committed at a sink that stores positions is read again, and passed over
 * because it stands parked.  Sent and forgotten before that, it would be sent
 * again.
 */
static bool
is_passed(const IdemParkedNote *note, void *arg)
{
	const IdemStream *stream = arg;
	const IdemPosition *sent = &stream->cursor.pos;

	return idem_snap_sees(sent->base, note->xid) ||
		(sent->target != NULL && note->seq <= sent->seq && idem_snap_sees(sent->target, note->xid));
}

/* It is dead now; those behind it are looked at anew. */
static void
fail_not_convertible(Builder *b, const IdemParkedEvent *p)
{
	IdemStream *stream = b->stream;
	IdemFailure failure = not_convertible();

	idem_report_error(stream->entry, failure.message);
	idem_parked_refuse_again(stream->parked, stream->config, p->event.seq, p->event.xid,
							 p->parked_id, &failure);
}

/*
 * They are changed when they are sent, or when they are settled.  Those that somebody
 * else has locked are given back.
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

/* Begin the batch of what was taken; returns how many of the events it has room for. */
static int
add_repeats(Builder *b, List *taken)
{
	ListCell   *lc;
	int			n = 0;
	bool		goes_on = true;

	b->batch = idem_batch_make(b->stream, b->limit, true);
	foreach(lc, taken)
	{
		IdemParkedEvent *p = lfirst(lc);

		if (goes_on && builder_has_room(b))
		{
			goes_on = add_event(b, &p->event, p->parked_id);
			if (goes_on)
				n++;
			else
				fail_not_convertible(b, p);
		}
		else
			idem_parked_index_give_back(b->stream->parked, p->event.seq, false);
	}
	drop_empty_batch(b);
	return n;
}

/* The row of the batch, and which events have it. */
static void
mark_repeats(Builder *b)
{
	int			n;
	int64	   *ids = idem_batch_parked_ids(b->batch, 0, &n);

	idem_progress_append_sent(b->stream);
	b->synchronous = true;
	idem_parked_mark(ids, n, b->stream->row_id, b->stream->life);
}

/*
 * Parked events that can be sent, as a batch of their own; one that is known to
 * kill the program with nothing else in flight.  False if no batch was sent.
 */
static bool
send_repeats(IdemStream *stream)
{
	Builder		b = {stream, NULL};
	MemoryContext work = AllocSetContextCreate(stream->run_cxt, "repeats", ALLOCSET_DEFAULT_SIZES);
	MemoryContext old = MemoryContextSwitchTo(work);
	IdemParkedTaking taking = {.may = is_passed, .arg = stream,
	.lone = stream->nbatches == 0, .max_bytes = stream->max_batch_bytes};
	List	   *taken;

	b.limit = taking.limit = batch_limit(stream);
	idem_txn_begin();
	MemoryContextSwitchTo(work);
	taken = idem_parked_take(stream->parked, &taking);
	if (taken != NIL && !try_lock_repeats(stream, taken))
		taken = NIL;
	if (taken != NIL)
		(void) add_repeats(&b, taken);

	/* One that is left to be tried alone goes when the others are settled. */
	stream->exclusive = taking.lone_left || (taking.alone && b.batch != NULL);
	if (b.batch != NULL)
	{
		if (stream->sink_stores)
			mark_repeats(&b);
		stream->repeats_in_flight = true;
		IDEM_FAULT_POINT("relay-repeats-read");
	}
	idem_txn_commit(b.synchronous);
	if (b.batch != NULL)
	{
		/* An event may have been parked before it was ever let through. */
		launch(&b, stream->cursor.pos.seq);
		IDEM_FAULT_POINT("relay-repeats-gated");
	}
	MemoryContextSwitchTo(old);
	MemoryContextDelete(work);
	return b.batch != NULL;
}

/* Those of the batch in flight stay taken. */
static void
reload_parked(IdemStream *stream)
{
	dlist_iter	iter;

	idem_txn_begin();
	idem_parked_index_load(stream->parked, stream->config);
	idem_txn_commit(false);
	stream->parked_dirty = false;
	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		/*
		 * What a settled batch had refused or passed over is back in the
		 * index already, while the sink's verdict is awaited.
		 */
		for (int i = 0; batch->repeats && i < batch->n; i++)
		{
			if (!batch->settle_sent || batch->flights[i].outcome == IDEM_PROTO_ACKED)
				idem_parked_index_retake(stream->parked, batch->flights[i].seq);
		}
	}
}

/* May a batch go beside others? */
static bool
may_pipeline(const IdemStream *stream)
{
	return !idem_hunt_is_on(&stream->hunt) && !stream->exclusive && stream->stepwise == 0;
}

static bool
has_room(IdemStream *stream)
{
	return stream->nbatches + stream->unwritten < IDEM_STREAM_MAX_BATCHES &&
		(stream->nbatches == 0 || may_pipeline(stream)) &&
		idem_pipe_bytes_waiting(&stream->pipe) < stream->max_batch_bytes &&
		stream->credit_messages > 0 && stream->credit_bytes > 0 &&
		!idem_pipe_is_held(&stream->pipe) && stream->lock_retry_at == 0;
}

/*
 * To a sink that stores positions, repeats have a row that says that all before
 * is done: nothing else is in flight then.
 */
static bool
may_repeat(const IdemStream *stream)
{
	return !stream->repeats_in_flight && stream->parked->total > 0 &&
		!(stream->sink_stores && stream->nbatches > 0);
}

/* By the clock; whatever else holds parked events up ends with something that wakes us. */
IdemClock
idem_send_repeats_at(IdemStream *stream)
{
	return may_repeat(stream) && has_room(stream) ? idem_parked_index_next(stream->parked) : 0;
}

/*
 * Is there anything to read in the log, and room for what must be parked of it?  Parked
 * events that the log has not passed wait for it, however many they are.
 */
static bool
log_is_open(const IdemStream *stream)
{
	return stream->look != IDEM_LOOK_WHEN_WOKEN &&
		(stream->parked->total < idem_max_parked || !dlist_is_empty(&stream->parked->held));
}

typedef enum Filled
{
	FILLED_BATCH,				/* a batch was sent */
	FILLED_NOTHING,				/* nothing can be sent now */
	FILLED_UNSEEN				/* events were read, and none was sent */
} Filled;

/*
 * One batch of whoever's turn it is: as long as parked events can be sent, or could be
 * once those in flight are settled, theirs and the log's take turns.
 */
static Filled
fill_once(IdemStream *stream, IdemClock turn_ends)
{
	int			before = stream->nbatches;

	if ((!stream->log_turn || !log_is_open(stream)) &&
		idem_parked_index_wants_turn(stream->parked))
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
	/* One difference at a time for sinks that store positions. */
	if (stream->sink_stores && stream->cursor.pos.target == NULL && stream->nbatches > 0)
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
		filled = fill_once(stream, turn_ends);
		if (filled == FILLED_NOTHING)
			break;

		/* Others have their turn first. */
		if (filled == FILLED_UNSEEN || idem_clock() >= turn_ends)
		{
			stream->look = IDEM_LOOK_AT_ONCE;
			break;
		}
		/* Hand it over at once: the sink works while the next one is read. */
		idem_pipe_flush(&stream->pipe);
	}
}
