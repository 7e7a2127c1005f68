/*-------------------------------------------------------------------------
 *
 * keys.h
 *		Where the rows of an event stand in a segment of the open ring.
 *
 * The keys of a segment say where to look, and never what is true: what they
 * name may be gone, or be another event's; but a row that is there is named.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_KEYS_H
#define IDEM_STORE_KEYS_H

#include "postgres.h"

#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

/* The keys of an open segment. */
typedef struct IdemKeys
{
	int			number;			/* of the segment */
	Relation	heap;			/* the segment, which the caller has locked */
	Relation	rel;
} IdemKeys;

/* Keys are open as long as the segment.  Error 55000 if their sequence is logged. */
extern void idem_keys_open(IdemKeys *keys, int number, Relation heap);
extern void idem_keys_close(IdemKeys *keys);

/* Name a row, which stands in the segment already. */
extern void idem_keys_enter(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid);

/* The most places that a look-up tells. */
#define IDEM_KEYS_MOST		32

/*
 * Where may rows of the event stand?  Sets tids and returns how many; each is within
 * the file.  Returns -1 if the keys cannot tell: then the segment has to be read.
 * Keys that are not there are made.
 *
 * *thinned: of rows with the same digest, all committed, perhaps only the one with the
 * highest turn is named.
 */
extern int	idem_keys_find(IdemKeys *keys, const pg_uuid_t *digest,
						   ItemPointerData tids[IDEM_KEYS_MOST], bool *thinned);

/* Is nothing of the event at this place that anybody will ever see? */
extern bool idem_keys_is_needless(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid);

/* Somebody has deleted or updated a row by hand. */
extern void idem_keys_make_anew(IdemKeys *keys);

/*
 * Forget all keys of a segment, on which the caller has AccessExclusiveLock; false if the
 * sequence is being altered.
 */
extern bool idem_keys_forget(int number);

/*
 * On a standby, which has no keys: visit each place where the segment may have a row of
 * the event.  again: for no newer snapshot than the last time.
 */
extern void idem_keys_list_visit(int number, Relation heap, const pg_uuid_t *digest, bool again,
								 void (*visit) (ItemPointerData *tid, void *arg), void *arg);

#endif							/* IDEM_STORE_KEYS_H */
