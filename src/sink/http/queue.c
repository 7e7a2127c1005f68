/*-------------------------------------------------------------------------
 *
 * queue.c
 *		The events that wait, in the order of their keys, and their answers.
 *
 *		complete ──> waits for its key ──> ready ──> in flight ──> answered
 *		                   └────────── blocked: skipped ──────────────^
 *
 * A receiver may hang for some keys.  Their events come again and again, and each would take
 * a place of "concurrency" for the whole timeout, until all others wait.  So a key that got no answer
 * in time is remembered until one of its events is acked, and what is ready of such keys has a
 * queue of its own, which takes half of the places at most (dispatch.c).  HSINK_HUNG keys are
 * remembered, those that hung last.
 *
 * INVARIANT
 *		With key order at most one event of a key is ready or in flight, unless a
 *		request takes several events of one key.  The events of a key come to
 *		their answers in the order of the stream.  An event that is not acked
 *		blocks the later events of its key that stand before its SETTLE, and a
 *		skipped event extends the block.
 *
 * MEMORY
 *		An event is freed with its answer.  A key lives while it has an event or a
 *		block; the worker's credit bounds both.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/http/queue.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/http/sink.h"

#define FIRST_LISTS	64

static void
push(HSinkQueue *q, HSinkEvent *e)
{
	e->next = NULL;
	if (q->first == NULL)
		q->first = e;
	else
		q->last->next = e;
	q->last = e;
}

static HSinkEvent *
pop(HSinkQueue *q)
{
	HSinkEvent *e = q->first;

	if (e != NULL)
		q->first = e->next;
	return e;
}

/* FNV-1a over type, NUL and id of the aggregate; of an event whose key has no order, over its own id. */
static uint64_t
hash_of(const HSink *p, const HSinkEvent *e)
{
	const IdemProtoStr id = {.data = e->id, .len = (uint32_t) strlen(e->id)};
	const IdemProtoStr parts[2] = {p->config.key_order ? e->aggregate_type : id, e->aggregate_id};
	uint64_t	h = UINT64_C(0xcbf29ce484222325);

	for (int n = 0; n < 2; n++)
	{
		for (uint32_t i = 0; i < parts[n].len; i++)
			h = (h ^ (unsigned char) parts[n].data[i]) * UINT64_C(0x100000001b3);
		h *= UINT64_C(0x100000001b3);
	}
	return h ^ h >> 32;
}

static bool
is_key_of(const HSinkKey *k, const HSinkEvent *e)
{
	uint32_t	type = e->aggregate_type.len;

	return k->len == (size_t) type + 1 + e->aggregate_id.len &&
		memcmp(k->name, e->aggregate_type.data, type) == 0 && k->name[type] == '\0' &&
		memcmp(k->name + type + 1, e->aggregate_id.data, e->aggregate_id.len) == 0;
}

/* Give the table twice as many lists. */
static void
grow(HSinkKeys *keys)
{
	size_t		size = keys->size > 0 ? keys->size * 2 : FIRST_LISTS;
	HSinkKey  **lists = idem_sink_alloc(size * sizeof(HSinkKey *));

	memset(lists, 0, size * sizeof(HSinkKey *));
	for (size_t i = 0; i < keys->size; i++)
	{
		HSinkKey   *next;

		for (HSinkKey *k = keys->lists[i]; k != NULL; k = next)
		{
			next = k->next;
			k->next = lists[k->hash & (size - 1)];
			lists[k->hash & (size - 1)] = k;
		}
	}
	free(keys->lists);
	keys->lists = lists;
	keys->size = size;
}

