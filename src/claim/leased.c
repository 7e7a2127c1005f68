/*-------------------------------------------------------------------------
 *
 * leased.c
 *		What the log of leases says of an event that somebody wants.
 *
 * Claims and leases of one event exclude each other: both take the event's lock
 * exclusively before they look, and both look into the store and into the log.
 *
 * A lease that is overdue stays its holder's until somebody takes the event over.
 * A claim takes it over by completing the event, which ends what the log has; if
 * the claim is given up or rolled back, the lease is as it was.
 *
 * LOCKING: the event's lock, exclusively; below it, as keyed_log.c.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/leased.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "claim/leased.h"
#include "claim/setting.h"
#include "lease/token.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/sound.h"
#include "shared/uptime.h"

/* Compared before it is subtracted: a restored row may have any time. */
int64
idem_leased_left(const IdemLease *lease)
{
	TimestampTz now = GetCurrentTimestamp();

	return lease->until > now ? lease->until - now : 0;
}

/* The name of the event, as the log of leases wants it. */
static IdemLeaseName
name_of(const IdemClaimKey *key)
{
	IdemLeaseName name = {
		.digest = key->digest, .scope = key->id, .scopelen = key->scopelen,
		.consumer = key->consumer, .consumerlen = key->consumerlen
	};

	name.id = idem_claim_id(key, &name.idlen);
	return name;
}

/*
 * For how many seconds is a state kept at least, if nothing happens; 0: until something
 * happens.  Never for less than a completion is remembered: else a redelivery would be
 * executed again of which nothing is known any more.
 */
static int64
kept_for(const IdemConsumerPolicy *policy, char state)
{
	if (policy->retention == 0 || state != IDEM_LEASE_DEAD)
		return policy->retention;
	return idem_dead_retention == 0 ? 0 : Max(policy->retention, idem_dead_retention);
}

/* A row is kept for so many seconds after a time; 0: it does not expire. */
static void
note_expiry(int64 kept, TimestampTz until)
{
	if (kept != 0)
		idem_store_note_expiry(idem_uptime_now(), kept + Max(until - GetCurrentTimestamp(), 0) / USECS_PER_SEC);
}

void
idem_leased_write(IdemCall *call, const IdemClaimKey *key, IdemLease *lease)
{
	IdemLeaseName name = name_of(key);

	lease->kept = kept_for(&call->policy, lease->state);
	note_expiry(lease->kept, lease->until);
	idem_lease_write(idem_call_leases(call), &name, lease);
}

void
idem_leased_write_end(IdemCall *call, const IdemClaimKey *key, int64 token, TimestampTz until)
{
	IdemLeaseName name = name_of(key);
	int64		kept = kept_for(&call->policy, IDEM_LEASE_LEASED);

	note_expiry(kept, until);
	idem_lease_write_end(idem_call_leases(call), &name, token, until, kept);
}

void
idem_leased_write_point(IdemCall *call, const IdemClaimKey *key, int64 token, text *recovery_point,
						struct varlena *work)
{
	IdemLeaseName name = name_of(key);

	idem_lease_write_point(idem_call_leases(call), &name, token, recovery_point, work);
}

void
idem_leased_end(IdemCall *call, const IdemClaimKey *key)
{
	IdemLeaseName name = name_of(key);

	idem_lease_free(idem_call_leases(call), &name);
}

IdemClaim *
idem_leased_note(const IdemCall *call, const IdemClaimKey *key, const IdemRow *row,
				 const IdemLease *lease, bool asserted)
{
	IdemClaim  *claim = idem_state_get(key);
	IdemClaimState state;

	idem_call_fill_state(call, key, row, claim,
						 asserted ? IDEM_PHASE_ASSERTED : IDEM_PHASE_LEASED, &state);
	state.has_lease = true;
	state.claimed_at = lease->at;
	idem_state_set(claim, &state);
	return claim;
}

/*
 * Park an event.  The caller gives one lock back, as with each refusal, so another
 * one is taken for the row.
 */
static void
park(IdemCall *call, const IdemClaimKey *key, IdemLease *lease)
{
	IdemRow		none = {.status = IDEM_ROW_NONE};

	(void) idem_lock_try(key);
	lease->state = IDEM_LEASE_DEAD;
	lease->token = idem_token_draw_unflushed();
	lease->until = GetCurrentTimestamp();
	idem_leased_write(call, key, lease);
	IDEM_FAULT_POINT("lease-parked");
	(void) idem_leased_note(call, key, &none, lease, false);
}

IdemClaimResult
idem_leased_judge(IdemCall *call, const IdemClaimKey *key, const IdemClaim *own,
				  IdemLease *lease)
{
	if (!idem_call_may_be_leased(call))
	{
		idem_lease_none(lease);
		return IDEM_CLAIM_CLAIMED;
	}

	/*
	 * A call about many events locks the log once.  It does not wait for an
	 * event's lock from here on.
	 */
	if (call->leases == NULL)
		call->leases = idem_keyed_access_open(&idem_lease_log, IDEM_KEYED_TO_READ);
	(void) idem_lease_find(call->leases, &key->digest, lease);
	return idem_leased_judge_found(call, key, own, lease);
}

