/*-------------------------------------------------------------------------
 *
 * keys.c
 *		The set of blocked keys.
 *
 * An event that is not acked blocks its key: the later events of the key are not sent
 * that stand before the SETTLE of the last such event in the stream.  The worker settles
 * a key's events in their order, so that SETTLE tells of the events before, too.
 *
 * INVARIANT
 *	idem_keys_pass is called with numbers that never fall, before an event is
 *	looked up that stands behind so many SETTLEs.
 *
 * MEMORY
 *	A slot owns its name.  Keys whose block has ended are freed when the table is
 *	rebuilt, as soon as it concerns no event that is still to be looked up.
 * LOCKING
 *	A job may add a key while the main thread takes a SETTLE, so `lock` is held by both.
 *	Which comes first makes no difference: the job's events have no results, so no SETTLE
 *	on its way names them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/sink/common/keys.c
 *
 *-------------------------------------------------------------------------
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "sink/common/batch.h"

#define FIRST_SLOTS	64

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* FNV-1a over type and id. */
uint64_t
idem_key_hash(const IdemBatchEvent *e)
{
	const char *parts[2] = {idem_batch_at(e, e->aggregate_type), idem_batch_at(e, e->aggregate_id)};
	uint32_t	lens[2] = {e->aggregate_type.len, e->aggregate_id.len};
	uint64_t	h = UINT64_C(0xcbf29ce484222325);

	for (int n = 0; n < 2; n++)
	{
		for (uint32_t i = 0; i < lens[n]; i++)
			h = (h ^ (unsigned char) parts[n][i]) * UINT64_C(0x100000001b3);
		h *= UINT64_C(0x100000001b3);	/* the NUL behind the part */
	}
	return h | 1;
}

size_t
idem_key_len(const IdemBatchEvent *e)
{
	return (size_t) e->aggregate_type.len + 1 + e->aggregate_id.len;
}

void
idem_key_write(const IdemBatchEvent *e, char *name)
{
	uint32_t	type = e->aggregate_type.len;

	memcpy(name, idem_batch_at(e, e->aggregate_type), type);
	name[type] = '\0';
	memcpy(name + type + 1, idem_batch_at(e, e->aggregate_id), e->aggregate_id.len);
}

bool
idem_key_is(const IdemBatchEvent *e, const char *name, size_t len)
{
	uint32_t	type = e->aggregate_type.len;

	return len == idem_key_len(e) && memcmp(name, idem_batch_at(e, e->aggregate_type), type) == 0 && name[type] == '\0' &&
		memcmp(name + type + 1, idem_batch_at(e, e->aggregate_id), e->aggregate_id.len) == 0;
}

/* The slot of the event's key, or the free slot that the key would take. */
static IdemKey *
find(const IdemKeys *keys, const IdemBatchEvent *e, uint64_t hash)
{
	size_t		i = hash & (keys->size - 1);

	while (keys->slots[i].hash != 0 && !(keys->slots[i].hash == hash && idem_key_is(e, keys->slots[i].name, keys->slots[i].len)))
		i = (i + 1) & (keys->size - 1);
	return &keys->slots[i];
}

/* Is the block over for the events behind so many SETTLEs? */
static bool
is_over(const IdemKey *k, uint64_t settles)
{
	return k->ended != 0 && k->ended <= settles;
}

/* Is event a of the stream before event b? */
static bool
is_before(uint64_t batch_a, uint32_t index_a, uint64_t batch_b, uint32_t index_b)
{
	return batch_a < batch_b || (batch_a == batch_b && index_a < index_b);
}

/* Move the blocked keys to a table of that size; free the others. */
static void
rebuild(IdemKeys *keys, size_t size)
{
	IdemKey    *old = keys->slots;
	size_t		old_size = keys->size;

	keys->slots = idem_sink_alloc(size * sizeof(IdemKey));
	memset(keys->slots, 0, size * sizeof(IdemKey));
	keys->size = size;
	keys->used = 0;
	for (size_t i = 0; i < old_size; i++)
	{
		size_t		at = old[i].hash & (size - 1);

		if (old[i].hash == 0)
			continue;
		if (is_over(&old[i], keys->passed))
		{
			free(old[i].name);
			continue;
		}
		while (keys->slots[at].hash != 0)
			at = (at + 1) & (size - 1);
		keys->slots[at] = old[i];
		keys->used++;
	}
	free(old);
}

bool
idem_keys_has(const IdemKeys *keys, const IdemBatchEvent *e)
{
	const IdemKey *k;

	if (keys->used == 0)
		return false;
	k = find(keys, e, idem_key_hash(e));
	return k->hash != 0 && !is_over(k, e->settles) &&
		is_before(k->first_batch, k->first_index, e->batch->number, e->index);
}

/* Begin the block of a key whose slot is free, or whose last block has ended. */
static void
begin_block(IdemKey *k, const IdemBatchEvent *e)
{
	k->first_batch = e->batch->number;
	k->first_index = e->index;
	k->last_batch = e->batch->number;
	k->last_index = e->index;
	k->ended = 0;
}

static void
add(IdemKeys *keys, const IdemBatchEvent *e)
{
	uint64_t	hash = idem_key_hash(e);
	IdemKey    *k;

	if (keys->size == 0 || keys->used * 2 >= keys->size)
		rebuild(keys, keys->size > 0 ? keys->size * 2 : FIRST_SLOTS);
	k = find(keys, e, hash);
	if (k->hash == 0)
	{
		k->hash = hash;
		k->len = idem_key_len(e);
		k->name = idem_sink_alloc(k->len);
		idem_key_write(e, k->name);
		keys->used++;
		begin_block(k, e);
		return;
	}
	if (is_over(k, e->settles))
	{
		begin_block(k, e);
		return;
	}
	if (is_before(e->batch->number, e->index, k->first_batch, k->first_index))
	{
		k->first_batch = e->batch->number;
		k->first_index = e->index;
	}
	if (is_before(k->last_batch, k->last_index, e->batch->number, e->index))
	{
		k->last_batch = e->batch->number;
		k->last_index = e->index;
		k->ended = 0;
	}
}

void
idem_keys_add(IdemKeys *keys, const IdemBatchEvent *e)
{
	pthread_mutex_lock(&lock);
	add(keys, e);
	pthread_mutex_unlock(&lock);
}

void
idem_keys_settle(IdemKeys *keys, const IdemProtoSettle *settle, uint64_t number)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; keys->used > 0 && i < keys->size; i++)
	{
		IdemKey    *k = &keys->slots[i];

		if (k->hash != 0 && k->ended == 0 && k->last_batch == settle->batch &&
			k->last_index >= settle->first && k->last_index <= settle->last)
			k->ended = number;
	}
	pthread_mutex_unlock(&lock);
}

void
idem_keys_pass(IdemKeys *keys, uint64_t settles)
{
	if (settles <= keys->passed)
		return;
	keys->passed = settles;
	if (keys->used > 0)
		rebuild(keys, keys->size);
}

void
idem_keys_free(IdemKeys *keys)
{
	for (size_t i = 0; i < keys->size; i++)
		free(keys->slots[i].name);
	free(keys->slots);
	memset(keys, 0, sizeof(*keys));
}
