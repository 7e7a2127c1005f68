/*-------------------------------------------------------------------------
 *
 * state.h
 *		The claims of the current transaction, savepoints included.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_CLAIM_STATE_H
#define IDEM_CLAIM_STATE_H

#include "postgres.h"

#include "datatype/timestamp.h"

#include "claim/lock.h"
#include "claim/store.h"

typedef enum IdemClaimPhase
{
	IDEM_PHASE_NONE,			/* never claimed */
	IDEM_PHASE_CLAIMED,			/* neither completed nor released yet */
	IDEM_PHASE_COMPLETED,
	IDEM_PHASE_RELEASED
} IdemClaimPhase;

typedef enum IdemClaimRow
{
	IDEM_CLAIM_NO_ROW,
	IDEM_CLAIM_OLD_ROW,			/* a committed in-progress row, taken over */
	IDEM_CLAIM_OWN_ROW			/* written by this transaction, completed */
} IdemClaimRow;

/* The part of a claim that ROLLBACK TO restores. */
typedef struct IdemClaimState
{
	IdemClaimPhase phase;
	IdemClaimRow row_kind;
	IdemRowRef	row;			/* unless IDEM_CLAIM_NO_ROW */
	bool		was_kept;		/* found in progress, as a committed
								 * transaction had kept it */
	TimestampTz kept_since;		/* claimed_at of that row, if was_kept */
	bool		lock_kept;		/* counts towards the budget */
	SubTransactionId lock_subid;	/* the subtransaction that took the lock */
	TimestampTz claimed_at;
} IdemClaimState;

typedef struct IdemClaim
{
	IdemClaimKey key;			/* strings are the claim's own */
	IdemClaimState state;		/* change it by idem_state_set only */
} IdemClaim;

/* Totals over the transaction's claims. */
typedef struct IdemClaimCounts
{
	int64		pending;		/* claimed, neither completed nor released */
	int64		completed;
	int64		locks;			/* kept */
} IdemClaimCounts;

extern void idem_state_init(void);

/* The claim of that name; NULL if the transaction has none. */
extern IdemClaim *idem_state_find(const IdemClaimKey *key);

/* The claim of that name, made with phase NONE if there is none. */
extern IdemClaim *idem_state_get(const IdemClaimKey *key);

/* Change a claim; ROLLBACK TO an earlier savepoint restores its former state. */
extern void idem_state_set(IdemClaim *claim, const IdemClaimState *state);

extern const IdemClaimCounts *idem_state_counts(void);

/* Has this transaction claimed anything at all, undone or not? */
extern bool idem_state_used(void);

/*
 * The claims that are neither completed nor released, in the order of their
 * ids; counts()->pending of them, palloc'd.
 */
extern IdemClaim **idem_state_pending(void);

#endif							/* IDEM_CLAIM_STATE_H */
