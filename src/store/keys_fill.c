/*-------------------------------------------------------------------------
 *
 * keys_fill.c
 *		Makes the keys of a segment, and gives them up.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_fill.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "catalog/storage.h"
#include "miscadmin.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "utils/rel.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/lock_wait.h"
#include "store/keys_fill.h"
#include "store/keys_tidy.h"
#include "store/segment.h"

/* With more entries that may be the same event's, those that need not be there go. */
#define FEW					4

/*
 * Split a page; not necessarily one with many entries, but as many are split as get
 * too many.  The head's lock keeps all others from extending the file.  False if there are
 * too many pages for the rows that the segment has room for: then entries are of rows that are
 * gone, or of one event, whose rows are not parted by splitting.
 */
static bool
split(IdemKeys *keys)
{
	Buffer		head_buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_EXCLUSIVE);
	IdemKeysHead *head = idem_keys_head(head_buffer);
	int			bits = idem_keypage_bits(head->pages);
	BlockNumber new_block = IDEM_KEYS_FIRST_PAGE + head->pages;
	bool		may = idem_keys_is_ours(keys, head) && head->state != IDEM_KEYS_ABSENT &&
	bits + 1 < IDEM_KEYPAGE_HASH_BITS &&
	head->pages <= RelationGetNumberOfBlocks(keys->heap) / 2;

	if (may)
	{
		Buffer		low;
		Buffer		high;

		high = ReadBuffer(keys->rel, RelationGetNumberOfBlocks(keys->rel) > new_block ? new_block : P_NEW);
		low = idem_keypage_lock(keys->rel, IDEM_KEYS_FIRST_PAGE + (head->pages & idem_keypage_mask(bits)), BUFFER_LOCK_EXCLUSIVE);
		LockBuffer(high, BUFFER_LOCK_EXCLUSIVE);
		idem_keypage_init(high, head->seed);
		idem_keypage_deal(idem_keypage_of(low), idem_keypage_of(high), bits + 1);
		head->pages++;
		MarkBufferDirty(high);
		MarkBufferDirty(low);
		MarkBufferDirty(head_buffer);
		idem_keypage_unlock(high);
		idem_keypage_unlock(low);
	}
	idem_keypage_unlock(head_buffer);
	return may;
}

/* Place a row's entry; false if its page is full.  A page without room says so at last. */
static bool
place(IdemKeys *keys, uint32 hash, const ItemPointerData *tid, IdemKeysShape *shape, bool last,
	  bool *crowded, bool *many)
{
	Buffer		buffer = idem_keys_lock_page(keys, hash, shape, BUFFER_LOCK_EXCLUSIVE);
	IdemKeyPage *page;
	bool		placed;

	*crowded = *many = false;
	/* who makes them anew finds the row */
	if (!BufferIsValid(buffer))
		return true;
	page = idem_keypage_of(buffer);
	placed = idem_keypage_place(page, idem_keypage_entry(hash, tid));
	if (!placed && last)
		page->incomplete = true;
	*many = page->used > IDEM_KEYPAGE_MANY;
	*crowded = idem_keypage_collect(page, hash, NULL, 0) > FEW;
	MarkBufferDirty(buffer);
	idem_keypage_unlock(buffer);
	return placed || last;
}

void
idem_keys_put(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid, IdemKeysShape *shape)
{
	uint32		hash = idem_keypage_hash(digest, shape->seed);
	bool		crowded;
	bool		many;

	if (!place(keys, hash, tid, shape, false, &crowded, &many))
	{
		idem_keys_sweep(keys, hash, shape);
		(void) place(keys, hash, tid, shape, true, &crowded, &many);
	}
	if (crowded)
		idem_keys_tidy(keys, digest, shape);
	if (many && !split(keys))
		idem_keys_sweep(keys, hash, shape);
}

/*
 * Others must not go on with what they remember of the keys.  They are told at once, under
 * the head's exclusive lock: who is told and asks again waits for what is written.
 */
static void
announce(IdemKeys *keys)
{
	idem_announce_change(RelationGetRelid(keys->rel));
}

