/*-------------------------------------------------------------------------
 *
 * keys_fill.h
 *		Makes the keys of a segment, enters rows, and gives the keys up.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_fill.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_KEYS_FILL_H
#define IDEM_STORE_KEYS_FILL_H

#include "postgres.h"

#include "storage/itemptr.h"
#include "utils/uuid.h"

#include "store/keys_head.h"

/* Put a row's entry into its page. */
extern void idem_keys_put(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid,
						  IdemKeysShape *shape);

/*
 * Make the keys; who else needs them waits.  False if they cannot be made now, because the
 * sequence is being altered, or rows are removed by hand again and again.
 */
extern bool idem_keys_fill(IdemKeys *keys);

/* Somebody has deleted or updated a row by hand. */
extern void idem_keys_make_anew(IdemKeys *keys);

/*
 * Forget all keys of a segment, on which the caller has AccessExclusiveLock; false if the
 * sequence is being altered.
 */
extern bool idem_keys_forget(int number);

#endif							/* IDEM_STORE_KEYS_FILL_H */
