/*-------------------------------------------------------------------------
 *
 * keys.c
 *		Where the rows of an event stand in a segment of the open ring: a hash
 *		from digests to places, on pages that are not logged.
 *
 * An index would cost a claim as much as its row: a descent of a btree by which
 * nothing is ordered, another one to enter the row, and half of the WAL.  The keys
 * need no WAL, because they can always be made anew from the segment.
 *
 * The pages belong to an unlogged sequence for each segment.  A sequence has a file
 * that the server keeps, resets at a crash, copies with the database and drops with the
 * extension, and which VACUUM leaves alone.  The first block is the sequence's own.  Behind
 * it stand a head and the pages of entries.  So shared buffers hold what is used,
 * and nothing has a limit.
 *
 * An entry is 8 bytes: 29 bits of a hash of the digest, 24 of the block, 11 of the line
 * pointer.  The hash has a secret seed, so that nobody can choose ids for one page.  An entry
 * is placed by open addressing within its page.  Pages are split one by one, as in linear
 * hashing, so that they stay half full; a session remembers how many there are, and a page
 * tells who asks the wrong one.  A page that is full all the same, by the rows of one event,
 * says so; then the segment is read.
 *
 * Invariant: while the state is READY, a row of the segment that any transaction may
 * ever see has an entry.
 * 1. A writer has put the row into the heap before it looks at the state and enters
 *	  the row.  So does the trigger "store_keyed" for rows that others bring.
 * 2. Who makes the keys sets the state to FILLING, and reads the file's length
 *	  after that.  So a writer that saw no keys has its row within this length, and every
 *	  other one enters its row.
 * 3. Who empties the segment has locked out all others, and cuts the file of the keys.  The
 *	  keys know the file of the segment, so one that was written anew has none.
 * 4. An entry is only removed if its row is dead for everybody, if the place has another
 *	  event's row, or if a committed row of the same event with a higher turn has an
 *	  entry; and if the page has not changed since the rows were looked at.  When
 *	  somebody deletes or updates a row by hand, the trigger has the keys made anew, so the
 *	  entries of lower turns come back.  Who found such a row dead asks whether that happened.
 * 5. While the trigger does not fire always, the keys are not used.  They know the row of the
 *	  trigger in pg_trigger, which changes with the trigger.  So rows that came while it was
 *	  disabled are found: the keys are made anew.
 * 6. What a session remembers of the keys is given up with each invalidation of the
 *	  segment or the sequence.  Who takes back the state READY sends one at once, since an
 *	  abort would send none, and under the head's lock, so that nobody who comes later thinks
 *	  that it was sent.  A session accepts invalidations before it relies on what it
 *	  remembers; a writer does so when its row is there.
 * 7. ALTER SEQUENCE gives the keys another file, which its transaction does not use.  Who fills
 *	  that file has waited for the transaction by a lock on the sequence.  So a writer who
 *	  enters its row into the former file had appended it before the length was read.
 *	  A commit is seen before others are told.  So a writer may find the new file without keys
 *	  while others still rely on the former one, and tells them.
 *
 * The steps, which test/model walks, are those of store.c, and of these rules.
 *
 * What a crash leaves: no keys.  The first who needs them makes them.  Who is stopped
 * meanwhile leaves what was done, and the next one goes on.
 *
 * LOCKING: who makes the keys has RowExclusiveLock on the sequence and then the head's page
 * lock (LockPage); who needs them meanwhile waits for the latter.  Who cuts them has
 * AccessExclusiveLock, if it is free.  All others take no lock on the sequence.  Content
 * locks: the head's before those of the pages; of pages the one that is split before the new
 * one.  No content lock is held while a heap page is looked at.
 *
 * MEMORY: what a session remembers of the eight heads; who makes the keys has the rows of
 * a block.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/storage.h"
#include "executor/tuptable.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/lock_wait.h"
#include "shared/progress.h"
#include "shared/table.h"
#include "store/entry.h"
#include "store/keys.h"

/* Which entries of an event need not be there? */

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
	HeapTupleData row;
	Fate		fate = DEAD;

	if (ItemPointerGetBlockNumber(tid) >= RelationGetNumberOfBlocks(heap))
		return DEAD;
	buffer = idem_keypage_lock(heap, ItemPointerGetBlockNumber(tid), BUFFER_LOCK_SHARE);
	if (idem_table_row_at(heap, buffer, ItemPointerGetOffsetNumber(tid), &row))
	{
		if (!has_hash(heap, &row, hash, seed))
			fate = FOREIGN;
		else if (HeapTupleSatisfiesVacuum(&row, oldest, buffer) != HEAPTUPLE_DEAD)
			fate = ALIVE;
	}
	UnlockReleaseBuffer(buffer);
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
 * Remove entries from the page of a hash, unless it has changed since it was looked at.
 * compact: make room of their places, too.
 */
