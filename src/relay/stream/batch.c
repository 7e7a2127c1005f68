/*-------------------------------------------------------------------------
 *
 * batch.c
 *		Batches in flight: find, count, free.
 *
 * MEMORY: a context per batch, below the stream's run_cxt.  What is in flight
 * takes the events of IDEM_STREAM_MAX_BATCHES of the largest batches, in
 * IDEM_STREAM_MOST_BATCHES contexts at most; to a sink that stores positions
 * IDEM_STREAM_MAX_EVENTS events and one batch, if that is more.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/memutils.h"

#include "relay/stream/state.h"

IdemBatch *
idem_batch_make(IdemStream *stream, int limit, bool repeats)
{
	MemoryContext cxt = AllocSetContextCreate(stream->run_cxt, "batch", ALLOCSET_SMALL_SIZES);
	IdemBatch  *batch = MemoryContextAllocZero(cxt, sizeof(*batch));

	batch->cxt = cxt;
	batch->no = ++stream->next_batch;
	batch->repeats = repeats;
	batch->flights = MemoryContextAlloc(cxt, sizeof(IdemSentEvent) * limit);
	return batch;
}

void
idem_batch_launch(IdemStream *stream, IdemBatch *batch)
{
	batch->flights = repalloc(batch->flights, sizeof(IdemSentEvent) * batch->n);
	batch->sent_at = idem_clock();
	dlist_push_tail(&stream->batches, &batch->node);
	stream->nbatches++;
	stream->nevents += batch->n;
	stream->nunanswered += batch->n;
}

/* In full batches the events take no more of them than were in flight. */
int
idem_batch_stepwise(const IdemStream *stream)
{
	return stream->relay.walk.sink_stores ? IDEM_STREAM_MAX_STORED_BATCHES : IDEM_STREAM_MAX_BATCHES;
}

bool
idem_batch_has_room(const IdemStream *stream)
{
	if (!stream->relay.walk.sink_stores)
		return stream->nbatches < IDEM_STREAM_MOST_BATCHES && !idem_progress_fills_window(stream);
	/* few, since their size grows with each that passes */
	if (stream->room > 0)
		return stream->nbatches < IDEM_STREAM_FEW_BATCHES;
	return stream->nbatches < IDEM_STREAM_MAX_BATCHES ||
		(stream->nbatches < IDEM_STREAM_MAX_STORED_BATCHES && stream->nevents < IDEM_STREAM_MAX_EVENTS);
}

IdemBatch *
idem_batch_oldest(IdemStream *stream)
{
	return dlist_is_empty(&stream->batches) ? NULL :
		dlist_head_element(IdemBatch, node, &stream->batches);
}

IdemBatch *
idem_batch_find(IdemStream *stream, uint64 no)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		if (batch->no == no)
			return batch;
	}
	return NULL;
}

static bool
lacks(const IdemBatch *batch, IdemBatchLack lack)
{
	switch (lack)
	{
		case IDEM_BATCH_UNANSWERED:
			return batch->unanswered > 0;
		case IDEM_BATCH_UNSETTLED:
			return batch->unsettled > 0;
		case IDEM_BATCH_UNCOMMITTED:
			return !batch->committed;
	}
	return false;
}

IdemBatch *
idem_batch_lacking(IdemStream *stream, IdemBatchLack lack)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		if (lacks(batch, lack))
			return batch;
	}
	return NULL;
}

int64 *
idem_batch_parked_ids(const IdemBatch *batch, uint8 outcome, int *n)
{
	int64	   *ids = palloc(sizeof(int64) * Max(batch->n, 1));

	*n = 0;
	for (int i = 0; i < batch->n; i++)
	{
		if (outcome == 0 || batch->flights[i].outcome == outcome)
			ids[(*n)++] = batch->flights[i].parked_id;
	}
	return ids;
}

/*
 * Is the event sent again if the program ends?  A settled one is if it was acked and the position
 * has not passed it.
 */
static bool
is_in_flight(const IdemBatch *batch, int i)
{
	const IdemSentEvent *flight = &batch->flights[i];

	return i >= batch->prefix &&
		(!flight->settled || (flight->outcome == IDEM_PROTO_ACKED && !batch->repeats));
}

int
idem_batch_count_in_flight(IdemStream *stream, int *prefix)
{
	IdemBatch  *oldest = idem_batch_oldest(stream);
	dlist_iter	iter;
	int			n = 0;

	*prefix = 0;
	for (int i = 0; oldest != NULL && oldest->unanswered > 0 && oldest->flights[i].outcome != 0; i++)
		*prefix += is_in_flight(oldest, i);
	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		for (int i = batch->prefix; i < batch->n; i++)
			n += is_in_flight(batch, i);
	}
	return n + stream->nlate;
}

const IdemSentEvent *
idem_batch_first_in_flight(IdemStream *stream)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->batches)
	{
		IdemBatch  *batch = dlist_container(IdemBatch, node, iter.cur);

		for (int i = batch->prefix; i < batch->n; i++)
		{
			if (is_in_flight(batch, i))
				return &batch->flights[i];
		}
	}
	return dlist_is_empty(&stream->late) ? NULL : &dlist_head_element(IdemLateEvent, node, &stream->late)->flight;
}

void
idem_batch_free(IdemStream *stream, IdemBatch *batch)
{
	dlist_delete(&batch->node);
	stream->nbatches--;
	stream->nevents -= batch->n - batch->prefix;
	stream->nunanswered -= batch->unanswered;
	if (batch->repeats)
		stream->repeats_in_flight = stream->exclusive = false;
	MemoryContextDelete(batch->cxt);
}
