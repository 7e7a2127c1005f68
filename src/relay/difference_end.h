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

extern Size idem_difference_shmem_size(void);
extern void idem_difference_shmem_attach(void *segment, bool found);

/*
 * idem_config_committing: the current transaction, which changed relays, is
 * about to commit. idem_config_committed: the transaction has ended.  Safe in
 * commit callbacks.
 */
extern void idem_config_committing(FullTransactionId xid);
extern void idem_config_committed(void);

/*
 * idem_config_prepared notes that a transaction which changes relays was
 * prepared; it is safe in a commit callback.  idem_config_was_prepared consumes
 * one note.  COMMIT PREPARED cannot identify its transaction, so the answer is
 * approximate; workers read the configuration now and then by themselves.
 */
extern void idem_config_prepared(void);
extern bool idem_config_was_prepared(void);

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
