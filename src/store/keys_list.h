/*-------------------------------------------------------------------------
 *
 * keys_list.h
 *		Where the rows of an event stand in a segment, on a standby.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/keys_list.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_KEYS_LIST_H
#define IDEM_STORE_KEYS_LIST_H

#include "postgres.h"

#include "storage/itemptr.h"
#include "utils/relcache.h"
#include "utils/uuid.h"

/*
 * On a standby, which has no keys: visit each place where the segment may have a row of
 * the event.  again: for no newer snapshot than the last time.
 */
extern void idem_keys_list_visit(int number, Relation heap, const pg_uuid_t *digest, bool again,
								 void (*visit) (ItemPointerData *tid, void *arg), void *arg);

#endif							/* IDEM_STORE_KEYS_LIST_H */
