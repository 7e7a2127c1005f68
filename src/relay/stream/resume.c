/*-------------------------------------------------------------------------
 *
 * resume.c
 *		Where a relay goes on when its program is ready.
 *
 * Three sources say where a relay stands: the log of positions; the sink, if it
 * stores positions; and the relay's rest, in which the relay passed events of
 * other types.  This file brings the three together, or finds that sink and log
 * contradict each other.
 *
 * The event that a hunt found is parked here, too.  Only here it is known
 * whether a sink that stores positions committed the event before its program
 * died.
 *
 * A crash leaves either the row that says which row the sink had stored, or
 * nothing new.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/resume.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/timestamp.h"

#include "relay/stream/state.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/worker.h"

/*
 * Set "settled" to the last position in our log, and look up the rows of the
 * log that the sink's position names.  False if the log has no position of the
 * relay.
 */
static bool
load_own_position(IdemStream *stream, const IdemProtoReady *ready, IdemSinkRows *sink_rows)
{
	IdemPositionName name = {0};

	if (stream->relay.walk.sink_stores && ready->has_position &&
		idem_encode_life_of(stream, ready->incarnation, &name.life))
	{
		name.id = ready->position.row_id;
		name.k = ready->position.k;
	}
	idem_position_look_up(stream->relay.config->relay_id, stream->relay.config->epoch, &name, sink_rows);
	if (sink_rows->last == NULL)
		return false;
	stream->relay.walk.fresh = sink_rows->last->fresh;
	idem_walk_stand(&stream->relay.walk, &sink_rows->last->pos);
	if (sink_rows->last->pos.target == NULL)
		stream->relay.walk.settled.seq = 0;
	return true;
}

/* A time without the fraction of its second, as text. */
static const char *
to_the_second(TimestampTz at)
{
	return pstrdup(timestamptz_to_str(at - at % USECS_PER_SEC));
}

/* Set "settled" to the row's difference, of which the sink has all up to k. */
static void
take_stored(IdemStream *stream, const IdemPositionRow *row, int64 k)
{
	idem_walk_stand(&stream->relay.walk, &row->pos);
	if (row->pos.target != NULL)
		stream->relay.walk.settled.seq = k;
}

/*
 * Go on from the SENT row that the sink has stored.  Unless the last row of the
 * log says it already, append a row that names it, at the position where the
 * relay goes on.  So the outbox keeps the events that follow, even if the target
 * lost some that it had confirmed.  "repeated": parked events were stored with
 * the row; a REPEATED row is appended.
 */
static void
resume_at(IdemStream *stream, const IdemSinkRows *sink_rows, int64 k, bool repeated)
{
	const IdemPositionRow *last = sink_rows->last;
	const IdemPositionRow *row = sink_rows->sent;
	const IdemPositionRow *passed = repeated ? NULL : sink_rows->passed;
	bool		is_last = row->id == last->id && last->fresh == IDEM_FRESH_CONFIRMED;
	bool		is_noted = last->acked_row == row->id && last->acked_k == k;

	take_stored(stream, row, k);
	idem_progress_note_stored(stream, row->id, k);

	/*
	 * The row "passed" says that the sink stood at exactly this place, and
	 * that the events up to that row are not for it.  These events need not
	 * be read again.
	 */
	if (passed != NULL)
		idem_walk_stand(&stream->relay.walk, &passed->pos);
	if (repeated)
		idem_progress_append_stored(stream, IDEM_POSITION_REPEATED);
	else if (!is_last && !is_noted)
		idem_progress_append_stored(stream, passed != NULL && passed->pos.target == NULL ?
									IDEM_POSITION_PASSED : IDEM_POSITION_NAMED);
	stream->relay.walk.fresh = IDEM_FRESH_CONFIRMED;
}

/*
 * Is the sink not as far any more as it has been?  The newest naming row tells
 * how far that was.
 */
static bool
was_set_back(const IdemSinkRows *sink_rows, const IdemProtoPosition *stored)
{
	const IdemPositionRow *naming = sink_rows->naming;

	return naming != NULL && (stored->row_id < naming->acked_row ||
							  (stored->row_id == naming->acked_row && stored->k < naming->acked_k));
}

