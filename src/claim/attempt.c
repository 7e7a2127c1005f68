/*-------------------------------------------------------------------------
 *
 * attempt.c
 *	The attempts of an event or a request: how one begins and how it ends.
 *
 * An attempt begins with a lease, whose number is its token.  It ends with a completion,
 * by a failure that counts, or by being given back.  What a holder leaves behind that
 * vanished is a lease that is overdue: it counts as well.
 *
 * LOCKING: the caller has the lock of the event or the request exclusively.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/attempt.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "common/pg_prng.h"
#include "utils/timestamp.h"

#include "claim/attempt.h"
#include "claim/leased.h"
#include "lease/token.h"
#include "shared/fault.h"

void
idem_attempt_begin(IdemCall *call, const IdemClaimKey *key, const IdemRow *row,
				   int64 duration, text *holder, IdemLease *lease)
{
	lease->state = IDEM_LEASE_LEASED;
	lease->token = idem_token_draw();
	lease->attempt++;
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

/* Is there nothing that the next lease needs to know? */
static bool
is_as_new(const IdemLease *lease)
{
	return lease->state == IDEM_LEASE_WAITING && lease->until <= lease->at &&
		lease->fingerprint == NULL && idem_attempt_never_began(lease);
}

IdemLeaseState
idem_attempt_write(IdemCall *call, const IdemClaimKey *key, IdemLease *lease)
{
	lease->token = idem_token_draw_unflushed();
	if (is_as_new(lease))
		idem_leased_end(call, key);
	else
		idem_leased_write(call, key, lease);
	return lease->state == IDEM_LEASE_DEAD ? IDEM_LEASE_STATE_DEAD : IDEM_LEASE_STATE_WAITING;
}
