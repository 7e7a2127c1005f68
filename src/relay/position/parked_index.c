/*-------------------------------------------------------------------------
 *
 * parked_index.c
 *		A worker's index of a relay's parked events: which of them can be sent.
 *
 * The parked events of a key are a queue in order of seq.  A key is in one of these places:
 *
 * - ready: its first event can be sent;
 * - in a heap by time: its first event is not due;
 * - held: the outbox has not been read past its first event;
 * - nowhere: events of the key are in flight, or a dead event blocks the key.
 *
 * So a selection costs as much as the events that it selects, whatever else is parked.  With ordering "none" each event
 * is a key of its own.
 *
 * A key's events are taken as a run, from its first event on: one event at first, and twice as many each time that all
 * events of a run were accepted.  A refused event ends the run.  The events behind it were sent for nothing; these are
 * never more than were accepted before.  So a long queue in which every event is refused costs as many events as it
 * holds, not its square.
 *
 * The tables are read (parked_load.c) when the worker or a program starts, when the configuration is read, and after
 * an error.  In between the index follows what the worker writes.  A key without parked events, whose later events wait
 * in the outbox, is free: blocked.c reads these.
 *
 * Invariant: the index has an entry for each row that the worker knows, in whatever state, but for dead events that
 * block nothing and are not read again. Another row that the index lacks was parked by an operator, and a message about
 * it is on its way.
 *
 * MEMORY: one context, reset by each load; about 200 bytes per event, and 250 per key whose events wait in the outbox.
 * idempotency.max_parked bounds the events that wait (blocked.c), and the number of all that are not dead
 * (idem_parked_is_full).
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/parked_index.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "relay/blame.h"
#include "relay/position/parked_index.h"
#include "relay/position/position.h"
#include "shared/clock.h"

/* A run is never longer than the largest batch. */
#define MAX_WINDOW 10000

/* An event that is due later than this is looked at again after this time. */
#define MAX_WAIT_MS (3600 * 1000)

/* When the event was refused last; DT_NOBEGIN: never. */
#define REFUSED_AT(entry) ((entry)->note.refused ? (entry)->note.failed_at : DT_NOBEGIN)

/* Where a key is. */
typedef enum KeyPlace
{
	PLACE_NONE,					/* in flight, or blocked by a dead event */
	PLACE_READY,
	PLACE_HELD,
	PLACE_DUE
} KeyPlace;

typedef struct ParkedKey
{
	uint64		hash;			/* hash of the event's key; with ordering
								 * "none" the event's seq */
	dlist_head	queue;			/* entries by seq */
	int			loaded;			/* entries that the load has put here */
	int			taken;			/* entries in flight */
	int			window;			/* length of the next run */
	bool		failed;			/* an event of the run was refused */
	bool		more;			/* counted in index->more */
	KeyPlace	place;
	int			queued;			/* entries in the queue */
	TimestampTz due;			/* in PLACE_DUE: when its first event is due */
	dlist_node	node;			/* in PLACE_READY, PLACE_HELD */
	pairingheap_node heap_node; /* in PLACE_DUE */
} ParkedKey;

typedef struct ParkedEntry
{
	int64		seq;			/* hash key */
	IdemParkedNote note;
	bool		taken;
	bool		suspect;		/* counted in index->suspects */
	ParkedKey  *key;			/* NULL: dead, and blocks no event */
	dlist_node	node;			/* in the key's queue */
} ParkedEntry;

static HTAB *
make_table(MemoryContext cxt, const char *name, Size keysize, Size entrysize)
{
	HASHCTL		ctl;

	memset(&ctl, 0, sizeof(ctl));
	ctl.keysize = keysize;
	ctl.entrysize = entrysize;
	ctl.hcxt = cxt;
	return hash_create(name, 64, &ctl, HASH_ELEM | HASH_BLOBS | HASH_CONTEXT);
}

/* The heap's root is the key that is due first; then the one with the lowest hash. */
static int
compare_due(const pairingheap_node *a, const pairingheap_node *b, void *arg)
{
	const ParkedKey *x = pairingheap_const_container(ParkedKey, heap_node, a);
	const ParkedKey *y = pairingheap_const_container(ParkedKey, heap_node, b);

	if (x->due != y->due)
		return x->due < y->due ? 1 : -1;
	return x->hash < y->hash ? 1 : x->hash > y->hash ? -1 : 0;
}

