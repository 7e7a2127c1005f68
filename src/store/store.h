/*-------------------------------------------------------------------------
 *
 * store.h
 *		The dedup store: which events were completed?
 *
 * Only src/store knows how entries are kept.  Callers see the status of an
 * event, and references to rows of their own transaction, which they hand back
 * to the store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/store.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_H
#define IDEM_STORE_H

#include "postgres.h"

#include "compat.h"
#include "store/entry.h"

typedef struct IdemStore IdemStore;

/*
 * Open the store for the current command; close it in the same command.  The
 * locks of a store that was opened for writing stay until the (sub)transaction
 * ends; a store that only reads gives its locks back.  After an error no close
 * is needed.
 */
extern IdemStore *idem_store_open(bool for_write);
extern void idem_store_close(IdemStore *store);

/*
 * Look for an event as of now, whatever the caller's snapshot; uncommitted work
 * of others counts.  The store is open for writing.  A caller that does not
 * hold the event's lock gets an answer that may be outdated at once.
 */
extern void idem_store_probe(IdemStore *store, const pg_uuid_t *digest, IdemRow *row);

/*
 * Look for an event as this transaction sees it; in READ COMMITTED as of now.
 * Never IDEM_ROW_BUSY.  In SERIALIZABLE the look-up counts as a read of the
 * event, or of its absence.  result: NULL, or gets a copy of the result of a
 * completed event; has_result tells whether there is one.
 */
extern void idem_store_look_up(IdemStore *store, const pg_uuid_t *digest, IdemRow *row,
							   Datum *result, bool *has_result);

/*
 * Write n <= IDEM_STORE_CHUNK entries, of events that have no entry of that turn.
 * Sets their ref.
 */
extern void idem_store_insert(IdemStore *store, IdemNewEntry *entries, int n);

/*
 * Remove a row that this transaction inserted.  Error 40001 if somebody else
 * changed it meanwhile.
 */
extern void idem_store_delete(IdemStore *store, const pg_uuid_t *digest, const IdemEntryRef *ref);

/*
 * Call it when something was written elsewhere that expires so many seconds after "now", by
 * the time of the store (shared/uptime.h), which goes on only while the store is maintained.
 */
extern void idem_store_note_expiry(int64 now, int64 seconds);

/* The relation that a store for writing locks in RowExclusiveLock. */
extern Oid	idem_store_lock_oid(void);

/*
 * The entry that decides about an event, as the active snapshot sees it: its
 * turn, 0 if there is none.  *run: the number of the run that has its newest copy, 0
 * for a segment.  As long as the snapshot lives the answer is the same, unless the
 * entry expires.
 */
extern int16 idem_store_decider(IdemStore *store, const pg_uuid_t *digest, int64 *run);

#endif							/* IDEM_STORE_H */
