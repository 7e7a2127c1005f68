/*-------------------------------------------------------------------------
 *
 * late.c
 *		Events that wait for an answer while later ones are accepted.
 *
 * A receiver may hang for one event and take all others.  Such an event would hold
 * the relay's position, and fill the window with what is settled behind it.  So
 * an event is late once a later one was accepted a second ago: settle.c parks it
 * with the state in_flight, and the position passes it.  Its key blocks, as behind
 * any parked event.  Its answer, when it comes, settles the row.
 *
 * An event that was answered, but not settled because an earlier event of its key is late,
 * would hold the position as well.  It becomes a late event that has its answer, and is
 * settled after the other one.
 *
 * Who is slow and answers in the order of the events is not late, however long it
 * takes; nor is anybody while nothing is accepted.  Such events stay in the window,
 * and no row is written for them.
 *
 * A parked event that is sent again has its row already.  It is late after a
 * second, so that the parked events of other keys need not wait for it.
 *
 * INVARIANT: a late event is in flight, has a row, and counts as taken in the index
 * of parked events.
 *
 * A crash, or the end of the program, leaves rows in state in_flight; these events
 * are sent again.
 *
 * LOCKING: none.
 *
 * MEMORY: a struct in run_cxt per late event; the sink's credit bounds them, as each
 * uses a message of it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/late.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "relay/stream/state.h"

/* An event is late if it was overtaken so long ago. */
#define LATE_MS 1000

/* Is place a before place b in the order of the stream? */
static bool
is_before(const IdemStreamPlace *a, uint64 batch, int index)
{
	return a->batch < batch || (a->batch == batch && a->index < index);
}

void
idem_late_note_accepted(IdemStream *stream, uint64 batch, int index)
{
	if (is_before(&stream->accepted, batch, index))
		stream->accepted = (IdemStreamPlace)
	{
		batch, index
	};
}

/*
 * May events be late?  Where one batch goes at a time, or one event to a target that is held,
 * nothing may go beside them.
 */
static bool
may_be_late(const IdemStream *stream)
{
	return idem_stream_may_send(stream) && !stream->relay.walk.sink_stores && !stream->relay.held &&
		!stream->exclusive && stream->relay.breaker.stepwise == 0 && !idem_hunt_is_on(&stream->hunt) &&
		stream->lock_retry_at == 0;
}

bool
idem_late_look(IdemStream *stream)
{
	IdemClock	now = idem_clock();

	if (now < stream->late_look_at || !may_be_late(stream))
		return false;
	stream->late_look_at = idem_clock_plus_ms(now, LATE_MS);
	stream->overtaken = stream->accepted_before;
	stream->accepted_before = stream->accepted;
	return stream->nunanswered > 0 || stream->nlate > 0;
}

bool
idem_late_is(const IdemStream *stream, const IdemBatch *batch, int index)
{
	const IdemSentEvent *flight = &batch->flights[index];

	if (flight->settled || flight->outcome == IDEM_PROTO_ACKED || (flight->outcome != 0 && stream->nlate == 0))
		return false;
	if (batch->repeats)
		return idem_clock() >= idem_clock_plus_ms(batch->sent_at, LATE_MS);
	return batch->no < stream->overtaken.batch ||
		(batch->no == stream->overtaken.batch && index < stream->overtaken.index);
}

IdemClock
idem_late_next_at(IdemStream *stream)
{
	const IdemBatch *waiting;

	if (!may_be_late(stream) || (stream->nunanswered == 0 && stream->nlate == 0))
		return 0;
	waiting = idem_batch_unsettled(stream);
	return waiting != NULL && (waiting->repeats || waiting->no <= stream->accepted.batch) ? stream->late_look_at : 0;
}

void
idem_late_add(IdemStream *stream, IdemBatch *batch, int index)
{
	IdemSentEvent *flight = &batch->flights[index];
	IdemLateEvent *late = MemoryContextAllocZero(stream->run_cxt, sizeof(*late));

	late->batch = batch->no;
	late->index = index;
	late->repeated = batch->repeats;
	late->flight = *flight;
	dlist_push_tail(&stream->late, &late->node);
	stream->nlate++;
	flight->settled = true;
	batch->unsettled--;
	if (flight->outcome == 0)
	{
		batch->unanswered--;
		stream->nunanswered--;
		return;
	}

	/*
	 * The batch knows nothing of the answer any more, and tells the sink
	 * nothing of the event.
	 */
	flight->outcome = 0;
	late->failure = batch->failures[flight->failure];
	if (late->failure.message != NULL)
		late->failure.message = MemoryContextStrdup(stream->run_cxt, late->failure.message);
}

IdemLateEvent *
idem_late_find(IdemStream *stream, uint64 batch, int index)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->late)
	{
		IdemLateEvent *late = dlist_container(IdemLateEvent, node, iter.cur);

		if (late->batch == batch && late->index == index)
			return late;
	}
	return NULL;
}

void
idem_late_remove(IdemStream *stream, IdemLateEvent *late)
{
	dlist_delete(&late->node);
	stream->nlate--;
	if (late->failure.message != NULL)
		pfree(unconstify(char *, late->failure.message));
	pfree(late);
}

void
idem_late_retake(IdemStream *stream)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->late)
		idem_parked_index_retake(stream->parked, dlist_container(IdemLateEvent, node, iter.cur)->flight.seq);
}
