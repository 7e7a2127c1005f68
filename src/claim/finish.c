/*-------------------------------------------------------------------------
 *
 * finish.c
 *		Acts on a transaction's claims at COMMIT and PREPARE TRANSACTION.
 *
 * An undecided claim is most likely due to a handler that returned early.  If
 * the effect were committed without the completion, the effect could be made
 * twice.  So COMMIT fails, unless the user asked to keep such claims as in
 * progress.
 *
 * A transaction that completed a claim is committed synchronously: its client
 * acknowledges the event to a broker right after the commit, and the broker
 * forgets the event.  ForceSyncCommit forces the local flush without touching
 * settings.  Where synchronous standbys are configured and the session would
 * not wait for them, this file raises synchronous_commit for the rest of the
 * transaction.
 *
 * The callback runs before the commit is irrevocable, so the callback may
 * fail.
 *
 * LOCKING: as claim.c.
 *
 * MEMORY: the context of the committing transaction.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/finish.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "utils/guc.h"
#include "utils/snapmgr.h"

#include "compat.h"
#include "claim/call.h"
#include "claim/finish.h"
#include "claim/setting.h"
#include "claim/state.h"
#include "store/store.h"
#include "shared/error.h"
#include "shared/fault.h"

/*
 * What to do about an undecided claim.  Where no transaction block is open, the cause is
 * most likely autocommit: the claim was a statement of its own.
 */
static int
hint_pending(bool request)
{
	if (!IsTransactionBlock())
		return request ?
			errhint("No transaction block was open, so the transaction ended with the statement, as in autocommit mode. Call claim_request, make the effect and call complete_request in one transaction, or claim with a lease.") :
			errhint("No transaction block was open, so the transaction ended with the statement, as in autocommit mode. Call claim_event, make the effect and call complete_event in one transaction.");
	return request ?
		errhint("Call complete_request after the effect, in the same transaction. If the effect was not made, roll back, or call release_request or fail_request.") :
		errhint("Call complete_event after the effect, in the same transaction. If the effect was not made, roll back, or call release_event.");
}

/* Refuse to commit; name the first undecided claim. */
pg_noreturn static void
report_pending(void)
{
	int64		n = idem_state_counts()->pending;
	IdemClaim  *first = idem_state_pending()[0];

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_UNCOMPLETED_CLAIM),
			 errmsg("%s was claimed but neither completed nor released",
					idem_claim_title(&first->key)),
			 errdetail_plural("The transaction ends with %lld undecided claim; it is for consumer \"%s\".",
							  "The transaction ends with %lld undecided claims; this one is for consumer \"%s\".",
							  (unsigned long) n, (long long) n,
							  pnstrdup(first->key.consumer, first->key.consumerlen)),
			 hint_pending(first->key.scopelen > 0)));
}

/*
 * Write a claim's row as in progress.  A claim that took over such a row writes
 * another one: the steps of this transaction are in no older snapshot, and only
 * a row that is not in it either makes a claim fail there (40001).
 */
static void
keep_claim(IdemStore *store, IdemClaim *claim)
{
	IdemNewEntry row;

	if (claim->state.row_kind == IDEM_CLAIM_OWN_ROW)
		idem_store_delete(store, &claim->key.digest, &claim->state.row);

	row = idem_call_row(claim);
	idem_store_insert(store, &row, 1);
	IDEM_FAULT_POINT("claim-kept");
}

/* Write all undecided claims as in progress. */
static void
keep_pending(void)
{
	int64		n = idem_state_counts()->pending;
	IdemClaim **pending = idem_state_pending();
	IdemStore  *store = idem_store_open(true);

	/* COMMIT has no active snapshot; TOAST needs one */
	PushActiveSnapshot(GetTransactionSnapshot());
	for (int64 i = 0; i < n; i++)
		keep_claim(store, pending[i]);
	PopActiveSnapshot();
	idem_store_close(store);
	pfree(pending);
}

/* Make this commit wait for its flush and for synchronous standbys. */
static void
force_durable_commit(void)
{
	ForceSyncCommit();
	if (max_wal_senders > 0 && IDEM_SYNC_STANDBYS_DEFINED() &&
		synchronous_commit < SYNCHRONOUS_COMMIT_REMOTE_FLUSH)
		(void) set_config_option("synchronous_commit", "on",
								 PGC_USERSET, PGC_S_SESSION,
								 GUC_ACTION_LOCAL, true, 0, false);
}

void
idem_finish_claims(bool prepare)
{
	const IdemClaimCounts *counts = idem_state_counts();

	if (counts->pending > 0)
	{
		if (idem_uncompleted_claims == IDEM_UNCOMPLETED_ERROR)
			report_pending();
		keep_pending();
	}
	if (counts->completed > 0 && idem_durable_complete)
		force_durable_commit();
	if (counts->completed > 0 && !prepare)
		IDEM_FAULT_POINT("claim-pre-commit");
	if (counts->completed > 0 && prepare)
		IDEM_FAULT_POINT("claim-pre-prepare");
}
