/*-------------------------------------------------------------------------
 *
 * claim.c
 *		Transactional claims: one effect per (consumer, event).
 *
 * Invariant: for one (consumer, event) at most one committed transaction saw
 * "claimed" and completed.  Every probe and claim of an event runs under the
 * event's lock, so these sections are totally ordered.  A later claim sees the
 * earlier claimant as the holder of the lock or, where the claimant gave the
 * lock back, as the writer of an uncommitted row.  Locks fall only after a
 * commit is visible.  No section waits for another transaction, so claims of
 * many events cannot deadlock, in whatever order they are made.
 *
 * An event costs one tuple.  While the transaction keeps few locks, the lock
 * is the claim, and complete_event writes the row.  Past the budget the claim
 * writes the row at once, as completed already, and gives the lock back.  The
 * transaction's own state then tells whether complete_event was called; if it
 * was not, COMMIT is refused.
 *
 * "expired" is decided where "claimed" would be given otherwise, under the
 * event's lock.  It writes nothing and keeps nothing.
 *
 * "duplicate" is an acknowledgement.  It is given only for a completion that
 * can no longer be lost.  If necessary the call waits until that is so
 * (durable.c), after it gave the event's lock back.
 *
 * A crash leaves the committed rows and nothing else.  A prepared transaction
 * keeps its locks and its uncommitted rows; later claims see that transaction
 * by its locks or by its rows.
 *
 * LOCKING: the advisory lock of each event, taken without waiting; below it
 * the table, index and buffer locks of the store.
 *
 * MEMORY: state.c has what lives as long as the transaction; all else is in
 * the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/claim.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "claim/call.h"
#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/leased.h"
#include "claim/lock.h"
#include "claim/setting.h"
#include "claim/state.h"
#include "lease/log.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "store/retention.h"
#include "store/store.h"

/* Claiming */

/*
 * Make the event this transaction's claim.  The caller holds the event's lock,
 * and the rows allow the claim.
 *
 * A claim that was released inside a later savepoint kept its lock; a new
 * claim goes on with that lock.  claim_one has locked the event a second time
 * then, and this function gives the second lock back.  So each kept lock is
 * counted once, and belongs to the subtransaction whose abort frees it.
 */
static IdemClaimResult
take(IdemCall *call, const IdemClaimKey *key, const IdemRow *row, bool has_lease)
{
	IdemClaim  *own = idem_state_find(key);
	bool		has_lock = own != NULL && own->state.lock_kept;
	bool		keep_lock = idem_call_within_budget(own);
	IdemClaim  *claim;
	IdemClaimState state;

	if (has_lock)
		idem_lock_release(key);

	claim = idem_state_get(key);
	idem_call_fill_state(call, key, row, has_lock ? claim : NULL, IDEM_PHASE_CLAIMED, &state);
	state.lock_kept = keep_lock;
	state.has_lease = has_lease;
	state.in_call = idem_claimed_consumer[0] != '\0';
	idem_state_set(claim, &state);
	if (idem_state_counts()->pending == 1)
		idem_claims_ask_first();
	IDEM_FAULT_POINT("claim-taken");

	if (!keep_lock)
		idem_call_add(call, claim, (Datum) 0, false);
	return IDEM_CLAIM_CLAIMED;
}

/*
 * The verdict on an event that this transaction cannot claim, because its
 * budget of locks is spent and the consumer has foreign lockers.  This
 * function does not take the event's lock: while this transaction held the
 * lock, transactions that can claim the event would be told "busy".  Without
 * the lock the probe may miss a completion whose row is just replacing another
 * row, and the verdict is "busy".  A completion that the probe finds is
 * committed, and no claim can undo it.
 */
static IdemClaimResult
judge_past_budget(IdemCall *call, const IdemClaimKey *key)
{
	IdemRow		row;

	call->stays_busy = true;
	idem_store_probe(call->store, &key->digest, &row);
	return row.status == IDEM_ROW_COMPLETED ? idem_call_judge(call, key, &row) : IDEM_CLAIM_BUSY;
}

