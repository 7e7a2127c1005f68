/*-------------------------------------------------------------------------
 *
 * verdict.h
 *		The verdicts on claims and leases.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/verdict.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_VERDICT_H
#define IDEM_CLAIM_VERDICT_H

/* The verdict on a claim; in the order of the SQL enum claim_result. */
typedef enum IdemClaimResult
{
	IDEM_CLAIM_CLAIMED,			/* the caller may make the effect and complete
								 * the claim */
	IDEM_CLAIM_DUPLICATE,		/* completed durably, or claimed or completed
								 * by this transaction */
	IDEM_CLAIM_BUSY,			/* another transaction has the event, or there
								 * is a lease of it: try later */
	IDEM_CLAIM_EXPIRED,			/* no completion is remembered, and the event
								 * is too old to be claimed */
	IDEM_CLAIM_DEAD				/* the event is parked after its last attempt */
} IdemClaimResult;

#endif							/* IDEM_CLAIM_VERDICT_H */
