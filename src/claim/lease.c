/*-------------------------------------------------------------------------
 *
 * lease.c
 *		Leases: claims that outlive their transaction.
 *
 * A transaction leases an event and commits.  Its holder works, perhaps outside of
 * the database, and completes the event in another transaction, by the token of
 * the lease.  If the lease runs out meanwhile, another one may take the event over,
 * with a higher token; what the former holder does after that fails (ID007).
 *
 * Invariant: no transaction commits under a token after a higher token of the event
 * was given out and committed.  Who acts under a token holds the event's lock from
 * before the look at the log to the end of the transaction, and who gives out a
 * token, or ends a lease, holds it exclusively.  To complete and to release take it
 * exclusively, to extend and to assert in share mode: a heartbeat of another
 * connection passes beside the transaction that does the work.
 *
 * The clock decides only whether a lease may be taken over.  An overdue holder may
 * still extend and complete, until somebody has taken the event over.
 *
 * The order is always: the event's lock, then the locks on all tables of the log,
 * then what is read.  A state that the snapshot of a REPEATABLE READ or SERIALIZABLE
 * transaction does not see is error 40001.  Another end of a lease is not: it says
 * something about the clock only.
 *
 * A lease needs no memory: its row is rolled back with its subtransaction, and
 * prepared with its transaction.  state.c knows which events' locks the transaction
 * keeps, and which leases it has asserted.
 *
 * A crash leaves the committed rows.  A token that was given out is not given out
 * again (lease/token.c).
 *
 * LOCKING: as a claim (README.md), then the event's lock: leasing takes it without
 * waiting; all else waits for it, except that an upgrade from share mode does not:
 * two transactions that have asserted one lease would wait for each other.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/lease.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "claim/call.h"
#include "claim/claim.h"
#include "claim/lease.h"
#include "claim/leased.h"
#include "claim/state.h"
#include "lease/log.h"
#include "lease/token.h"
#include "shared/error.h"
#include "shared/fault.h"

/* Taking a lease */

