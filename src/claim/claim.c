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
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/expiry.h"
#include "claim/finish.h"
#include "claim/lock.h"
#include "claim/setting.h"
#include "claim/state.h"
#include "store/retention.h"
#include "store/store.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"

/* Pauses between tries of a waiting claim, in milliseconds */
#define MIN_PAUSE_MS	1
#define MAX_PAUSE_MS	50

/* One call's work on the events of one consumer. */
typedef struct ClaimRun
{
	IdemStore  *store;
	IdemKeyMaker keys;
	IdemConsumerPolicy policy;
	TimestampTz now;
	const TimestampTz *valid_until; /* the caller's, or NULL */
	bool		foreign_known;	/* has foreign_lockers been looked up? */
	bool		foreign_lockers;
	bool		past_budget;	/* an event was not claimed because the budget
								 * of locks is spent */

	/* The completions that must be durable before the verdicts are given out */
	bool		saw_completed;
	XLogRecPtr	commit_lsn;

	/* The rows to be written, and the claim of each row */
	int			nrows;
	IdemNewEntry rows[IDEM_STORE_CHUNK];
	IdemClaim  *claims[IDEM_STORE_CHUNK];
	bool		early;			/* the rows are of claims past the budget,
								 * whose locks are still held */
} ClaimRun;

void
idem_claim_init(void)
{
	idem_claim_setting_init();
	idem_state_init();
	idem_finish_init();
	idem_consumer_init();
}

/*
 * Open the store for one call, and get the consumer's policy.
 */
static ClaimRun *
begin_run(const char *consumer, int consumerlen, bool early)
{
	ClaimRun   *run = palloc(sizeof(ClaimRun));

	run->store = idem_store_open(true);
	idem_keymaker_begin(&run->keys, consumer, consumerlen);

	/*
	 * The store's lock keeps others from changing private_locks below a
	 * claim.
	 */
	run->policy = idem_consumer_policy(consumer, consumerlen);
	if (run->policy.private_locks)
		idem_keymaker_private(&run->keys);
	run->now = GetCurrentTimestamp();
	run->valid_until = NULL;
	run->saw_completed = false;
	run->commit_lsn = InvalidXLogRecPtr;
	run->nrows = 0;
	run->early = early;
	run->foreign_known = false;
	run->past_budget = false;
	return run;
}

/*
 * Write the collected rows.  Claims past the budget give their locks back:
 * from here on the row stands for the lock.
 */
static void
flush_rows(ClaimRun *run)
{
	if (run->nrows == 0)
		return;
	IDEM_FAULT_POINT("claim-row-insert");
	idem_store_insert(run->store, run->rows, run->nrows);
	IDEM_FAULT_POINT("claim-row-inserted");

	for (int i = 0; i < run->nrows; i++)
	{
		IdemClaim  *claim = run->claims[i];
		IdemClaimState state = claim->state;

		state.row_kind = IDEM_CLAIM_OWN_ROW;
		state.row = run->rows[i].ref;
		state.phase = run->early ? IDEM_PHASE_CLAIMED : IDEM_PHASE_COMPLETED;
		idem_state_set(claim, &state);
		if (run->early)
		{
			idem_lock_release(&claim->key);
			IDEM_FAULT_POINT("claim-early-unlocked");
		}
	}
	run->nrows = 0;
}

/*
 * Write the rows that are left, close the store, and wait until the
 * completions that were answered "duplicate" are durable.
 */
static void
end_run(ClaimRun *run)
{
	flush_rows(run);
	idem_keymaker_end(&run->keys);
	idem_store_close(run->store);
	if (run->saw_completed)
	{
		IDEM_FAULT_POINT("claim-duplicate-seen");
		idem_durable_wait(idem_durable_target(run->commit_lsn));
	}
	pfree(run);
}

/* The row that a claim writes, as in progress and without a result. */
static IdemNewEntry
row_of_claim(const IdemClaim *claim)
{
	IdemNewEntry row = {
		.digest = claim->key.digest,
		.turn = claim->state.turn,
		.event_id = claim->key.id,
		.event_id_len = claim->key.idlen,
		.consumer = claim->key.consumer,
		.consumer_len = claim->key.consumerlen,
		.state = IDEM_ENTRY_KEPT,
		.class = claim->state.class,
		.keep_id = claim->state.keep_id,
		.claimed_at = claim->state.claimed_at
	};

	return row;
}

