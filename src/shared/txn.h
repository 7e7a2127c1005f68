/*-------------------------------------------------------------------------
 *
 * txn.h
 *		Transactions of a worker: READ COMMITTED, committed locally.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/txn.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_SHARED_TXN_H
#define IDEM_SHARED_TXN_H

#include "postgres.h"

/*
 * Begin a transaction, with an active snapshot.  Its end switches back to the
 * memory context that is current now.
 */
extern void idem_txn_begin(void);

/*
 * Commit the transaction.  Workers run with synchronous_commit = local, so no
 * standby is waited for.  "synchronous" makes the commit wait for the disk
 * whatever the setting is.
 */
extern void idem_txn_commit(bool synchronous);

#endif							/* IDEM_SHARED_TXN_H */
