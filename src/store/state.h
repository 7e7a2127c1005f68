/*-------------------------------------------------------------------------
 *
 * state.h
 *		The state of the dedup store: one number, changed in place.
 *
 * The number is the value of a cell (shared/cell.h), the sequence store_state.
 * It says which segment is current, which segments need no probe, because
 * they are empty or their entries are in runs, and from which slot on no slot has
 * a run.  It changes with every change of that, and whenever runs came or went, and
 * it never has a value twice.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/state.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_STATE_H
#define IDEM_STORE_STATE_H

#include "postgres.h"

#include "storage/buf.h"
#include "utils/relcache.h"

#include "store/ring.h"

typedef struct IdemStoreState
{
	int64		value;			/* the number itself */
	int			current;		/* number of the current segment */
	uint32		unprobed;		/* bits by segment: needs no probe */
	int			slots;			/* only slots below this number have runs that
								 * count */
	bool		sealed;			/* false: somebody else, e.g. pg_upgrade, set
								 * the number.  "unprobed" is 0 then, "slots"
								 * is all of them, and nobody may rely on what
								 * he remembers of an earlier state. */
} IdemStoreState;

extern Oid	idem_store_state_oid(void);

/* Read the state.  rel is the sequence store_state, open with any lock; NULL: it is opened. */
extern IdemStoreState idem_store_state(Relation rel);

/* The same of its page, pinned by idem_cell_pin. */
extern IdemStoreState idem_store_state_look(Buffer page);

/* The segment that is most likely current; idem_store_state_look knows. */
extern int	idem_store_state_guess(Buffer page);

/*
 * Change the state; its number rises.  Looks at the slots, and waits for none of
 * their locks.  The caller holds the packer's lock, ShareUpdateExclusiveLock on
 * store_state.  The change is WAL-logged, and no abort undoes it.
 */
extern void idem_store_set_state(int current, uint32 unprobed);

/*
 * Break the seal, because rows are being restored.  Takes the packer's lock,
 * and keeps it to the end of the transaction.
 */
extern void idem_store_unseal(void);

/*
 * Seal a state that is not sealed.  False, and nothing happens, if somebody
 * else holds the packer's lock.
 */
extern bool idem_store_seal(void);

#endif							/* IDEM_STORE_STATE_H */
