/*-------------------------------------------------------------------------
 *
 * setting.h
 *		The settings of claims.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/setting.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_SETTING_H
#define IDEM_CLAIM_SETTING_H

typedef enum IdemUncompletedClaims
{
	IDEM_UNCOMPLETED_ERROR,
	IDEM_UNCOMPLETED_KEEP
} IdemUncompletedClaims;

/* idempotency.uncompleted_claims: an IdemUncompletedClaims */
extern int	idem_uncompleted_claims;

/* idempotency.durable_complete */
extern bool idem_durable_complete;

/* idempotency.dead_retention: seconds; 0: for ever */
extern int	idem_dead_retention;

/* idempotency.max_claim_locks; -1 means max_locks_per_transaction */
/* seconds; 0: for ever */
extern int	idem_claim_retention;
extern int	idem_max_claim_locks;

/*
 * The consumer for which a sink program has claimed the events that it calls a function
 * with in this transaction; "": no such call is under way.
 */
extern char *idem_claimed_consumer;

extern void idem_claim_setting_init(void);

#endif							/* IDEM_CLAIM_SETTING_H */