/* The key of the event; it is made if there is none. */
static HSinkKey *
key_of(HSink *p, const HSinkEvent *e)
{
	HSinkKeys  *keys = &p->keys;
	uint64_t	hash = hash_of(p, e);
	uint32_t	type = e->aggregate_type.len;
	HSinkKey   *k = keys->size > 0 ? keys->lists[hash & (keys->size - 1)] : NULL;

	while (k != NULL && !(k->hash == hash && is_key_of(k, e)))
		k = k->next;
	if (k != NULL)
		return k;
	if (keys->used >= keys->size)
		grow(keys);
	k = idem_sink_alloc(sizeof(HSinkKey) + type + 1 + e->aggregate_id.len);
	memset(k, 0, sizeof(*k));
	k->hash = hash;
	k->len = (size_t) type + 1 + e->aggregate_id.len;
	memcpy(k->name, e->aggregate_type.data, type);
	k->name[type] = '\0';
	memcpy(k->name + type + 1, e->aggregate_id.data, e->aggregate_id.len);
	k->next = keys->lists[hash & (keys->size - 1)];
	keys->lists[hash & (keys->size - 1)] = k;
	keys->used++;
	return k;
}

/* Forget a key that has neither an event nor a block. */
static void
forget_key(HSinkKeys *keys, HSinkKey *k)
{
	HSinkKey  **at = &keys->lists[k->hash & (keys->size - 1)];

	while (*at != k)
		at = &(*at)->next;
	*at = k->next;
	keys->used--;
	free(k);
}

/* The event was not acked, and is the last one of its key that has an answer: block the key. */
static void
block(HSink *p, const HSinkEvent *e)
{
	HSinkKey   *k = e->key;

	if (k->last_batch == 0)
		p->keys.blocked++;
	k->last_batch = e->batch->number;
	k->last_index = e->index;
	k->ended = 0;
}

static bool
is_blocked(const HSinkEvent *e)
{
	return e->key->last_batch != 0 && (e->key->ended == 0 || e->key->ended > e->settles);
}

/* The batch has one open event less; forget it if it is done. */
static void
close_event(HSink *p, HSinkBatch *b, bool acked)
{
	HSinkBatch **at = &p->first_batch;

	b->open--;
	b->acked += acked;
	if (!b->complete || b->open > 0)
		return;
	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	if (p->last_batch == b)
	{
		p->last_batch = p->first_batch;
		while (p->last_batch != NULL && p->last_batch->next != NULL)
			p->last_batch = p->last_batch->next;
	}
	free(b);
}

/* The place of the event's key among those that hung; -1: it did not. */
static int
find_hung(const HSink *p, const HSinkEvent *e)
{
	uint64_t	hash = p->n_hung > 0 ? hash_of(p, e) : 0;

	for (int i = 0; i < p->n_hung; i++)
		if (p->hung[i] == hash)
			return i;
	return -1;
}

void
hsink_note_hang(HSink *p, const HSinkEvent *e)
{
	if (find_hung(p, e) >= 0)
		return;
	if (p->n_hung == HSINK_HUNG)
		memmove(p->hung, p->hung + 1, --p->n_hung * sizeof(p->hung[0]));
	p->hung[p->n_hung++] = hash_of(p, e);
}

/* The event was acked: its key hangs no longer. */
static void
forget_hang(HSink *p, const HSinkEvent *e)
{
	int			i = find_hung(p, e);

	if (i >= 0)
		p->hung[i] = p->hung[--p->n_hung];
}

/* The queue of the events that may be sent to which the event belongs. */
static HSinkQueue *
queue_of(HSink *p, const HSinkEvent *e)
{
	return find_hung(p, e) >= 0 ? &p->slow : &p->ready;
}