/* Claim one event without waiting; steps 1 to 5 of README.md, "A claim". */
static IdemClaimResult
claim_one(IdemCall *call, IdemStr id)
{
	IdemClaimKey key;
	IdemClaim  *own;
	IdemRow		row;
	IdemClaimResult result;
	IdemLease	lease = {0};

	idem_keymaker_make(&call->keys, id.data, id.len, &key);

	own = idem_state_find(&key);
	if (own != NULL && (own->state.phase == IDEM_PHASE_CLAIMED ||
						own->state.phase == IDEM_PHASE_COMPLETED))
	{
		idem_claim_check_not_sinks(own);
		return IDEM_CLAIM_DUPLICATE;
	}

	/*
	 * An asserted lease may stay uncompleted at COMMIT, so it is no
	 * duplicate.
	 */
	if (own != NULL && (own->state.phase == IDEM_PHASE_LEASED ||
						own->state.phase == IDEM_PHASE_ASSERTED))
	{
		call->stays_busy = true;
		result = idem_leased_judge_own(&key, &lease);
		idem_lease_free_values(&lease);
		return result;
	}

	if (!idem_call_within_budget(own) && call->policy.foreign_lockers)
		return judge_past_budget(call, &key);
	if (!idem_lock_try(&key))
		return IDEM_CLAIM_BUSY;
	IDEM_FAULT_POINT("claim-locked");
	idem_store_probe(call->store, &key.digest, &row);
	IDEM_FAULT_POINT("claim-probed");
	result = idem_call_judge(call, &key, &row);
	if (result == IDEM_CLAIM_CLAIMED)
		result = idem_leased_judge(call, &key, own, &lease);

	/*
	 * Only a completion is worth more than the event's age.  A claim that was
	 * kept, and an order to forget, are not: a completion after them may have
	 * been forgotten before they are.
	 */
	if (result == IDEM_CLAIM_CLAIMED && idem_call_is_expired(call, &key, call->valid_until))
		result = IDEM_CLAIM_EXPIRED;
	if (result == IDEM_CLAIM_CLAIMED)
		result = take(call, &key, &row, lease.state != IDEM_LEASE_FREE);
	idem_lease_free_values(&lease);
	if (result == IDEM_CLAIM_CLAIMED)
		return result;
	IDEM_FAULT_POINT("claim-refused");
	idem_lock_release(&key);
	return result;
}

/*
 * A refusal that is this transaction's own doing is not tried again: past the
 * budget of locks only this transaction could free some, and it frees none while
 * it waits.
 */
IdemClaimResult
idem_claim_event(IdemStr id, IdemStr consumer, long wait_ms, const TimestampTz *valid_until)
{
	IdemClock	start = idem_clock();
	IdemClaimResult result;
	bool		stays_busy;

	do
	{
		IdemCall   *call = idem_call_begin(consumer, true);

		call->valid_until = valid_until;
		result = claim_one(call, id);
		stays_busy = call->stays_busy;
		idem_call_end(call);
	} while (result == IDEM_CLAIM_BUSY && !stays_busy && idem_call_pause(start, wait_ms));
	return result;
}

void
idem_claim_events(IdemClaimItem *items, int n, IdemStr consumer)
{
	IdemCall   *call;
	IdemClaimItem **sorted;

	if (n == 0)
		return;
	call = idem_call_begin(consumer, true);
	sorted = idem_sort_by_id(items, sizeof(*items), n);
	for (int i = 0; i < n; i++)
	{
		IdemClaimItem *item = sorted[i];
		IdemClaimItem *last = i > 0 ? sorted[i - 1] : NULL;

		CHECK_FOR_INTERRUPTS();
		if (last != NULL && idem_str_equal(last->id, item->id))
			item->result = last->result == IDEM_CLAIM_CLAIMED ?
				IDEM_CLAIM_DUPLICATE : last->result;
		else
			item->result = claim_one(call, item->id);
	}
	pfree(sorted);
	idem_call_end(call);
}

/* Completing and releasing */

