/*-------------------------------------------------------------------------
 *
 * keys_head.h
 *		The head of the keys of a segment, and what a session remembers of it.
 *
 * Private to src/store/keys*.c, but for IdemKeys.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_head.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_KEYS_HEAD_H
#define IDEM_STORE_KEYS_HEAD_H

#include "postgres.h"

#include "storage/block.h"
#include "storage/bufpage.h"
#include "utils/relcache.h"

#include "shared/catalog.h"
#include "store/keys_page.h"
#include "store/segment.h"

/* The keys of an open segment. */
typedef struct IdemKeys
{
	int			number;			/* of the segment */
	Relation	heap;			/* the segment, which the caller has locked */
	Relation	rel;
} IdemKeys;

/* The most places that a look-up tells. */
#define IDEM_KEYS_MOST		32

/* Blocks of the file; the first one is the sequence's own. */
#define IDEM_KEYS_HEAD_BLOCK	1
#define IDEM_KEYS_FIRST_PAGE	2

/* Of the layout of head, pages and entries. */
#define IDEM_KEYS_LAYOUT		0x4b455931U

typedef enum IdemKeysState
{
	IDEM_KEYS_ABSENT,
	IDEM_KEYS_FILLING,
	IDEM_KEYS_READY
} IdemKeysState;

/* The row of the trigger "store_keyed" in pg_trigger. */
typedef struct IdemKeysWitness
{
	TransactionId xmin;
	BlockNumber block;
	uint32		offset;
} IdemKeysWitness;

typedef struct IdemKeysHead
{
	uint32		layout;
	uint32		state;
	uint64		seed;			/* of the hash */
	uint32		of;				/* the segment's file, whose rows have entries */
	uint32		pages;
	IdemKeysWitness witness;
	uint32		round;			/* counts how often it was begun to fill these
								 * keys */
	BlockNumber next;			/* while FILLING, the block that comes next, */
	BlockNumber until;			/* and the length; InvalidBlockNumber: not
								 * read yet */
} IdemKeysHead;

/* What is needed to look at the pages. */
typedef struct IdemKeysShape
{
	uint32		pages;
	uint64		seed;
} IdemKeysShape;

/* Keys are open as long as the segment.  Error 55000 if their sequence is logged. */
extern void idem_keys_open(IdemKeys *keys, int number, Relation heap);
extern void idem_keys_close(IdemKeys *keys);

extern IdemRelRef idem_store_keys[IDEM_STORE_SEGMENTS];

/*
 * Does the trigger fire always?  After this, what the session remembers of the keys is
 * true.
 */
extern bool idem_keys_are_trusted(IdemKeys *keys);

/* The seed of the keys that were used last. */
extern uint64 idem_keys_seed(const IdemKeys *keys);

/* The trigger's row as it was when the session asked last. */
extern IdemKeysWitness idem_keys_witness(const IdemKeys *keys);

/*
 * Read the head; ABSENT if the keys are not there or are another file's.  Remembers it
 * while it is READY.
 */
extern IdemKeysState idem_keys_read_head(IdemKeys *keys, IdemKeysShape *shape);

/* The same, or what the session remembers of it; the keys are trusted. */
extern IdemKeysState idem_keys_get_head(IdemKeys *keys, IdemKeysShape *shape);

/* Is it the head of keys of this file, which know the trigger as it is? */
extern bool idem_keys_is_ours(IdemKeys *keys, const IdemKeysHead *head);

/* Is what the session remembers still true? */
extern bool idem_keys_are_unchanged(IdemKeys *keys);

/*
 * Lock the page of a hash.  The shape is what the head said; there may be more pages by
 * now.  InvalidBuffer if these keys are gone.
 */
extern Buffer idem_keys_lock_page(IdemKeys *keys, uint32 hash, IdemKeysShape *shape, int mode);

#endif							/* IDEM_STORE_KEYS_HEAD_H */
