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
 *	  entries of lower turns come back.
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
 *
 * test/model/keys.pml walks these rules.
 *
 * What a crash leaves: no keys.  The first who needs them makes them.  Who is stopped
 * meanwhile leaves what was done, and the next one goes on.
 *
 * LOCKING: who makes the keys has RowExclusiveLock on the sequence and then the head's page
 * lock (LockPage); who needs them meanwhile waits for the latter.  All others take no lock on
 * the sequence.  Content locks: the head's before those of the pages; of pages the one that is
 * split before the new one.  No content lock is held while a heap page is looked at.
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

#include "access/genam.h"
#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "catalog/pg_class.h"
#include "catalog/pg_trigger.h"
#include "catalog/storage.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/lmgr.h"
#include "storage/procarray.h"
#include "storage/smgr.h"
#include "utils/fmgroids.h"
#include "utils/inval.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "store/entry.h"
#include "store/keys.h"
#include "store/keys_head.h"
#include "store/ring.h"

/* With more entries that may be the same event's, those that need not be there go. */
#define FEW					4

/* Keys that were taken back so often since a look-up began are not waited for. */
#define MANY_TRIES			4

/* The trigger that tells of rows that others bring. */
#define TRIGGER_NAME		"store_keyed"
#define TRIGGER_TYPE \
	(TRIGGER_TYPE_ROW | TRIGGER_TYPE_AFTER | TRIGGER_TYPE_INSERT | TRIGGER_TYPE_UPDATE | TRIGGER_TYPE_DELETE)

#define KEYS_REF(n)			IDEM_RELREF("store_keys_" n)

static IdemRelRef refs[IDEM_STORE_SEGMENTS] =
{
	KEYS_REF("0"), KEYS_REF("1"), KEYS_REF("2"), KEYS_REF("3"),
	KEYS_REF("4"), KEYS_REF("5"), KEYS_REF("6"), KEYS_REF("7")
};

/* What this session remembers of the keys. */
static struct
{
	bool		looked;			/* the trigger was looked at, */
	uint32		heap_changes;	/* when these were counted */
	uint32		keys_changes;
	bool		trusted;		/* the trigger fires always, */
	IdemKeysWitness		witness;		/* and this is its row */
	bool		warned;

	uint32		of;				/* keys that were READY; 0: none */
	uint32		pages;
	uint64		seed;
}			known[IDEM_STORE_SEGMENTS];

void
idem_keys_open(IdemKeys *keys, int number, Relation heap)
{
	keys->number = number;
	keys->heap = heap;

	/* no lock: rule 7 */
	keys->rel = RelationIdGetRelation(idem_relref_oid(&refs[number]));
	if (!RelationIsValid(keys->rel) || keys->rel->rd_rel->relpersistence != RELPERSISTENCE_UNLOGGED)
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("sequence \"%s.%s\" has to be unlogged", IDEM_DATA_SCHEMA_NAME, refs[number].name),
				 errdetail("Its pages are not logged, so after a crash they have to be empty."),
				 errhint("Run ALTER SEQUENCE %s.%s SET UNLOGGED.", IDEM_DATA_SCHEMA_NAME, refs[number].name)));
}

IdemRelRef *
idem_keys_ref(int number)
{
	return &refs[number];
}

void
idem_keys_close(IdemKeys *keys)
{
	RelationClose(keys->rel);
}

IdemKeysHead *
idem_keys_head(Buffer buffer)
{
	return (IdemKeysHead *) PageGetContents(BufferGetPage(buffer));
}

IdemKeysWitness
idem_keys_witness(const IdemKeys *keys)
{
	return known[keys->number].witness;
}

uint64
idem_keys_seed(const IdemKeys *keys)
{
	return known[keys->number].seed;
}

/* Trust */

