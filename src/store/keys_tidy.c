/*-------------------------------------------------------------------------
 *
 * keys_tidy.c
 *		Which entries of an event need not be there?
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_tidy.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/fault.h"
#include "store/entry.h"
#include "store/keys_tidy.h"
#include "store/segment.h"

/* What a place of the segment has. */
typedef enum Fate
{
	DEAD,						/* nothing that anybody will see */
	FOREIGN,					/* a row with another hash */
	ALIVE
} Fate;

/* The hash of a row's digest; one without a digest has that of no event. */
static bool
has_hash(Relation heap, HeapTuple row, uint32 hash, uint64 seed)
{
	bool		isnull;
	Datum		digest = heap_getattr(row, IDEM_RING_DIGEST + 1, RelationGetDescr(heap), &isnull);

	return !isnull && idem_keypage_hash(DatumGetUUIDP(digest), seed) == hash;
}

/* oldest: what was deleted before is dead. */
static Fate
fate_of(Relation heap, const ItemPointerData *tid, TransactionId oldest, uint32 hash, uint64 seed)
{
	Buffer		buffer;
	Page		page;
	ItemId		lp;
	Fate		fate = DEAD;

	if (ItemPointerGetBlockNumber(tid) >= RelationGetNumberOfBlocks(heap))
		return DEAD;
	buffer = idem_keypage_lock(heap, ItemPointerGetBlockNumber(tid), BUFFER_LOCK_SHARE);
	page = BufferGetPage(buffer);
	if (!PageIsNew(page) && ItemPointerGetOffsetNumber(tid) <= PageGetMaxOffsetNumber(page))
	{
		lp = PageGetItemId(page, ItemPointerGetOffsetNumber(tid));
		if (ItemIdIsNormal(lp))
		{
			HeapTupleData row;

			row.t_tableOid = RelationGetRelid(heap);
			row.t_self = *tid;
			row.t_data = (HeapTupleHeader) PageGetItem(page, lp);
			row.t_len = ItemIdGetLength(lp);
			if (!has_hash(heap, &row, hash, seed))
				fate = FOREIGN;
			else if (HeapTupleSatisfiesVacuum(&row, oldest, buffer) != HEAPTUPLE_DEAD)
				fate = ALIVE;
		}
	}
	idem_keypage_unlock(buffer);
	return fate;
}

bool
idem_keys_is_needless(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid)
{
	uint64		seed = idem_keys_seed(keys);

	return fate_of(keys->heap, tid, GetOldestNonRemovableTransactionId(keys->heap),
				   idem_keypage_hash(digest, seed), seed) != ALIVE;
}

/*
 * The turn of a row of the event that is committed for good and that the store wrote; 0 if
 * it is none.
 */
static int16
committed_turn(IdemKeys *keys, TupleTableSlot *slot, const pg_uuid_t *digest, ItemPointerData *tid)
{
	SnapshotData dirty;
	int16		turn = 0;

	InitDirtySnapshot(dirty);
	if (table_tuple_fetch_row_version(keys->heap, tid, &dirty, slot) &&
		!TransactionIdIsValid(dirty.xmin) && !TransactionIdIsValid(dirty.xmax) &&
		!TransactionIdIsCurrentTransactionId(HeapTupleHeaderGetRawXmin(((HeapTupleTableSlot *) slot)->tuple->t_data)))
	{
		slot_getsomeattrs(slot, IDEM_RING_STATE + 1);
		if (!slot->tts_isnull[IDEM_RING_DIGEST] && !slot->tts_isnull[IDEM_RING_TURN] &&
			!slot->tts_isnull[IDEM_RING_STATE] &&
			memcmp(DatumGetUUIDP(slot->tts_values[IDEM_RING_DIGEST]), digest, UUID_LEN) == 0 &&
			idem_entry_is_sound(DatumGetInt16(slot->tts_values[IDEM_RING_TURN]),
								DatumGetChar(slot->tts_values[IDEM_RING_STATE])))
			turn = DatumGetInt16(slot->tts_values[IDEM_RING_TURN]);
	}
	ExecClearTuple(slot);
	return turn;
}

