/*-------------------------------------------------------------------------
 *
 * resume.c
 *		Where a relay goes on when its program is ready.
 *
 * The log of positions has where the relay stands, a sink that stores positions has
 * its own, and while the relay rested it may have passed events that were not for it.
 * The three are brought together here, or found to contradict each other.
 *
 * The event that a hunt found is parked here, too: a sink that stores positions may
 * have committed the event before its program died.
 *
 * A crash leaves a row that says which row the sink had stored, or nothing.
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
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/position/position.h"
#include "relay/stream/encode.h"
#include "relay/stream/progress.h"
#include "relay/stream/resume.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/txn.h"

/*
 * The position to resume from, as far as our own log tells, and what the log has
 * of what the sink says.  False if there is no position.
 */
static bool
load_own_position(IdemStream *stream, const IdemProtoReady *ready, IdemPositionTold *told)
{
	IdemPositionName name = {0};

	if (stream->sink_stores && ready->has_position &&
		idem_encode_life_of(stream, ready->incarnation, &name.life))
	{
		name.id = ready->position.row_id;
		name.k = ready->position.k;
	}
	idem_position_look_up(stream->config->relay_id, stream->config->epoch, &name, told);
	if (told->last == NULL)
		return false;
	stream->fresh = told->last->fresh;
	idem_position_assign(stream->cxt, &stream->settled, &told->last->pos);
	if (told->last->pos.target == NULL)
		stream->settled.seq = 0;
	return true;
}

/* Set "settled" to the row, of whose difference the sink has all up to k. */
static void
take_stored(IdemStream *stream, const IdemPositionRow *row, int64 k)
{
	idem_position_assign(stream->cxt, &stream->settled, &row->pos);
	if (row->pos.target != NULL)
		stream->settled.seq = k;
}

/*
 * Resume at the row that the sink has stored.  The note of it has the row's
 * position, so the outbox keeps what follows, also where the target lost some of
 * what it had confirmed.
 */
