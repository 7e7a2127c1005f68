/*-------------------------------------------------------------------------
 *
 * durable.h
 *		Waits until the commits that a snapshot saw can no longer be
 *		un-committed.
 *
 * A committed transaction that is visible may still be lost.  It committed
 * asynchronously and its WAL is not flushed; or it is waiting for a
 * synchronous standby; or it gave that wait up.  Use:
 *
 *		target = idem_durable_target(largest commit LSN seen);
 *		idem_durable_wait(target);
 *
 * A transaction whose own commit must not be lost calls idem_durable_force_commit.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/durable.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_DURABLE_H
#define IDEM_DURABLE_H

#include "postgres.h"

#include "access/transam.h"
#include "access/xlogdefs.h"

/*
 * TransactionIdGetCommitLSN() of a committed transaction, however old.  A
 * transaction that has left the commit log was flushed long ago; its answer is
 * InvalidXLogRecPtr.
 */
extern XLogRecPtr idem_durable_commit_lsn(FullTransactionId xid);

/*
 * Did a transaction that has ended abort?  False also if it has left the
 * commit log.
 */
extern bool idem_durable_did_abort(FullTransactionId xid);

/*
 * Flush WAL up to commit_lsn (InvalidXLogRecPtr: nothing to flush), the
 * largest TransactionIdGetCommitLSN() of the transactions in question.  Return
 * the position that a standby must have for these transactions to survive a
 * failover.
 */
extern XLogRecPtr idem_durable_target(XLogRecPtr commit_lsn);

/* Are synchronous standbys configured, so that a commit may wait for one? */
extern bool idem_durable_awaits_standby(void);

/*
 * Has a synchronous standby confirmed the position, or is no standby
 * configured?  Never waits.
 */
extern bool idem_durable_reached(XLogRecPtr target);

/*
 * Wait until idem_durable_reached() is true.  Serves interrupts, so a cancel
 * or a timeout ends the wait with an error.  Call it without LWLocks and
 * buffer locks.
 */
extern void idem_durable_wait(XLogRecPtr target);

/*
 * Make the commit of this transaction wait for its flush and for synchronous standbys,
 * whatever synchronous_commit is.  Call it at any time before the commit.
 * idem_durable_commits is for the callbacks before COMMIT and PREPARE, after all that
 * may ask for it; idem_durable_ended for the end of the transaction.
 */
extern void idem_durable_force_commit(void);
extern void idem_durable_commits(void);
extern void idem_durable_ended(void);

#endif							/* IDEM_DURABLE_H */
