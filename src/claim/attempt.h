/*-------------------------------------------------------------------------
 *
 * attempt.h
 *	The attempts of an event or a request: how one begins and how it ends.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/attempt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_ATTEMPT_H
#define IDEM_CLAIM_ATTEMPT_H

#include "postgres.h"

#include "claim/call.h"
#include "claim/consumer.h"
#include "claim/lock.h"
#include "lease/log.h"

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

#endif							/* IDEM_CLAIM_ATTEMPT_H */
