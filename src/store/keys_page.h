/*-------------------------------------------------------------------------
 *
 * keys_page.h
 *		A page of keys: entries of 8 bytes, placed by a hash.
 *
 * Private to keys.c, keys_head.c and ring.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_page.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_KEYS_PAGE_H
#define IDEM_STORE_KEYS_PAGE_H

#include "postgres.h"

#include "storage/buf.h"
#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

typedef struct IdemKeyPage
{
	uint64		seed;			/* of the keys that the page belongs to */
	uint32		changes;		/* counts them */
	uint16		used;			/* entries, and removed ones */
	uint8		bits;			/* of a hash, which all that belong here share */
	bool		incomplete;		/* a row found no place */
	bool		thinned;		/* entries went whose rows older snapshots see */
	uint64		entries[FLEXIBLE_ARRAY_MEMBER];
} IdemKeyPage;

/*
 * A page is special space, so that it looks like a page without rows.  PageInit
 * wants some bytes of room before it.
 */
#define IDEM_KEYPAGE_BYTES \
	(BLCKSZ - MAXALIGN(SizeOfPageHeaderData) - MAXIMUM_ALIGNOF)

#define IDEM_KEYPAGE_ENTRIES \
	((int) ((IDEM_KEYPAGE_BYTES - offsetof(IdemKeyPage, entries)) / sizeof(uint64)))

/* With more entries in a page, another page is split. */
#define IDEM_KEYPAGE_MANY	(IDEM_KEYPAGE_ENTRIES * 2 / 3)

/* So many bits has a hash. */
#define IDEM_KEYPAGE_HASH_BITS	29

/* The hash of an event's digest. */
extern uint32 idem_keypage_hash(const pg_uuid_t *digest, uint64 seed);

/* The last of so many bits are set. */
static inline uint32
idem_keypage_mask(int bits)
{
	return ((uint32) 1 << bits) - 1;
}

/* The page of a hash, of so many. */
extern uint32 idem_keypage_number(uint32 hash, uint32 pages);

/* Read and lock a block; UnlockReleaseBuffer gives both back. */
extern Buffer idem_keypage_lock(Relation rel, BlockNumber block, int mode);

/* Make it an empty page. */
extern void idem_keypage_make(Buffer buffer);

/* What a page, or the head, has behind the server's header. */
extern void *idem_keypage_data(Buffer buffer);

static inline IdemKeyPage *
idem_keypage_of(Buffer buffer)
{
	return idem_keypage_data(buffer);
}

/* Make it a page of keys without entries. */
extern void idem_keypage_init(Buffer buffer, uint64 seed);

/* An entry, which a page has no place for if the block is beyond 128 GB; and the place that it names. */
extern uint64 idem_keypage_entry(uint32 hash, const ItemPointerData *tid);
extern void idem_keypage_tid(uint64 entry, ItemPointerData *tid);

/*
 * Put an entry into a page, if it is not there; false if there is no place.  It counts as
 * a change either way: the row at this place may be another one than before.
 */
extern bool idem_keypage_place(IdemKeyPage *page, uint64 entry);
extern void idem_keypage_remove(IdemKeyPage *page, uint64 entry);

/* The entries of a hash, as many as fit; returns how many there are. */
extern int	idem_keypage_collect(const IdemKeyPage *page, uint32 hash, uint64 *found, int most);

/* All entries of a page, at most IDEM_KEYPAGE_ENTRIES; returns how many. */
extern int	idem_keypage_list(const IdemKeyPage *page, uint64 *entries);

/* Remove what was removed from the places as well, so that there is room again. */
extern void idem_keypage_compact(IdemKeyPage *page);

/* The hash of an entry. */
extern uint32 idem_keypage_hash_in(uint64 entry);

/* Give each entry of a page to one of two, the second of which has none. */
extern void idem_keypage_deal(IdemKeyPage *low, IdemKeyPage *high, int bits);

#endif							/* IDEM_STORE_KEYS_PAGE_H */