IdemClaimResult
idem_leased_judge_found(IdemCall *call, const IdemClaimKey *key, const IdemClaim *own,
						IdemLease *lease)
{
	if (!lease->in_snapshot || !lease->point_in_snapshot)
		idem_leased_conflict(key);
	if (lease->state == IDEM_LEASE_FREE)
		return IDEM_CLAIM_CLAIMED;
	if (lease->state == IDEM_LEASE_DEAD)
		return IDEM_CLAIM_DEAD;
	if (lease->until > GetCurrentTimestamp())
		return IDEM_CLAIM_BUSY;

	/* past the budget a claim gives its lock back, and cannot end the lease */
	if (!idem_call_within_budget(own))
	{
		call->stays_busy = true;
		return IDEM_CLAIM_BUSY;
	}
	if (call->policy.max_attempts <= 0 || lease->attempt < call->policy.max_attempts)
		return IDEM_CLAIM_CLAIMED;
	park(call, key, lease);
	return IDEM_CLAIM_DEAD;
}

IdemClaimResult
idem_leased_judge_own(const IdemClaimKey *key, IdemLease *lease)
{
	return idem_lease_find(NULL, &key->digest, lease) && lease->state == IDEM_LEASE_DEAD ?
		IDEM_CLAIM_DEAD : IDEM_CLAIM_BUSY;
}

void
idem_leased_check_budget(const IdemClaimKey *key, const IdemClaim *own)
{
	if (!idem_call_within_budget(own))
		ereport(ERROR,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("%s is past the budget of locks of this transaction",
						idem_claim_title(key)),
				 errhint("Act on fewer leases in one transaction. If idempotency.max_claim_locks is raised, raise max_locks_per_transaction with it, or other sessions run out of locks.")));
}

void
idem_leased_report_shared(const IdemClaimKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("the lease of %s is in use by another transaction",
					idem_claim_title(key)),
			 errdetail("Two transactions that have asserted or extended one lease would wait for each other."),
			 errhint("Roll back, and try again when the other transaction has ended.")));
}

void
idem_leased_report_open(const IdemClaimKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("event \"%s\" is leased, waits for another attempt, or is dead",
					pnstrdup(key->id, key->idlen)),
			 errhint("Import it when its holder has completed or released it. consumer_discard remembers a dead event as completed.")));
}

/*
 * The attempts of an event or a request: how one begins and how it ends.
 *
 * An attempt begins with a lease, whose number is its token.  It ends with a completion,
 * by a failure that counts, or by being given back.  What a holder leaves behind that
 * vanished is a lease that is overdue: it counts as well.
 *
 * LOCKING: the caller has the lock of the event or the request exclusively.
 */

void
idem_attempt_begin(IdemCall *call, const IdemClaimKey *key, const IdemRow *row,
				   int64 duration, text *holder, IdemLease *lease)
{
	lease->state = IDEM_LEASE_LEASED;
	lease->token = idem_token_draw();
	lease->attempt = Min(lease->attempt + 1, IDEM_SOUND_COUNT - 1);
	lease->holder = holder;
	lease->at = GetCurrentTimestamp();
	lease->until = lease->at + (duration > 0 ? duration : call->policy.lease_duration);
	idem_leased_write(call, key, lease);
	IDEM_FAULT_POINT("lease-taken");
	(void) idem_leased_note(call, key, row, lease, false);
}

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

void
idem_attempt_fail(const IdemConsumerPolicy *policy, const IdemLeaseRelease *release, IdemLease *lease)
{
	bool		last = policy->max_attempts > 0 && lease->attempt >= policy->max_attempts;
	int64		pause = release->retry_after >= 0 ? release->retry_after :
	backoff(policy, lease->attempt);

	lease->state = release->park || last ? IDEM_LEASE_DEAD : IDEM_LEASE_WAITING;
	lease->until = lease->state == IDEM_LEASE_DEAD ? lease->at : lease->at + pause;
	if (release->error != NULL)
		lease->error = release->error;
}

void
idem_attempt_give_back(const IdemLeaseRelease *release, IdemLease *lease)
{
	lease->attempt--;
	lease->state = IDEM_LEASE_WAITING;
	lease->until = lease->at + Max(release->retry_after, 0);
}

bool
idem_attempt_never_began(const IdemLease *lease)
{
	return lease->attempt == 0 && !lease->redriven && lease->error == NULL &&
		lease->recovery_point == NULL && lease->work == NULL;
}

IdemLeaseState
idem_attempt_write(IdemCall *call, const IdemClaimKey *key, IdemLease *lease)
{
	lease->token = idem_token_draw_unflushed();
	/* is there nothing that the next lease needs to know? */
	if (lease->state == IDEM_LEASE_WAITING && lease->until <= lease->at &&
		lease->fingerprint == NULL && idem_attempt_never_began(lease))
		idem_leased_end(call, key);
	else
		idem_leased_write(call, key, lease);
	return lease->state == IDEM_LEASE_DEAD ? IDEM_LEASE_STATE_DEAD : IDEM_LEASE_STATE_WAITING;
}

