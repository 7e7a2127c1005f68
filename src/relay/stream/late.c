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
 * of parked events.  No event of its key that was sent before it and has no answer is in the
 * window.  The first late event of a key in late_keys has no answer; what has its answer and
 * waits for no other is in late_fresh.  So an answer costs the same however many events are late.
 *
 * A crash, or the end of the program, leaves rows in state in_flight; these events
 * are sent again.
 *
 * LOCKING: none.
 *
 * MEMORY: two hash tables in run_cxt, with an entry per late event and one per key; the sink's
 * credit bounds them, as each event uses a message of it.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/stream/late.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/hsearch.h"

#include "relay/stream/state.h"

/* The late events of a key that wait, in their order; not empty. */
typedef struct LateKey
{
	uint64		key;			/* hash key */
	dlist_head	order;
} LateKey;

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

	if (flight->settled || flight->outcome == IDEM_PROTO_ACKED ||
		(flight->outcome != 0 && !idem_late_blocks(stream, flight->key, batch->no, index)))
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
	waiting = idem_batch_lacking(stream, IDEM_BATCH_UNSETTLED);
	return waiting != NULL && (waiting->repeats || waiting->no <= stream->accepted.batch) ? stream->late_look_at : 0;
}

void
idem_late_forget(IdemStream *stream)
{
	dlist_init(&stream->late);
	dlist_init(&stream->late_fresh);
	stream->late_events = stream->late_keys = NULL;
	stream->nlate = 0;
}

static void
make_tables(IdemStream *stream)
{
	/* A place has bytes that mean nothing at its end. */
	HASHCTL		events = {.keysize = offsetof(IdemStreamPlace, index) + sizeof(int),
	.entrysize = sizeof(IdemLateEvent), .hcxt = stream->run_cxt};
	HASHCTL		keys = {.keysize = sizeof(uint64), .entrysize = sizeof(LateKey), .hcxt = stream->run_cxt};

	if (stream->late_events != NULL)
		return;
	stream->late_events = hash_create("late events", 64, &events, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
	stream->late_keys = hash_create("keys of late events", 64, &keys, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

static LateKey *
find_key(const IdemStream *stream, uint64 key)
{
	return stream->nlate == 0 ? NULL : hash_search(stream->late_keys, &key, HASH_FIND, NULL);
}

bool
idem_late_blocks(const IdemStream *stream, uint64 key, uint64 batch, int index)
{
	const LateKey *late = find_key(stream, key);

	return late != NULL &&
		is_before(&dlist_container(IdemLateEvent, order_node, late->order.head.next)->place, batch, index);
}

/* Put the event among those of its key, in their order: mostly at the end. */
static void
put_in_order(IdemStream *stream, IdemLateEvent *late)
{
	bool		found;
	LateKey    *key = hash_search(stream->late_keys, &late->flight.key, HASH_ENTER, &found);
	dlist_node *before;

	if (!found)
		dlist_init(&key->order);
	for (before = key->order.head.prev; before != &key->order.head; before = before->prev)
	{
		if (is_before(&dlist_container(IdemLateEvent, order_node, before)->place, late->place.batch, late->place.index))
			break;
	}
	dlist_insert_after(before, &late->order_node);
}

void
idem_late_add(IdemStream *stream, IdemBatch *batch, int index)
{
	IdemSentEvent *flight = &batch->flights[index];
	IdemStreamPlace place = {batch->no, index};
	IdemLateEvent *late;

	make_tables(stream);
	late = hash_search(stream->late_events, &place, HASH_ENTER, NULL);
	memset(late, 0, sizeof(*late));
	late->place = place;
	late->repeated = batch->repeats;
	late->flight = *flight;
	dlist_push_tail(&stream->late, &late->node);
	put_in_order(stream, late);
	stream->nlate++;
	stream->news = true;
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
	IdemStreamPlace place = {batch, index};

	return stream->nlate == 0 ? NULL : hash_search(stream->late_events, &place, HASH_FIND, NULL);
}

void
idem_late_answered(IdemStream *stream, IdemLateEvent *late)
{
	LateKey    *key = find_key(stream, late->flight.key);
	bool		is_first = !dlist_has_prev(&key->order, &late->order_node);

	if (!is_first && late->flight.outcome != IDEM_PROTO_ACKED)
		return;
	dlist_delete(&late->order_node);
	dlist_push_tail(&stream->late_fresh, &late->order_node);
	while (is_first && !dlist_is_empty(&key->order))
	{
		IdemLateEvent *next = dlist_head_element(IdemLateEvent, order_node, &key->order);

		if (next->flight.outcome == 0)
			return;
		dlist_delete(&next->order_node);
		dlist_push_tail(&stream->late_fresh, &next->order_node);
	}
	if (dlist_is_empty(&key->order))
		(void) hash_search(stream->late_keys, &late->flight.key, HASH_REMOVE, NULL);
}

void
idem_late_remove(IdemStream *stream, IdemLateEvent *late)
{
	dlist_delete(&late->node);
	dlist_delete(&late->order_node);
	stream->nlate--;
	if (late->failure.message != NULL)
		pfree(unconstify(char *, late->failure.message));
	(void) hash_search(stream->late_events, &late->place, HASH_REMOVE, NULL);
}

void
idem_late_retake(IdemStream *stream)
{
	dlist_iter	iter;

	dlist_foreach(iter, &stream->late)
		idem_parked_index_retake(stream->parked, dlist_container(IdemLateEvent, node, iter.cur)->flight.seq);
}
