/*-------------------------------------------------------------------------
 *
 * txn_owner.h
 *		Gives locks to the (sub)transaction, whichever portal runs.
 *
 * A function that a cursor calls runs under the resource owner of the cursor's
 * portal.  A portal that was opened before a savepoint and fails after it
 * gives its locks back at ROLLBACK TO.  The rows that its earlier fetches
 * wrote stay.  DDL that relies on those locks then misses the rows: REINDEX
 * CONCURRENTLY, for example, waits for the lockers of the table.  So a lock
 * that guards rows of a transaction must belong to the owner of the
 * subtransaction that wrote the rows.  Such a lock falls with the rows, or at
 * the end of the transaction.
 *
 * Use these functions around everything that takes a lock to the end of the
 * transaction, and around the closing of relations and scans that were opened
 * in this way:
 *
 *		ResourceOwner saved = idem_txn_owner_enter();
 *		...
 *		idem_txn_owner_leave(saved);
 *
 * Between the two calls, functions of the server take their locks for the
 * transaction, too: e.g. a heap insert its locks on the TOAST table and its
 * index.  After an error no leave is needed: the abort of a (sub)transaction
 * sets the current owner anew, and everything that was opened belongs to the
 * subtransaction that aborts.
 *
 * LOCKING: none of its own; this file decides who owns the locks of its
 * callers.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/txn_owner.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_TXN_OWNER_H
#define IDEM_TXN_OWNER_H

#include "postgres.h"

#include "storage/lmgr.h"
#include "utils/resowner.h"

/* From here on resources belong to the current (sub)transaction. */
static inline ResourceOwner
idem_txn_owner_enter(void)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = CurTransactionResourceOwner;
	return saved;
}

/* From here on resources belong to the owner that was current before. */
static inline void
idem_txn_owner_leave(ResourceOwner saved)
{
	CurrentResourceOwner = saved;
}

/* Lock a relation to the end of the (sub)transaction. */
static inline void
idem_txn_lock(Oid relid, LOCKMODE mode)
{
	ResourceOwner saved = idem_txn_owner_enter();

	LockRelationOid(relid, mode);
	idem_txn_owner_leave(saved);
}

#endif							/* IDEM_TXN_OWNER_H */