/* Find the row of the trigger; false if the trigger does not fire always. */
static bool
find_witness(Relation heap, IdemKeysWitness *witness)
{
	Relation	catalog = table_open(TriggerRelationId, AccessShareLock);
	ScanKeyData key[2];
	SysScanDesc scan;
	HeapTuple	row;
	bool		fires = false;

	ScanKeyInit(&key[0], Anum_pg_trigger_tgrelid, BTEqualStrategyNumber, F_OIDEQ,
				ObjectIdGetDatum(RelationGetRelid(heap)));
	ScanKeyInit(&key[1], Anum_pg_trigger_tgname, BTEqualStrategyNumber, F_NAMEEQ,
				CStringGetDatum(TRIGGER_NAME));
	scan = systable_beginscan(catalog, TriggerRelidNameIndexId, true, NULL, lengthof(key), key);
	row = systable_getnext(scan);
	if (HeapTupleIsValid(row))
	{
		Form_pg_trigger trigger = (Form_pg_trigger) GETSTRUCT(row);

		fires = trigger->tgenabled == TRIGGER_FIRES_ALWAYS && trigger->tgtype == TRIGGER_TYPE &&
			trigger->tgattr.dim1 == 0 &&
			heap_attisnull(row, Anum_pg_trigger_tgqual, RelationGetDescr(catalog));
		witness->xmin = HeapTupleHeaderGetRawXmin(row->t_data);
		witness->block = ItemPointerGetBlockNumber(&row->t_self);
		witness->offset = ItemPointerGetOffsetNumber(&row->t_self);
	}
	systable_endscan(scan);
	table_close(catalog, AccessShareLock);
	return fires;
}

/* Look at the trigger, and remember nothing else. */
static void
look_anew(IdemKeys *keys, uint32 heap_changes, uint32 keys_changes)
{
	int			number = keys->number;

	known[number].looked = false;
	known[number].of = 0;
	known[number].trusted = find_witness(keys->heap, &known[number].witness);
	known[number].heap_changes = heap_changes;
	known[number].keys_changes = keys_changes;
	known[number].looked = true;
	if (!known[number].trusted && !known[number].warned)
	{
		known[number].warned = true;
		ereport(WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("trigger \"%s\" on \"%s.%s\" does not fire always",
						TRIGGER_NAME, IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(keys->heap)),
				 errdetail("Rows may come that no key tells of, so claims read the whole table."),
				 errhint("Run ALTER TABLE %s.%s ENABLE ALWAYS TRIGGER %s.",
						 IDEM_DATA_SCHEMA_NAME, RelationGetRelationName(keys->heap), TRIGGER_NAME)));
	}
}

/* Can the keys be relied on?  After this, what is remembered of them is true. */
bool
idem_keys_are_trusted(IdemKeys *keys)
{
	IdemRelRef *heap = idem_store_segment_ref(keys->number);
	IdemRelRef *rel = &refs[keys->number];
	uint32		heap_changes;
	uint32		keys_changes;

	AcceptInvalidationMessages();


	/*
	 * Changes are counted of relations whose OIDs are known.  To look for one may bring
	 * news of the other one, so the counts are from before.
	 */
	heap_changes = heap->changes;
	keys_changes = rel->changes;
	(void) idem_relref_oid(heap);
	(void) idem_relref_oid(rel);
	if (!known[keys->number].looked || heap_changes != known[keys->number].heap_changes || keys_changes != known[keys->number].keys_changes)
		look_anew(keys, heap_changes, keys_changes);
	return known[keys->number].trusted && !IDEM_REL_GOT_NEW_FILE(keys->rel);
}

/* Is it the head of keys of this file, which know the trigger as it is? */
static bool
is_ours(IdemKeys *keys, const IdemKeysHead *head)
{
	const IdemKeysWitness *witness = &known[keys->number].witness;

	return head->layout == IDEM_KEYS_LAYOUT && head->of == IDEM_REL_FILE_NUMBER(keys->heap) &&
		head->witness.xmin == witness->xmin &&
		head->witness.block == witness->block && head->witness.offset == witness->offset;
}

/*
 * Read the head; ABSENT if the keys are not there or are another file's.  Remembers it
 * while it is READY.
 */