/* An empty head, behind which no page has an entry. */
static void
make_head(IdemKeys *keys, Buffer buffer, uint64 seed)
{
	Buffer		page = idem_keypage_lock(keys->rel, IDEM_KEYS_FIRST_PAGE, BUFFER_LOCK_EXCLUSIVE);

	idem_keypage_init(page, seed);
	MarkBufferDirty(page);
	idem_keypage_unlock(page);
	idem_keypage_make(buffer);
	*idem_keys_head(buffer) = (IdemKeysHead)
	{
		.layout = IDEM_KEYS_LAYOUT, .state = IDEM_KEYS_FILLING, .seed = seed, .of = IDEM_REL_FILE_NUMBER(keys->heap), .pages = 1,
			.witness = idem_keys_witness(keys), .round = 1, .next = 0, .until = InvalidBlockNumber
	};
	MarkBufferDirty(buffer);
}

/*
 * Begin to make the keys, or find what another session has left.  The keys may have been
 * another file's before, whose rewriting is rolled back later, so who remembers them is told.
 */
static void
begin_filling(IdemKeys *keys)
{
	Buffer		buffer;
	IdemKeysShape shape;
	uint64		seed;

	/* The head's page lock keeps all others from extending so short a file. */
	while (RelationGetNumberOfBlocks(keys->rel) <= IDEM_KEYS_FIRST_PAGE)
	{
		buffer = ReadBuffer(keys->rel, P_NEW);
		LockBuffer(buffer, BUFFER_LOCK_EXCLUSIVE);
		idem_keypage_make(buffer);
		MarkBufferDirty(buffer);
		idem_keypage_unlock(buffer);
	}
	if (idem_keys_read_head(keys, &shape) != IDEM_KEYS_ABSENT)
		return;
	if (!pg_strong_random(&seed, sizeof(seed)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_EXCLUSIVE);
	announce(keys);
	make_head(keys, buffer, seed);
	idem_keypage_unlock(buffer);
}

/* The rows of a block, whether anybody sees them or not. */
typedef struct BlockRows
{
	TupleDesc	desc;
	int			n;
	struct
	{
		pg_uuid_t	digest;
		ItemPointerData tid;
	}			rows[MaxHeapTuplesPerPage];
} BlockRows;

static void
note_row(Relation heap, HeapTuple tuple, void *arg)
{
	BlockRows  *block = arg;
	bool		isnull;
	Datum		digest = heap_getattr(tuple, IDEM_RING_DIGEST + 1, block->desc, &isnull);

	if (isnull)
		return;
	block->rows[block->n].digest = *DatumGetUUIDP(digest);
	block->rows[block->n].tid = tuple->t_self;
	block->n++;
}

/* How far the keys are made. */
typedef struct Filling
{
	uint32		round;			/* 0: not known */
	BlockNumber done;			/* in this round; InvalidBlockNumber: none */
	IdemKeysShape shape;
} Filling;

/*
 * Note that a block is done; get the next one, or InvalidBlockNumber at the end.  The
 * segment's length is read when the head says FILLING.  VACUUM may have cut the file since.
 */
static BlockNumber
next_block(IdemKeys *keys, Filling *filling, uint32 *rounds)
{
	Buffer		buffer;
	IdemKeysHead *head;
	BlockNumber length = InvalidBlockNumber;
	BlockNumber next;

	for (;;)
	{
		buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_EXCLUSIVE);
		head = idem_keys_head(buffer);
		if (head->round != filling->round)
		{
			filling->done = length = InvalidBlockNumber;
			(*rounds)++;
		}
		filling->round = head->round;
		if (head->until == InvalidBlockNumber)
			head->until = length;
		if (head->until != InvalidBlockNumber)
			break;
		idem_keypage_unlock(buffer);
		length = RelationGetNumberOfBlocks(keys->heap);
	}
	if (filling->done != InvalidBlockNumber)
		head->next = Max(head->next, filling->done + 1);
	next = head->next;
	if (next >= head->until || next >= RelationGetNumberOfBlocks(keys->heap))
	{
		head->state = IDEM_KEYS_READY;
		next = InvalidBlockNumber;
	}
	filling->shape.pages = head->pages;
	filling->shape.seed = head->seed;
	MarkBufferDirty(buffer);
	idem_keypage_unlock(buffer);
	return next;
}

