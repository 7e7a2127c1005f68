/*-------------------------------------------------------------------------
 *
 * stream_settle.c
 *		Results of batches -> the position, and the events that are parked.
 *
 * Batches settle in the order they were sent.  To a sink that stores nothing,
 * the position passes a batch in the transaction that parks what was not
 * acknowledged; that of a batch with nothing to park is written later, for
 * several at once.  Each flush takes as long as the disk does, and the next
 * event would wait for it.  Not written, it counts as in flight, so the bound
 * on what a crash repeats is the same; and a position only gets behind.  To a
 * sink that stores positions, what was not acknowledged is parked durably
 * first, then SETTLE lets the sink commit, and its verdict moves the position;
 * the log has the row since before the first frame.
 *
 * A crash before the parking repeats the batch; between parking and the
 * position, the log's events that stand parked are passed over when read again.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream_settle.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/position.h"
#include "relay/report.h"
#include "relay/stream.h"
#include "relay/txn.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"

/* How long a position waits for others to be written with. */
#define WRITE_DELAY_MS 20

/* To a sink that stores positions: how long after a batch the log is told that it is done. */
#define PASSED_DELAY_MS 500
/* How often a lock is tried that somebody else has. */
#define LOCK_RETRY_MS 50

void
idem_batch_free(IdemStream *stream, IdemBatch *batch)
{
	dlist_delete(&batch->node);
	stream->nbatches--;
	if (batch->repeats)
		stream->repeating = stream->alone = false;
	MemoryContextDelete(batch->cxt);
}

/* The position to resume from, as far as our own log tells; NULL: there is none. */
static IdemPositionRow *
load_own_position(IdemStream *stream)
{
	IdemPositionRow *row = idem_position_last(stream->config->relay_id,
											  stream->config->epoch);

	if (row == NULL)
		return NULL;
	stream->fresh = row->fresh;
	idem_position_assign(stream->cxt, &stream->settled, &row->pos);
	return row;
}

/*
 * Append a row of the present epoch.  In a transaction; the caller decides how
 * durable its commit is.
 */
static void
append(IdemStream *stream, IdemPositionKind kind, int64 named, const IdemPosition *pos)
{
	IdemPositionRow row = {.relay_id = stream->config->relay_id,
		.epoch = stream->config->epoch, .kind = kind, .fresh = stream->fresh,
	.named = named, .pos = *pos};

	(void) idem_position_append(&row);
}

/*
 * The sink has stored the row, and nothing that came after it in the log.
 * Maintenance must keep the row however often the sink's programs fail.
 */
static void
note_stored(IdemStream *stream, IdemPositionKind kind, int64 row_id)
{
	IdemPosition whole = {stream->settled.done, NULL, 0};

	stream->fresh = IDEM_FRESH_NOT;
	append(stream, kind, row_id, &whole);
	IDEM_FAULT_POINT("relay-named-noted");
}

/*
 * The first commit of an epoch at the sink.  From here on a sink that does not
 * know the relay, or another one's position, is a contradiction, also for the
 * programs that are started later.
 */
static void
end_freshness(IdemStream *stream, int64 row_id)
{
	idem_txn_begin();
	note_stored(stream, IDEM_POSITION_NAMED, row_id);
	idem_txn_commit(true);
	IDEM_FAULT_POINT("relay-confirmed");
}

static void
take_stored(IdemStream *stream, const IdemPositionRow *row, int64 k)
{
	idem_position_assign(stream->cxt, &stream->settled, &row->pos);
	if (row->pos.cur != NULL)
		stream->settled.k = k;
}

/*
 * Resume at the row that the sink has stored.  The note of it has the row's
 * position, so the outbox keeps what follows, also where the target lost some of
 * what it had confirmed.
 */