/* After an abort the reader's relations are closed already. */
void
idem_parked_index_clear(IdemParkedIndex *index, const IdemRelayConfig *config)
{
	MemoryContext old;

	MemoryContextReset(index->cxt);
	index->entries = make_table(index->cxt, "parked events", sizeof(int64), sizeof(ParkedEntry));
	index->keys = make_table(index->cxt, "parked keys", sizeof(uint64), sizeof(ParkedKey));
	index->blocked = make_table(index->cxt, "blocked keys", sizeof(uint64), sizeof(IdemBlockedKey));
	old = MemoryContextSwitchTo(index->cxt);
	index->due = pairingheap_allocate(compare_due, NULL);
	MemoryContextSwitchTo(old);
	dlist_init(&index->ready);
	dlist_init(&index->held);
	dlist_init(&index->free_keys);
	index->newest = NULL;
	index->refill_waits = index->stale = false;
	if (index->reader != NULL)
		idem_reader_reset(index->reader);
	memset(index->counts, 0, sizeof(index->counts));
	index->total = index->dead_loaded = index->more = index->suspects = 0;
	index->looked_at = GetCurrentTimestamp();
	index->by_key = config->ordering == IDEM_ORDERING_KEY;
	index->dead_blocks = config->on_dead != IDEM_ON_DEAD_SKIP;
}

static ParkedEntry *
find_entry(const IdemParkedIndex *index, int64 seq)
{
	return index->entries == NULL ? NULL : hash_search(index->entries, &seq, HASH_FIND, NULL);
}

/*
 * Can the entry's event be sent now?  Its time is a time of the wall clock,
 * since other servers may read the row.  If the clock was set back to before
 * the failure from which the time was computed, the event can be sent, too.
 */
static bool
is_sendable(const ParkedEntry *entry, TimestampTz now)
{
	const IdemParkedNote *note = &entry->note;

	switch (note->state)
	{
		case IDEM_PARKED_WAITING:
		case IDEM_PARKED_IN_FLIGHT:
			return true;
		case IDEM_PARKED_RETRY:
			return note->due <= now || note->failed_at > now;
		case IDEM_PARKED_DEAD:
			break;
	}
	return false;
}

/* Take the key out of its place. */
static void
leave_place(IdemParkedIndex *index, ParkedKey *key)
{
	if (key->place == PLACE_READY || key->place == PLACE_HELD)
		dlist_delete(&key->node);
	else if (key->place == PLACE_DUE)
		pairingheap_remove(index->due, &key->heap_node);
	key->place = PLACE_NONE;
}

static void
set_state(IdemParkedIndex *index, ParkedEntry *entry, IdemParkedState state)
{
	index->counts[entry->note.state]--;
	entry->note.state = state;
	index->counts[state]++;
}

/* Put the key into the place where its first event belongs.  An empty key is removed. */
static void
find_place(IdemParkedIndex *index, ParkedKey *key, TimestampTz now)
{
	ParkedEntry *first;

	leave_place(index, key);
	if (dlist_is_empty(&key->queue))
	{
		uint64		hash = key->hash;
		int			window = key->window;

		(void) hash_search(index->keys, &hash, HASH_REMOVE, NULL);
		idem_blocked_set_free(index, hash, window);
		return;
	}
	first = dlist_head_element(ParkedEntry, node, &key->queue);
	if (key->taken > 0 || first->note.state == IDEM_PARKED_DEAD)
		return;
	if (is_sendable(first, now))
	{
		dlist_push_tail(&index->ready, &key->node);
		key->place = PLACE_READY;
	}
	else
	{
		key->due = first->note.due;
		pairingheap_add(index->due, &key->heap_node);
		key->place = PLACE_DUE;
	}
}

/* The last event of a run has come back: how long may the next run be? */
static void
end_run(IdemParkedIndex *index, ParkedKey *key)
{
	key->window = key->failed ? 1 : Min(2 * key->window, MAX_WINDOW);
	key->failed = false;
	index->more -= key->more;
	key->more = false;
	find_place(index, key, GetCurrentTimestamp());
}

/* Find the key, or add it with an empty queue. */
static ParkedKey *
get_key(IdemParkedIndex *index, uint64 hash)
{
	bool		found;
	ParkedKey  *key = hash_search(index->keys, &hash, HASH_ENTER, &found);

	if (!found)
	{
		memset(key, 0, sizeof(*key));
		key->hash = hash;
		key->window = idem_blocked_set_kept(index, hash);
		dlist_init(&key->queue);
	}
	return key;
}