/*
 * Remove the row that the claim wrote before, if any, and collect a completed
 * row for the claim.  The row of a kept claim that was taken over stays; the new
 * row's turn is higher.
 */
static void
add_row(ClaimRun *run, IdemClaim *claim, Datum result, bool has_result)
{
	IdemNewEntry *row = &run->rows[run->nrows];

	if (claim->state.row_kind == IDEM_CLAIM_OWN_ROW)
	{
		idem_store_delete(run->store, &claim->state.row);
		IDEM_FAULT_POINT("claim-row-deleted");
	}
	*row = row_of_claim(claim);
	row->state = IDEM_ENTRY_COMPLETED;
	row->completed_at = run->now;
	row->has_result = has_result;
	row->result = result;
	run->claims[run->nrows++] = claim;
	if (run->nrows == IDEM_STORE_CHUNK)
		flush_rows(run);
}

/* Claiming */

/* How many locks a transaction may keep for its claims. */
static int
lock_budget(void)
{
	return idem_max_claim_locks >= 0 ? idem_max_claim_locks : max_locks_per_xact;
}

/* Does the consumer have foreign lockers?  Looked up once per run. */
static bool
has_foreign_lockers(ClaimRun *run)
{
	if (!run->foreign_known)
	{
		run->foreign_lockers = idem_consumer_foreign_lockers(run->keys.consumer,
															 run->keys.consumerlen);
		run->foreign_known = true;
	}
	return run->foreign_lockers;
}

/*
 * Would a claim of the event keep its lock?  own: the transaction's former
 * claim of the event, or NULL.
 */
static bool
is_within_budget(const IdemClaim *own)
{
	return (own != NULL && own->state.lock_kept) ||
		idem_state_counts()->locks < lock_budget();
}

int16
idem_claim_next_turn(const IdemClaimKey *key, const IdemRow *row)
{
	if (row->turn == PG_INT16_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("event \"%s\" was claimed anew too often", pnstrdup(key->id, key->idlen)),
				 errdetail("An event has at most %d rows.", PG_INT16_MAX),
				 errhint("Use an event id once.")));
	return row->turn + 1;
}

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
take(ClaimRun *run, const IdemClaimKey *key, const IdemRow *row)
{
	IdemClaim  *own = idem_state_find(key);
	bool		has_lock = own != NULL && own->state.lock_kept;
	bool		keep_lock = is_within_budget(own);
	IdemClaim  *claim;
	IdemClaimState state;

	if (has_lock)
		idem_lock_release(key);

	claim = idem_state_get(key);
	state.phase = IDEM_PHASE_CLAIMED;
	state.row_kind = row->status == IDEM_ROW_NONE ? IDEM_CLAIM_NO_ROW :
		IDEM_CLAIM_OLD_ROW;
	memset(&state.row, 0, sizeof(state.row));
	state.was_kept = row->status == IDEM_ROW_PROCESSING;
	state.turn = idem_claim_next_turn(key, row);

	/* What stays of a kept claim must not outlive its completion. */
	state.class = state.was_kept ? idem_retention_longer(run->policy.class, row->class) :
		run->policy.class;
	state.keep_id = run->policy.keep_ids;
	state.lock_kept = keep_lock;
	state.lock_subid = has_lock ? claim->state.lock_subid : GetCurrentSubTransactionId();
	state.claimed_at = run->now;
	idem_state_set(claim, &state);
	IDEM_FAULT_POINT("claim-taken");

	if (!keep_lock)
		add_row(run, claim, (Datum) 0, false);
	return IDEM_CLAIM_CLAIMED;
}

void
idem_claim_conflict(const IdemClaimKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent completion of event \"%s\"",
					pnstrdup(key->id, key->idlen)),
			 errdetail("Another transaction committed it for consumer \"%s\" after this one took its snapshot.",
					   pnstrdup(key->consumer, key->consumerlen)),
			 errhint("Retry the transaction.")));
}

/*
 * The verdict that the event's row gives.  The caller holds the event's lock,
 * except past the budget (judge_past_budget).
 */
