/*-------------------------------------------------------------------------
 *
 * leased.h
 *		What the log of leases says of an event that somebody wants.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/leased.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_LEASED_H
#define IDEM_CLAIM_LEASED_H

#include "postgres.h"

#include "claim/call.h"
#include "claim/consumer.h"
#include "claim/lock.h"
#include "claim/state.h"
#include "lease/log.h"

/*
 * The verdict on an event that the rows of the store let be claimed, and *lease,
 * which is FREE if nothing is open of the event.  A lease that is overdue may be
 * taken over.  An event whose attempts are used up is parked here, and DEAD.
 * own: the transaction's former claim of the event, or NULL.  The caller holds the
 * event's lock exclusively.
 */
extern IdemClaimResult idem_leased_judge(IdemCall *call, const IdemClaimKey *key,
										 const IdemClaim *own, IdemLease *lease);

/* The same for a lease that idem_lease_find has found, or has left FREE. */
extern IdemClaimResult idem_leased_judge_found(IdemCall *call, const IdemClaimKey *key,
											   const IdemClaim *own, IdemLease *lease);

/*
 * The verdict on an event of which this transaction has taken or changed a lease: BUSY; DEAD
 * if it has parked the event.
 */
extern IdemClaimResult idem_leased_judge_own(const IdemClaimKey *key, IdemLease *lease);

/*
 * Microseconds until the lease ends, or until an event that waits may be leased again;
 * 0 if that time is over.
 */
extern int64 idem_leased_left(const IdemLease *lease);

/*
 * Write the state of an event, with the number lease->token (lease/log.h), and for how
 * long it is kept by its consumer's policy; another end of its lease; another recovery
 * point, and its work.
 */
extern void idem_leased_write(IdemCall *call, const IdemClaimKey *key, IdemLease *lease);
extern void idem_leased_write_end(IdemCall *call, const IdemClaimKey *key, int64 token,
								  TimestampTz until);
extern void idem_leased_write_point(IdemCall *call, const IdemClaimKey *key, int64 token,
									text *recovery_point, struct varlena *work);

/* Write that nothing is open of an event, which this transaction completes. */
extern void idem_leased_end(IdemCall *call, const IdemClaimKey *key);

/*
 * Note that the transaction has taken or changed the lease of an event, and holds
 * its lock to the end.  asserted: the lease is the transaction's claim from here
 * on.
 */
extern IdemClaim *idem_leased_note(const IdemCall *call, const IdemClaimKey *key,
								   const IdemRow *row, const IdemLease *lease, bool asserted);

/*
 * Error 53400 if the transaction must not keep another lock.  own: its former claim
 * of the event, or NULL.
 */
extern void idem_leased_check_budget(const IdemClaimKey *key, const IdemClaim *own);

/*
 * Take the lock of an event to the end of the transaction, exclusively or in share mode, and
 * wait; but an upgrade does not.  Errors 53400, and 55P03 if others hold it in share mode.
 */
extern void idem_leased_lock(const IdemClaimKey *key, bool exclusive);

/* Error 55P03: other transactions hold the lock of the event in share mode. */
pg_noreturn extern void idem_leased_report_shared(const IdemClaimKey *key);

/* Error 55P03: the event is leased, waits for another attempt, or is dead. */
pg_noreturn extern void idem_leased_report_open(const IdemClaimKey *key);

/* The state after an attempt; in the order of the enum lease_state. */
typedef enum IdemLeaseState
{
	IDEM_LEASE_STATE_LEASED,
	IDEM_LEASE_STATE_WAITING,
	IDEM_LEASE_STATE_DEAD
} IdemLeaseState;

/* How a holder gives a lease back. */
typedef struct IdemLeaseRelease
{
	text	   *error;			/* why the attempt failed; NULL: it was none */
	int64		retry_after;	/* microseconds; -1: the backoff decides */
	bool		park;
} IdemLeaseRelease;

/*
 * Write the next lease.  duration: microseconds; 0: as the consumer's policy says.
 * holder: or NULL.  *lease: what the log had; becomes the new lease.  The caller has
 * the lock exclusively, and the store let the event be claimed by that row.
 */
extern void idem_attempt_begin(IdemCall *call, const IdemClaimKey *key, const IdemRow *row,
							   int64 duration, text *holder, IdemLease *lease);

/*
 * Change the lease into the state after a failed attempt: waiting or dead; or after an
 * attempt that does not count.  lease->at is the time of that.
 */
extern void idem_attempt_fail(const IdemConsumerPolicy *policy, const IdemLeaseRelease *release,
							  IdemLease *lease);
extern void idem_attempt_give_back(const IdemLeaseRelease *release, IdemLease *lease);

/* Did no attempt begin, but for those that were given back, not even before a redrive? */
extern bool idem_attempt_never_began(const IdemLease *lease);

/*
 * Write the state after an attempt, with a number of its own; nothing is left if the
 * next lease needs to know nothing.
 */
extern IdemLeaseState idem_attempt_write(IdemCall *call, const IdemClaimKey *key, IdemLease *lease);

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

#endif							/* IDEM_CLAIM_LEASED_H */