static void
remove_entries(IdemKeys *keys, uint32 hash, IdemKeysShape *shape, uint32 changes,
			   const uint64 *entries, int n, bool thinned, bool compact)
{
	Buffer		buffer = idem_keys_lock_page(keys, hash, shape, BUFFER_LOCK_EXCLUSIVE);
	IdemKeyPage *page;

	if (!BufferIsValid(buffer))
		return;
	page = idem_keypage_of(buffer);
	if (page->changes == changes)
	{
		for (int i = 0; i < n; i++)
			idem_keypage_remove(page, entries[i]);
		page->thinned |= thinned;
		if (compact)
			idem_keypage_compact(page);
		MarkBufferDirty(buffer);
	}
	UnlockReleaseBuffer(buffer);
}

/*
 * Remove what need not be there of an event with many entries: an id that was tried
 * and rolled back a thousand times, or used anew as often.
 */
static void
tidy(IdemKeys *keys, const pg_uuid_t *digest, IdemKeysShape *shape)
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
	UnlockReleaseBuffer(buffer);
	n = find_needless(keys, digest, shape, entries, n, &thinned);
	IDEM_FAULT_POINT("store-keys-tidy");
	if (n > 0)
		remove_entries(keys, hash, shape, changes, entries, n, thinned, false);
}

/* The same for all events of a page, which has little room left. */
static void
sweep(IdemKeys *keys, uint32 hash, IdemKeysShape *shape)
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
	UnlockReleaseBuffer(buffer);
	for (int i = 0; i < n; i++)
	{
		ItemPointerData tid;

		CHECK_FOR_INTERRUPTS();
		idem_keypage_tid(entries[i], &tid);
		if (fate_of(keys->heap, &tid, oldest, idem_keypage_hash_in(entries[i]), shape->seed) != ALIVE)
			entries[needless++] = entries[i];
	}
	remove_entries(keys, hash, shape, changes, entries, needless, false, true);
}

/* Entering a row */

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
	IdemKeysHead *head = idem_keypage_data(head_buffer);
	int			bits = pg_leftmost_one_pos32(head->pages);
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
		UnlockReleaseBuffer(high);
		UnlockReleaseBuffer(low);
	}
	UnlockReleaseBuffer(head_buffer);
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
	UnlockReleaseBuffer(buffer);
	return placed || last;
}

/* Put a row's entry into its page. */
static void
put(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid, IdemKeysShape *shape)
{
	uint32		hash = idem_keypage_hash(digest, shape->seed);
	bool		crowded;
	bool		many;

	if (!place(keys, hash, tid, shape, false, &crowded, &many))
	{
		sweep(keys, hash, shape);
		(void) place(keys, hash, tid, shape, true, &crowded, &many);
	}
	if (crowded)
		tidy(keys, digest, shape);
	if (many && !split(keys))
		sweep(keys, hash, shape);
}

/* Making the keys */

/* An empty head, behind which no page has an entry. */
static void
make_head(IdemKeys *keys, Buffer buffer, uint64 seed)
{
	Buffer		page = idem_keypage_lock(keys->rel, IDEM_KEYS_FIRST_PAGE, BUFFER_LOCK_EXCLUSIVE);

	idem_keypage_init(page, seed);
	MarkBufferDirty(page);
	UnlockReleaseBuffer(page);
	idem_keypage_make(buffer);
	*(IdemKeysHead *) idem_keypage_data(buffer) = (IdemKeysHead)
	{
		.layout = IDEM_KEYS_LAYOUT, .state = IDEM_KEYS_FILLING, .seed = seed, .of = IDEM_REL_FILE_NUMBER(keys->heap), .pages = 1,
			.witness = idem_keys_witness(keys), .round = 1, .next = 0, .until = InvalidBlockNumber
	};
	MarkBufferDirty(buffer);
}

/*
 * Begin to make the keys, or find what another session has left.  The keys may have been
 * another file's before, whose rewriting is rolled back later, so who remembers them is told,
 * at once, under the head's exclusive lock: who is told and asks again waits for what is written.
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
		UnlockReleaseBuffer(buffer);
	}
	if (idem_keys_read_head(keys, &shape) != IDEM_KEYS_ABSENT)
		return;
	if (!pg_strong_random(&seed, sizeof(seed)))
		ereport(ERROR,
				(errcode(ERRCODE_INTERNAL_ERROR),
				 errmsg("could not generate random values")));
	buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_EXCLUSIVE);
	idem_announce_change(RelationGetRelid(keys->rel));
	make_head(keys, buffer, seed);
	UnlockReleaseBuffer(buffer);
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
note_digest(Relation heap, HeapTuple tuple, void *arg)
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
		head = idem_keypage_data(buffer);
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
		UnlockReleaseBuffer(buffer);
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
	UnlockReleaseBuffer(buffer);
	return next;
}

/* Enter the rows of a block. */
static void
fill_block(IdemKeys *keys, BlockNumber block, BlockRows *rows, IdemKeysShape *shape)
{
	rows->n = 0;
	idem_table_visit_page(keys->heap, block, NULL, note_digest, rows);
	for (int i = 0; i < rows->n; i++)
		put(keys, &rows->rows[i].digest, &rows->rows[i].tid, shape);
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
		idem_progress_begin(IDEM_JOB_FILLING, keys->number, RelationGetNumberOfBlocks(keys->heap));
		while (rounds < MANY_ROUNDS && (filling.done = next_block(keys, &filling, &rounds)) != InvalidBlockNumber)
		{
			CHECK_FOR_INTERRUPTS();
			idem_progress_set(filling.done);
			fill_block(keys, filling.done, rows, &filling.shape);
		}
		idem_progress_end();
	}
	pfree(rows);
	return rounds < MANY_ROUNDS;
}

