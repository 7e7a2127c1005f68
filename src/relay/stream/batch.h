/*-------------------------------------------------------------------------
 *
 * batch.h
 *		Batches in flight: find, count, free.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/batch.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_STREAM_BATCH_H
#define IDEM_RELAY_STREAM_BATCH_H

#include "postgres.h"

#include "relay/stream/state.h"

/* Begin a batch of at most "limit" events.  The batch is not in flight yet. */
extern IdemBatch *idem_batch_make(IdemStream *stream, int limit, bool repeats);

/*
 * Give up the batch that was begun last, which has no events.  Its number is
 * used again.
 */
extern void idem_batch_drop_empty(IdemStream *stream, IdemBatch *batch);

/*
 * The batch's END is in the output: the batch is in flight, behind all others.
 */
extern void idem_batch_launch(IdemStream *stream, IdemBatch *batch);

/* May another batch be in flight?  The sink's credit has its own say. */
extern bool idem_batch_has_room(const IdemStream *stream);

/* How many batches may be in flight at most? */
extern int	idem_batch_most(const IdemStream *stream);

extern IdemBatch *idem_batch_oldest(IdemStream *stream);	/* NULL: none */
extern IdemBatch *idem_batch_newest(IdemStream *stream);	/* NULL: none */
extern IdemBatch *idem_batch_find(IdemStream *stream, uint64 no);	/* NULL: none */

/* The oldest batch that the sink has not committed yet.  NULL: none. */
extern IdemBatch *idem_batch_uncommitted(IdemStream *stream);

/*
 * The parked_ids of the batch's events with that outcome (0: of all events);
 * palloc'd.
 */
extern int64 *idem_batch_parked_ids(const IdemBatch *batch, uint8 outcome, int *n);

/*
 * Count the events in flight.  *prefix: how many events at the head of the
 * oldest batch are answered; 0 if the whole batch is.
 */
extern int	idem_batch_count_in_flight(IdemStream *stream, int *prefix);

/* Free a batch that is settled or given up. */
extern void idem_batch_free(IdemStream *stream, IdemBatch *batch);
extern void idem_batch_free_all(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_BATCH_H */
