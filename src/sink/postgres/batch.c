/*-------------------------------------------------------------------------
 *
 * batch.c
 *		The events of a batch, and the set of blocked keys.
 *
 * The whole batch is kept until its verdict, because it may have to be sent to
 * the target again.  READY limits its size.
 *
 * MEMORY
 *		One arena holds all bytes of a batch.  The next batch reuses the arena;
 *		an arena above KEEP_ARENA is freed after its batch.  Spans are offsets,
 *		because the arena moves as it grows.  LOCKING: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/postgres/batch.c
 *
 *-------------------------------------------------------------------------
 */
#include <stdlib.h>
#include <string.h>

#include "sink/postgres/sink.h"

#define KEEP_ARENA	(4 * 1024 * 1024)
#define FIRST_KEYS	64

void
pgsink_batch_reset(PgSinkBatch *b)
{
	for (uint32_t i = 0; i < b->count; i++)
		free(b->events[i].message);
	b->count = 0;
	b->arena_len = 0;
	b->bytes = 0;
	if (b->arena_size > KEEP_ARENA)
	{
		free(b->arena);
		b->arena = NULL;
		b->arena_size = 0;
	}
}

/* Append bytes to the arena. */
static PgSinkSpan
put(PgSinkBatch *b, const void *data, size_t len)
{
	PgSinkSpan	span = {b->arena_len, (uint32_t) len};

	while (b->arena_size - b->arena_len < len)
	{
		b->arena_size = b->arena_size > 0 ? b->arena_size * 2 : 65536;
		b->arena = idem_sink_realloc(b->arena, b->arena_size);
	}
	if (len > 0)
		memcpy(b->arena + b->arena_len, data, len);
	b->arena_len += len;
	return span;
}

/* Append a string to the arena. */
static PgSinkSpan
put_str(PgSinkBatch *b, IdemProtoStr s)
{
	return put(b, s.data, s.len);
}

/*
 * Headers and payload lie in the arena one after the other, whatever the
 * parts.
 */
void
pgsink_batch_add_data(PgSinkBatch *b, const uint8_t *data, uint32_t len)
{
	put(b, data, len);
}

void
pgsink_batch_add(PgSinkBatch *b, const IdemProtoEvent *event)
{
	PgSinkEvent *e;

	if (b->count == b->size)
	{
		b->size = b->size > 0 ? b->size * 2 : 1024;
		b->events = idem_sink_realloc(b->events, b->size * sizeof(PgSinkEvent));
	}
	e = &b->events[b->count++];
	memset(e, 0, sizeof(*e));
	memcpy(e->id, event->event_id, IDEM_PROTO_ID_BYTES);
	e->flags = event->flags;
	e->seq = event->seq;
	e->enqueued_at = event->enqueued_at;
	e->aggregate_type = put_str(b, event->aggregate_type);
	e->aggregate_id = put_str(b, event->aggregate_id);
	e->event_type = put_str(b, event->event_type);
	e->content_type = put_str(b, event->content_type);
	e->headers.at = b->arena_len;
	e->headers.len = event->headers_len;
	e->payload.at = b->arena_len + event->headers_len;
	e->payload.len = event->payload_len;
	pgsink_batch_add_data(b, event->chunk, event->chunk_len);
}

/* FNV-1a over type and id; never 0. */
static uint64_t
hash_key(const uint8_t *type, size_t type_len, const uint8_t *id, size_t id_len)
{
	uint64_t	h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < type_len; i++)
		h = (h ^ type[i]) * UINT64_C(0x100000001b3);
	h *= UINT64_C(0x100000001b3);	/* the NUL between them */
	for (size_t i = 0; i < id_len; i++)
		h = (h ^ id[i]) * UINT64_C(0x100000001b3);
	return h | 1;
}