/* Error 55000: a client of the published key would work beside a lease. */
static void
check_consumer(IdemCall *call)
{
	bool		changing = call->policy.is_changing;

	if (call->policy.foreign_lockers)
		ereport(ERROR,
				(errcode(changing ? ERRCODE_LOCK_NOT_AVAILABLE : ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("consumer \"%s\" %s foreign lockers, and cannot lease events",
						pnstrdup(call->keys.consumer, call->keys.consumerlen), changing ? "is getting" : "has"),
				 changing ?
				 errdetail("A transaction that gives it foreign lockers is open.") :
				 errdetail("Clients without this extension see only locks, and no lock lasts as long as a lease."),
				 changing ?
				 errhint("Try again when that transaction has ended.") :
				 errhint("Claim the events with claim_event. For another consumer the same events are claimed anew.")));
}

/*
 * For how long is the event busy?  Without its lock the answer may be outdated at
 * once.
 */
static int64
look_how_long(const IdemCall *call, const IdemClaimKey *key)
{
	IdemLease	lease;
	int64		left;

	if (!idem_lease_find(call->leases, &key->digest, &lease))
		return -1;
	left = idem_leased_left(&lease);
	idem_lease_free_values(&lease);
	return left > 0 ? left : -1;
}

/* The verdict on an event whose lock is held. */
static IdemClaimResult
lease_locked(IdemCall *call, const IdemClaimKey *key, const IdemClaim *own,
			 const IdemLeaseOrder *order, IdemLeaseAnswer *answer)
{
	IdemRow		row;
	IdemClaimResult result;

	IDEM_FAULT_POINT("lease-locked");
	idem_store_probe(call->store, &key->digest, &row);
	result = idem_call_judge(call, key, &row);
	if (result != IDEM_CLAIM_CLAIMED)
		return result;
	(void) idem_call_leases(call);
	result = idem_leased_judge(call, key, own, &answer->lease);
	if (result == IDEM_CLAIM_BUSY)
		answer->retry_after = idem_leased_left(&answer->lease);
	if (result != IDEM_CLAIM_CLAIMED)
		return result;
	if (idem_call_is_expired(call, key, order->valid_until))
		return IDEM_CLAIM_EXPIRED;
	idem_attempt_begin(call, key, &row, order->duration, order->holder, &answer->lease);
	return IDEM_CLAIM_CLAIMED;
}

/* Lease one event, without waiting. */
static void
lease_one(IdemCall *call, IdemStr id, const IdemLeaseOrder *order,
		  IdemLeaseAnswer *answer)
{
	IdemClaimKey key;
	const IdemClaim *own;

	idem_keymaker_remember(&call->keys);
	idem_keymaker_make(&call->keys, id.data, id.len, &key);
	own = idem_state_find(&key);
	memset(answer, 0, sizeof(*answer));
	answer->retry_after = -1;
	answer->result = IDEM_CLAIM_BUSY;
	if (own != NULL && own->state.phase == IDEM_PHASE_COMPLETED)
		answer->result = IDEM_CLAIM_DUPLICATE;
	else if (own != NULL && own->state.phase != IDEM_PHASE_RELEASED)
	{
		idem_claim_check_not_sinks(own);
		call->stays_busy = true;
		answer->result = idem_leased_judge_own(&key, &answer->lease);
	}
	else if (!idem_call_within_budget(own))
	{
		call->stays_busy = true;
		answer->is_past_budget = true;
	}
	else if (!idem_lock_try(&key))
		answer->retry_after = look_how_long(call, &key);
	else
	{
		answer->result = lease_locked(call, &key, own, order, answer);
		if (answer->result != IDEM_CLAIM_CLAIMED)
			idem_lock_release(&key);
	}
	if (answer->result != IDEM_CLAIM_CLAIMED && answer->result != IDEM_CLAIM_DEAD)
		idem_lease_free_values(&answer->lease);
}

void
idem_lease_event(IdemStr id, IdemStr consumer,
				 const IdemLeaseOrder *order, long wait_ms, IdemLeaseAnswer *answer)
{
	IdemClock	start = idem_clock();
	bool		stays_busy;

	do
	{
		IdemCall   *call = idem_call_begin(consumer, true);
		IdemClaimKey key;

		check_consumer(call);
		lease_one(call, id, order, answer);

		/*
		 * Only the end of this transaction frees a lock, so "busy" would last
		 * as long as it asks.  In a batch the events before are leased, and
		 * "busy" is for the next one.
		 */
		if (answer->is_past_budget)
		{
			idem_keymaker_make(&call->keys, id.data, id.len, &key);
			idem_leased_check_budget(&key, idem_state_find(&key));
		}
		stays_busy = call->stays_busy;
		idem_call_end(call);
	} while (answer->result == IDEM_CLAIM_BUSY && !stays_busy && idem_call_pause(start, wait_ms));
}

/*
 * A repeat is busy, and no duplicate: the event is not done when this transaction
 * commits.
 */
void
idem_lease_events(const IdemClaimItem *items, int n, IdemStr consumer,
				  const IdemLeaseOrder *order, IdemLeaseAnswer *answers)
{
	IdemCall   *call = idem_call_begin(consumer, true);
	IdemClaimItem **sorted;

	check_consumer(call);
	sorted = idem_sort_by_id(items, sizeof(*items), n);
	for (int i = 0; i < n; i++)
	{
		IdemLeaseAnswer *answer = &answers[sorted[i] - items];

		CHECK_FOR_INTERRUPTS();
		lease_one(call, sorted[i]->id, order, answer);
	}
	pfree(sorted);
	idem_call_end(call);
}

/* Acting under a token */

/* Lock an event and see that the token is that of its lease; idem_hold. */
static IdemClaim *
hold(IdemCall *call, IdemClaimKey *key, IdemStr id, int64 token,
	 IdemHold mode, IdemLease *lease)
{
	idem_keymaker_remember(&call->keys);
	idem_keymaker_make(&call->keys, id.data, id.len, key);
	return idem_hold(call, key, token, mode, lease);
}

TimestampTz
idem_lease_extend(IdemStr id, IdemStr consumer,
				  int64 token, int64 duration, text *recovery_point, struct varlena *work)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimKey key;
	IdemLease	lease;
	TimestampTz until;

	(void) hold(call, &key, id, token, IDEM_HOLD_SHARED, &lease);
	until = GetCurrentTimestamp() + (duration > 0 ? duration : call->policy.lease_duration);
	idem_hold_extend(call, &key, &lease, until);
	IDEM_FAULT_POINT("lease-end-written");
	if (recovery_point != NULL || work != NULL)
		idem_leased_write_point(call, &key, token,
								recovery_point != NULL ? recovery_point : lease.recovery_point,
								work != NULL ? work : lease.work);
	idem_call_end(call);
	return until;
}

