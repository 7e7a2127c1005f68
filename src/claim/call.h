/*-------------------------------------------------------------------------
 *
 * call.h
 *		One call's work on the events of one consumer.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/call.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_CALL_H
#define IDEM_CLAIM_CALL_H

#include "postgres.h"

#include "access/xlogdefs.h"
#include "datatype/timestamp.h"

#include "claim/consumer.h"
#include "claim/lock.h"
#include "claim/state.h"
#include "lease/token.h"
#include "shared/clock.h"
#include "shared/keyed_log.h"
#include "store/store.h"

/* One call's work on the events of one consumer. */
typedef struct IdemCall
{
	IdemStore  *store;
	IdemKeyMaker keys;
	IdemConsumerPolicy policy;
	TimestampTz now;
	const TimestampTz *valid_until; /* the caller's, or NULL */
	bool		stays_busy;		/* an event is busy because of this
								 * transaction itself, so it is useless to ask
								 * again */

	IdemLeaseUse use;			/* may the log of leases have rows? */
	IdemKeyedAccess *leases;	/* the log of leases, open; or NULL */
	bool		changes_leases; /* it is locked to change it */

	/* The completions that must be durable before the verdicts are given out */
	bool		saw_completed;
	XLogRecPtr	commit_lsn;

	/* The rows to be written, and the claim of each row */
	int			nrows;
	IdemNewEntry rows[IDEM_STORE_CHUNK];
	IdemClaim  *claims[IDEM_STORE_CHUNK];
	bool		early;			/* the rows are of claims past the budget,
								 * whose locks are still held */
} IdemCall;

/*
 * Open the store for one call, and get the consumer's policy.  early: rows are of
 * claims past the budget of locks.
 */
extern IdemCall *idem_call_begin(IdemStr consumer, bool early);

/*
 * Write the rows that are left, close the store, and wait until the
 * completions that were answered "duplicate" are durable.
 */
extern void idem_call_end(IdemCall *call);

/*
 * Remove the row that the claim wrote before, if any, and collect a completed
 * row for the claim.  The row of a kept claim that was taken over stays; the new
 * row's turn is higher.
 */
extern void idem_call_add(IdemCall *call, IdemClaim *claim, Datum result, bool has_result);

/*
 * Lock the log of leases to change it, to the end of the call.  ..._leave_leases: unlock
 * it before, for a call that is going to wait for an event's lock.
 */
extern IdemKeyedAccess *idem_call_leases(IdemCall *call);

/* Can the log say anything about an event whose lock is held?  Most databases never lease one. */
extern bool idem_call_may_be_leased(IdemCall *call);
extern void idem_call_leave_leases(IdemCall *call);

/* A row of an event, without its end and result. */
extern IdemNewEntry idem_claim_entry(const IdemClaimKey *key, int16 turn, char state,
									 int16 class, TimestampTz claimed_at);

/* The row that a claim writes, as in progress and without a result. */
extern IdemNewEntry idem_call_row(const IdemClaim *claim);

/*
 * Would a claim of the event keep its lock?  own: the transaction's former
 * claim of the event, or NULL.
 */
extern bool idem_call_within_budget(const IdemClaim *own);

/* Error 55000 if the transaction has written what the undecided claim guards (lease_guard). */
extern void idem_call_check_give_up(const IdemClaim *claim);

/* How many more locks the transaction may keep. */
extern int64 idem_call_room(void);

/*
 * The verdict that the event's row gives.  The caller holds the event's lock,
 * except past the budget.
 */
extern IdemClaimResult idem_call_judge(IdemCall *call, const IdemClaimKey *key, const IdemRow *row);

/* The turn of the row to write after that row was found; error 54000 at the end. */
extern int16 idem_claim_next_turn(const IdemClaimKey *key, const IdemRow *row);

/* Error 55P03: somebody else has the event. */
pg_noreturn extern void idem_claim_report_busy(const IdemClaimKey *key);

/* Error 55000: this transaction has claimed the event. */
pg_noreturn extern void idem_claim_report_own(const IdemClaimKey *key);

/*
 * Error 55000: the transaction's claim of an event is undecided, and of the sink program
 * that has called the function under way (idempotency.claimed_consumer).
 */
extern void idem_claim_check_not_sinks(const IdemClaim *own);

/* Error 40001: the transaction's snapshot does not see what became of the event, or of its lease. */
pg_noreturn extern void idem_claim_report_conflict(const IdemClaimKey *key, const char *what);
#define idem_claim_conflict(key)		idem_claim_report_conflict(key, "completion")
#define idem_leased_conflict(key)		idem_claim_report_conflict(key, "change of the lease")

/*
 * Fill in the state of a claim of an event whose row was found, and whose lock the
 * transaction keeps, as of now.  phase: of the claim.  own: the transaction's
 * former claim of the event, or NULL.
 */
extern void idem_call_fill_state(const IdemCall *call, const IdemClaimKey *key,
								 const IdemRow *row, const IdemClaim *own,
								 IdemClaimPhase phase, IdemClaimState *state);

/*
 * A pause between two tries of a call that began at start and waits for wait_ms.
 * False if the time is up.
 */
extern bool idem_call_pause(IdemClock start, long wait_ms);

/*
 * Is the event too old when the call is made?  valid_until: what the caller said, or
 * NULL, and then the consumer's policy decides by the id's age.  The answer is
 * about events of which no completion is remembered.
 */
extern bool idem_call_is_expired(const IdemCall *call, const IdemClaimKey *key,
								 const TimestampTz *valid_until);

#endif							/* IDEM_CLAIM_CALL_H */