static void
resume_at(IdemStream *stream, const IdemPositionTold *told, int64 k, bool repeated)
{
	const IdemPositionRow *last = told->last;
	const IdemPositionRow *row = told->sent;
	bool		is_last = row->id == last->id && last->fresh == IDEM_FRESH_NOT;
	bool		is_noted = last->named == row->id &&
	(last->kind != IDEM_POSITION_PASSED || (told->passed != NULL && told->passed->id == last->id));

	take_stored(stream, row, k);
	idem_progress_note_stored(stream, row->id, k);

	/*
	 * At exactly this place of the sink's, later events were seen not to be
	 * for it: they need not be looked at again.
	 */
	if (told->passed != NULL && !repeated)
	{
		idem_position_assign(stream->cxt, &stream->settled, &told->passed->pos);
		stream->settled.seq = 0;
	}
	if (repeated)
		idem_progress_append_stored(stream, IDEM_POSITION_REPEATED, row->id);
	else if (!is_last && !is_noted)
		idem_progress_append_stored(stream, IDEM_POSITION_NAMED, row->id);
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
		!idem_position_sees_more(last->pos.base, row->pos.base);
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
reconcile(IdemStream *stream, const IdemPositionTold *told, const IdemProtoReady *ready)
{
	IdemRelayConfig *c = stream->config;
	int64		id = ready->position.row_id;
	int64		life;
	const IdemPositionRow *row = told->sent;
	const IdemPositionRow *repeated = told->repeated;
	bool		resolved;

	if (!ready->has_position)
		return stream->fresh != IDEM_FRESH_NOT ? NULL :
			"the sink has no position, although it had stored one before";
	if (!idem_encode_life_of(stream, ready->incarnation, &life))
		return stream->fresh == IDEM_FRESH_ADOPTED ? NULL :
			"the sink's position belongs to another relay of this name, or to another incarnation of this one";
	resolved = idem_parked_resolve(c, id, life);
	IDEM_FAULT_POINT("relay-parked-resolved");
	if (repeated != NULL && id < repeated->named)
		return psprintf("the sink's position, row " INT64_FORMAT ", is before row " INT64_FORMAT
						", with which it had stored repeated events", id, repeated->named);
	if (row != NULL && row->epoch == c->epoch)
	{
		resume_at(stream, told, ready->position.k, resolved);
		return NULL;
	}
	if (row != NULL && is_same_target(stream, told->last, row))
		take_stored(stream, row, ready->position.k);
	if (stream->fresh != IDEM_FRESH_NOT && (id < c->epoch || row != NULL))
		return NULL;
	return psprintf("the sink's position, row " INT64_FORMAT ", is not in the log of positions",
					id);
}

/*
 * While the relay rested it passed events that were not for it; what the log
 * has of that may be some seconds old.  That holds for a sink that stores
 * positions as long as the sink stands where it stood then.
 */
static void
go_ahead(IdemStream *stream, IdemSnap *ahead)
{
	const IdemRester *r = &stream->rester;
	IdemPosition pos = {ahead, NULL, 0};

	if (stream->settled.target != NULL || !idem_position_sees_more(ahead, stream->settled.base) ||
		(stream->sink_stores && (stream->stored_row != r->named || stream->stored_k != r->k)))
		return;
	idem_position_assign(stream->cxt, &stream->settled, &pos);
}

/* Has the sink the event, or the log a record of it? */
static bool
has_passed(const IdemPosition *pos, const IdemFound *found)
{
	return idem_snap_sees(pos->base, found->xid) ||
		(pos->target != NULL && found->seq <= pos->seq && idem_snap_sees(pos->target, found->xid));
}

/* Park the event that a hunt found, unless "settled" is past it.  In a transaction. */
static void
park_found(IdemStream *stream)
{
	IdemFound  *found = &stream->found;
	IdemFailure failure = {.counts = true, .message = found->message};
	IdemEvent	event;

	strlcpy(failure.sqlstate, unpack_sql_state(ERRCODE_IDEM_SINK_OUTAGE), sizeof(failure.sqlstate));
	if (found->parked_id != 0)
		(void) idem_parked_failed(stream->config, found->parked_id, &failure, NULL);
	else if (!has_passed(&stream->settled, found) &&
			 idem_reader_fetch(stream->reader, found->xid, found->seq, &event))
		idem_parked_add(stream->config, &event, &failure, NULL);
	idem_reader_suspend(stream->reader);
	IDEM_FAULT_POINT("relay-suspect-parked");
}

/* What the sink can do, and takes at a time. */
static void
take_capabilities(IdemStream *stream, const IdemProtoReady *ready)
{
	const uint32 both = IDEM_PROTO_STORES_POSITION | IDEM_PROTO_TRANSACTIONAL;
	IdemRelayConfig *c = stream->config;

	stream->sink_stores = (ready->capabilities & both) == both;
	stream->credit_messages = ready->credit_messages;
	stream->credit_bytes = ready->credit_bytes;
	stream->max_batch_events = ready->max_batch_events == 0 ? c->batch_events :
		(int) Min((uint32) c->batch_events, ready->max_batch_events);
	stream->max_batch_bytes = ready->max_batch_bytes == 0 ? c->batch_bytes :
		Min(c->batch_bytes, ready->max_batch_bytes);
}

/*
 * Set "settled" to where to go on, in a transaction of its own.  NULL, or why that
 * is not known, in the context of the caller.
 */
static char *
find_position(IdemStream *stream, const IdemProtoReady *ready)
{
	MemoryContext caller = CurrentMemoryContext;
	const char *contradiction = NULL;
	char	   *copy = NULL;
	IdemPositionTold told;
	IdemPositionFresh was_fresh;
	IdemSnap   *ahead = NULL;
	bool		parks;

	idem_txn_begin();
	if (stream->unwritten > 0)
	{
		idem_progress_append_settled(stream);
		CommandCounterIncrement();
	}
	if (stream->settled_known)
		ahead = idem_snap_copy(stream->settled.base);
	if (!load_own_position(stream, ready, &told))
		contradiction = "the log of positions has no position of this relay";
	was_fresh = stream->fresh;
	idem_progress_note_stored(stream, 0, 0);
	if (contradiction == NULL && stream->sink_stores)
		contradiction = reconcile(stream, &told, ready);
	if (contradiction == NULL && ahead != NULL)
		go_ahead(stream, ahead);
	parks = contradiction == NULL && stream->found.is_set;
	if (parks)
		park_found(stream);
	idem_parked_index_load(stream->parked, stream->config);
	stream->parked_dirty = false;
	if (contradiction != NULL)
		copy = MemoryContextStrdup(caller, contradiction);
	idem_txn_commit(parks || was_fresh != stream->fresh);
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
		return idem_stream_verdict(IDEM_STREAM_DIVERGED, contradiction);
	idem_cursor_start(&stream->cursor, &stream->settled);
	stream->row_id = 0;			/* the program's first batch has a row of its
								 * life */
	stream->settled_dirty = stream->settled_known;
	stream->settled_known = false;
	return IDEM_STREAM_GOES_ON;
}