void
idem_lease_assert(IdemStr id, IdemStr consumer, int64 token)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimKey key;
	IdemLease	lease;

	(void) hold(call, &key, id, token, IDEM_HOLD_ASSERTED, &lease);
	idem_call_end(call);
}

void
idem_lease_complete(IdemStr id, IdemStr consumer,
					int64 token, Datum result, bool has_result)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemClaim  *claim = hold(call, &key, id, token, IDEM_HOLD_TO_COMPLETE, &lease);
	IdemClaimState state = claim->state;

	state.phase = IDEM_PHASE_COMPLETED;
	idem_state_set(claim, &state);
	idem_call_add(call, claim, result, has_result);
	IDEM_FAULT_POINT("lease-completed");
	idem_leased_end(call, &key);
	IDEM_FAULT_POINT("lease-ended");
	idem_call_end(call);
}

/* Giving a lease back */

IdemLeaseState
idem_lease_release(IdemStr id, IdemStr consumer,
				   int64 token, const IdemLeaseRelease *release)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemLeaseState state;

	(void) hold(call, &key, id, token, IDEM_HOLD_TO_RELEASE, &lease);
	lease.at = GetCurrentTimestamp();
	if (release->error != NULL || release->park)
		idem_attempt_fail(&call->policy, release, &lease);
	else
		idem_attempt_give_back(release, &lease);
	state = idem_attempt_write(call, &key, &lease);
	IDEM_FAULT_POINT("lease-released");
	idem_call_end(call);
	return state;
}

/*
 * What an operator does about dead events.
 *
 * Each event is decided under its lock, as any change of a lease.  If the events are
 * not named, the log is read for dead ones; a row that is found there is a hint
 * only, and the look under the lock decides.  Such a call passes over events that
 * somebody else is about to change.
 *
 * LOCKING: as claim.c; the locks of events that are named are waited for, in the
 * order of their ids.
 */

/* One call's work. */
typedef struct Redrive
{
	IdemCall   *call;
	bool		discard;
	const text *scope;			/* of requests; or NULL */
	bool		named;			/* the operator has named the events */
	int64		n;				/* how many were dead, or waited */
} Redrive;

/* Remember a dead event as completed. */
static void
discard_event(Redrive *redrive, const IdemClaimKey *key, const IdemRow *row, const IdemLease *lease)
{
	IdemClaim  *claim = idem_leased_note(redrive->call, key, row, lease, true);
	IdemClaimState state = claim->state;

	state.phase = IDEM_PHASE_COMPLETED;
	state.discarded = true;
	idem_state_set(claim, &state);
	idem_call_add(redrive->call, claim, (Datum) 0, false);
	idem_leased_end(redrive->call, key);
}

/*
 * Have an event wait until now, with all its attempts.  That the former ones began is kept: a
 * request that is released goes on to have their payload.
 */
static void
revive_event(Redrive *redrive, const IdemClaimKey *key, const IdemRow *row, IdemLease *lease)
{
	lease->state = IDEM_LEASE_WAITING;
	lease->attempt = 0;
	lease->redriven = true;
	lease->token = idem_token_draw_unflushed();
	lease->until = GetCurrentTimestamp();
	idem_leased_write(redrive->call, key, lease);
	(void) idem_leased_note(redrive->call, key, row, lease, false);
}

/*
 * End a lease whose event is completed.  Only a dump brings such a lease, if it is restored into
 * the database that it is of: the views show the lease, though every call answers "duplicate".
 */