/*
 * Has the target lost events that it had stored, and that the outbox cannot send
 * again?  A sink that was not set back has lost nothing: the outbox gives up no
 * event before the position of the newest naming row.  A sink that was set back
 * gets again what follows its row, unless segments were emptied since the row was
 * sent, with transactions that the row's position does not see.
 *
 * What was emptied is known by transactions, not by events.  So a target that
 * was set back may be found to have lost events that it has.
 */
static const char *
find_loss(const IdemSinkRows *sink_rows, const IdemProtoPosition *stored)
{
	const IdemPositionRow *row = sink_rows->sent;
	const IdemPositionRow *naming = sink_rows->naming;
	const IdemPositionRow *emptied = sink_rows->emptied;
	const IdemPosition *pos = sink_rows->passed != NULL ? &sink_rows->passed->pos : &row->pos;

	if (!was_set_back(sink_rows, stored))
		return NULL;
	if (emptied == NULL || emptied->id < row->id || idem_snap_covers(pos->base, emptied->pos.base))
		return NULL;
	return psprintf("the target was set back: it has lost what it stored between %s and %s, and the outbox no longer has all of that;"
					" restore the target to a later state, or bring the events there by hand and call relay_adopt",
					to_the_second(row->at), to_the_second(naming->at));
}

/* Did an operator lead the relay to another server, and nothing is confirmed since? */
static bool
is_behind_server(const IdemStream *stream)
{
	return stream->relay.walk.fresh == IDEM_FRESH_SERVER || stream->relay.walk.fresh == IDEM_FRESH_BOTH;
}

/* Is the sink's row, of which it has all up to k, before our position? */
static bool
is_before(const IdemPositionRow *row, int64 k, const IdemPosition *ours)
{
	if (!idem_snap_equal(ours->base, row->pos.base))
		return idem_position_sees_more(ours->base, row->pos.base);
	if (ours->target == NULL || row->pos.target == NULL)
		return false;
	if (!idem_snap_equal(ours->target, row->pos.target))
		return idem_position_sees_more(ours->target, row->pos.target);
	return k < ours->seq;
}

/*
 * The sink has stored a row from before the operator's move, and nothing of the
 * epoch was confirmed.  Go on from our own position, which the operator set; at
 * the same target by another server, from the row, unless the row is before our
 * position.
 *
 * The MOVED row names what the sink had stored at the move.  A sink that is not
 * as far was set back, before the move or after it; the operator did not know
 * what it lost.  Behind another server that holds only for a row that went to
 * the former server: an older row is of yet another target.
 */
static const char *
start_behind_move(IdemStream *stream, const IdemSinkRows *sink_rows, const IdemProtoPosition *stored)
{
	const IdemPositionRow *row = sink_rows->sent;
	bool		goes_along = stream->relay.walk.fresh == IDEM_FRESH_SERVER;
	bool		went_back = was_set_back(sink_rows, stored) &&
	(!is_behind_server(stream) || stored->row_id > sink_rows->naming->life);

	if (went_back)
	{
		if (row == NULL || (!goes_along && idem_position_sees_more(stream->relay.walk.settled.base, row->pos.base)))
			return psprintf("the target was set back, or this database was: the target's position is row " INT64_FORMAT
							", and was row " INT64_FORMAT " before the relay was moved;"
							" restore what was set back to a later state, or look what the target lacks and call relay_adopt",
							stored->row_id, sink_rows->naming->acked_row);
		if (find_loss(sink_rows, stored) != NULL)
			return find_loss(sink_rows, stored);
	}

	/*
	 * The sink's row shows that the server which relay_alter named leads to a
	 * target that has had the relay's events.  We wrote the row before the
	 * move, so the relay goes on from it, unless the row is before our
	 * position: then the relay sent to yet another target in between.
	 */
	if (row != NULL && goes_along &&
		(went_back || !is_before(row, stored->k, &sink_rows->last->pos)))
		take_stored(stream, row, stored->k);
	return NULL;
}

/*
 * Forget the parked events that the sink has stored with the row.  Only for a
 * row of our own history: in a history that we have lost, the sink may have
 * refused a repetition that is under way in ours.
 */