/* Does the log say that the event is leased?  For an error message. */
static bool
is_leased(IdemCall *call, const IdemClaimKey *key)
{
	IdemClaimKey whole;
	IdemLease	lease;

	idem_keymaker_make(&call->keys, key->id, key->idlen, &whole);
	return idem_lease_find(NULL, &whole.digest, &lease) && lease.state == IDEM_LEASE_LEASED;
}

/* Error ID002.  claim: what the transaction has of that name, or NULL. */
pg_noreturn static void
report_not_held(IdemCall *call, const IdemClaimKey *key, const IdemClaim *claim)
{
	const char *consumer = pnstrdup(key->consumer, key->consumerlen);
	IdemClaimPhase phase = claim == NULL ? IDEM_PHASE_NONE : claim->state.phase;
	bool		decided = phase == IDEM_PHASE_COMPLETED || phase == IDEM_PHASE_RELEASED;
	const IdemClaim *other = decided ? NULL : idem_state_find_of_other(key);
	const char *other_consumer = other == NULL ? NULL :
	pnstrdup(other->key.consumer, other->key.consumerlen);
	bool		leased = other == NULL && !decided &&
	(phase != IDEM_PHASE_NONE || is_leased(call, key));

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_CLAIM_NOT_HELD),
			 errmsg("event \"%s\" is not claimed by this transaction", pnstrdup(key->id, key->idlen)),
			 phase == IDEM_PHASE_COMPLETED ?
			 errdetail("It was completed for consumer \"%s\" already.", consumer) :
			 phase == IDEM_PHASE_RELEASED ?
			 errdetail("It was released for consumer \"%s\".", consumer) :
			 other != NULL ?
			 errdetail("This transaction has it for consumer \"%s\", not for \"%s\".",
					   other_consumer, consumer) :
			 leased ?
			 errdetail("It is leased for consumer \"%s\".", consumer) :
			 errdetail("No claim for consumer \"%s\" is in effect.", consumer),
			 other != NULL ?
			 errhint("Pass the consumer \"%s\", as to claim_event.", other_consumer) :
			 leased ?
			 errhint("The holder of the lease calls complete_event with its token, or release_lease.") :
			 errhint("Call claim_event first, in the same transaction; in autocommit mode each statement is a transaction of its own. Complete or release an event once, and only if the answer is \"claimed\".")));
}

/*
 * The transaction's undecided claim of that name; error ID002 if there is
 * none.  may_be_asserted: a lease that was asserted will do.
 */
static IdemClaim *
find_held(IdemCall *call, const IdemClaimKey *key, bool may_be_asserted)
{
	IdemClaim  *claim = idem_state_find(key);

	if (claim == NULL || (claim->state.phase != IDEM_PHASE_CLAIMED &&
						  !(may_be_asserted && claim->state.phase == IDEM_PHASE_ASSERTED)))
		report_not_held(call, key, claim);
	idem_claim_check_not_sinks(claim);
	return claim;
}

/*
 * Complete one claim; error ID002 unless the transaction holds the claim
 * undecided.
 */
static void
complete_one(IdemCall *call, const IdemClaimItem *item, Datum result,
			 bool has_result)
{
	IdemClaimKey key;
	IdemClaim  *claim;
	IdemClaimState state;

	idem_keymaker_name(&call->keys, item->id.data, item->id.len, &key);
	claim = find_held(call, &key, true);
	if (claim->state.phase == IDEM_PHASE_ASSERTED && !idem_lock_try(&claim->key))
		idem_leased_report_shared(&claim->key);

	state = claim->state;
	state.phase = IDEM_PHASE_COMPLETED;
	idem_state_set(claim, &state);
	IDEM_FAULT_POINT("claim-completed");

	/* The row of a claim past the budget already says "completed". */
	if (state.row_kind != IDEM_CLAIM_OWN_ROW || has_result)
		idem_call_add(call, claim, result, has_result);
	if (state.has_lease)
		idem_leased_end(call, &claim->key);
}