/* Put the entry into the queue in order of seq: mostly at its end. */
static void
enqueue(ParkedKey *key, ParkedEntry *entry)
{
	dlist_node *before = dlist_is_empty(&key->queue) ? NULL : dlist_tail_node(&key->queue);

	while (before != NULL && dlist_container(ParkedEntry, node, before)->seq > entry->seq)
	{
		CHECK_FOR_INTERRUPTS();
		before = dlist_has_prev(&key->queue, before) ? dlist_prev_node(&key->queue, before) : NULL;
	}
	if (before == NULL)
		dlist_push_head(&key->queue, &entry->node);
	else
		dlist_insert_after(before, &entry->node);
	entry->key = key;
	key->queued++;
}

/* Take the entry out of its queue, and out of the run if it is part of one. */
static void
leave_key(IdemParkedIndex *index, ParkedEntry *entry)
{
	ParkedKey  *key = entry->key;
	bool		was_taken = entry->taken;

	entry->taken = false;
	entry->key = NULL;
	if (entry->suspect)
		index->suspects--;
	entry->suspect = false;
	if (key == NULL)
		return;
	dlist_delete(&entry->node);
	key->queued--;
	if (was_taken && --key->taken == 0)
		end_run(index, key);
	else if (key->taken == 0)
		find_place(index, key, GetCurrentTimestamp());
}

/* Add or replace the entry of an event; it is queued if it is to be sent or blocks. */
static ParkedEntry *
add_entry(IdemParkedIndex *index, const IdemParkedNote *note, uint64 hash, TimestampTz now)
{
	bool		found;
	int64		seq = note->seq;
	ParkedEntry *entry = hash_search(index->entries, &seq, HASH_ENTER, &found);

	if (found)
	{
		leave_key(index, entry);
		index->counts[entry->note.state]--;
	}
	index->total += !found;
	index->counts[note->state]++;
	entry->note = *note;
	entry->taken = entry->suspect = false;
	entry->key = NULL;
	if (note->state != IDEM_PARKED_DEAD || (index->by_key && index->dead_blocks))
	{
		ParkedKey  *key = get_key(index, index->by_key ? hash : (uint64) seq);

		enqueue(key, entry);
		if (key->taken > 0 && !key->more)
		{
			key->more = true;
			index->more++;
		}
		if (key->place == PLACE_NONE ||
			dlist_head_element(ParkedEntry, node, &key->queue) == entry)
			find_place(index, key, now);
	}
	return entry;
}

/* The first events of each key, a run at most, may have taken the server down. */
static void
suspect(IdemParkedIndex *index, ParkedEntry *entry)
{
	if (entry->key == NULL || entry->key->loaded++ >= index->careful)
		return;
	entry->note.lone = true;
	entry->suspect = true;
	index->suspects++;
}

void
idem_parked_index_add(IdemParkedIndex *index, const IdemParkedNote *note, uint64 hash)
{
	suspect(index, add_entry(index, note, hash, index->looked_at));
}

void
idem_parked_index_put(IdemParkedIndex *index, const IdemEvent *event, const IdemParkedNote *note)
{
	(void) add_entry(index, note, idem_parked_key_hash(event->aggregate_type, event->aggregate_id),
					 GetCurrentTimestamp());
}

bool
idem_parked_has_seq(const IdemParkedIndex *index, int64 seq)
{
	return index->total > 0 && find_entry(index, seq) != NULL;
}

bool
idem_parked_blocks(const IdemParkedIndex *index, const IdemEvent *event)
{
	uint64		hash;

	if (!index->by_key || (index->total == 0 && hash_get_num_entries(index->blocked) == 0))
		return false;
	hash = idem_parked_key_hash(event->aggregate_type, event->aggregate_id);
	return hash_search(index->keys, &hash, HASH_FIND, NULL) != NULL || idem_parked_blocked_key(index, hash) != NULL;
}

int
idem_parked_queued(const IdemParkedIndex *index, uint64 hash)
{
	ParkedKey  *key = hash_search(index->keys, &hash, HASH_FIND, NULL);

	return key == NULL ? 0 : key->queued;
}