static bool
end_restored(Redrive *redrive, const IdemClaimKey *key, const IdemRow *row, const IdemLease *lease)
{
	if (row->status != IDEM_ROW_COMPLETED || !row->in_snapshot || lease->state == IDEM_LEASE_FREE)
		return false;
	idem_leased_end(redrive->call, key);
	return true;
}

/*
 * Is it for the operator to decide?  What is dead is.  An event that waits comes by itself; but its pause may be
 * a year, by a caller's mistake or a clock that was set back, and only its holder could have ended it.
 */
static bool
is_for_operator(const Redrive *redrive, const IdemLease *lease)
{
	return lease->state == IDEM_LEASE_DEAD ||
		(redrive->named && !redrive->discard && lease->state == IDEM_LEASE_WAITING && lease->until > GetCurrentTimestamp());
}

/* Decide on an event whose lock is held; false if nothing was changed, so the lock may go. */
static bool
decide(Redrive *redrive, const IdemClaimKey *key)
{
	IdemLease	lease;
	IdemRow		row;

	idem_store_probe(redrive->call->store, &key->digest, &row);
	if (!idem_lease_find(idem_call_leases(redrive->call), &key->digest, &lease) || !is_for_operator(redrive, &lease) ||
		row.status == IDEM_ROW_BUSY || row.status == IDEM_ROW_COMPLETED)
	{
		bool		ended = end_restored(redrive, key, &row, &lease);

		idem_lease_free_values(&lease);
		return ended;
	}
	if (!lease.in_snapshot || !row.in_snapshot)
		idem_leased_conflict(key);
	if (redrive->discard)
		discard_event(redrive, key, &row, &lease);
	else
		revive_event(redrive, key, &row, &lease);
	IDEM_FAULT_POINT("lease-redriven");
	idem_lease_free_values(&lease);
	redrive->n++;
	return true;
}

/* Make the key of an event, or of a request if there is a scope. */
static void
make_key(Redrive *redrive, const text *scope, const char *id, int idlen, IdemClaimKey *key)
{
	if (scope == NULL)
		idem_keymaker_make(&redrive->call->keys, id, idlen, key);
	else
		idem_keymaker_request(&redrive->call->keys, VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
							  id, idlen, key);
}

/* Redrive an event or a request that the operator has named. */
static void
redrive_named(Redrive *redrive, const char *id, int idlen)
{
	IdemClaimKey key;

	make_key(redrive, redrive->scope, id, idlen, &key);
	idem_call_leave_leases(redrive->call);
	idem_leased_lock(&key, true);
	if (!decide(redrive, &key))
		idem_lock_release(&key);
}

/* Does the operator want the dead ones of that scope? */
static bool
is_wanted(const Redrive *redrive, const text *scope)
{
	return redrive->scope == NULL ||
		(scope != NULL && VARSIZE_ANY_EXHDR(scope) == VARSIZE_ANY_EXHDR(redrive->scope) &&
		 memcmp(VARDATA_ANY(scope), VARDATA_ANY(redrive->scope), VARSIZE_ANY_EXHDR(scope)) == 0);
}

/* Redrive what the log names (callback of idem_lease_scan_dead). */
static bool
redrive_found(const text *scope, const text *id, void *arg)
{
	Redrive    *redrive = arg;
	IdemClaimKey key;
	const IdemClaim *own;

	if (!is_wanted(redrive, scope))
		return true;
	make_key(redrive, scope, VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id), &key);
	own = idem_state_find(&key);
	if (!idem_call_within_budget(own))
		return false;
	if (idem_lock_try(&key) && !decide(redrive, &key))
		idem_lock_release(&key);
	return true;
}

int64
idem_redrive(const IdemClaimItem *items, int n, IdemStr consumer,
			 const text *scope, bool discard)
{
	Redrive		redrive = {
		.call = idem_call_begin(consumer, false), .discard = discard, .scope = scope,
		.named = n >= 0
	};

	if (n < 0)
		idem_lease_scan_dead(consumer.data, consumer.len, redrive_found, &redrive);
	else
	{
		IdemClaimItem **sorted = idem_sort_by_id(items, sizeof(*items), n);

		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			redrive_named(&redrive, sorted[i]->id.data, sorted[i]->id.len);
		}
	}
	idem_call_end(redrive.call);
	return redrive.n;
}