static void
resume_at(IdemStream *stream, const IdemPositionRow *last, const IdemPositionRow *row,
		  int64 k, bool repeated)
{
	bool		is_last = row->id == last->id && last->fresh == IDEM_FRESH_NOT;
	bool		is_noted = last->named == row->id;

	take_stored(stream, row, k);
	if (repeated)
		note_stored(stream, IDEM_POSITION_REPEATED, row->id);
	else if (!is_last && !is_noted)
		note_stored(stream, IDEM_POSITION_NAMED, row->id);
	stream->fresh = IDEM_FRESH_NOT;
}

/*
 * The relay was altered to another server, whose sink names a row that we wrote before:
 * the target is one that had the relay's events.  It is further than our position, unless
 * the relay went to another target meanwhile.
 */
static bool
is_same_target(const IdemStream *stream, const IdemPositionRow *last, const IdemPositionRow *row)
{
	return stream->fresh == IDEM_FRESH_SERVER &&
		!idem_position_sees_more(last->pos.done, row->pos.done);
}

/*
 * Hold what the sink has stored against our log.  A row that stands there is
 * where to go on.  Anything else is accepted only while nothing of the epoch was
 * confirmed, and only as far as the operator's move that began the epoch says.
 * A position of another incarnation needs relay_adopt: the sink may serve a copy
 * of this database.  Of our own incarnation, a position must be older than the
 * move: ids of rows and epochs come from one sequence, so a row with a higher
 * id that our log lacks was stored by a copy of this database, or in a history
 * that we have lost.  A higher id that stands in our log, in an epoch before,
 * was sent while the move was not committed.  A row of our log before one with
 * which the sink had stored repeated events is a contradiction, too: the events
 * after the row come again from the log, the repeated ones have no copy.
 * NULL, or why the two contradict each other.
 */
static const char *
reconcile(IdemStream *stream, const IdemPositionRow *last, const IdemProtoReady *ready)
{
	IdemRelayConfig *c = stream->config;
	int64		id = ready->position.row_id;
	int64		life;
	IdemPositionRow *row;
	IdemPositionRow *repeated;
	bool		resolved;

	if (!ready->has_position)
		return stream->fresh != IDEM_FRESH_NOT ? NULL :
			"the sink has no position, although it had stored one before";
	if (!idem_stream_life_of(stream, ready->incarnation, &life))
		return stream->fresh == IDEM_FRESH_ADOPTED ? NULL :
			"the sink's position belongs to another relay of this name, or to another incarnation of this one";
	resolved = idem_parked_resolve(c, id, life);
	IDEM_FAULT_POINT("relay-parked-resolved");
	row = idem_position_sent(c->relay_id, id, life);
	repeated = idem_position_repeated(c->relay_id, c->epoch);
	if (repeated != NULL && id < repeated->named)
		return psprintf("the sink's position, row " INT64_FORMAT ", is before row " INT64_FORMAT
						", with which it had stored repeated events", id, repeated->named);
	if (row != NULL && row->epoch == c->epoch)
	{
		resume_at(stream, last, row, ready->position.k, resolved);
		return NULL;
	}
	if (row != NULL && is_same_target(stream, last, row))
		take_stored(stream, row, ready->position.k);
	if (stream->fresh != IDEM_FRESH_NOT && (id < c->epoch || row != NULL))
		return NULL;
	return psprintf("the sink's position, row " INT64_FORMAT ", is not in the log of positions",
					id);
}

/*
 * The position after what was acknowledged, into the log.  In a transaction,
 * after whose commit nothing is unwritten any more.
 */
static void
append_settled(IdemStream *stream)
{
	IDEM_FAULT_POINT("relay-before-position");
	append(stream, stream->storing ? IDEM_POSITION_PASSED : IDEM_POSITION_REACHED, 0,
		   &stream->settled);
	IDEM_FAULT_POINT("relay-position-appended");
}

/* The log has it, or its last position is the one to go on from. */
void
idem_stream_forget_unwritten(IdemStream *stream)
{
	stream->settled_dirty = false;
	stream->unwritten = 0;
	stream->write_by = 0;
}