static IdemClaimResult
judge(ClaimRun *run, const IdemClaimKey *key, const IdemRow *row)
{
	if (row->status == IDEM_ROW_BUSY)
		return IDEM_CLAIM_BUSY;

	/*
	 * The caller's snapshot is older than the row, so its statements see
	 * neither the row nor the effect.  Only a retry can see both.
	 */
	if (!row->in_snapshot)
		idem_claim_conflict(key);

	if (row->status != IDEM_ROW_COMPLETED)
		return IDEM_CLAIM_CLAIMED;
	run->saw_completed = true;
	run->commit_lsn = Max(run->commit_lsn, row->commit_lsn);
	return IDEM_CLAIM_DUPLICATE;
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
judge_past_budget(ClaimRun *run, const IdemClaimKey *key)
{
	IdemRow		row;

	run->past_budget = true;
	idem_store_probe(run->store, &key->digest, &row);
	return row.status == IDEM_ROW_COMPLETED ? judge(run, key, &row) : IDEM_CLAIM_BUSY;
}

/*
 * The verdict on an event that could be claimed; the caller holds the event's
 * lock.  Only a completion is worth more than the event's age.  A claim that was
 * kept, and an order to forget, are not: a completion after them may have been
 * forgotten before they are.
 */
static IdemClaimResult
take_or_expire(ClaimRun *run, const IdemClaimKey *key, const IdemRow *row)
{
	if (idem_expiry_passed(run->valid_until, &run->policy, key->id, key->idlen, run->now))
		return IDEM_CLAIM_EXPIRED;
	return take(run, key, row);
}

/* Claim one event without waiting; steps 1 to 5 of README.md, "A claim". */
static IdemClaimResult
claim_one(ClaimRun *run, const char *id, int idlen)
{
	IdemClaimKey key;
	IdemClaim  *own;
	IdemRow		row;
	IdemClaimResult result;

	idem_keymaker_make(&run->keys, id, idlen, &key);

	own = idem_state_find(&key);
	if (own != NULL && (own->state.phase == IDEM_PHASE_CLAIMED ||
						own->state.phase == IDEM_PHASE_COMPLETED))
		return IDEM_CLAIM_DUPLICATE;

	if (!is_within_budget(own) && has_foreign_lockers(run))
		return judge_past_budget(run, &key);
	if (!idem_lock_try(&key))
		return IDEM_CLAIM_BUSY;
	IDEM_FAULT_POINT("claim-locked");
	idem_store_probe(run->store, &key.digest, &row);
	IDEM_FAULT_POINT("claim-probed");
	result = judge(run, &key, &row);
	if (result == IDEM_CLAIM_CLAIMED)
		result = take_or_expire(run, &key, &row);
	if (result == IDEM_CLAIM_CLAIMED)
		return result;
	IDEM_FAULT_POINT("claim-refused");
	idem_lock_release(&key);
	return result;
}

/*
 * One try of a claim that the caller may repeat.  *past_budget: was the
 * verdict given past the budget of locks?
 */
static IdemClaimResult
try_claim(const char *id, int idlen, const char *consumer, int consumerlen,
		  const TimestampTz *valid_until, bool *past_budget)
{
	ClaimRun   *run = begin_run(consumer, consumerlen, true);
	IdemClaimResult result;

	run->valid_until = valid_until;
	result = claim_one(run, id, idlen);
	*past_budget = run->past_budget;
	end_run(run);
	return result;
}

/*
 * Waiting means trying again.  A claimant may give the event's lock back long
 * before its claim is decided, so there is no single lock to wait for.  The
 * pause grows with the time waited already, which keeps many waiters cheap.
 *
 * A refusal past the budget of locks is not tried again.  Only this
 * transaction could free locks of its budget, and it frees none while it
 * waits.
 */
IdemClaimResult
idem_claim_event(const char *id, int idlen, const char *consumer,
				 int consumerlen, long wait_ms, const TimestampTz *valid_until)
{
	IdemClock	start = idem_clock();
	long		waited = 0;
	bool		past_budget;
	IdemClaimResult result = try_claim(id, idlen, consumer, consumerlen, valid_until,
									   &past_budget);

	if (past_budget)
		return result;
	while (result == IDEM_CLAIM_BUSY && waited < wait_ms)
	{
		long		pause = Max(MIN_PAUSE_MS, Min(waited / 8, MAX_PAUSE_MS));

		(void) WaitLatch(MyLatch,
						 WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 Min(pause, wait_ms - waited), PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
		CHECK_FOR_INTERRUPTS();
		result = try_claim(id, idlen, consumer, consumerlen, valid_until, &past_budget);
		waited = (long) ((idem_clock() - start) / 1000);
	}
	return result;
}

/*
 * Order by id, then by place in the input: repeats of an id are adjacent, and
 * the budget of locks goes to the same ids in whatever order they were given.
 * The order of ids is not that of the store's index, which has digests.
 */
static int
compare_items(const void *a, const void *b)
{
	const IdemClaimItem *ia = *(const IdemClaimItem *const *) a;
	const IdemClaimItem *ib = *(const IdemClaimItem *const *) b;
	int			res = memcmp(ia->id, ib->id, Min(ia->idlen, ib->idlen));

	if (res == 0)
		res = ia->idlen - ib->idlen;
	return res != 0 ? res : (ia < ib ? -1 : 1);
}

bool
idem_claim_same_id(const IdemClaimItem *a, const IdemClaimItem *b)
{
	return a->idlen == b->idlen && memcmp(a->id, b->id, a->idlen) == 0;
}

IdemClaimItem **
idem_claim_sort_items(const IdemClaimItem *items, int n)
{
	IdemClaimItem **sorted = palloc_extended(sizeof(IdemClaimItem *) * n,
											 MCXT_ALLOC_HUGE);

	for (int i = 0; i < n; i++)
		sorted[i] = unconstify(IdemClaimItem *, &items[i]);
	qsort(sorted, n, sizeof(IdemClaimItem *), compare_items);
	return sorted;
}

void
idem_claim_events(IdemClaimItem *items, int n, const char *consumer,
				  int consumerlen)
{
	ClaimRun   *run;
	IdemClaimItem **sorted;

	if (n == 0)
		return;
	run = begin_run(consumer, consumerlen, true);
	sorted = idem_claim_sort_items(items, n);
	for (int i = 0; i < n; i++)
	{
		IdemClaimItem *item = sorted[i];
		IdemClaimItem *last = i > 0 ? sorted[i - 1] : NULL;

		CHECK_FOR_INTERRUPTS();
		if (last != NULL && idem_claim_same_id(last, item))
			item->result = last->result == IDEM_CLAIM_CLAIMED ?
				IDEM_CLAIM_DUPLICATE : last->result;
		else
			item->result = claim_one(run, item->id, item->idlen);
	}
	pfree(sorted);
	end_run(run);
}

/* Completing and releasing */

/*
 * The transaction's undecided claim of that name; error ID002 if there is
 * none.
 */
static IdemClaim *
find_held(const IdemClaimKey *key)
{
	IdemClaim  *claim = idem_state_find(key);

	if (claim == NULL || claim->state.phase != IDEM_PHASE_CLAIMED)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_CLAIM_NOT_HELD),
				 errmsg("event \"%s\" is not claimed by this transaction",
						pnstrdup(key->id, key->idlen)),
				 claim == NULL || claim->state.phase == IDEM_PHASE_NONE ?
				 errdetail("No claim for consumer \"%s\" is in effect.",
						   pnstrdup(key->consumer, key->consumerlen)) :
				 claim->state.phase == IDEM_PHASE_COMPLETED ?
				 errdetail("It was completed for consumer \"%s\" already.",
						   pnstrdup(key->consumer, key->consumerlen)) :
				 errdetail("It was released for consumer \"%s\".",
						   pnstrdup(key->consumer, key->consumerlen)),
				 errhint("Complete or release an event once, after claim_event answered \"claimed\" in the same transaction.")));
	return claim;
}