/* The slot of the event's key, or the free slot that the key would take. */
static PgSinkKey *
find_slot(const PgSinkKeys *keys, uint64_t hash, const PgSinkBatch *b, const PgSinkEvent *e)
{
	size_t		len = (size_t) e->aggregate_type.len + 1 + e->aggregate_id.len;

	for (size_t i = hash & (keys->size - 1);; i = (i + 1) & (keys->size - 1))
	{
		PgSinkKey  *k = &keys->slots[i];

		if (k->hash == 0)
			return k;
		if (k->hash == hash && k->len == len &&
			memcmp(k->name, b->arena + e->aggregate_type.at, e->aggregate_type.len) == 0 &&
			k->name[e->aggregate_type.len] == '\0' &&
			memcmp(k->name + e->aggregate_type.len + 1,
				   b->arena + e->aggregate_id.at, e->aggregate_id.len) == 0)
			return k;
	}
}

/* The hash of the event's key. */
static uint64_t
hash_event(const PgSinkBatch *b, const PgSinkEvent *e)
{
	return hash_key(b->arena + e->aggregate_type.at, e->aggregate_type.len,
					b->arena + e->aggregate_id.at, e->aggregate_id.len);
}

/* A key blocks the events behind its first failed event. */
bool
pgsink_keys_has(const PgSinkKeys *keys, const PgSinkBatch *b, const PgSinkEvent *e)
{
	const PgSinkKey *k;

	if (keys->used == 0)
		return false;
	k = find_slot(keys, hash_event(b, e), b, e);
	return k->hash != 0 &&
		(k->batch < b->batch || k->index < (uint32_t) (e - b->events));
}

/* Move the keys to a table of that size, but for those whose block ends; settle: NULL, none does. */
static void
rebuild(PgSinkKeys *keys, size_t size, const IdemProtoSettle *settle)
{
	PgSinkKeys	old = *keys;

	keys->slots = idem_sink_alloc(size * sizeof(PgSinkKey));
	memset(keys->slots, 0, size * sizeof(PgSinkKey));
	keys->size = size;
	keys->used = 0;
	for (size_t i = 0; i < old.size; i++)
	{
		PgSinkKey  *k = &old.slots[i];
		size_t		at = k->hash & (size - 1);

		if (k->hash == 0)
			continue;
		if (settle != NULL && k->batch == settle->batch && k->last >= settle->first && k->last <= settle->last)
		{
			free(k->name);
			continue;
		}
		while (keys->slots[at].hash != 0)
			at = (at + 1) & (size - 1);
		keys->slots[at] = *k;
		keys->used++;
	}
	free(old.slots);
}

void
pgsink_keys_add(PgSinkKeys *keys, const PgSinkBatch *b, const PgSinkEvent *e)
{
	uint64_t	hash = hash_event(b, e);
	PgSinkKey  *k;

	if (keys->size == 0 || keys->used * 2 >= keys->size)
		rebuild(keys, keys->size > 0 ? keys->size * 2 : FIRST_KEYS, NULL);
	k = find_slot(keys, hash, b, e);
	if (k->hash == 0)
	{
		k->len = (size_t) e->aggregate_type.len + 1 + e->aggregate_id.len;
		k->name = idem_sink_alloc(k->len);
		memcpy(k->name, b->arena + e->aggregate_type.at, e->aggregate_type.len);
		k->name[e->aggregate_type.len] = '\0';
		memcpy(k->name + e->aggregate_type.len + 1,
			   b->arena + e->aggregate_id.at, e->aggregate_id.len);
		k->hash = hash;
		keys->used++;
	}
	if (k->batch != b->batch)
	{
		k->batch = b->batch;
		k->index = k->last = (uint32_t) (e - b->events);
	}
	if ((uint32_t) (e - b->events) < k->index)
		k->index = (uint32_t) (e - b->events);
	if ((uint32_t) (e - b->events) > k->last)
		k->last = (uint32_t) (e - b->events);
}

void
pgsink_keys_settle(PgSinkKeys *keys, const IdemProtoSettle *settle)
{
	if (keys->used > 0)
		rebuild(keys, keys->size, settle);
}