void
idem_stream_on_ready(IdemStream *stream, const IdemProtoReady *ready)
{
	const uint32 both = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
	IdemRelayConfig *c = stream->config;
	const char *contradiction = NULL;
	const IdemPositionRow *last;
	IdemPositionFresh was_fresh;
	bool		parks;

	stream->storing = (ready->capabilities & both) == both;
	stream->credit_messages = ready->credit_messages;
	stream->credit_bytes = ready->credit_bytes;
	IDEM_FAULT_POINT("relay-ready-received");
	stream->max_batch_events = ready->max_batch_events == 0 ? c->batch_events :
		(int) Min((uint32) c->batch_events, ready->max_batch_events);
	stream->max_batch_bytes = ready->max_batch_bytes == 0 ? c->batch_bytes :
		Min(c->batch_bytes, ready->max_batch_bytes);

	idem_txn_begin();
	if (stream->unwritten > 0)
	{
		append_settled(stream);
		CommandCounterIncrement();
	}
	last = load_own_position(stream);
	was_fresh = stream->fresh;
	if (last != NULL && stream->storing)
		contradiction = reconcile(stream, last, ready);
	parks = last != NULL && contradiction == NULL && stream->found.is_set;
	if (parks)
		idem_stream_park_found(stream);
	idem_parked_index_load(stream->parked, c);
	stream->parked_dirty = false;
	if (contradiction)
		contradiction = MemoryContextStrdup(stream->cxt, contradiction);
	idem_txn_commit(parks || was_fresh != stream->fresh);
	idem_stream_forget_unwritten(stream);
	stream->found.is_set = false;

	if (last == NULL)
		contradiction = "the log of positions has no position of this relay";
	if (contradiction)
	{
		idem_stream_stick(stream, IDEM_RELAY_DIVERGED, contradiction);
		return;
	}
	idem_position_assign(stream->cxt, &stream->sent, &stream->settled);
	stream->row_id = 0;			/* the program's first batch has a row of its
								 * life */
	stream->settled_dirty = false;
	stream->catching_up = true;
	stream->phase = IDEM_STREAM_READY;
	stream->deadline = 0;
	stream->next_ping = idem_clock_plus_ms(idem_clock(),
										   idem_sink_timeout_ms / 2);
}

static void
on_progress(IdemStream *stream, IdemBatch *batch)
{
	stream->failures = 0;
	if (stream->stepwise > 0)
		stream->stepwise--;
	idem_stream_hunt_settled(stream, batch->n);
}

bool
idem_stream_try_lock(IdemStream *stream, const int64 *parked_ids, int n)
{
	if (idem_parked_try_lock(stream->config, parked_ids, n))
		return true;
	stream->lock_retry_at = idem_clock_plus_ms(idem_clock(), LOCK_RETRY_MS);
	return false;
}

/* The same for what is to be settled of a batch. */
static bool
try_lock_batch(IdemStream *stream, const IdemBatch *batch)
{
	int64	   *ids;
	bool		locked;

	if (!batch->repeats)
		return idem_stream_try_lock(stream, NULL, 0);
	ids = palloc(sizeof(int64) * batch->n);
	for (int i = 0; i < batch->n; i++)
		ids[i] = batch->flights[i].parked_id;
	locked = idem_stream_try_lock(stream, ids, batch->n);
	pfree(ids);
	return locked;
}

/* Park an event of the log that was not accepted. */
static void
park_flight(IdemStream *stream, const IdemBatch *batch, const IdemFlight *flight)
{
	IdemEvent	event;

	if (!idem_reader_fetch(stream->reader, flight->xid, flight->seq, &event))
		ereport(ERROR,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("event with seq " INT64_FORMAT " is no longer in the outbox",
						flight->seq)));
	if (flight->outcome == IDEM_PROTO_SKIPPED)
		idem_parked_wait(stream->parked, stream->config, &event);
	else
		idem_parked_refuse(stream->parked, stream->config, &event,
						   &batch->failures[flight->failure]);
}

/*
 * Those that were passed over for an earlier one of their key wait.  What waits already
 * needs no new row, unless the row says that it is part of a batch.
 */
