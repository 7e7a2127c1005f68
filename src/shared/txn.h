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

/* Begin one, with an active snapshot; its end comes back to the present context. */
extern void idem_txn_begin(void);

/*
 * Commit it.  Workers run with synchronous_commit = local, so no standby is
 * waited for.  "synchronous" is for what has to be on disk whatever that says.
 */
extern void idem_txn_commit(bool synchronous);

#endif							/* IDEM_SHARED_TXN_H */
