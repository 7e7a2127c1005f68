/*-------------------------------------------------------------------------
 *
 * hold.c
 *	Acting under the token of a lease.
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
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/hold.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "claim/claim.h"
#include "claim/hold.h"
#include "claim/leased.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/uptime.h"

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

IdemClaim *
idem_hold(IdemCall *call, const IdemClaimKey *key, int64 token, IdemHold mode, IdemLease *lease)
{
	bool		exclusive = mode == IDEM_HOLD_TO_COMPLETE || mode == IDEM_HOLD_TO_RELEASE;
	bool		asserted = mode == IDEM_HOLD_ASSERTED || mode == IDEM_HOLD_TO_COMPLETE;
	const IdemClaim *own;
	IdemRow		row;

	lock_event(key, exclusive);
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
