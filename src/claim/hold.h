/*-------------------------------------------------------------------------
 *
 * hold.h
 *	Acting under the token of a lease.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/hold.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_HOLD_H
#define IDEM_CLAIM_HOLD_H

#include "postgres.h"

#include "claim/call.h"
#include "claim/lock.h"
#include "claim/state.h"
#include "lease/log.h"

/* How somebody who has a token wants the lease. */
typedef enum IdemHold
{
	IDEM_HOLD_SHARED,			/* to change a part of it beside others */
	IDEM_HOLD_ASSERTED,			/* the same, as the transaction's claim */
	IDEM_HOLD_TO_COMPLETE,		/* to end it with a completion */
	IDEM_HOLD_TO_RELEASE		/* to end it without one */
} IdemHold;

/*
 * Take the lock of an event or a request to the end of the transaction, and see that
 * the token is that of the lease that it is in, overdue or not.  *lease: its state.
 * Returns the transaction's claim.  Waits for others, except that the upgrade from
 * share mode does not.
 *
 * Errors: ID007 if the token is that of another lease, or of none; 53400 past the
 * budget of locks; 55P03 if the transaction has asserted or extended the lease, and
 * another one as well; 40001 if the transaction's snapshot is too old.
 */
extern IdemClaim *idem_hold(IdemCall *call, const IdemClaimKey *key, int64 token,
							IdemHold mode, IdemLease *lease);

/*
 * Write another end of the lease that idem_hold has found.  Error ID007 if it has been
 * overdue for so long that it may be forgotten.
 */
extern void idem_hold_extend(IdemCall *call, const IdemClaimKey *key, const IdemLease *lease,
							 TimestampTz until);

#endif							/* IDEM_CLAIM_HOLD_H */
