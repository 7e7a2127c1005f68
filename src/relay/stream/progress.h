/*-------------------------------------------------------------------------
 *
 * progress.h
 *		How far a relay to a program has come: rows of the log of positions.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/progress.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_PROGRESS_H
#define IDEM_RELAY_STREAM_PROGRESS_H

#include "postgres.h"

#include "relay/stream/state.h"

/* "settled" has passed a batch, and is to be written soon. */
extern void idem_progress_note_unwritten(IdemStream *stream);

/* Must "settled" be written now? */
extern bool idem_progress_must_write(const IdemStream *stream);

/*
 * The log has "settled"; or the last row of the log is where to go on from,
 * whatever was settled since.
 */
extern void idem_progress_forget_unwritten(IdemStream *stream);

/*
 * Append "settled".  In a transaction; after its commit the caller forgets what was
 * unwritten.
 */
extern void idem_progress_append_settled(IdemStream *stream);

/*
 * Append: the sink has stored the row, and nothing that came after it in the log.
 * In a transaction.  Maintenance then keeps the row however often programs fail.
 */
extern void idem_progress_append_stored(IdemStream *stream, IdemPositionKind kind, int64 row_id);

/*
 * Append the cursor, the row that batches of the current difference carry to a sink that
 * stores positions.  In a transaction, whose commit must be flushed.
 */
extern void idem_progress_append_sent(IdemStream *stream);

/* The sink has stored the row, and of its difference all up to k. */
extern void idem_progress_note_stored(IdemStream *stream, int64 row_id, int64 k);

/* To a sink that stores positions: "settled" has moved, tell the log later. */
extern void idem_progress_write_later(IdemStream *stream);
extern void idem_progress_write_if_time(IdemStream *stream);

/* Write "settled" down if it moved without that and nothing is in flight. */
extern void idem_progress_persist(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_PROGRESS_H */
