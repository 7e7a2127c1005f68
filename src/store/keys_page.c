/*-------------------------------------------------------------------------
 *
 * keys_page.c
 *		A page of keys: entries of 8 bytes, placed by a hash.
 *
 * An entry has 29 bits of a hash of the digest, 24 of the block, 11 of the line pointer.  It
 * stands at the place that its hash tells, or behind it, with no free place in between.
 * Pages are split by the bits of the hash, as in linear hashing: all entries of a page
 * have as many lower bits in common as the page says.
 *
 * Nothing here knows what the entries mean, nor when they may be removed (keys.c).
 *
 * LOCKING: the callers have the content lock of a page: exclusive, for what changes it.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_page.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/htup_details.h"
#include "port/pg_bitutils.h"
#include "storage/bufmgr.h"
#include "storage/bufpage.h"

#include "store/keys_page.h"

/* Entries: what they have of the digest, the block and the line pointer. */
#define BLOCK_BITS			24
#define OFFSET_BITS			11
#define NO_ENTRY			UINT64CONST(0)
/* An entry that was removed: a line pointer of 0, which no row has. */
#define REMOVED				(UINT64CONST(1) << OFFSET_BITS)

StaticAssertDecl(IDEM_KEYPAGE_HASH_BITS + BLOCK_BITS + OFFSET_BITS == 64, "an entry has 8 bytes");
StaticAssertDecl(MaxHeapTuplesPerPage < (1 << OFFSET_BITS), "a line pointer fits an entry");

uint32
idem_keypage_hash(const pg_uuid_t *digest, uint64 seed)
{
	uint64		halves[2];
	uint64		hash;

	StaticAssertStmt(sizeof(halves) == UUID_LEN, "a digest has two halves");
	memcpy(halves, digest->data, sizeof(halves));
	hash = (halves[0] ^ seed) * UINT64CONST(0x9e3779b97f4a7c15);
	hash = (halves[1] ^ hash ^ (hash >> 32)) * UINT64CONST(0xd6e8feb86659fd93);
	return (uint32) (hash >> (64 - IDEM_KEYPAGE_HASH_BITS));
}

uint64
idem_keypage_entry(uint32 hash, const ItemPointerData *tid)
{
	BlockNumber block = ItemPointerGetBlockNumber(tid);

	if (block >= ((BlockNumber) 1 << BLOCK_BITS))
		return NO_ENTRY;
	return ((uint64) hash << (BLOCK_BITS + OFFSET_BITS)) |
		((uint64) block << OFFSET_BITS) | ItemPointerGetOffsetNumber(tid);
}

uint32
idem_keypage_hash_in(uint64 entry)
{
	return (uint32) (entry >> (BLOCK_BITS + OFFSET_BITS));
}

/* The place where an entry stands, or those before it are taken. */
static int
first_place(uint32 hash)
{
	uint32		mixed = hash * 0x9e3779b1U;

	return (int) (((uint64) mixed * IDEM_KEYPAGE_ENTRIES) >> 32);
}

static int
next_place(int place)
{
	return place + 1 == IDEM_KEYPAGE_ENTRIES ? 0 : place + 1;
}

void *
idem_keypage_data(Buffer buffer)
{
	return (char *) BufferGetPage(buffer) + BLCKSZ - IDEM_KEYPAGE_BYTES;
}

Buffer
idem_keypage_lock(Relation rel, BlockNumber block, int mode)
{
	Buffer		buffer = ReadBuffer(rel, block);

	LockBuffer(buffer, mode);
	return buffer;
}

/* Make a page empty. */
void
idem_keypage_make(Buffer buffer)
{
	PageInit(BufferGetPage(buffer), BLCKSZ, IDEM_KEYPAGE_BYTES);
}

/* The page of a hash, of so many. */
uint32
idem_keypage_number(uint32 hash, uint32 pages)
{
	int			bits = pg_leftmost_one_pos32(pages);
	uint32		page = hash & idem_keypage_mask(bits + 1);

	return page < pages ? page : hash & idem_keypage_mask(bits);
}

