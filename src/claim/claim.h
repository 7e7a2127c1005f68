/*-------------------------------------------------------------------------
 *
 * claim.h
 *		Transactional claims: one effect per (consumer, event).
 *
 * A transaction claims an event, makes the event's effect and completes the
 * claim, all in one transaction.  A claim of the same event that comes later
 * is told "duplicate".  A claim that comes while the first transaction is open
 * is told "busy".  A claim that was neither completed nor released makes
 * COMMIT and PREPARE TRANSACTION fail.
 *
 * Ids and consumers are byte strings in the server encoding, not necessarily
 * zero-terminated.  The caller has checked that they are valid and not too
 * long (idem_check_length).  Consumers whose name starts with '@' belong to
 * the extension: SQL cannot name them, and processed_events does not show
 * them.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/claim.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_H
#define IDEM_CLAIM_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "claim/lock.h"
#include "claim/state.h"
#include "store/store.h"

/* What is remembered of an event; in the order of the SQL enum claim_status. */
typedef enum IdemClaimStatus
{
	IDEM_STATUS_PROCESSING,		/* claimed and not completed: a kept claim, or
								 * a claim of this transaction */
	IDEM_STATUS_COMPLETED,		/* durably, or by this transaction */
	IDEM_STATUS_UNKNOWN,		/* nothing is remembered; an open transaction
								 * of somebody else may have a claim */
	IDEM_STATUS_LEASED,			/* a lease of it was taken, and is not ended;
								 * it may be overdue */
	IDEM_STATUS_WAITING,		/* it may be leased again, at once or later */
	IDEM_STATUS_DEAD			/* it is not tried again by itself */
} IdemClaimStatus;

typedef struct IdemClaimInfo
{
	IdemClaimStatus status;
	TimestampTz claimed_at;		/* if it is processing, completed or leased */
	TimestampTz completed_at;	/* if completed: not before */
	TimestampTz completed_latest;	/* and not after */
	int64		retry_after;	/* if leased or waiting: microseconds until it
								 * may be leased, 0: at once; -1: not known */
} IdemClaimInfo;

/* One event id in, one verdict out. */
typedef struct IdemClaimItem
{
	IdemStr		id;
	IdemClaimResult result;
} IdemClaimItem;

/* Defines the subsystem's settings; called once per process. */
extern void idem_claim_init(void);

/*
 * Before COMMIT or PREPARE: refuse or keep undecided claims, and force a durable
 * commit if the transaction completed a claim.
 */
extern void idem_finish_claims(bool prepare);

/*
 * If there are undecided claims, be asked about them before all callbacks that other
 * libraries have registered until now.
 */
extern void idem_claims_ask_first(void);

/*
 * Claim one event for the current (sub)transaction.  While the event is busy,
 * the call tries again for up to wait_ms milliseconds; 0 does not wait.
 * valid_until: later than that the event is expired; NULL: the age of its id
 * counts, where the consumer's policy says so.  The caller has refused recovery
 * and read-only transactions (idem_prevent_read_only).
 *
 * Errors: 40001 if the event was completed after the transaction snapshot of a
 * REPEATABLE READ or SERIALIZABLE transaction.
 */
extern IdemClaimResult idem_claim_event(IdemStr id, IdemStr consumer,
										long wait_ms, const TimestampTz *valid_until);

/*
 * Claim n events of one consumer, without waiting; cheaper than n calls.
 * Fills in items[].result.  If an id occurs more than once, the first item
 * gets the verdict; the other items are duplicates of the first, or busy if
 * the first is busy.
 */
extern void idem_claim_events(IdemClaimItem *items, int n,
							  IdemStr consumer);

/*
 * Complete an event that this transaction claimed.  result is a jsonb Datum,
 * perhaps toasted.  Error ID002 if this transaction did not claim the event,
 * or completed it before.
 */
extern void idem_complete_event(IdemStr id, IdemStr consumer,
								Datum result, bool has_result);

/*
 * Complete n events that this transaction claimed.  results and has_result may
 * be NULL (no results).  items[].result is ignored.
 */
extern void idem_complete_events(const IdemClaimItem *items, int n,
								 IdemStr consumer,
								 const Datum *results, const bool *has_result);

/*
 * Give up a claim of this transaction.  Others may claim the event, at the
 * latest when the transaction ends.  Error ID002 if this transaction did not
 * claim the event, or completed it already.
 */
extern void idem_release_event(IdemStr id, IdemStr consumer);

/*
 * Forget an event, whose next claim may be answered "claimed".  False if nothing
 * is remembered.  Error 55P03 if another transaction has the event, 55000 if
 * this one claimed it.
 */
extern bool idem_forget_event(IdemStr id, IdemStr consumer);

/*
 * Remember n events as completed whose effect was made elsewhere, for the
 * retention of the consumer from now on, and return how many were new.  A
 * completion that is remembered for a shorter time is renewed.  renews_only: do
 * only that, and return how many were.  completed_at: the time of each, or NULL
 * for now.  Errors as of idem_forget_event; the message names the event.
 */
extern int64 idem_claims_import(const IdemClaimItem *items, int n,
								IdemStr consumer,
								const TimestampTz *completed_at, bool renews_only);

/*
 * Get the result that was stored with a completion: a durable one, or one of
 * this transaction.  Returns false if there is no result.  *result is palloc'd
 * in the current context.
 */
extern bool idem_claim_get_result(IdemStr id, IdemStr consumer,
								  Datum *result);

/*
 * Get what this transaction may know of an event: its own claims and
 * completions, and what others have committed.  At REPEATABLE READ and
 * SERIALIZABLE the transaction's snapshot decides what is committed; error 40001
 * if the event is not completed, and its lease has changed since.  The call
 * waits for no other transaction and takes no lock of the event.  "Completed"
 * is an acknowledgement like the verdict "duplicate", and the call waits until
 * the completion is durable.
 */
extern void idem_claim_get_status(IdemStr id, IdemStr consumer,
								  IdemClaimInfo *info);

#endif							/* IDEM_CLAIM_H */
