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

#include "miscadmin.h"
#include "pgstat.h"
#include "storage/bufmgr.h"
#include "utils/rel.h"

#include "shared/empty.h"
#include "store/keys.h"
#include "store/keys_fill.h"

/* Keys that were taken back so often since a look-up began are not waited for. */
#define MANY_TRIES			4

void
idem_keys_enter(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid)
{
	IdemKeysShape shape;

	if (!idem_keys_are_trusted(keys))
		return;
	if (idem_keys_get_head(keys, &shape) != IDEM_KEYS_ABSENT)
		idem_keys_put(keys, digest, tid, &shape);
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
	idem_keypage_unlock(buffer);

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
		if (!idem_keys_fill(keys))
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