IdemParkedNote *
idem_parked_after(const IdemParkedIndex *index, uint64 hash, const IdemPosition *from, int *n)
{
	ParkedKey  *key = hash_search(index->keys, &hash, HASH_FIND, NULL);
	IdemParkedNote *notes = NULL;
	dlist_iter	iter;

	/*
	 * The latest first.  One that was tried is found soon, and nothing is
	 * left behind for it: for each event that is read before it, this is
	 * asked again.
	 */
	*n = 0;
	if (key == NULL)
		return palloc(sizeof(*notes));
	dlist_reverse_foreach(iter, &key->queue)
	{
		const ParkedEntry *entry = dlist_container(ParkedEntry, node, iter.cur);

		if (idem_position_passed(from, entry->note.xid, entry->note.seq))
			continue;
		if (entry->note.state != IDEM_PARKED_WAITING || entry->taken)
		{
			if (notes != NULL)
				pfree(notes);
			return NULL;
		}
		if (notes == NULL)
			notes = palloc(sizeof(*notes) * key->queued);
		notes[(*n)++] = entry->note;
	}
	return notes == NULL ? palloc(sizeof(*notes)) : notes;
}

bool
idem_parked_was_refused(const IdemParkedIndex *index, int64 seq, int64 *verdict)
{
	ParkedEntry *entry = find_entry(index, seq);

	*verdict = entry == NULL ? 0 : entry->note.verdict;
	return entry == NULL || entry->note.refused;
}

int
idem_parked_keys(const IdemParkedIndex *index, uint64 *keys, int n, int most)
{
	HASH_SEQ_STATUS status;
	ParkedKey  *key;
	dlist_iter	iter;

	dlist_foreach(iter, &unconstify(IdemParkedIndex *, index)->free_keys)
		n = idem_blame_add_key(keys, n, most, dlist_container(IdemBlockedKey, node, iter.cur)->hash);
	hash_seq_init(&status, index->keys);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		if (dlist_head_element(ParkedEntry, node, &key->queue)->note.state != IDEM_PARKED_DEAD)
			n = idem_blame_add_key(keys, n, most, key->hash);
		if (n == most)
		{
			hash_seq_term(&status);
			break;
		}
	}
	return n;
}

void
idem_parked_index_failed(IdemParkedIndex *index, const IdemParkedNote *note)
{
	ParkedEntry *entry = find_entry(index, note->seq);
	bool		stays;

	if (entry == NULL || entry->key == NULL)
		return;
	set_state(index, entry, note->state);
	entry->note = *note;
	if (entry->suspect)
		index->suspects--;
	entry->suspect = false;
	entry->key->failed = true;
	stays = note->state != IDEM_PARKED_DEAD || (index->by_key && index->dead_blocks);
	if (!stays)
		leave_key(index, entry);
	else if (entry->taken)
		idem_parked_index_give_back(index, note->seq, false);
	else if (entry->key->taken == 0)
		find_place(index, entry->key, GetCurrentTimestamp());
}

void
idem_parked_index_drop(IdemParkedIndex *index, int64 seq)
{
	ParkedEntry *entry = find_entry(index, seq);

	if (entry == NULL)
		return;
	leave_key(index, entry);
	index->counts[entry->note.state]--;
	(void) hash_search(index->entries, &seq, HASH_REMOVE, NULL);
	index->total--;
}

void
idem_parked_index_give_back(IdemParkedIndex *index, int64 seq, bool waits)
{
	ParkedEntry *entry = find_entry(index, seq);

	if (entry == NULL || entry->key == NULL)
		return;
	if (waits)
	{
		set_state(index, entry, IDEM_PARKED_WAITING);
		entry->key->failed = true;
	}
	if (!entry->taken)
		return;
	entry->taken = false;
	if (--entry->key->taken > 0)
		return;
	end_run(index, entry->key);

	/* The key's turn is not over, and an attempt may be on record: first. */
	if (!waits && entry->key->place == PLACE_READY)
		dlist_move_head(&index->ready, &entry->key->node);
}

bool
idem_parked_index_key_failed(IdemParkedIndex *index, int64 seq)
{
	ParkedEntry *entry = find_entry(index, seq);

	return index->by_key && entry != NULL && entry->key != NULL && entry->key->failed;
}

IdemParkedState
idem_parked_index_state(IdemParkedIndex *index, int64 seq)
{
	ParkedEntry *entry = find_entry(index, seq);

	return entry == NULL ? IDEM_PARKED_DEAD : entry->note.state;
}

void
idem_parked_index_retake(IdemParkedIndex *index, int64 seq)
{
	ParkedEntry *entry = find_entry(index, seq);

	if (entry == NULL || entry->key == NULL || entry->taken)
		return;
	entry->taken = true;
	entry->key->taken++;
	leave_place(index, entry->key);
}