static void
let_wait(IdemStream *stream, const IdemBatch *batch)
{
	int64	   *ids = palloc(sizeof(int64) * batch->n);
	int			n = 0;

	for (int i = 0; i < batch->n; i++)
	{
		IdemFlight *flight = &batch->flights[i];

		if (flight->outcome != IDEM_PROTO_SKIPPED)
			continue;
		if (stream->storing ||
			idem_parked_index_state(stream->parked, flight->seq) != IDEM_PARKED_WAITING)
			ids[n++] = flight->parked_id;
		idem_parked_index_give_back(stream->parked, flight->seq, true);
	}
	idem_parked_skipped(stream->config, ids, n);
	pfree(ids);
}

/* Put the non-acks of a batch on record.  In a transaction. */
static void
park_nonacks(IdemStream *stream, IdemBatch *batch)
{
	for (int i = 0; i < batch->n; i++)
	{
		IdemFlight *flight = &batch->flights[i];

		if (flight->outcome == IDEM_PROTO_ACKED)
			continue;
		if (!batch->repeats)
			park_flight(stream, batch, flight);
		else if (flight->outcome != IDEM_PROTO_SKIPPED)
			idem_parked_refuse_again(stream->parked, stream->config, flight->seq, flight->xid,
									 flight->parked_id, &batch->failures[flight->failure]);
	}
	if (batch->repeats)
		let_wait(stream, batch);
	IDEM_FAULT_POINT("relay-parked-written");
}

/* Forget the parked events that were accepted now.  In a transaction. */
static void
unpark_acks(IdemStream *stream, IdemBatch *batch)
{
	int64	   *ids = palloc(sizeof(int64) * batch->n);
	int			n = 0;

	for (int i = 0; i < batch->n; i++)
	{
		IdemFlight *flight = &batch->flights[i];

		if (flight->outcome != IDEM_PROTO_ACKED)
			continue;
		ids[n++] = flight->parked_id;
		idem_parked_index_drop(stream->parked, flight->seq);
	}
	idem_parked_done(stream->config, ids, n);
	pfree(ids);
	IDEM_FAULT_POINT("relay-unparked");
}

static void
send_settle(IdemStream *stream, IdemBatch *batch)
{
	IdemProtoSettle settle = {batch->no};
	uint8	   *buf = idem_stream_reserve(stream, 32);

	stream->out_end += idem_proto_encode_settle(buf, 32, &settle);
	batch->settled = true;
	IDEM_FAULT_POINT("relay-settle-sent");
}

static void
count_batch(IdemStream *stream, IdemBatch *batch)
{
	idem_report_counts(stream->entry, batch->n - batch->nonacks,
					   batch->repeats ? batch->n : 0);
}

void
idem_stream_note_unwritten(IdemStream *stream)
{
	if (stream->unwritten++ == 0)
		stream->write_by = idem_clock_plus_ms(idem_clock(), WRITE_DELAY_MS);
}

/* What the position will pass; written at once only if it cannot wait. */
static void
pass_batch(IdemStream *stream, const IdemBatch *batch)
{
	idem_position_assign(stream->cxt, &stream->settled, &batch->after);
	stream->settled_dirty = true;
	stream->fresh = IDEM_FRESH_NOT;
	idem_stream_note_unwritten(stream);
}

static bool
must_write(const IdemStream *stream)
{
	return stream->unwritten > 0 &&
		(stream->nbatches + stream->unwritten >= IDEM_STREAM_MAX_BATCHES ||
		 stream->stepwise > 0 || idem_clock() >= stream->write_by);
}

