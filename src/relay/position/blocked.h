/*-------------------------------------------------------------------------
 *
 * blocked.h
 *		Keys whose events wait in the outbox, behind a refused event.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/position/blocked.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_POSITION_BLOCKED_H
#define IDEM_RELAY_POSITION_BLOCKED_H

#include "postgres.h"

#include "utils/hsearch.h"

#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/position/parked_index.h"

/* So many events of a key wait as copies behind its first one. */
#define IDEM_BLOCKED_COPIES 100

/*
 * Is the event one of those that wait in the outbox?  Then the relay passes it.  ..._has_at:
 * the event at that place, whose key has the hash.
 */
extern bool idem_blocked_has(const IdemParkedIndex *index, const IdemEvent *event);
extern bool idem_blocked_has_at(const IdemParkedIndex *index, uint64 hash, FullTransactionId xid, int64 seq);

/*
 * Let an event of the outbox wait behind another event of its key: as a parked copy, or, if
 * many copies wait already, in the outbox, with all later events of the key.  read: the
 * difference that the event is read from.
 */
extern void idem_blocked_wait(IdemParkedIndex *index, const IdemRelayConfig *config,
							  const IdemEvent *event, const IdemPosition *read);

/*
 * For keys that are free, read events from the outbox and park them as waiting ones, up to
 * "read", which the relay has read.  Works for some milliseconds.  In a transaction, whose
 * commit has to be flushed if *wrote.  waits: wait for other transactions' locks.  False if
 * another transaction has locked a row, and nobody waits for it.
 */
extern bool idem_blocked_refill(IdemParkedIndex *index, const IdemRelayConfig *config,
								const IdemPosition *read, bool waits, bool *wrote);

/* Forget all blocked keys of the relay, whose position was lost: all events are sent again. */
extern void idem_blocked_forget(int relay_id);

/*
 * Of each relay with blocked keys the snapshot that sees all events which none of them has
 * in the outbox: a hash of the current context, for ..._base, which returns NULL for a
 * relay without blocked keys.
 */
extern HTAB *idem_blocked_bases(void);
extern IdemSnap *idem_blocked_base(HTAB *bases, int relay_id);

/* Does the relay let the event, which is in the outbox, wait there? */
extern bool idem_blocked_keeps(int relay_id, const IdemEvent *event);

/*
 * A blocked key in memory; of parked_load.c.  ..._from: its events are those after this
 * position; valid until the next change.
 */
extern IdemPosition idem_blocked_from(const IdemBlockedKey *key);
extern void idem_blocked_stand(IdemParkedIndex *index, IdemBlockedKey *key, const IdemPosition *from);
extern IdemBlockedKey *idem_blocked_add(IdemParkedIndex *index, uint64 hash, int64 blocked_id,
										const IdemPosition *from);
extern void idem_blocked_remove(IdemParkedIndex *index, IdemBlockedKey *key);

#endif							/* IDEM_RELAY_POSITION_BLOCKED_H */
