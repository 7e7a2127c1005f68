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

#include "common/pg_prng.h"
#include "miscadmin.h"
#include "utils/timestamp.h"

#include "claim/claim.h"
#include "claim/expiry.h"
#include "claim/lease.h"
#include "claim/leased.h"
#include "claim/call.h"
#include "claim/state.h"
#include "lease/log.h"
#include "lease/token.h"
#include "shared/error.h"

/* Taking a lease */

/* Error 55000: a client of the published key would work beside a lease. */
static void
check_consumer(IdemCall *call)
{
	if (idem_call_foreign_lockers(call))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("consumer \"%s\" has foreign lockers, and cannot lease events",
						pnstrdup(call->keys.consumer, call->keys.consumerlen)),
				 errdetail("Clients without this extension see only locks, and no lock lasts as long as a lease."),
				 errhint("Claim the events, or use another consumer.")));
}

/*
 * For how long is the event busy?  Without its lock the answer may be outdated at
 * once.
 */
static int64
look_how_long(const IdemClaimKey *key)
{
	IdemLease	lease;
	int64		left;

	if (!idem_lease_find(&key->digest, &lease))
		return -1;
	left = lease.until - GetCurrentTimestamp();
	return left > 0 ? left : -1;
}

/* Write the next lease of an event. */
static void
take(IdemCall *call, const IdemClaimKey *key, const IdemRow *row,
	 const IdemLeaseOrder *order, IdemLease *lease)
{
	IdemLeaseName name = idem_leased_name(key);

	lease->state = IDEM_LEASE_LEASED;
	lease->token = idem_token_draw();
	lease->attempt++;
	lease->holder = order->holder;
	lease->at = GetCurrentTimestamp();
	lease->until = lease->at +
		(order->duration > 0 ? order->duration : call->policy.lease_duration);
	idem_lease_write(&name, lease);
	(void) idem_leased_note(call, key, row, lease, false);
}

/* The verdict on an event whose lock is held. */
static IdemClaimResult
lease_locked(IdemCall *call, const IdemClaimKey *key, const IdemClaim *own,
			 const IdemLeaseOrder *order, IdemLeaseAnswer *answer)
{
	IdemRow		row;
	IdemClaimResult result;

	idem_store_probe(call->store, &key->digest, &row);
	result = idem_call_judge(call, key, &row);
	if (result != IDEM_CLAIM_CLAIMED)
		return result;
	result = idem_leased_judge(call, key, own, &answer->lease);
	if (result == IDEM_CLAIM_BUSY)
		answer->retry_after = Max(answer->lease.until - GetCurrentTimestamp(), 0);
	if (result != IDEM_CLAIM_CLAIMED)
		return result;
	if (idem_expiry_passed(order->valid_until, &call->policy, key->id, key->idlen, call->now))
		return IDEM_CLAIM_EXPIRED;
	take(call, key, &row, order, &answer->lease);
	return IDEM_CLAIM_CLAIMED;
}

/* Lease one event, without waiting. */
static void
lease_one(IdemCall *call, const char *id, int idlen, const IdemLeaseOrder *order,
		  IdemLeaseAnswer *answer)
{
	IdemClaimKey key;
	const IdemClaim *own;

	idem_keymaker_make(&call->keys, id, idlen, &key);
	own = idem_state_find(&key);
	memset(answer, 0, sizeof(*answer));
	answer->retry_after = -1;
	answer->result = IDEM_CLAIM_BUSY;
	if (own != NULL && own->state.phase == IDEM_PHASE_COMPLETED)
		answer->result = IDEM_CLAIM_DUPLICATE;
	else if ((own != NULL && own->state.phase != IDEM_PHASE_RELEASED) ||
			 !idem_call_within_budget(own))
		call->stays_busy = true;
	else if (!idem_lock_try(&key))
		answer->retry_after = look_how_long(&key);
	else
	{
		answer->result = lease_locked(call, &key, own, order, answer);
		if (answer->result != IDEM_CLAIM_CLAIMED)
			idem_lock_release(&key);
	}
}