static bool
resolve_parked(const IdemRelayConfig *c, int64 id, int64 life)
{
	bool		resolved = idem_parked_resolve(c, id, life);

	IDEM_FAULT_POINT("relay-parked-resolved");
	return resolved;
}

/* Is the row that the sink has stored, and that our log lacks, of another history? */
static bool
is_of_others(const IdemStream *stream, const IdemSinkRows *sink_rows, int64 id)
{
	const IdemPositionRow *newest = sink_rows->newest_sent;

	return !is_behind_server(stream) || id >= stream->relay.config->epoch ||
		newest == NULL || id > newest->id ||
		(sink_rows->naming != NULL && id > sink_rows->naming->life);
}

/*
 * Compare the position that the sink has stored with our log, and go on from it
 * if it is a row of the epoch.  Returns NULL, or how sink and log contradict
 * each other:
 *
 * A sink without a position is accepted only while nothing of the epoch was
 * confirmed; after a move at the same server also nothing before the move.
 *
 * A position of another incarnation is accepted only after relay_adopt: the
 * sink may serve a copy of this database.
 *
 * A row before the row that the newest REPEATED row names is a contradiction.
 * The events after the sink's row would come again from the outbox; of the
 * repeated events no copy is left.  So is a row from which on the outbox has not
 * all any more (find_loss).
 *
 * A row of our incarnation that is of another epoch, or that our log lacks, is
 * accepted only while nothing of the epoch was confirmed, and only if it is of our
 * own history.  The log has each row that the former server may name (position.c).  A
 * row that it lacks was stored by a copy of this database, or in a history that we
 * have lost, however many numbers moves have drawn since.  Another server may lead to
 * a target that had the relay's events long ago; its rows are older than those
 * that went to the former server.
 */
static const char *
reconcile(IdemStream *stream, const IdemSinkRows *sink_rows, const IdemProtoReady *ready)
{
	IdemRelayConfig *c = stream->relay.config;
	int64		id = ready->position.row_id;
	int64		life;
	const IdemPositionRow *row = sink_rows->sent;
	const IdemPositionRow *repeated = sink_rows->repeated;
	const char *contradiction;

	if (!ready->has_position)
		return stream->relay.walk.fresh != IDEM_FRESH_CONFIRMED &&
			(is_behind_server(stream) || sink_rows->naming == NULL) ? NULL :
			"the sink has no position, although it had stored one before";
	if (!idem_encode_life_of(stream, ready->incarnation, &life))
		return stream->relay.walk.fresh == IDEM_FRESH_ADOPTED ? NULL :
			"the sink's position belongs to another relay of this name, or to another incarnation of this one";
	if (repeated != NULL && id < repeated->acked_row)
		return psprintf("the sink's position, row " INT64_FORMAT ", is before row " INT64_FORMAT
						", with which it had stored repeated events", id, repeated->acked_row);
	if (row != NULL && row->epoch == c->epoch)
	{
		contradiction = find_loss(sink_rows, &ready->position);
		if (contradiction == NULL)
			resume_at(stream, sink_rows, ready->position.k, resolve_parked(c, id, life));
		return contradiction;
	}
	if (stream->relay.walk.fresh == IDEM_FRESH_CONFIRMED ||
		(row == NULL && is_of_others(stream, sink_rows, id)))
		return psprintf("the sink's position, row " INT64_FORMAT ", is not in the log of positions",
						id);
	contradiction = start_behind_move(stream, sink_rows, &ready->position);
	if (contradiction == NULL)
		(void) resolve_parked(c, id, life);
	return contradiction;
}

/*
 * Park the event that a hunt found, unless "settled" has passed it.  In a
 * transaction.
 */
static void
park_found(IdemStream *stream)
{
	IdemFound  *found = &stream->found;
	IdemFailure failure = {.message = found->message, .fell = found->fell};
	IdemBlameVerdict verdict = {.kind = IDEM_BLAME_FOUND, .key = found->key};
	IdemEvent	event;

	failure.counts = idem_blame_judge(&stream->relay.blame, &verdict);
	failure.backs_off = !failure.counts;

	strlcpy(failure.sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE), sizeof(failure.sqlstate));
	if (found->parked_id != 0)
		idem_parked_refuse_again(NULL, stream->relay.config, found->seq, found->xid, found->parked_id, &failure);
	else if (!idem_position_passed(&stream->relay.walk.settled, found->xid, found->seq) &&
			 idem_reader_fetch(stream->reader, found->xid, found->seq, &event))
		idem_parked_refuse(NULL, stream->relay.config, &event, &failure);
	idem_reader_suspend(stream->reader);
	IDEM_FAULT_POINT("relay-suspect-parked");
}

