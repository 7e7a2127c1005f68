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

/* "settled" has passed a batch of so many events: write it soon. */
extern void idem_progress_note_unwritten(IdemStream *stream, int events);

/* What counts against IDEM_STREAM_MAX_BATCHES and its like. */
extern int	idem_progress_outstanding(const IdemStream *stream);

/* Must "settled" be written now? */
extern bool idem_progress_must_write(const IdemStream *stream);

/*
 * "settled" needs no row any more: the log of positions has it, or the stream
 * goes back to the last row of the log.
 */
extern void idem_progress_forget_unwritten(IdemStream *stream);

/*
 * Append "settled".  In a transaction; after its commit the caller calls
 * idem_progress_forget_unwritten.
 */
extern void idem_progress_append_settled(IdemStream *stream);

/*
 * Append a NAMED, REPEATED or PASSED row at "settled": the sink has stored the
 * row that was noted last, and none that came after it in the log of positions.
 * In a transaction.  Maintenance then keeps that row however often programs
 * fail.
 */
extern void idem_progress_append_stored(IdemStream *stream, IdemPositionKind kind);

/*
 * Append the cursor as a SENT row.  The batches of the current difference carry
 * its id to a sink that stores positions.  In a transaction, whose commit must
 * be flushed.
 */
extern void idem_progress_append_sent(IdemStream *stream);

/*
 * Note in memory that the sink has stored the row, and of its difference all up
 * to k.
 */
extern void idem_progress_note_stored(IdemStream *stream, int64 row_id, int64 k);

/*
 * For a sink that stores positions: "settled" has moved, write it later.
 * ..._write_if_time writes it if the time has come and nothing is in flight.
 */
extern void idem_progress_write_later(IdemStream *stream);
extern void idem_progress_write_if_time(IdemStream *stream);

/*
 * Write "settled" if the log of positions does not have it and nothing is in
 * flight.
 */
extern void idem_progress_persist(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_PROGRESS_H */