/* Send the RESULT of an event, give its credit back, and free it. */
static void
send_answer(HSink *p, HSinkEvent *e, IdemProtoOutcome outcome, const char *sqlstate,
			uint32_t retry_after, const char *message)
{
	IDEM_SINK_FAULT_POINT(&p->sink, "http-answering");
	if (outcome == IDEM_PROTO_ACKED)
	{
		p->put_off = 0;
		forget_hang(p, e);
	}
	else if (outcome == IDEM_PROTO_RETRY && (retry_after > 0 || (sqlstate != NULL && strcmp(sqlstate, HSINK_ASKS_FOR_LESS) == 0)))
		p->put_off++;
	idem_sink_result_of(&p->sink, e->batch->number, e->index, e->index, outcome, sqlstate,
						retry_after, message, e->destination);
	if (outcome != IDEM_PROTO_ACKED && e->key != NULL)
		block(p, e);
	idem_sink_grant(&p->sink, 1, e->credit, false);
	close_event(p, e->batch, outcome == IDEM_PROTO_ACKED);
	free(e->destination);
	free(e);
}

/* Skip the events at the head of the key's queue that are blocked. */
static void
skip_blocked(HSink *p, HSinkKey *k)
{
	while (k->queue.first != NULL && is_blocked(k->queue.first))
		send_answer(p, pop(&k->queue), IDEM_PROTO_SKIPPED, NULL, 0, NULL);
}

/* No event of the key is ready or in flight: the next one may be sent. */
static void
move_key_on(HSink *p, HSinkKey *k)
{
	skip_blocked(p, k);
	if (k->queue.first != NULL)
	{
		HSinkEvent *e = pop(&k->queue);

		k->out = 1;
		push(queue_of(p, e), e);
	}
	else if (k->last_batch == 0)
		forget_key(&p->keys, k);
	else if (k->ended != 0)
	{
		p->keys.blocked--;
		forget_key(&p->keys, k);
	}
}

void
hsink_queue_event(HSink *p, HSinkEvent *e)
{
	if (!p->config.key_order)
	{
		push(queue_of(p, e), e);
		return;
	}
	e->key = key_of(p, e);
	push(&e->key->queue, e);
	if (e->key->out == 0)
		move_key_on(p, e->key);
}

HSinkEvent *
hsink_next_ready(HSink *p)
{
	return pop(&p->ready);
}

HSinkEvent *
hsink_next_slow(HSink *p)
{
	return pop(&p->slow);
}

void
hsink_put_back(HSink *p, HSinkEvent *e)
{
	HSinkQueue *q = queue_of(p, e);

	/* behind an earlier event of its key that is put back after it */
	if (e->key != NULL && e->key->out > 1)
	{
		e->key->out--;
		q = &e->key->queue;
	}
	e->next = q->first;
	q->first = e;
	if (e->next == NULL)
		q->last = e;
}

HSinkEvent *
hsink_next_of_key(HSink *p, const HSinkEvent *e)
{
	HSinkEvent *next;

	if (e->key == NULL)
		return NULL;
	skip_blocked(p, e->key);
	next = pop(&e->key->queue);
	if (next != NULL)
		e->key->out++;
	return next;
}

void
hsink_answer(HSink *p, HSinkEvent *e, IdemProtoOutcome outcome, const char *sqlstate,
			 uint32_t retry_after, const char *message)
{
	HSinkKey   *k = e->key;

	/* it was in flight together with an earlier event of its key */
	if (k != NULL && is_blocked(e))
	{
		outcome = IDEM_PROTO_UNKNOWN;
		message = NULL;
	}
	send_answer(p, e, outcome, sqlstate, retry_after, message);
	if (k != NULL && --k->out == 0)
		move_key_on(p, k);
}

void
hsink_settle(HSink *p, const IdemProtoSettle *settle)
{
	p->settles++;
	for (size_t i = 0; i < p->keys.size && p->keys.blocked > 0; i++)
	{
		HSinkKey   *next;

		for (HSinkKey *k = p->keys.lists[i]; k != NULL; k = next)
		{
			next = k->next;
			if (k->last_batch == settle->batch && k->last_index >= settle->first &&
				k->last_index <= settle->last && k->ended == 0)
				k->ended = p->settles;
			if (k->ended == 0 || k->out > 0 || k->queue.first != NULL)
				continue;
			p->keys.blocked--;
			forget_key(&p->keys, k);
		}
	}
}