void
idem_keypage_init(Buffer buffer, uint64 seed)
{
	idem_keypage_make(buffer);
	memset(idem_keypage_of(buffer), 0, offsetof(IdemKeyPage, entries) + IDEM_KEYPAGE_ENTRIES * sizeof(uint64));
	idem_keypage_of(buffer)->seed = seed;
}

bool
idem_keypage_place(IdemKeyPage *page, uint64 entry)
{
	int			place = first_place(idem_keypage_hash_in(entry));
	int			free = -1;

	page->changes++;
	if (entry == NO_ENTRY)
		return false;
	for (int n = 0; n < IDEM_KEYPAGE_ENTRIES && page->entries[place] != NO_ENTRY; n++)
	{
		if (page->entries[place] == entry)
			return true;
		if (page->entries[place] == REMOVED && free < 0)
			free = place;
		place = next_place(place);
	}
	if (free < 0 && page->entries[place] != NO_ENTRY)
		return false;
	if (free < 0)
	{
		page->used++;
		free = place;
	}
	page->entries[free] = entry;
	return true;
}

int
idem_keypage_collect(const IdemKeyPage *page, uint32 hash, uint64 *found, int most)
{
	int			place = first_place(hash);
	int			n = 0;

	for (int i = 0; i < IDEM_KEYPAGE_ENTRIES && page->entries[place] != NO_ENTRY; i++)
	{
		uint64		entry = page->entries[place];

		if (entry != REMOVED && idem_keypage_hash_in(entry) == hash)
		{
			if (n < most)
				found[n] = entry;
			n++;
		}
		place = next_place(place);
	}
	return n;
}

void
idem_keypage_tid(uint64 entry, ItemPointerData *tid)
{
	ItemPointerSet(tid, (entry >> OFFSET_BITS) & (((uint64) 1 << BLOCK_BITS) - 1),
				   entry & (((uint64) 1 << OFFSET_BITS) - 1));
}

void
idem_keypage_remove(IdemKeyPage *page, uint64 entry)
{
	int			place = first_place(idem_keypage_hash_in(entry));

	for (int i = 0; i < IDEM_KEYPAGE_ENTRIES && page->entries[place] != NO_ENTRY; i++)
	{
		if (page->entries[place] == entry)
		{
			page->entries[place] = REMOVED;
			page->changes++;
			return;
		}
		place = next_place(place);
	}
}

int
idem_keypage_list(const IdemKeyPage *page, uint64 *entries)
{
	int			n = 0;

	for (int i = 0; i < IDEM_KEYPAGE_ENTRIES; i++)
	{
		if (page->entries[i] != NO_ENTRY && page->entries[i] != REMOVED)
			entries[n++] = page->entries[i];
	}
	return n;
}

/* Take all entries out of a page, and give them; returns how many. */
static int
take_entries(IdemKeyPage *page, uint64 *entries)
{
	int			n = idem_keypage_list(page, entries);

	memset(page->entries, 0, IDEM_KEYPAGE_ENTRIES * sizeof(uint64));
	page->used = 0;
	return n;
}

void
idem_keypage_compact(IdemKeyPage *page)
{
	uint64		entries[BLCKSZ / sizeof(uint64)];
	int			n = take_entries(page, entries);

	for (int i = 0; i < n; i++)
		(void) idem_keypage_place(page, entries[i]);
}

void
idem_keypage_deal(IdemKeyPage *low, IdemKeyPage *high, int bits)
{
	uint64		entries[BLCKSZ / sizeof(uint64)];
	int			n = take_entries(low, entries);

	low->bits = high->bits = bits;
	high->incomplete = low->incomplete;
	high->thinned = low->thinned;

	/*
	 * who looked at the page before compares with either, and must find a
	 * change
	 */
	high->changes = ++low->changes;
	for (int i = 0; i < n; i++)
		(void) idem_keypage_place(idem_keypage_hash_in(entries[i]) & ((uint32) 1 << (bits - 1)) ? high : low, entries[i]);
}