void
idem_lease_event(const char *id, int idlen, const char *consumer, int consumerlen,
				 const IdemLeaseOrder *order, long wait_ms, IdemLeaseAnswer *answer)
{
	IdemClock	start = idem_clock();
	bool		stays_busy;

	do
	{
		IdemCall   *call = idem_call_begin(consumer, consumerlen, true);

		check_consumer(call);
		lease_one(call, id, idlen, order, answer);
		stays_busy = call->stays_busy;
		idem_call_end(call);
	} while (answer->result == IDEM_CLAIM_BUSY && !stays_busy && idem_call_pause(start, wait_ms));
}

/*
 * A repeat is busy, and no duplicate: the event is not done when this transaction
 * commits.
 */
void
idem_lease_events(const IdemClaimItem *items, int n, const char *consumer, int consumerlen,
				  const IdemLeaseOrder *order, IdemLeaseAnswer *answers)
{
	IdemCall   *call = idem_call_begin(consumer, consumerlen, true);
	IdemClaimItem **sorted;

	check_consumer(call);
	sorted = idem_claim_sort_items(items, n);
	for (int i = 0; i < n; i++)
	{
		IdemLeaseAnswer *answer = &answers[sorted[i] - items];

		CHECK_FOR_INTERRUPTS();
		lease_one(call, sorted[i]->id, sorted[i]->idlen, order, answer);
	}
	pfree(sorted);
	idem_call_end(call);
}

/* Acting under a token */

/* Why a token is not that of the event's lease. */
static const char *
why_lost(const IdemClaim *own, const IdemRow *row, const IdemLease *lease, int64 token)
{
	if (own != NULL && own->state.phase == IDEM_PHASE_CLAIMED)
		return "This transaction has claimed the event.";
	if (row->status == IDEM_ROW_COMPLETED)
		return "The event is completed.";
	if (lease->state == IDEM_LEASE_FREE)
		return "There is no lease of the event.";
	if (lease->state == IDEM_LEASE_DEAD)
		return "The event is dead.";
	if (lease->state == IDEM_LEASE_WAITING)
		return "The lease was released.";
	return token < lease->token ? "Another lease of the event has a higher token." :
		"The lease of the event has a lower token.";
}

pg_noreturn static void
report_lost(const IdemClaimKey *key, const IdemRow *row, const IdemLease *lease, int64 token)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("the lease of event \"%s\" is lost", pnstrdup(key->id, key->idlen)),
			 errdetail("%s", why_lost(idem_state_find(key), row, lease, token)),
			 errhint("Roll back. Ask lease_event whether the event still has to be done.")));
}

/* Has the transaction the lock of the event, in share mode or exclusively? */
static bool
has_lock(const IdemClaim *own)
{
	return own != NULL && own->state.lock_kept;
}

/* Take the event's lock, to the end of the transaction. */
static void
lock_event(const IdemClaimKey *key, bool exclusive)
{
	const IdemClaim *own = idem_state_find(key);

	idem_leased_check_budget(key, own);
	if (!exclusive)
		idem_lock_share(key);
	else if (!has_lock(own))
		idem_lock_wait(key);
	else if (!idem_lock_try(key))
		idem_leased_report_shared(key);
}

/*
 * Lock an event and see that the token is that of its lease.  *lease: its state.
 * Returns the transaction's claim of the event; asserted: its phase.
 */
static IdemClaim *
hold(IdemCall *call, IdemClaimKey *key, const char *id, int idlen, int64 token,
	 bool exclusive, bool asserted, IdemLease *lease)
{
	const IdemClaim *own;
	IdemRow		row;

	idem_keymaker_make(&call->keys, id, idlen, key);
	lock_event(key, exclusive);
	idem_store_probe(call->store, &key->digest, &row);
	if (row.status == IDEM_ROW_BUSY)
		idem_claim_report_busy(key);
	(void) idem_lease_find(&key->digest, lease);
	if (!row.in_snapshot)
		idem_claim_conflict(key);
	if (!lease->in_snapshot)
		idem_leased_conflict(key);
	own = idem_state_find(key);
	if (row.status == IDEM_ROW_COMPLETED || lease->state != IDEM_LEASE_LEASED ||
		lease->token != token || (own != NULL && own->state.phase == IDEM_PHASE_CLAIMED))
		report_lost(key, &row, lease, token);

	if (own != NULL && own->state.phase == IDEM_PHASE_ASSERTED && !exclusive)
		asserted = true;
	return idem_leased_note(call, key, &row, lease, asserted);
}