/*
 * Complete one claim; error ID002 unless the transaction holds the claim
 * undecided.
 */
static void
complete_one(ClaimRun *run, const IdemClaimItem *item, Datum result,
			 bool has_result)
{
	IdemClaimKey key;
	IdemClaim  *claim;
	IdemClaimState state;

	idem_keymaker_name(&run->keys, item->id, item->idlen, &key);
	claim = find_held(&key);

	state = claim->state;
	state.phase = IDEM_PHASE_COMPLETED;
	idem_state_set(claim, &state);
	IDEM_FAULT_POINT("claim-completed");

	/* The row of a claim past the budget already says "completed". */
	if (state.row_kind != IDEM_CLAIM_OWN_ROW || has_result)
		add_row(run, claim, result, has_result);
}

void
idem_complete_events(const IdemClaimItem *items, int n, const char *consumer,
					 int consumerlen, const Datum *results,
					 const bool *has_result)
{
	ClaimRun   *run;
	IdemClaimItem **sorted;

	if (n == 0)
		return;
	run = begin_run(consumer, consumerlen, false);
	sorted = idem_claim_sort_items(items, n);
	for (int i = 0; i < n; i++)
	{
		int			ord = sorted[i] - items;
		bool		has = has_result != NULL && has_result[ord];

		CHECK_FOR_INTERRUPTS();
		complete_one(run, sorted[i], has ? results[ord] : (Datum) 0, has);
	}
	pfree(sorted);
	end_run(run);
}

