/*-------------------------------------------------------------------------
 *
 * difference_end.h
 *		How far a difference may go: no further than the configuration is known.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/difference_end.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_DIFFERENCE_END_H
#define IDEM_RELAY_DIFFERENCE_END_H

#include "postgres.h"

#include "outbox/snapshot.h"
#include "relay/shmem.h"

/* Called once, at the start of a worker, with the worker's slot. */
extern void idem_difference_init(IdemWorkerSlot *slot);

/*
 * Have relays changed since they were read?  Then the worker reads them again
 * soon.
 */
extern bool idem_difference_config_changed(void);

/*
 * Some transaction committed.  Check whether it was a listed prepared
 * transaction, which may have changed relays.
 */
extern void idem_difference_woken(void);

/*
 * The three steps of reading the relays.  ..._begin: before the transaction
 * that reads them.  ..._snapshot: at the beginning of that transaction, before
 * the read.  ..._end: when all relays of the worker have the new
 * configuration.  After an error in between the former configuration counts.
 */
extern void idem_difference_load_begin(void);
extern void idem_difference_load_snapshot(void);
extern void idem_difference_load_end(void);

/*
 * In a transaction: the snapshot at which a difference that begins now may
 * end; palloc'd.  *newest: it is the active snapshot.  Else it is the snapshot
 * at which the relays were read last, which may be older than a relay's
 * position; once the relays are read again, each relay has to look again.
 */
extern IdemSnap *idem_difference_take(bool *newest);

#endif							/* IDEM_RELAY_DIFFERENCE_END_H */
