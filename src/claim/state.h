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

#include "access/xact.h"
#include "datatype/timestamp.h"

#include "claim/lock.h"
#include "store/store.h"

typedef enum IdemClaimPhase
{
	IDEM_PHASE_NONE,			/* never claimed */
	IDEM_PHASE_CLAIMED,			/* neither completed nor released yet */
	IDEM_PHASE_COMPLETED,
	IDEM_PHASE_RELEASED,
	IDEM_PHASE_ASSERTED,		/* a lease of this token is the transaction's
								 * claim, which may be completed */
	IDEM_PHASE_LEASED,			/* the transaction has taken or changed a
								 * lease of the event */
	IDEM_PHASE_SHARED,			/* no event: a lock of src/cursor, which the
								 * transaction keeps in share mode */
	IDEM_PHASE_LOCKED,			/* the same, exclusively */
	IDEM_PHASE_WRITTEN			/* no event: private to state.c */
} IdemClaimPhase;

typedef enum IdemClaimRow
{
	IDEM_CLAIM_NO_ROW,
	IDEM_CLAIM_OLD_ROW,			/* a committed row in progress, which the
								 * claim took over; it stays */
	IDEM_CLAIM_OWN_ROW			/* this transaction wrote the row, as
								 * completed */
} IdemClaimRow;

/* The part of a claim that ROLLBACK TO restores. */
typedef struct IdemClaimState
{
	IdemClaimPhase phase;
	IdemClaimRow row_kind;
	IdemEntryRef row;			/* set if IDEM_CLAIM_OWN_ROW */
	int16		turn;			/* of the row that the claim writes: one more
								 * than of the row that it found */
	int16		class;			/* how long the row is remembered */
	bool		keep_id;		/* its id stays in clear */
	bool		has_lease;		/* the log of leases has rows that a
								 * completion has to end */
	bool		lock_kept;		/* the claim keeps its lock, which counts
								 * towards the budget; in share mode if
								 * ASSERTED, perhaps if LEASED */
	SubTransactionId lock_subid;	/* the subtransaction that took the lock */
	bool		discarded;		/* COMPLETED by an operator: no effect is made
								 * with it */
	bool		written;		/* the transaction has written what only who
								 * holds the event may write */
	bool		in_call;		/* CLAIMED by what a sink program called, and
								 * not by the program */
	TimestampTz claimed_at;
	const struct varlena *fingerprint;	/* of a request that is CLAIMED, from
										 * idem_state_copy; or NULL */
} IdemClaimState;

typedef struct IdemClaim
{
	IdemClaimKey key;			/* the strings belong to the claim */
	IdemClaimState state;		/* change it by idem_state_set only */
	int64	   *held;			/* private to state.c */
} IdemClaim;

/* Totals over the transaction's claims. */
typedef struct IdemClaimCounts
{
	int64		pending;		/* undecided: neither completed nor released */
	int64		completed;
	int64		locks;			/* that claims keep */
} IdemClaimCounts;

/* The transaction ends, by PREPARE too: forget its claims. */
extern void idem_state_forget(XactEvent event);

/* A subtransaction aborts: undo its changes.  Or it has committed into its parent. */
extern void idem_state_undo(SubTransactionId subid);
extern void idem_state_subtransaction_committed(SubTransactionId parent);

/* The claim of the key's name; NULL if the transaction has none. */
extern IdemClaim *idem_state_find(const IdemClaimKey *key);

/*
 * An undecided claim, or an asserted lease, of the key's id for another consumer; NULL if
 * the transaction has none.  For error messages: it looks at all claims.
 */
extern const IdemClaim *idem_state_find_of_other(const IdemClaimKey *key);

/*
 * The claim of the key's name.  Made with phase NONE if the transaction has
 * none.
 */
extern IdemClaim *idem_state_get(const IdemClaimKey *key);

/*
 * Change a claim's state; ROLLBACK TO an earlier savepoint restores its former
 * state.
 */
extern void idem_state_set(IdemClaim *claim, const IdemClaimState *state);

/*
 * A copy of a value that lives as long as the claims; NULL of NULL.  The transaction has
 * a claim, whatever its phase.
 */
extern const struct varlena *idem_state_copy(const struct varlena *value);

extern const IdemClaimCounts *idem_state_counts(void);

/*
 * May this transaction make the effect of the key's event: has it claimed, completed or
 * asserted it, and not discarded?  If so, note that it is about to.  The same for any event
 * of a consumer.
 */
extern bool idem_state_note_write(const IdemClaimKey *key);
extern bool idem_state_note_write_of_any(const char *consumer, int len);

/*
 * Would an effect that was noted stand without an event if the claim, which is undecided,
 * was given up?
 */
extern bool idem_state_is_needed(const IdemClaim *claim);

/*
 * Has this transaction claimed any event, even one that it gave up or undid
 * since?
 */
extern bool idem_state_used(void);

/*
 * The undecided claims, in the order of their ids.  The array is palloc'd and
 * has idem_state_counts()->pending elements.
 */
extern IdemClaim **idem_state_pending(void);

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

#endif							/* IDEM_CLAIM_STATE_H */
