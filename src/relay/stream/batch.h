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

/* Begin a batch of at most "limit" events; it is not in flight yet. */
extern IdemBatch *idem_batch_make(IdemStream *stream, int limit, bool repeats);

/* It was begun last, and has no event: its number is used again. */
extern void idem_batch_drop_empty(IdemStream *stream, IdemBatch *batch);

/* Its END is written: it is in flight, behind all others. */
extern void idem_batch_launch(IdemStream *stream, IdemBatch *batch);

extern IdemBatch *idem_batch_oldest(IdemStream *stream);	/* NULL: none */
extern IdemBatch *idem_batch_newest(IdemStream *stream);	/* NULL: none */
extern IdemBatch *idem_batch_find(IdemStream *stream, uint64 no);	/* NULL: none */

/* The ids of the parked events in it with that outcome (0: all); palloc'd. */
extern int64 *idem_batch_parked_ids(const IdemBatch *batch, uint8 outcome, int *n);

/* Events in flight; how many of the oldest batch were answered in order, 0 if all. */
extern int	idem_batch_count_in_flight(IdemStream *stream, int *prefix);

/* It is settled, or given up. */
extern void idem_batch_free(IdemStream *stream, IdemBatch *batch);
extern void idem_batch_free_all(IdemStream *stream);

#endif							/* IDEM_RELAY_STREAM_BATCH_H */
