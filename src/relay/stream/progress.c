/*-------------------------------------------------------------------------
 *
 * progress.c
 *		How far a relay to a program has come: rows of the log of positions.
 *
 * Each flush takes as long as the disk does, and the next event would wait for it.
 * So the position of a batch to a sink that stores nothing is written a moment later,
 * for several batches at once.  Not written, a batch counts as in flight, so the bound
 * on the events that a crash repeats is the same; and a position only gets behind.
 *
 * A sink that stores positions has its own.  The log then needs the row of each
 * difference before its first frame, and, for stat_relay and for emptying the outbox,
 * a row that says that the difference is done, when nothing is in flight.
 *
 * A crash loses rows that were put off: the events since are sent again to a sink that
 * stores nothing, and are refused as old by one that stores positions.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/progress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/position/position.h"
#include "relay/stream/progress.h"
#include "shared/fault.h"
#include "shared/txn.h"

/* How long a position waits for others to be written with. */
#define WRITE_DELAY_MS 20

/* To a sink that stores positions: how long after a batch the log is told that it is done. */
#define PASSED_DELAY_MS 500

/*
 * Append a row of the present epoch.  In a transaction; the caller decides how
 * durable its commit is.
 */
static int64
append(IdemStream *stream, IdemPositionKind kind, int64 named, const IdemPosition *pos)
{
	IdemPositionRow row = {.relay_id = stream->config->relay_id,
		.epoch = stream->config->epoch, .kind = kind, .fresh = stream->fresh,
	.named = named, .pos = *pos};

	if (kind == IDEM_POSITION_SENT)
		row.life = stream->life;
	return idem_position_append(&row);
}

void
idem_progress_append_stored(IdemStream *stream, IdemPositionKind kind, int64 row_id)
{
	IdemPosition whole = {stream->settled.base, NULL, 0};

	stream->fresh = IDEM_FRESH_NOT;
	(void) append(stream, kind, row_id, &whole);
	IDEM_FAULT_POINT("relay-named-noted");
}

void
idem_progress_append_sent(IdemStream *stream)
{
	stream->row_id = append(stream, IDEM_POSITION_SENT, 0, &stream->cursor.pos);
	IDEM_FAULT_POINT("relay-row-appended");
}

void
idem_progress_append_settled(IdemStream *stream)
{
	IdemPosition pos = stream->settled;

	IDEM_FAULT_POINT("relay-before-position");

	/*
	 * A PASSED row is of a whole difference; its k is that of what the sink
	 * has.
	 */
	if (stream->sink_stores)
		pos.seq = stream->stored_k;
	(void) append(stream, stream->sink_stores ? IDEM_POSITION_PASSED : IDEM_POSITION_REACHED,
				  stream->sink_stores ? stream->stored_row : 0, &pos);
	IDEM_FAULT_POINT("relay-position-appended");
}

void
idem_progress_forget_unwritten(IdemStream *stream)
{
	stream->settled_dirty = false;
	stream->unwritten = 0;
	stream->write_by = 0;
}

void
idem_progress_note_unwritten(IdemStream *stream)
{
	if (stream->unwritten++ == 0)
		stream->write_by = idem_clock_plus_ms(idem_clock(), WRITE_DELAY_MS);
}

bool
idem_progress_must_write(const IdemStream *stream)
{
	return stream->unwritten > 0 &&
		(stream->nbatches + stream->unwritten >= IDEM_STREAM_MAX_BATCHES ||
		 stream->stepwise > 0 || idem_clock() >= stream->write_by);
}

void
idem_progress_note_stored(IdemStream *stream, int64 row_id, int64 k)
{
	stream->stored_row = row_id;
	stream->stored_k = k;
}

void
idem_progress_write_later(IdemStream *stream)
{
	stream->settled_dirty = true;
	if (stream->write_by == 0)
		stream->write_by = idem_clock_plus_ms(idem_clock(), PASSED_DELAY_MS);
}

/* Batches are in flight, or a difference is not at its end. */
static bool
is_under_way(const IdemStream *stream)
{
	return stream->nbatches > 0 || stream->cursor.pos.target != NULL;
}

/*
 * "settled" moves without a row when a difference held nothing to send, and to
 * sinks that store positions.  Emptying the outbox goes by the rows, so "settled" is
 * written down when nothing is in flight.
 */
static bool
persist_is_due(IdemStream *stream)
{
	/* No program runs any more that would wait for this. */
	if (stream->phase != IDEM_STREAM_READY)
		return stream->unwritten > 0;
	if (is_under_way(stream))
		return false;
	if (!idem_snap_equal(stream->settled.base, stream->cursor.pos.base))
	{
		idem_position_assign(stream->cxt, &stream->settled, &stream->cursor.pos);
		stream->settled_dirty = true;
	}
	return stream->settled_dirty;
}

void
idem_progress_persist(IdemStream *stream)
{
	if (!persist_is_due(stream))
		return;
	idem_txn_begin();
	idem_progress_append_settled(stream);
	IDEM_FAULT_POINT("relay-persist");
	idem_txn_commit(true);
	idem_progress_forget_unwritten(stream);
}

void
idem_progress_write_if_time(IdemStream *stream)
{
	if (stream->write_by == 0 || idem_clock() < stream->write_by)
		return;
	stream->write_by = 0;
	if (persist_is_due(stream))
		idem_progress_persist(stream);
	else if (is_under_way(stream))
		stream->write_by = idem_clock_plus_ms(idem_clock(), PASSED_DELAY_MS);
}
