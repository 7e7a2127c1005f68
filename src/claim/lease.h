/*-------------------------------------------------------------------------
 *
 * lease.h
 *		Leases: claims that outlive their transaction.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/lease.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_LEASE_H
#define IDEM_CLAIM_LEASE_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "claim/claim.h"
#include "claim/leased.h"
#include "claim/state.h"
#include "lease/log.h"

/* What somebody wants to lease; duration 0: as the consumer's policy says. */
typedef struct IdemLeaseOrder
{
	int64		duration;		/* microseconds */
	text	   *holder;			/* or NULL */
	const TimestampTz *valid_until; /* or NULL */
} IdemLeaseOrder;

/* The answer.  The lease is set if "claimed"; of "dead" the error is. */
typedef struct IdemLeaseAnswer
{
	IdemClaimResult result;
	IdemLease	lease;
	int64		retry_after;	/* busy: microseconds; -1: nobody knows */
	bool		is_past_budget; /* busy because the transaction has no lock
								 * left */
} IdemLeaseAnswer;

/*
 * Lease one event.  While it is busy, the call tries again for up to wait_ms
 * milliseconds.  Error 55000 if the consumer has foreign lockers, 53400 past the budget of
 * locks, 40001 as of
 * idem_claim_event.
 */
extern void idem_lease_event(IdemStr id, IdemStr consumer,
							 const IdemLeaseOrder *order, long wait_ms, IdemLeaseAnswer *answer);

/*
 * Lease n events, without waiting.  answers has as many elements.  An id that
 * occurs more than once is leased for its first item, and busy for the others.
 */
extern void idem_lease_events(const IdemClaimItem *items, int n, IdemStr consumer, const IdemLeaseOrder *order,
							  IdemLeaseAnswer *answers);

/*
 * All of these need the token of the lease that the event is in, whether it is
 * overdue or not.  Error ID007 if it is another one, or none; 53400 past the budget
 * of locks; 55P03 if the transaction has asserted or extended the lease, and another
 * one as well.
 */

/* Another end, and if one of the two is not NULL, another recovery point. */
extern TimestampTz idem_lease_extend(IdemStr id, IdemStr consumer, int64 token, int64 duration,
									 text *recovery_point, struct varlena *work);

/* Make the lease the claim of this transaction. */
extern void idem_lease_assert(IdemStr id, IdemStr consumer, int64 token);

/* Complete the event; result as of idem_complete_event. */
extern void idem_lease_complete(IdemStr id, IdemStr consumer, int64 token, Datum result, bool has_result);

/* Give the lease back. */
extern IdemLeaseState idem_lease_release(IdemStr id, IdemStr consumer, int64 token,
										 const IdemLeaseRelease *release);

/*
 * Have dead events of a consumer tried again, with all their attempts; discard:
 * remember them as completed instead.  scope: of requests, whose keys the items are;
 * NULL: events.  n < 0: all dead ones of that scope, or with scope NULL all events and
 * all requests, up to the budget of locks; call it again until it returns 0.  What is
 * not dead is passed over.  Returns how many were dead.
 *
 * Errors: 53400 past the budget of locks, if the events are named; 40001 as of
 * idem_claim_event.
 */
extern int64 idem_redrive(const IdemClaimItem *items, int n, IdemStr consumer, const text *scope, bool discard);

#endif							/* IDEM_CLAIM_LEASE_H */
