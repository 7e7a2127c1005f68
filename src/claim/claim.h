/*-------------------------------------------------------------------------
 *
 * claim.h
 *		Transactional claims: one effect per (consumer, event).
 *
 * A transaction claims an event, makes its effect and completes the claim, all
 * in one; whoever claims the same event later is told "duplicate", whoever
 * does so meanwhile "busy".  A claim that was neither completed nor released
 * makes COMMIT and PREPARE TRANSACTION fail.
 *
 * Ids and consumers are byte strings in the server encoding, not necessarily
 * zero-terminated; the caller has checked them for validity and length
 * (idem_check_length).  Consumers whose name starts with '@' belong to the
 * extension: SQL cannot name them and processed_events does not show them.
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

/* In the order of the SQL enum claim_result. */
typedef enum IdemClaimResult
{
	IDEM_CLAIM_CLAIMED,			/* the caller's: make the effect, complete */
	IDEM_CLAIM_DUPLICATE,		/* completed durably, or claimed by this
								 * transaction */
	IDEM_CLAIM_BUSY,			/* another transaction has it: try later */
	IDEM_CLAIM_EXPIRED,			/* too old to be answered */
	IDEM_CLAIM_DEAD				/* parked after its last attempt; not given
								 * yet */
} IdemClaimResult;

/* What is remembered of an event; in the order of the SQL enum claim_status. */
typedef enum IdemClaimStatus
{
	IDEM_STATUS_PROCESSING,		/* claimed and not completed: kept so, or by
								 * this transaction */
	IDEM_STATUS_COMPLETED,		/* durably, or by this transaction */
	IDEM_STATUS_UNKNOWN			/* nothing is remembered; another transaction
								 * may have claimed it */
} IdemClaimStatus;

typedef struct IdemClaimInfo
{
	IdemClaimStatus status;
	TimestampTz claimed_at;		/* unless unknown */
	TimestampTz completed_at;	/* if completed */
} IdemClaimInfo;

/* One event id in, one verdict out. */
typedef struct IdemClaimItem
{
	const char *id;
	int			idlen;			/* bytes */
	IdemClaimResult result;
} IdemClaimItem;

/* Defines the subsystem's settings and hooks; called once per process. */
extern void idem_claim_init(void);

/*
 * Claim one event for the current (sub)transaction, trying again for up to
 * wait_ms milliseconds while it is busy; 0 does not wait.  The caller has
 * refused recovery and read-only transactions (idem_prevent_read_only).
 *
 * Errors: 40001 if the event was completed after the transaction snapshot of a
 * REPEATABLE READ or SERIALIZABLE transaction.
 */
extern IdemClaimResult idem_claim_event(const char *id, int idlen,
										const char *consumer, int consumerlen,
										long wait_ms);

/*
 * The same for n events of one consumer, without waiting; cheaper than n
 * calls.  Fills in items[].result.  Of repeats the first gets the verdict; the
 * rest are duplicates of it, or busy if it is.
 */
extern void idem_claim_events(IdemClaimItem *items, int n,
							  const char *consumer, int consumerlen);

/*
 * Complete an event that this transaction claimed; result is a jsonb Datum,
 * perhaps toasted.  Error ID002 if it did not claim it or completed it before.
 */
extern void idem_complete_event(const char *id, int idlen,
								const char *consumer, int consumerlen,
								Datum result, bool has_result);

/*
 * The same for n events; results and has_result may be NULL (no results).
 * items[].result is not looked at.
 */
extern void idem_complete_events(const IdemClaimItem *items, int n,
								 const char *consumer, int consumerlen,
								 const Datum *results, const bool *has_result);

/*
 * Give a claim of this transaction up: others may claim the event, at the
 * latest when the transaction ends.  Error ID002 if it is not claimed, or
 * completed already.
 */
extern void idem_release_event(const char *id, int idlen,
							   const char *consumer, int consumerlen);

/*
 * The result stored with a durable completion, or one of this transaction's
 * own; false if there is none.  *result is palloc'd in the current context.
 */
extern bool idem_claim_get_result(const char *id, int idlen,
								  const char *consumer, int consumerlen,
								  Datum *result);

/*
 * What this transaction may know of an event, without waiting for others and without
 * the event's lock: its own claims and completions, and what has committed, by its
 * snapshot at REPEATABLE READ and SERIALIZABLE.  "Completed" is an acknowledgement
 * like the verdict "duplicate", and waits for durability likewise.
 */
extern void idem_claim_get_status(const char *id, int idlen,
								  const char *consumer, int consumerlen,
								  IdemClaimInfo *info);

#endif							/* IDEM_CLAIM_H */
