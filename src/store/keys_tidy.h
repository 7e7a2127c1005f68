/*-------------------------------------------------------------------------
 *
 * keys_tidy.h
 *		Which entries of an event need not be there?
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_tidy.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_KEYS_TIDY_H
#define IDEM_STORE_KEYS_TIDY_H

#include "postgres.h"

#include "storage/itemptr.h"
#include "utils/uuid.h"

#include "store/keys_head.h"

/*
 * Remove entries that need not be there of an event with many: an id that was tried
 * and rolled back a thousand times, or used anew as often.
 */
extern void idem_keys_tidy(IdemKeys *keys, const pg_uuid_t *digest, IdemKeysShape *shape);

/* The same for all events of a page, which has little room left. */
extern void idem_keys_sweep(IdemKeys *keys, uint32 hash, IdemKeysShape *shape);

/* Is nothing of the event at this place that anybody will ever see? */
extern bool idem_keys_is_needless(IdemKeys *keys, const pg_uuid_t *digest, const ItemPointerData *tid);

#endif							/* IDEM_STORE_KEYS_TIDY_H */