IdemKeysState
idem_keys_read_head(IdemKeys *keys, IdemKeysShape *shape)
{
	IdemKeysState		state = IDEM_KEYS_ABSENT;
	Buffer		buffer;
	IdemKeysHead	   *head;

	if (RelationGetNumberOfBlocks(keys->rel) <= IDEM_KEYS_FIRST_PAGE)
		return IDEM_KEYS_ABSENT;
	buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_HEAD_BLOCK, BUFFER_LOCK_SHARE);
	head = idem_keys_head(buffer);
	if (!PageIsNew(BufferGetPage(buffer)) && is_ours(keys, head))
	{
		state = head->state;
		shape->pages = head->pages;
		shape->seed = head->seed;
	}
	idem_keypage_unlock(buffer);
	if (state == IDEM_KEYS_READY)
	{
		known[keys->number].of = IDEM_REL_FILE_NUMBER(keys->heap);
		known[keys->number].pages = shape->pages;
		known[keys->number].seed = shape->seed;
	}
	return state;
}

/* What the session remembers, or else the head.  The keys are trusted. */
static IdemKeysState
get_head(IdemKeys *keys, IdemKeysShape *shape)
{
	if (known[keys->number].of == IDEM_REL_FILE_NUMBER(keys->heap))
	{
		shape->pages = known[keys->number].pages;
		shape->seed = known[keys->number].seed;
		return IDEM_KEYS_READY;
	}
	return idem_keys_read_head(keys, shape);
}

/*
 * Lock the page of a hash.  The shape is what the head said; there may be more pages by
 * now.
 */
Buffer
idem_keys_lock_page(IdemKeys *keys, uint32 hash, IdemKeysShape *shape, int mode)
{
	uint64		seed = shape->seed;

	for (;;)
	{
		uint32		number = idem_keypage_number(hash, shape->pages);
		Buffer		buffer = idem_keypage_lock(keys->rel, IDEM_KEYS_FIRST_PAGE + number, mode);

		if (idem_keypage_belongs(idem_keypage_of(buffer), number, hash, seed))
			return buffer;
		idem_keypage_unlock(buffer);
		known[keys->number].of = 0;
		/* with another seed the hash would be another one */
		if (idem_keys_read_head(keys, shape) == IDEM_KEYS_ABSENT || shape->seed != seed)
			return InvalidBuffer;
	}
}

/* Writing */

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
	bool		may = is_ours(keys, head) && head->state != IDEM_KEYS_ABSENT &&
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

void
idem_keys_enter(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid)
{
	IdemKeysShape		shape;

	if (idem_keys_are_trusted(keys) && get_head(keys, &shape) != IDEM_KEYS_ABSENT)
		idem_keys_put(keys, digest, tid, &shape);
}

/* Reading */

/* Is what the session remembers still true? */
static bool
are_unchanged(IdemKeys *keys)
{
	AcceptInvalidationMessages();
	return idem_store_segment_ref(keys->number)->changes == known[keys->number].heap_changes &&
		refs[keys->number].changes == known[keys->number].keys_changes;
}

/* Collect the entries of a hash; false if the keys are not there, or changed meanwhile. */
static bool
collect(IdemKeys *keys, const pg_uuid_t *digest, uint64 *entries, int *n, bool *thinned)
{
	IdemKeysShape shape;
	uint32		hash;
	Buffer		buffer;

	if (get_head(keys, &shape) != IDEM_KEYS_READY)
		return false;
	hash = idem_keypage_hash(digest, shape.seed);
	buffer = idem_keys_lock_page(keys, hash, &shape, BUFFER_LOCK_SHARE);
	if (!BufferIsValid(buffer))
		return false;
	*n = idem_keypage_collect(idem_keypage_of(buffer), hash, entries, IDEM_KEYS_MOST);
	if (*n > IDEM_KEYS_MOST || idem_keypage_of(buffer)->incomplete)
		*n = -1;
	*thinned = idem_keypage_of(buffer)->thinned;
	idem_keypage_unlock(buffer);

	/* The file may have been an old one, whose newest pages the server has thrown away. */
	return are_unchanged(keys);
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
		if (!idem_keys_fill(keys))
			return -1;
	}
	if (n <= 0)
		return n;

	/* VACUUM may have cut the file, and left the entry of a row that it removed. */
	length = RelationGetNumberOfBlocks(keys->heap);
	for (int i = 0; i < n; i++)
	{
		idem_keypage_tid(entries[i], &tids[within]);
		within += ItemPointerGetBlockNumber(&tids[within]) < length;
	}
	return within;
}