/* Find the place of each key that is not due, or was not. */
static void
look_at_all(IdemParkedIndex *index, TimestampTz now)
{
	HASH_SEQ_STATUS status;
	ParkedKey  *key;

	hash_seq_init(&status, index->keys);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		if (key->place == PLACE_DUE)
			find_place(index, key, now);
	}
}

/* Make the keys whose time has come ready.  If the clock was set back, look at all keys. */
static void
ripen(IdemParkedIndex *index, TimestampTz now)
{
	pairingheap *heap = index->due;

	if (heap == NULL)
		return;
	if (now < index->looked_at)
		look_at_all(index, now);
	index->looked_at = now;
	while (!pairingheap_is_empty(heap))
	{
		ParkedKey  *key = pairingheap_container(ParkedKey, heap_node, pairingheap_first(heap));

		if (key->due > now)
			break;
		find_place(index, key, now);
	}
}

/* Mark the entry as taken, and add it to the selection. */
static void
take_entry(ParkedEntry *entry, IdemParkedNote *notes, int *n)
{
	entry->taken = true;
	entry->key->taken++;
	notes[(*n)++] = entry->note;
}

/* Does the key have an event behind the run that could be sent after it? */
static bool
has_more(ParkedKey *key, TimestampTz now)
{
	dlist_iter	iter;

	dlist_foreach(iter, &key->queue)
	{
		ParkedEntry *entry = dlist_container(ParkedEntry, node, iter.cur);

		if (!entry->taken)
			return is_sendable(entry, now);
	}
	return false;
}

/*
 * Take a run of the key, from its first event on.  False if the selection ends
 * here: at an event that is tried alone, taken or not.  *held: the outbox has
 * not been read past the key's first event.
 */
static bool
take_run(ParkedKey *key, IdemParkedTaking *taking, IdemParkedNote *notes, int *n,
		 TimestampTz now, bool *held)
{
	dlist_iter	iter;

	*held = false;
	dlist_foreach(iter, &key->queue)
	{
		ParkedEntry *entry = dlist_container(ParkedEntry, node, iter.cur);

		if (key->taken >= key->window || *n >= taking->limit || !is_sendable(entry, now))
			break;
		if (taking->may != NULL && !taking->may(&entry->note, taking->arg))
		{
			*held = key->taken == 0;
			break;
		}
		if (entry->note.lone && *n > 0)
			break;
		if (entry->note.lone)
		{
			taking->alone = taking->lone;
			taking->lone_left = !taking->lone;
			if (taking->lone)
				take_entry(entry, notes, n);
			return false;
		}
		take_entry(entry, notes, n);
	}
	return true;
}

static int
compare_notes(const void *a, const void *b)
{
	const IdemParkedNote *x = a;
	const IdemParkedNote *y = b;

	return x->seq < y->seq ? -1 : x->seq > y->seq;
}

IdemParkedNote *
idem_parked_index_take(IdemParkedIndex *index, IdemParkedTaking *taking, int *n)
{
	TimestampTz now = GetCurrentTimestamp();
	IdemParkedNote *notes = palloc(sizeof(*notes) * Max(1, Min(taking->limit, index->total)));
	dlist_mutable_iter iter;
	bool		goes_on = true;
	bool		held;

	*n = 0;
	taking->alone = taking->lone_left = false;
	ripen(index, now);
	dlist_foreach_modify(iter, &index->ready)
	{
		ParkedKey  *key = dlist_container(ParkedKey, node, iter.cur);

		if (!goes_on || *n >= taking->limit)
			break;
		goes_on = take_run(key, taking, notes, n, now, &held);
		if (key->taken > 0)
		{
			leave_place(index, key);
			key->more = has_more(key, now);
			index->more += key->more ? 1 : 0;
		}
		else if (held)
		{
			leave_place(index, key);
			dlist_push_tail(&index->held, &key->node);
			key->place = PLACE_HELD;
		}
		else if (!is_sendable(dlist_head_element(ParkedEntry, node, &key->queue), now))
			find_place(index, key, now);	/* the clock was set back */
	}
	qsort(notes, *n, sizeof(*notes), compare_notes);
	return notes;
}