/* Which of the entries need not be there?  *thinned: older snapshots may see their rows. */
static int
find_needless(IdemKeys *keys, const pg_uuid_t *digest, const IdemKeysShape *shape, uint64 *entries, int n,
			  bool *thinned)
{
	TupleTableSlot *slot = table_slot_create(keys->heap, NULL);
	TransactionId oldest = GetOldestNonRemovableTransactionId(keys->heap);
	uint32		hash = idem_keypage_hash(digest, shape->seed);
	Fate		fates[IDEM_KEYS_MOST];
	int16		turns[IDEM_KEYS_MOST];
	int16		newest = 0;
	int			needless = 0;

	for (int i = 0; i < n; i++)
	{
		ItemPointerData tid;

		idem_keypage_tid(entries[i], &tid);
		fates[i] = fate_of(keys->heap, &tid, oldest, hash, shape->seed);
		turns[i] = fates[i] == ALIVE ? committed_turn(keys, slot, digest, &tid) : 0;
		newest = Max(newest, turns[i]);
	}
	*thinned = false;
	for (int i = 0; i < n; i++)
	{
		bool		older = turns[i] > 0 && turns[i] < newest;

		*thinned = *thinned || older;
		if (fates[i] != ALIVE || older)
			entries[needless++] = entries[i];
	}
	ExecDropSingleTupleTableSlot(slot);
	return needless;
}

/*
 * Remove what need not be there of an event with many entries: an id that was tried
 * and rolled back a thousand times, or used anew as often.
 */
void
idem_keys_tidy(IdemKeys *keys, const pg_uuid_t *digest, IdemKeysShape *shape)
{
	uint64		entries[IDEM_KEYS_MOST];
	uint32		hash = idem_keypage_hash(digest, shape->seed);
	Buffer		buffer = idem_keys_lock_page(keys, hash, shape, BUFFER_LOCK_SHARE);
	uint32		changes;
	int			n;
	bool		thinned;

	if (!BufferIsValid(buffer))
		return;
	changes = idem_keypage_of(buffer)->changes;
	n = Min(idem_keypage_collect(idem_keypage_of(buffer), hash, entries, IDEM_KEYS_MOST), IDEM_KEYS_MOST);
	idem_keypage_unlock(buffer);
	n = find_needless(keys, digest, shape, entries, n, &thinned);
	IDEM_FAULT_POINT("store-keys-tidy");
	if (n == 0)
		return;
	buffer = idem_keys_lock_page(keys, hash, shape, BUFFER_LOCK_EXCLUSIVE);
	if (!BufferIsValid(buffer))
		return;
	if (idem_keypage_of(buffer)->changes == changes)
	{
		for (int i = 0; i < n; i++)
			idem_keypage_remove(idem_keypage_of(buffer), entries[i]);
		idem_keypage_of(buffer)->thinned |= thinned;
		MarkBufferDirty(buffer);
	}
	idem_keypage_unlock(buffer);
}

void
idem_keys_sweep(IdemKeys *keys, uint32 hash, IdemKeysShape *shape)
{
	uint64		entries[BLCKSZ / sizeof(uint64)];
	TransactionId oldest = GetOldestNonRemovableTransactionId(keys->heap);
	Buffer		buffer = idem_keys_lock_page(keys, hash, shape, BUFFER_LOCK_SHARE);
	uint32		changes;
	int			n;
	int			needless = 0;

	if (!BufferIsValid(buffer))
		return;
	changes = idem_keypage_of(buffer)->changes;
	n = idem_keypage_list(idem_keypage_of(buffer), entries);
	idem_keypage_unlock(buffer);
	for (int i = 0; i < n; i++)
	{
		ItemPointerData tid;

		CHECK_FOR_INTERRUPTS();
		idem_keypage_tid(entries[i], &tid);
		if (fate_of(keys->heap, &tid, oldest, idem_keypage_hash_in(entries[i]), shape->seed) != ALIVE)
			entries[needless++] = entries[i];
	}
	buffer = idem_keys_lock_page(keys, hash, shape, BUFFER_LOCK_EXCLUSIVE);
	if (!BufferIsValid(buffer))
		return;
	if (idem_keypage_of(buffer)->changes == changes)
	{
		for (int i = 0; i < needless; i++)
			idem_keypage_remove(idem_keypage_of(buffer), entries[i]);
		idem_keypage_compact(idem_keypage_of(buffer));
		MarkBufferDirty(buffer);
	}
	idem_keypage_unlock(buffer);
}
