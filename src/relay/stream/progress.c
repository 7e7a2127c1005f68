/*-------------------------------------------------------------------------
 *
 * progress.c
 *		How far a relay to a program has come: rows of the log of positions.
 *
 * A flush takes as long as the disk needs, and the next event would wait for
 * it.  So the position of a batch to a sink that stores nothing is written a
 * moment later, for several batches at once.  Events whose position is not
 * written are part of the window.  A late row is harmless: it only says less than
 * was delivered.
 *
 * A sink that stores positions keeps its own position.  The log of positions
 * then needs two rows: the row of each difference before its first frame; and,
 * when nothing is in flight, a row that says that the difference is done, for
 * stat_relay and for emptying the outbox.
 *
 * A crash loses rows that were put off.  The events since the last row are sent
 * again to a sink that stores nothing.  A sink that stores positions says how
 * far it has come.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/progress.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/stream/state.h"
#include "shared/fault.h"
#include "shared/worker.h"

/* How long a position waits, so that several are written at once. */
#define WRITE_DELAY_MS 100

/*
 * For a sink that stores positions: how long after a batch "settled" is
 * written.
 */
#define PASSED_DELAY_MS 500

/*
 * Append a row of the relay's epoch, which names what the sink has stored.  In
 * a transaction; the caller decides whether its commit is flushed.
 */
static int64
append(IdemStream *stream, IdemPositionKind kind, const IdemPosition *pos)
{
	IdemPositionRow row = idem_walk_row(&stream->relay.walk, stream->relay.config, kind, pos);

	if (kind == IDEM_POSITION_SENT)
		row.life = stream->life;
	return idem_position_append(&row);
}

void
idem_progress_append_stored(IdemStream *stream, IdemPositionKind kind)
{
	IdemPosition whole = {stream->relay.walk.settled.base, NULL, 0};

	stream->relay.walk.fresh = IDEM_FRESH_CONFIRMED;
	(void) append(stream, kind, &whole);
	IDEM_FAULT_POINT("relay-named-noted");
}

/*
 * Only the batch that is being made is in flight.  So what the row names is
 * exactly what the sink has stored, and the row begins right behind it.
 */
void
idem_progress_append_sent(IdemStream *stream)
{
	Assert(stream->nbatches <= 1);
	stream->row_id = append(stream, IDEM_POSITION_SENT, &stream->relay.walk.read);
	IDEM_FAULT_POINT("relay-row-appended");
}

void
idem_progress_append_settled(IdemStream *stream)
{
	IDEM_FAULT_POINT("relay-before-position");
	(void) append(stream, idem_walk_kind(&stream->relay.walk), &stream->relay.walk.settled);
	IDEM_FAULT_POINT("relay-position-appended");
}

void
idem_progress_forget_unwritten(IdemStream *stream)
{
	stream->relay.walk.dirty = false;
	stream->unwritten = 0;
	stream->unwritten_events = 0;
	stream->write_by = 0;
}

void
idem_progress_note_unwritten(IdemStream *stream, int events)
{
	if (stream->unwritten++ == 0)
		stream->write_by = idem_clock_plus_ms(idem_clock(), WRITE_DELAY_MS);
	stream->unwritten_events += events;
}

/* More events than this leave no room for another batch. */
static int
most_events(const IdemStream *stream)
{
	return (IDEM_STREAM_MAX_BATCHES - 1) * Max(stream->max_batch_events, 1);
}

bool
idem_progress_fills_window(const IdemStream *stream)
{
	return stream->nevents + stream->unwritten_events > most_events(stream);
}

bool
idem_progress_must_write(const IdemStream *stream)
{
	/*
	 * Early only if that makes room: else each event would be a write of its
	 * own.
	 */
	return stream->unwritten > 0 &&
		((idem_progress_fills_window(stream) && stream->nevents <= most_events(stream)) ||
		 stream->relay.breaker.stepwise > 0 || idem_clock() >= stream->write_by);
}

void
idem_progress_note_stored(IdemStream *stream, int64 row_id, int64 k)
{
	stream->relay.walk.acked_row = row_id;
	stream->relay.walk.acked_k = k;
}

void
idem_progress_write_later(IdemStream *stream)
{
	stream->relay.walk.dirty = true;
	if (stream->write_by == 0)
		stream->write_by = idem_clock_plus_ms(idem_clock(), PASSED_DELAY_MS);
}

/* Are batches in flight, or is a difference not at its end? */
static bool
is_under_way(const IdemStream *stream)
{
	return stream->nbatches > 0 || stream->relay.walk.read.target != NULL;
}

/*
 * Does the log of positions lack a row for "settled"?  "settled" moves without
 * a row when a difference held nothing to send, and with sinks that store
 * positions.  Emptying the outbox goes by the rows, so "settled" is written
 * when nothing is in flight.
 */
static bool
persist_is_due(IdemStream *stream)
{
	/*
	 * Without a program nothing waits for this write.  Only settled batches
	 * need it.
	 */
	if (stream->phase != IDEM_STREAM_READY)
		return stream->unwritten > 0;
	if (is_under_way(stream))
		return false;
	if (!idem_snap_equal(stream->relay.walk.settled.base, stream->relay.walk.read.base))
		idem_walk_advance(&stream->relay.walk, &stream->relay.walk.read);
	return stream->relay.walk.dirty;
}

static void
write_settled(IdemStream *stream)
{
	idem_txn_begin();
	idem_progress_append_settled(stream);
	IDEM_FAULT_POINT("relay-persist");
	idem_txn_commit(true);
	idem_progress_forget_unwritten(stream);
}

void
idem_progress_persist(IdemRelay *relay)
{
	IdemStream *stream = idem_stream(relay);

	if (persist_is_due(stream))
		write_settled(stream);
}

/* Does the newest row tell what the sink has? */
static bool
last_tells(const IdemRelayConfig *config)
{
	IdemPositionRow *last = idem_position_last(config->relay_id, config->epoch);

	return last != NULL && idem_position_tells(last);
}

/*
 * The SENT row has where the difference began; a relay that goes on elsewhere would send
 * all of it again.
 */
void
idem_progress_persist_stored(IdemStream *stream)
{
	if (stream->phase != IDEM_STREAM_READY || !stream->relay.walk.sink_stores || stream->nbatches > 0)
		return;
	idem_txn_begin();
	if (stream->relay.walk.dirty || !last_tells(stream->relay.config))
		idem_progress_append_settled(stream);
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
		idem_progress_persist(&stream->relay);
	else if (is_under_way(stream))
		stream->write_by = idem_clock_plus_ms(idem_clock(), PASSED_DELAY_MS);
}
