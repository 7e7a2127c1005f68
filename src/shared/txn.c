/*-------------------------------------------------------------------------
 *
 * txn.c
 *		Transactions of a worker: READ COMMITTED, committed locally.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/txn.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"

#include "shared/txn.h"

/*
 * The caller's context, to switch back to: before 18 a commit leaves its
 * caller in TopMemoryContext, which nobody resets.
 */
static MemoryContext callers_context;

void
idem_txn_begin(void)
{
	callers_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
idem_txn_commit(bool synchronous)
{
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	if (synchronous)
		ForceSyncCommit();
	CommitTransactionCommand();
	MemoryContextSwitchTo(callers_context);
}