/*
 * Batches at the head that are answered, to a sink that stores nothing: at most
 * one transaction for all of them.  An error in it takes back what "settled"
 * passed here, which the caller of all this sees to.
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

		if (batch->open > 0 || (parked && stream->lock_retry_at != 0))
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
			pass_batch(stream, batch);
		on_progress(stream, batch);
		count_batch(stream, batch);
		idem_batch_free(stream, batch);
		IDEM_FAULT_POINT("relay-passed");
	}
	if (!begun && !must_write(stream))
		return;
	if (!begun)
		idem_txn_begin();
	writes = stream->unwritten > 0;
	if (writes)
		append_settled(stream);
	idem_reader_suspend(stream->reader);
	idem_txn_commit(parks);
	if (writes)
		idem_stream_forget_unwritten(stream);
	IDEM_FAULT_POINT("relay-position-committed");
}

/* What is sent from here on waits until a synchronous standby has what is on disk. */
static void
hold_for_standby(IdemStream *stream)
{
	XLogRecPtr	target = idem_durable_target(InvalidXLogRecPtr);

	if (!idem_durable_reached(target))
		stream->gate = target;
}

/* Begin the transaction that settles it; false if somebody has what it changes. */
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

/* The head batch, to a sink that stores positions.  True if it is done. */
static bool
settle_storing(IdemStream *stream, IdemBatch *batch)
{
	if (batch->nonacks > 0 && !batch->settled)
	{
		if (!begin_locked(stream, batch))
			return false;
		park_nonacks(stream, batch);
		idem_reader_suspend(stream->reader);
		idem_txn_commit(true);

		/* A failover must not forget them once the sink has passed them. */
		hold_for_standby(stream);
		send_settle(stream, batch);
	}
	if (!batch->committed)
		return false;
	if (stream->fresh != IDEM_FRESH_NOT)
		end_freshness(stream, batch->row_id);
	if (batch->repeats)
	{
		if (!begin_locked(stream, batch))
			return false;
		unpark_acks(stream, batch);
		note_stored(stream, IDEM_POSITION_REPEATED, batch->row_id);
		idem_txn_commit(false);
	}
	else
	{
		idem_position_assign(stream->cxt, &stream->settled, &batch->after);
		stream->settled_dirty = true;
		if (stream->write_by == 0)
			stream->write_by = idem_clock_plus_ms(idem_clock(), PASSED_DELAY_MS);
		IDEM_FAULT_POINT("relay-settled");
	}
	on_progress(stream, batch);
	count_batch(stream, batch);
	idem_batch_free(stream, batch);
	return true;
}

/*
 * "settled" moves without a row when a difference held nothing to send, and to
 * sinks that store positions.  Emptying the outbox goes by the rows, so it is
 * written down when nothing is in flight.
 */
static bool
persist_is_due(IdemStream *stream)
{
	/* No program runs any more that would wait for this. */
	if (stream->phase != IDEM_STREAM_READY)
		return stream->unwritten > 0;
	if (stream->nbatches > 0 || stream->sent.cur != NULL)
		return false;
	if (!idem_snap_equal(stream->settled.done, stream->sent.done))
	{
		idem_position_assign(stream->cxt, &stream->settled, &stream->sent);
		stream->settled_dirty = true;
	}
	return stream->settled_dirty;
}

void
idem_stream_persist(IdemStream *stream)
{
	if (!persist_is_due(stream))
		return;
	idem_txn_begin();
	append_settled(stream);
	IDEM_FAULT_POINT("relay-persist");
	idem_txn_commit(true);
	idem_stream_forget_unwritten(stream);
}

/*
 * Nothing is in flight for a while: tell stat_relay so, which reads the log.  A relay that
 * is busy is looked at again later.
 */
static void
write_passed(IdemStream *stream)
{
	stream->write_by = 0;
	if (persist_is_due(stream))
		idem_stream_persist(stream);
	else if (stream->nbatches > 0 || stream->sent.cur != NULL)
		stream->write_by = idem_clock_plus_ms(idem_clock(), PASSED_DELAY_MS);
}

void
idem_stream_settle(IdemStream *stream)
{
	if (!stream->storing)
	{
		settle_plain(stream);
		return;
	}
	while (!dlist_is_empty(&stream->batches))
	{
		IdemBatch  *head = dlist_head_element(IdemBatch, node, &stream->batches);

		if (head->open > 0 || !settle_storing(stream, head))
			break;
	}
	if (stream->write_by != 0 && idem_clock() >= stream->write_by)
		write_passed(stream);
}