/*
 * Acting under the token of a lease.
 *
 * Who acts under a token takes the event's lock first, then reads the log, and keeps
 * the lock to the end of the transaction.  Who gives out a token, or ends a lease, has
 * the lock exclusively.  So no transaction commits under a token after a higher one was
 * committed.  To extend and to assert takes the lock in share mode: a heartbeat of
 * another connection passes beside the transaction that does the work.
 *
 * The look goes into the dedup store as well.  An import, or a claim past the budget,
 * has given its lock back, and is seen by its row only.
 *
 * LOCKING: as a claim (README.md), then the event's lock, which is waited for.  The
 * upgrade from share mode does not wait: two transactions that have asserted one lease
 * would wait for each other.
 */

/* Why a token is not that of the lease, of an event or of a request. */
static const char *
why_lost(const IdemClaimKey *key, const IdemRow *row, const IdemLease *lease, int64 token)
{
	const IdemClaim *own = idem_state_find(key);
	bool		request = key->scopelen > 0;

	if (own != NULL && own->state.phase == IDEM_PHASE_CLAIMED)
		return request ? "This transaction has claimed the request." :
			"This transaction has claimed the event.";
	if (row->status == IDEM_ROW_COMPLETED)
		return request ? "The request is completed." : "The event is completed.";
	if (lease->state == IDEM_LEASE_FREE)
		return request ? "There is no lease of the request." : "There is no lease of the event.";
	if (lease->state == IDEM_LEASE_DEAD)
		return request ? "The request is dead." : "The event is dead.";
	if (lease->state == IDEM_LEASE_WAITING)
		return "The lease was released.";
	if (token < lease->token)
		return request ? "Another lease of the request has a higher token." :
			"Another lease of the event has a higher token.";
	return request ? "The lease of the request has a lower token." :
		"The lease of the event has a lower token.";
}

/* Error ID007; detail: why. */
pg_noreturn static void
report_lost(const IdemClaimKey *key, const char *detail)
{
	ereport(ERROR,
			(errcode(ERRCODE_IDEM_LEASE_LOST),
			 errmsg("the lease of %s is lost", idem_claim_title(key)),
			 errdetail("%s", detail),
			 key->scopelen > 0 ?
			 errhint("Roll back. Ask claim_request whether the request still has to be executed.") :
			 errhint("Roll back. Ask lease_event whether the event still has to be done.")));
}

void
idem_leased_lock(const IdemClaimKey *key, bool exclusive)
{
	const IdemClaim *own = idem_state_find(key);

	idem_leased_check_budget(key, own);
	if (!exclusive)
		idem_lock_share(key);
	else if (own == NULL || !own->state.lock_kept)
		idem_lock_wait(key);
	else if (!idem_lock_try(key))
		idem_leased_report_shared(key);
}

IdemClaim *
idem_hold(IdemCall *call, const IdemClaimKey *key, int64 token, IdemHold mode, IdemLease *lease)
{
	bool		exclusive = mode == IDEM_HOLD_TO_COMPLETE || mode == IDEM_HOLD_TO_RELEASE;
	bool		asserted = mode == IDEM_HOLD_ASSERTED || mode == IDEM_HOLD_TO_COMPLETE;
	const IdemClaim *own;
	IdemRow		row;

	idem_leased_lock(key, exclusive);
	IDEM_FAULT_POINT("lease-held");
	idem_store_probe(call->store, &key->digest, &row);
	if (row.status == IDEM_ROW_BUSY)
		idem_claim_report_busy(key);
	(void) idem_lease_find(mode == IDEM_HOLD_ASSERTED ? call->leases : idem_call_leases(call),
						   &key->digest, lease);
	if (!row.in_snapshot)
		idem_claim_conflict(key);
	if (!lease->in_snapshot)
		idem_leased_conflict(key);
	own = idem_state_find(key);
	if (row.status == IDEM_ROW_COMPLETED || lease->state != IDEM_LEASE_LEASED ||
		lease->token != token || (own != NULL && own->state.phase == IDEM_PHASE_CLAIMED))
		report_lost(key, why_lost(key, &row, lease, token));

	if (own != NULL && own->state.phase == IDEM_PHASE_ASSERTED && !exclusive)
		asserted = true;
	return idem_leased_note(call, key, &row, lease, asserted);
}

/*
 * Who maintains the log looks at the time, and then for rows that are being written.  So
 * the time is looked at after the row is there: either that process finds the row, or
 * the time is over by now.
 */
void
idem_hold_extend(IdemCall *call, const IdemClaimKey *key, const IdemLease *lease, TimestampTz until)
{
	idem_leased_write_end(call, key, lease->token, until);
	if (lease->expires != 0 && idem_uptime_now() >= lease->expires)
		report_lost(key, key->scopelen > 0 ?
					"It was overdue for longer than the request is kept." :
					"It was overdue for longer than the event is kept.");
}