bool
idem_parked_index_hurry(IdemParkedIndex *index, const uint64 *avoid, int avoid_lane)
{
	TimestampTz now = GetCurrentTimestamp();
	ParkedEntry *best = NULL;
	ParkedEntry *first;
	ParkedKey  *key;
	HASH_SEQ_STATUS status;
	int			equal = 0;		/* so many were refused as long ago as "best" */

	if (index->keys == NULL)
		return false;
	hash_seq_init(&status, index->keys);
	while ((key = hash_seq_search(&status)) != NULL)
	{
		if ((key->place != PLACE_READY && key->place != PLACE_DUE) || (avoid != NULL && key->hash == *avoid))
			continue;
		first = dlist_head_element(ParkedEntry, node, &key->queue);
		if ((first->note.asked && !is_sendable(first, now)) || (avoid_lane != 0 && first->note.lane == avoid_lane) ||
			(best != NULL && REFUSED_AT(first) > REFUSED_AT(best)))
			continue;
		if (best != NULL && REFUSED_AT(first) < REFUSED_AT(best))
			equal = 0;
		if (pg_prng_uint64_range(&pg_global_prng_state, 0, equal++) == 0)
			best = first;
	}
	if (best == NULL)
		return false;
	best->note.due = now;
	find_place(index, best->key, now);
	dlist_move_head(&index->ready, &best->key->node);
	return true;
}

/* Keys by when their first event was refused last. */
static int
compare_refused(const void *a, const void *b)
{
	const ParkedEntry *x = dlist_head_element(ParkedEntry, node, &(*(ParkedKey *const *) a)->queue);
	const ParkedEntry *y = dlist_head_element(ParkedEntry, node, &(*(ParkedKey *const *) b)->queue);

	return REFUSED_AT(x) == REFUSED_AT(y) ? (x->seq < y->seq ? -1 : x->seq > y->seq) : REFUSED_AT(x) < REFUSED_AT(y) ? -1 : 1;
}

void
idem_parked_index_order(IdemParkedIndex *index, bool from_any)
{
	int64		n = 0;
	int64		fresh = 0;
	ParkedKey **keys = palloc(sizeof(*keys) * Max(1, index->total));
	dlist_mutable_iter iter;

	dlist_foreach_modify(iter, &index->ready)
	{
		keys[n] = dlist_container(ParkedKey, node, iter.cur);
		fresh += !dlist_head_element(ParkedEntry, node, &keys[n++]->queue)->note.refused;
	}
	qsort(keys, n, sizeof(*keys), compare_refused);
	dlist_init(&index->ready);
	for (int64 i = 0, first = from_any && fresh > 0 ? pg_prng_uint64_range(&pg_global_prng_state, 0, fresh - 1) : 0; i < n; i++)
		dlist_push_tail(&index->ready, &keys[i < fresh ? (first + i) % fresh : i]->node);
	pfree(keys);
}

/* The heap has a due time of its own for each key, so events may change theirs. */
void
idem_parked_index_hurry_all(IdemParkedIndex *index)
{
	TimestampTz now = GetCurrentTimestamp();
	HASH_SEQ_STATUS status;
	ParkedEntry *entry;

	if (index->entries == NULL)
		return;
	hash_seq_init(&status, index->entries);
	while ((entry = hash_seq_search(&status)) != NULL)
	{
		if (entry->note.deferred && !entry->note.asked)
			entry->note.due = Min(entry->note.due, now);
	}
	look_at_all(index, now);
	idem_parked_index_order(index, true);
}

void
idem_parked_index_log_moved(IdemParkedIndex *index)
{
	TimestampTz now;

	index->refill_waits = false;
	if (dlist_is_empty(&index->held))
		return;
	now = GetCurrentTimestamp();
	while (!dlist_is_empty(&index->held))
		find_place(index, dlist_head_element(ParkedKey, node, &index->held), now);
}

bool
idem_parked_index_is_due(IdemParkedIndex *index)
{
	ripen(index, GetCurrentTimestamp());
	return !dlist_is_empty(&index->ready) || idem_parked_wants_refill(index);
}

IdemClock
idem_parked_index_next(IdemParkedIndex *index)
{
	ParkedKey  *key;
	int64		ms;

	if (idem_parked_index_is_due(index))
		return 1;
	if (index->due == NULL || pairingheap_is_empty(index->due))
		return 0;
	key = pairingheap_container(ParkedKey, heap_node, pairingheap_first(index->due));
	ms = (key->due - index->looked_at) / 1000 + 1;
	return idem_clock_plus_ms(idem_clock(), Min(ms, MAX_WAIT_MS));
}