void
idem_complete_events(const IdemClaimItem *items, int n, IdemStr consumer, const Datum *results,
					 const bool *has_result)
{
	IdemCall   *call;
	IdemClaimItem **sorted;

	if (n == 0)
		return;
	call = idem_call_begin(consumer, false);
	sorted = idem_sort_by_id(items, sizeof(*items), n);
	for (int i = 0; i < n; i++)
	{
		int			ord = sorted[i] - items;
		bool		has = has_result != NULL && has_result[ord];

		CHECK_FOR_INTERRUPTS();
		complete_one(call, sorted[i], has ? results[ord] : (Datum) 0, has);
	}
	pfree(sorted);
	idem_call_end(call);
}

void
idem_complete_event(IdemStr id, IdemStr consumer, Datum result, bool has_result)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimItem item = {id, IDEM_CLAIM_CLAIMED};

	complete_one(call, &item, result, has_result);
	idem_call_end(call);
}

/*
 * A lock that was taken outside the current subtransaction stays until the
 * transaction ends: ROLLBACK TO must find the claim as it was before the
 * release.
 */
void
idem_release_event(IdemStr id, IdemStr consumer)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimKey key;
	IdemClaim  *claim;
	IdemClaimState state;

	idem_keymaker_name(&call->keys, id.data, id.len, &key);
	claim = find_held(call, &key, false);
	idem_call_check_give_up(claim);

	if (claim->state.row_kind == IDEM_CLAIM_OWN_ROW)
		idem_store_delete(call->store, &claim->key.digest, &claim->state.row);
	state = claim->state;
	state.row_kind = IDEM_CLAIM_NO_ROW;
	state.phase = IDEM_PHASE_RELEASED;
	if (state.lock_kept && state.lock_subid >= GetCurrentSubTransactionId())
	{
		idem_lock_release(&claim->key);
		state.lock_kept = false;
	}
	idem_state_set(claim, &state);
	IDEM_FAULT_POINT("claim-released");
	idem_call_end(call);
}

/* Asking, without claiming */

/*
 * Look up the rows of an event in the store.  The transaction's own undecided
 * claim takes precedence over the rows, since the row of a claim past the
 * budget says "completed" already.  If there is such a claim, return it with
 * row->status NONE; otherwise return NULL and fill in *row.
 */
static const IdemClaim *
look_up(IdemStore *store, const IdemClaimKey *key, IdemRow *row, Datum *result, bool *has_result)
{
	const IdemClaim *own = idem_state_find(key);

	row->status = IDEM_ROW_NONE;
	if (own != NULL && own->state.phase != IDEM_PHASE_CLAIMED)
		own = NULL;
	if (own == NULL)
		idem_store_look_up(store, &key->digest, row, result, has_result);
	return own;
}

/*
 * Wait until the completion that was found cannot be lost.  On a standby there
 * is nothing to wait for: every row that a standby sees was replayed from WAL.
 */
static void
wait_for_row(const IdemRow *row)
{
	if (!row->own && !RecoveryInProgress())
		idem_durable_wait(idem_durable_target(row->commit_lsn));
}

bool
idem_claim_get_result(IdemStr id, IdemStr consumer, Datum *result)
{
	IdemStore  *store = idem_store_open(false);
	IdemClaimKey key;
	IdemRow		row;
	bool		found = false;

	idem_key_of_event(id, consumer, &key);
	(void) look_up(store, &key, &row, result, &found);
	idem_store_close(store);
	if (row.status == IDEM_ROW_COMPLETED)
		wait_for_row(&row);
	return found;
}

/* The status of an event that is open. */
static void
tell_open(const IdemLease *lease, IdemClaimInfo *info)
{
	switch (lease->state)
	{
		case IDEM_LEASE_LEASED:
			info->status = IDEM_STATUS_LEASED;
			info->claimed_at = lease->at;
			info->retry_after = idem_leased_left(lease);
			break;
		case IDEM_LEASE_DEAD:
			info->status = IDEM_STATUS_DEAD;
			break;
		default:
			info->status = IDEM_STATUS_WAITING;
			info->retry_after = idem_leased_left(lease);
			break;
	}
}

/*
 * The log is looked into before the store.  A completion that is committed in between is
 * found; the other way round, the event would be in neither.
 */
