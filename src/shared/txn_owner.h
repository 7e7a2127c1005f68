/*-------------------------------------------------------------------------
 *
 * txn_owner.h
 *		Gives locks to the (sub)transaction, whichever portal runs.
 *
 * A function that a cursor calls runs under the resource owner of the cursor's
 * portal.  A portal that was opened before a savepoint and fails after it gives
 * its locks back at ROLLBACK TO; the rows that its earlier fetches wrote stay.
 * DDL that counts on those locks (REINDEX CONCURRENTLY waits for the lockers of
 * the table) then misses the rows.  A lock that guards rows of a transaction
 * belongs to the owner of the subtransaction that wrote the rows: it falls with
 * the rows, or at the end of the transaction.
 *
 * Use, around everything that takes a lock to the end of the transaction, and
 * around what closes relations and scans that were opened in this way:
 *
 *		ResourceOwner saved = idem_txn_owner_enter();
 *		...
 *		idem_txn_owner_leave(saved);
 *
 * Between the two also core functions take their locks for the transaction: a
 * heap insert those on the TOAST table and its index.  An error needs no leave:
 * the abort of a (sub)transaction sets the current owner anew, and everything
 * that was opened belongs to the subtransaction that aborts.
 *
 * LOCKING: none of its own; this file says whose the locks of its callers are.
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

#endif							/* IDEM_TXN_OWNER_H */