/*
 * Make the keys; who else needs them waits.  False if they cannot be made now, because the
 * sequence is being altered, or rows are removed by hand again and again.
 */
static bool
fill(IdemKeys *keys)
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
	head = idem_keypage_data(buffer);
	if (!PageIsNew(BufferGetPage(buffer)) && head->layout == IDEM_KEYS_LAYOUT)
	{
		if (head->state == IDEM_KEYS_READY)
			idem_announce_change(RelationGetRelid(keys->rel));
		head->state = IDEM_KEYS_FILLING;
		head->round++;
		head->next = 0;
		head->until = InvalidBlockNumber;
		MarkBufferDirty(buffer);
	}
	UnlockReleaseBuffer(buffer);
}

bool
idem_keys_forget(int number)
{
	Relation	rel = RelationIdGetRelation(idem_relref_oid(&idem_store_keys[number]));
	bool		locked;

	/*
	 * The lock keeps out whoever reads the sequence by its name.  A reader
	 * could load a page again between its leaving the buffers and the cut of
	 * the file; the next who extends the file would find that page where a
	 * new one has to be, until a restart.
	 */
	locked = RelationIsValid(rel) && ConditionalLockRelation(rel, AccessExclusiveLock);
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

/* Using the keys */

/* Keys that were taken back so often since a look-up began are not waited for. */
#define MANY_TRIES			4

void
idem_keys_enter(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid)
{
	IdemKeysShape shape;

	if (!idem_keys_are_trusted(keys))
		return;
	if (idem_keys_get_head(keys, &shape) != IDEM_KEYS_ABSENT)
		put(keys, digest, tid, &shape);
	else
		idem_announce_change(RelationGetRelid(keys->rel));	/* rule 7 */
}

/* Collect the entries of a hash; false if the keys are not there, or changed meanwhile. */
static bool
collect(IdemKeys *keys, const pg_uuid_t *digest, uint64 *entries, int *n, bool *thinned)
{
	IdemKeysShape shape;
	uint32		hash;
	Buffer		buffer;

	if (idem_keys_get_head(keys, &shape) != IDEM_KEYS_READY)
		return false;
	hash = idem_keypage_hash(digest, shape.seed);
	buffer = idem_keys_lock_page(keys, hash, &shape, BUFFER_LOCK_SHARE);
	if (!BufferIsValid(buffer))
		return false;
	*n = idem_keypage_collect(idem_keypage_of(buffer), hash, entries, IDEM_KEYS_MOST);
	if (*n > IDEM_KEYS_MOST || idem_keypage_of(buffer)->incomplete)
		*n = -1;
	*thinned = idem_keypage_of(buffer)->thinned;
	UnlockReleaseBuffer(buffer);

	/*
	 * The file may have been an old one, whose newest pages the server has
	 * thrown away.
	 */
	return idem_keys_are_unchanged(keys);
}

int
idem_keys_find(IdemKeys *keys, const pg_uuid_t *digest, ItemPointerData tids[IDEM_KEYS_MOST],
			   bool *thinned)
{
	uint64		entries[IDEM_KEYS_MOST];
	BlockNumber length;
	int			n;
	int			within = 0;

	pgstat_count_index_scan(keys->rel);
	for (int tries = 0;; tries++)
	{
		CHECK_FOR_INTERRUPTS();
		if (!idem_keys_are_trusted(keys) || tries == MANY_TRIES)
			return -1;
		if (collect(keys, digest, entries, &n, thinned))
			break;
		if (!fill(keys))
			return -1;
	}
	if (n <= 0)
		return n;

	/*
	 * VACUUM may have cut the file, and left the entry of a row that it
	 * removed.
	 */
	length = RelationGetNumberOfBlocks(keys->heap);
	for (int i = 0; i < n; i++)
	{
		idem_keypage_tid(entries[i], &tids[within]);
		within += ItemPointerGetBlockNumber(&tids[within]) < length;
	}
	return within;
}
