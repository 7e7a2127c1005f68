/*-------------------------------------------------------------------------
 *
 * target.h
 *		How far a difference may go: no further than the configuration is known.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/target.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_TARGET_H
#define IDEM_RELAY_TARGET_H

#include "postgres.h"

#include "outbox/snapshot.h"
#include "relay/shmem.h"

/* At the start of a worker, whose slot this is. */
extern void idem_target_init(IdemWorkerSlot *slot);

/* Have relays changed since they were read?  Then read them again, soon. */
extern bool idem_target_config_changed(void);

/* Some transaction committed; perhaps a prepared one that changed relays. */
extern void idem_target_woken(void);

/*
 * The relays are read between the first two, which come outside of a transaction and
 * at the beginning of the one that reads, and the last, which comes when all relays
 * of the worker have the new configuration.  After an error the former one counts.
 */
extern void idem_target_load_begin(void);
extern void idem_target_load_snapshot(void);
extern void idem_target_load_end(void);

/*
 * In a transaction: where a difference that begins now may end; palloc'd.  *newest:
 * that is the active snapshot.  Else it is the one at which relays were read last,
 * which may be older than where a relay stands; once they are read again, each relay
 * has to look again.
 */
extern IdemSnap *idem_target_take(bool *newest);

#endif							/* IDEM_RELAY_TARGET_H */