TimestampTz
idem_lease_extend(const char *id, int idlen, const char *consumer, int consumerlen,
				  int64 token, int64 duration, text *recovery_point, struct varlena *work)
{
	IdemCall   *call = idem_call_begin(consumer, consumerlen, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemLeaseName name;
	TimestampTz until;

	(void) hold(call, &key, id, idlen, token, false, false, &lease);
	name = idem_leased_name(&key);
	until = GetCurrentTimestamp() + (duration > 0 ? duration : call->policy.lease_duration);
	idem_lease_write_end(&name, token, until);
	if (recovery_point != NULL || work != NULL)
		idem_lease_write_point(&name, token,
							   recovery_point != NULL ? recovery_point : lease.recovery_point,
							   work != NULL ? work : lease.work);
	idem_call_end(call);
	return until;
}

void
idem_lease_assert(const char *id, int idlen, const char *consumer, int consumerlen, int64 token)
{
	IdemCall   *call = idem_call_begin(consumer, consumerlen, false);
	IdemClaimKey key;
	IdemLease	lease;

	(void) hold(call, &key, id, idlen, token, false, true, &lease);
	idem_call_end(call);
}

void
idem_lease_complete(const char *id, int idlen, const char *consumer, int consumerlen,
					int64 token, Datum result, bool has_result)
{
	IdemCall   *call = idem_call_begin(consumer, consumerlen, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemClaim  *claim = hold(call, &key, id, idlen, token, true, true, &lease);
	IdemClaimState state = claim->state;

	state.phase = IDEM_PHASE_COMPLETED;
	idem_state_set(claim, &state);
	idem_call_add(call, claim, result, has_result);
	idem_leased_end(&key);
	idem_call_end(call);
}

/* Giving a lease back */

/*
 * How long an event waits after its attempt failed: the least pause, doubled with
 * each attempt up to the longest; of that at random between a half and the whole,
 * so that events that failed together do not come back together.
 */
static int64
backoff(const IdemConsumerPolicy *policy, int attempt)
{
	double		pause = (double) policy->min_backoff;

	for (int i = 1; i < attempt && pause < policy->max_backoff; i++)
		pause *= 2;
	pause = Min(pause, (double) policy->max_backoff);
	return (int64) (pause / 2 * (1 + pg_prng_double(&pg_global_prng_state)));
}

/* An attempt failed: park the event, or have it wait. */
static void
fail(const IdemConsumerPolicy *policy, const IdemLeaseRelease *release, IdemLease *lease)
{
	bool		last = policy->max_attempts > 0 && lease->attempt >= policy->max_attempts;
	int64		pause = release->retry_after >= 0 ? release->retry_after :
	backoff(policy, lease->attempt);

	lease->state = release->park || last ? IDEM_LEASE_DEAD : IDEM_LEASE_WAITING;
	lease->until = lease->state == IDEM_LEASE_DEAD ? lease->at : lease->at + pause;
	if (release->error != NULL)
		lease->error = release->error;
}

/* It was no attempt: give it back. */
static void
give_back(const IdemLeaseRelease *release, IdemLease *lease)
{
	lease->attempt--;
	lease->state = IDEM_LEASE_WAITING;
	lease->until = lease->at + Max(release->retry_after, 0);
}

/* Is there nothing that the next lease needs to know? */
static bool
is_as_new(const IdemLease *lease)
{
	return lease->state == IDEM_LEASE_WAITING && lease->attempt == 0 &&
		lease->until <= lease->at && lease->error == NULL &&
		lease->recovery_point == NULL && lease->work == NULL;
}

IdemLeaseState
idem_lease_release(const char *id, int idlen, const char *consumer, int consumerlen,
				   int64 token, const IdemLeaseRelease *release)
{
	IdemCall   *call = idem_call_begin(consumer, consumerlen, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemLeaseName name;

	(void) hold(call, &key, id, idlen, token, true, false, &lease);
	name = idem_leased_name(&key);
	lease.token = idem_token_draw_unflushed();
	lease.at = GetCurrentTimestamp();
	if (release->error != NULL || release->park)
		fail(&call->policy, release, &lease);
	else
		give_back(release, &lease);
	if (is_as_new(&lease))
		idem_lease_free(&name);
	else
		idem_lease_write(&name, &lease);
	idem_call_end(call);
	return lease.state == IDEM_LEASE_DEAD ? IDEM_LEASE_STATE_DEAD : IDEM_LEASE_STATE_WAITING;
}
