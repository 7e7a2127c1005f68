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
#include "utils/timestamp.h"

#include "claim/leased.h"
#include "claim/setting.h"
#include "lease/token.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/uptime.h"

void
idem_leased_conflict(const IdemClaimKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent change of the lease of %s",
					idem_claim_title(key)),
			 errdetail("Another transaction committed it for consumer \"%s\" after this one took its snapshot.",
					   pnstrdup(key->consumer, key->consumerlen)),
			 errhint("Retry the transaction.")));
}

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

/* Are the attempts of the event used up? */
static bool
is_exhausted(const IdemCall *call, const IdemLease *lease)
{
	return call->policy.max_attempts > 0 && lease->attempt >= call->policy.max_attempts;
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
	(void) idem_lease_find(idem_call_leases_to_look(call), &key->digest, lease);
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
	if (!is_exhausted(call, lease))
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
