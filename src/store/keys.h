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
#include "utils/uuid.h"

#include "store/keys_head.h"

/* Name a row, which stands in the segment already. */
extern void idem_keys_enter(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid);

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

#endif							/* IDEM_STORE_KEYS_H */