void
idem_claim_get_status(IdemStr id, IdemStr consumer, IdemClaimInfo *info)
{
	IdemStore  *store = idem_store_open(false);
	const IdemClaim *own;
	IdemClaimKey key;
	IdemLease	lease;
	IdemRow		row;
	bool		open;

	idem_key_of_event(id, consumer, &key);
	open = idem_lease_find(NULL, &key.digest, &lease);
	own = look_up(store, &key, &row, NULL, NULL);
	idem_store_close(store);

	*info = (IdemClaimInfo)
	{
		.status = IDEM_STATUS_UNKNOWN
	};
	info->retry_after = -1;
	if (row.status == IDEM_ROW_COMPLETED)
	{
		info->status = IDEM_STATUS_COMPLETED;
		info->claimed_at = row.claimed_at;
		info->completed_at = row.completed_at;
		info->completed_latest = row.completed_latest;
		wait_for_row(&row);
	}
	else if (own == NULL && !lease.in_snapshot)
		idem_leased_conflict(&key);
	else if (own == NULL && open)
		tell_open(&lease, info);
	else if (own != NULL || row.status != IDEM_ROW_NONE)
	{
		info->status = IDEM_STATUS_PROCESSING;
		info->claimed_at = own != NULL ? own->state.claimed_at : row.claimed_at;
	}
}

/*
 * Acts on a transaction's claims at COMMIT and PREPARE TRANSACTION.
 *
 * An undecided claim is most likely due to a handler that returned early.  If
 * the effect were committed without the completion, the effect could be made
 * twice.  So COMMIT fails, unless the user asked to keep such claims as in
 * progress.
 *
 * A transaction that completed a claim is committed synchronously: its client
 * acknowledges the event to a broker right after the commit, and the broker
 * forgets the event.
 *
 * The callback runs before the commit is irrevocable, so the callback may
 * fail.
 */

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
 * Transaction callback.  PostgreSQL asks the callbacks before COMMIT in reverse order of
 * their registration, and that of postgres_fdw commits at the remote server.  A claim
 * that is refused after it would leave its effect there.  So this callback only refuses, and
 * is registered anew whenever it should come first; idem_finish_claims asks once more.
 */
static void
refuse_pending(XactEvent event, void *arg)
{
	if ((event == XACT_EVENT_PRE_COMMIT || event == XACT_EVENT_PRE_PREPARE) &&
		idem_state_counts()->pending > 0 && idem_uncompleted_claims == IDEM_UNCOMPLETED_ERROR)
		report_pending();
}

void
idem_claims_ask_first(void)
{
	if (idem_state_counts()->pending == 0)
		return;
	UnregisterXactCallback(refuse_pending, NULL);
	RegisterXactCallback(refuse_pending, NULL);
}

/*
 * Write all undecided claims as in progress.  A claim that took over such a row writes
 * another one: the steps of this transaction are in no older snapshot, and only
 * a row that is not in it either makes a claim fail there (40001).
 */
static void
keep_pending(void)
{
	int64		n = idem_state_counts()->pending;
	IdemClaim **pending = idem_state_pending();
	IdemStore  *store = idem_store_open(true);

	/* COMMIT has no active snapshot; TOAST needs one */
	PushActiveSnapshot(GetTransactionSnapshot());
	for (int64 i = 0; i < n; i++)
	{
		IdemClaim  *claim = pending[i];
		IdemNewEntry row = idem_call_row(claim);

		if (claim->state.row_kind == IDEM_CLAIM_OWN_ROW)
			idem_store_delete(store, &claim->key.digest, &claim->state.row);
		idem_store_insert(store, &row, 1);
		IDEM_FAULT_POINT("claim-kept");
	}
	PopActiveSnapshot();
	idem_store_close(store);
	pfree(pending);
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
		idem_durable_force_commit();
	if (counts->completed > 0 && !prepare)
		IDEM_FAULT_POINT("claim-pre-commit");
	if (counts->completed > 0 && prepare)
		IDEM_FAULT_POINT("claim-pre-prepare");
}

void
idem_claim_init(void)
{
	idem_claim_setting_init();
	idem_consumer_init();
}
