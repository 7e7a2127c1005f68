/*-------------------------------------------------------------------------
 *
 * wake.h
 *		Wakes the workers of a database at commits that concern them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/wake.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_WAKE_H
#define IDEM_RELAY_WAKE_H

#include "postgres.h"

/* Install the hook of enqueue; at preload only. */
extern void idem_wake_init(void);

/*
 * The current transaction changed relays: at its commit the database's workers
 * read the configuration again.
 */
extern void idem_relay_config_changed(void);

/*
 * At the commit of the current transaction the launcher looks for databases
 * with relays again.
 */
extern void idem_wake_launcher_at_commit(void);

/*
 * The current transaction is about to commit, has committed, was prepared, has aborted.
 * Not in these calls, but when the invalidation messages of a commit are sent, workers
 * and launcher hear of changed relays.
 */
extern void idem_wake_committing(void);
extern void idem_wake_committed(void);
extern void idem_wake_prepared(void);
extern void idem_wake_aborted(void);

/*
 * Called after COMMIT PREPARED: wake the workers, since this session does not
 * know whether the prepared transaction enqueued or changed relays.
 */
extern void idem_wake_committed_prepared(void);

#endif							/* IDEM_RELAY_WAKE_H */