void
idem_complete_event(const char *id, int idlen, const char *consumer,
					int consumerlen, Datum result, bool has_result)
{
	ClaimRun   *run = begin_run(consumer, consumerlen, false);
	IdemClaimItem item = {id, idlen, IDEM_CLAIM_CLAIMED};

	complete_one(run, &item, result, has_result);
	end_run(run);
}

/*
 * A lock that was taken outside the current subtransaction stays until the
 * transaction ends: ROLLBACK TO must find the claim as it was before the
 * release.
 */
void
idem_release_event(const char *id, int idlen, const char *consumer,
				   int consumerlen)
{
	ClaimRun   *run = begin_run(consumer, consumerlen, false);
	IdemClaimKey key;
	IdemClaim  *claim;
	IdemClaimState state;

	idem_keymaker_name(&run->keys, id, idlen, &key);
	claim = find_held(&key);

	if (claim->state.row_kind == IDEM_CLAIM_OWN_ROW)
		idem_store_delete(run->store, &claim->state.row);
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
	end_run(run);
}

/* Asking, without claiming */

/*
 * Look up what is remembered of an event.  The transaction's own undecided
 * claim takes precedence over the rows, since the row of a claim past the
 * budget says "completed" already.  If there is such a claim, return it with
 * row->status NONE; otherwise return NULL and fill in *row.
 */
static const IdemClaim *
look_up(IdemStore *store, const char *id, int idlen, const char *consumer,
		int consumerlen, IdemRow *row, Datum *result, bool *has_result)
{
	IdemKeyMaker keys;
	IdemClaimKey key;
	const IdemClaim *own;

	idem_keymaker_begin(&keys, consumer, consumerlen);
	idem_keymaker_make(&keys, id, idlen, &key);
	own = idem_state_find(&key);
	row->status = IDEM_ROW_NONE;
	if (own != NULL && own->state.phase != IDEM_PHASE_CLAIMED)
		own = NULL;
	if (own == NULL)
		idem_store_look_up(store, &key.digest, row, result, has_result);
	idem_keymaker_end(&keys);
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
idem_claim_get_result(const char *id, int idlen, const char *consumer,
					  int consumerlen, Datum *result)
{
	IdemStore  *store = idem_store_open(false);
	IdemRow		row;
	bool		found = false;

	(void) look_up(store, id, idlen, consumer, consumerlen, &row, result, &found);
	idem_store_close(store);
	if (row.status == IDEM_ROW_COMPLETED)
		wait_for_row(&row);
	return found;
}

void
idem_claim_get_status(const char *id, int idlen, const char *consumer,
					  int consumerlen, IdemClaimInfo *info)
{
	IdemStore  *store = idem_store_open(false);
	IdemRow		row;
	const IdemClaim *own = look_up(store, id, idlen, consumer, consumerlen, &row, NULL, NULL);

	idem_store_close(store);
	*info = (IdemClaimInfo)
	{
		.status = IDEM_STATUS_UNKNOWN
	};
	if (own != NULL)
	{
		info->status = IDEM_STATUS_PROCESSING;
		info->claimed_at = own->state.claimed_at;
	}
	else if (row.status != IDEM_ROW_NONE)
	{
		info->status = IDEM_STATUS_PROCESSING;
		info->claimed_at = row.claimed_at;
	}
	if (row.status == IDEM_ROW_COMPLETED)
	{
		info->status = IDEM_STATUS_COMPLETED;
		info->completed_at = row.completed_at;
		info->completed_latest = row.completed_latest;
		wait_for_row(&row);
	}
}