/*
 * Take over from READY what the sink can do, and how much it takes at a time.
 */
static void
take_capabilities(IdemStream *stream, const IdemProtoReady *ready)
{
	const uint32 both = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
	IdemRelayConfig *c = stream->relay.config;

	stream->relay.walk.sink_stores = (ready->capabilities & both) == both;
	stream->credit_messages = ready->credit_messages;
	stream->credit_bytes = ready->credit_bytes;
	stream->max_batch_events = ready->max_batch_events == 0 ? c->batch_events :
		(int) Min((uint32) c->batch_events, ready->max_batch_events);
	stream->max_batch_bytes = ready->max_batch_bytes == 0 ? c->batch_bytes :
		Min(c->batch_bytes, ready->max_batch_bytes);
}

/*
 * Set "settled" to where the relay goes on, in a transaction of its own.
 * Returns NULL, or why that place is not known, in the caller's context.
 */
static char *
find_position(IdemStream *stream, const IdemProtoReady *ready)
{
	MemoryContext caller = CurrentMemoryContext;
	IdemWalk   *walk = &stream->relay.walk;
	const char *contradiction = NULL;
	char	   *copy = NULL;
	IdemSinkRows sink_rows;
	IdemSnap   *ahead = NULL;
	int64		rest_row = walk->acked_row;
	int64		rest_k = walk->acked_k;
	bool		parks;

	idem_txn_begin();
	if (stream->unwritten > 0)
	{
		idem_progress_append_settled(stream);
		CommandCounterIncrement();
	}
	if (walk->rested)
		ahead = idem_snap_copy(walk->settled.base);
	if (!load_own_position(stream, ready, &sink_rows))
		contradiction = "the log of positions has no position of this relay";
	idem_progress_note_stored(stream, 0, 0);
	if (contradiction == NULL && walk->sink_stores)
		contradiction = reconcile(stream, &sink_rows, ready);

	/*
	 * Move "settled" to where the relay stood when its rest ended.  At rest
	 * the relay passed events that were not for it; the log's row about that
	 * may be some seconds old.  With a sink that stores positions this holds
	 * only if the sink still stands where it stood at the rest: at rest_row
	 * and rest_k.
	 */
	if (contradiction == NULL && ahead != NULL && walk->settled.target == NULL &&
		idem_position_sees_more(ahead, walk->settled.base) &&
		!(walk->sink_stores && (walk->acked_row != rest_row || walk->acked_k != rest_k)))
	{
		IdemPosition pos = {ahead, NULL, 0};

		idem_walk_stand(walk, &pos);
	}
	parks = contradiction == NULL && stream->found.is_set;
	if (parks)
		park_found(stream);
	idem_parked_index_load(stream->parked, stream->relay.config, walk->settled.base);
	stream->parked_dirty = false;
	if (contradiction != NULL)
		copy = MemoryContextStrdup(caller, contradiction);
	idem_txn_commit(parks || walk->sink_stores);
	idem_progress_forget_unwritten(stream);
	stream->found.is_set = false;
	return copy;
}

IdemStreamVerdict
idem_resume(IdemStream *stream, const IdemProtoReady *ready)
{
	char	   *contradiction;

	IDEM_FAULT_POINT("relay-ready-received");
	take_capabilities(stream, ready);
	contradiction = find_position(stream, ready);
	if (contradiction != NULL)
	{
		stream->relay.walk.rested = false;
		return idem_stream_verdict(IDEM_STREAM_DIVERGED, contradiction);
	}
	idem_walk_start(&stream->relay.walk);
	stream->row_id = 0;			/* the first batch gets a row of this
								 * program's life */
	stream->relay.walk.dirty = stream->relay.walk.rested;
	stream->relay.walk.rested = false;
	return IDEM_STREAM_GOES_ON;
}