/* Enter the rows of a block. */
static void
fill_block(IdemKeys *keys, BlockNumber block, BlockRows *rows, IdemKeysShape *shape)
{
	rows->n = 0;
	idem_store_segment_visit_page(keys->heap, block, note_row, rows);
	for (int i = 0; i < rows->n; i++)
		idem_keys_put(keys, &rows->rows[i].digest, &rows->rows[i].tid, shape);
	IDEM_FAULT_POINT("store-keys-block");
}

/* Callback: wait for who makes the keys; it does not take long, whatever the lock_timeout. */
static void
lock_head(void *arg)
{
	IdemKeys   *keys = arg;

	LockPage(keys->rel, IDEM_KEYS_HEAD_BLOCK, ExclusiveLock);
}

/* With so many rounds the one who makes the keys gives up: others go on removing rows. */
#define MANY_ROUNDS		4

/* Make them, under the lock; false if it has to be given up. */
static bool
make_keys(IdemKeys *keys)
{
	BlockRows  *rows = palloc(sizeof(BlockRows));
	Filling		filling = {0};
	IdemKeysShape shape;
	uint32		rounds = 0;

	rows->desc = RelationGetDescr(keys->heap);
	begin_filling(keys);
	IDEM_FAULT_POINT("store-keys-filling");
	if (idem_keys_read_head(keys, &shape) == IDEM_KEYS_FILLING)
	{
		while (rounds < MANY_ROUNDS && (filling.done = next_block(keys, &filling, &rounds)) != InvalidBlockNumber)
		{
			CHECK_FOR_INTERRUPTS();
			fill_block(keys, filling.done, rows, &filling.shape);
		}
	}
	pfree(rows);
	return rounds < MANY_ROUNDS;
}

bool
idem_keys_fill(IdemKeys *keys)
{
	bool		made;

	/* rule 7; an operator's transaction is not waited for */
	if (!ConditionalLockRelation(keys->rel, RowExclusiveLock))
		return false;
	idem_work_with_timeout(0, lock_head, NULL, keys);
	made = idem_keys_are_trusted(keys) && make_keys(keys);
	UnlockPage(keys->rel, IDEM_KEYS_HEAD_BLOCK, ExclusiveLock);
	UnlockRelation(keys->rel, RowExclusiveLock);
	return made;
}

/*
 * The keys are made anew, without being given up: entries stay.  What a writer enters
 * meanwhile stays as well.  Each call begins a round, or one that is going on might end
 * with a length that was read before.
 *
 * Others may rely on the keys although the transaction does not, since it has altered the
 * trigger.  They see at its commit that the row is gone, and are told later.
 */
void
idem_keys_make_anew(IdemKeys *keys)
{
	Buffer		buffer;
	IdemKeysHead *head;

	if (!idem_keys_are_trusted(keys) || RelationGetNumberOfBlocks(keys->rel) <= IDEM_KEYS_FIRST_PAGE)
		return;
	buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_EXCLUSIVE);
	head = idem_keys_head(buffer);
	if (!PageIsNew(BufferGetPage(buffer)) && head->layout == IDEM_KEYS_LAYOUT)
	{
		if (head->state == IDEM_KEYS_READY)
			announce(keys);
		head->state = IDEM_KEYS_FILLING;
		head->round++;
		head->next = 0;
		head->until = InvalidBlockNumber;
		MarkBufferDirty(buffer);
	}
	idem_keypage_unlock(buffer);
}

bool
idem_keys_forget(int number)
{
	Relation	rel = RelationIdGetRelation(idem_relref_oid(idem_keys_ref(number)));
	bool		locked = RelationIsValid(rel) && ConditionalLockRelation(rel, RowExclusiveLock);

	if (!locked)
	{
		if (RelationIsValid(rel))
			RelationClose(rel);
		return false;
	}

	/* no cancel may come while the file is cut */
	HOLD_INTERRUPTS();
	idem_announce_change(RelationGetRelid(rel));
	if (RelationGetNumberOfBlocks(rel) > IDEM_KEYS_HEAD_BLOCK)
		RelationTruncate(rel, IDEM_KEYS_HEAD_BLOCK);
	RESUME_INTERRUPTS();
	RelationClose(rel);
	return true;
}
