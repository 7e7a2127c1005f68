/*-------------------------------------------------------------------------
 *
 * forget.c
 *		Makes the store forget an event.
 *
 * No row is deleted, because the event may stand in a packed run, and in several
 * places.  An order to forget is a row of its own, with a higher turn than all
 * that was found under the event's lock.  The event's next claim finds the
 * order, and its row has a higher turn still.
 *
 * Once the row is written it stands for the lock, which is given back: a claim
 * by another transaction is "busy" until this one ends.  So one transaction
 * can forget any number of events.
 *
 * A crash, or a commit that is lost, leaves the event remembered.
 *
 * LOCKING: as claim.c.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/forget.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/lock.h"
#include "claim/call.h"
#include "claim/state.h"
#include "shared/fault.h"
#include "store/retention.h"
#include "store/store.h"

void
idem_claim_report_busy(const IdemClaimKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("%s is being claimed by another transaction", idem_claim_title(key)),
			 errhint("Try again when that transaction has ended.")));
}

void
idem_claim_report_own(const IdemClaimKey *key)
{
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("event \"%s\" was claimed by this transaction",
					pnstrdup(key->id, key->idlen)),
			 errhint("Release it, or roll back; or try again in a later transaction.")));
}

/* Write the order to forget, after that row was found. */
static void
write_order(IdemStore *store, const IdemClaimKey *key, const IdemRow *found)
{
	IdemNewEntry row = {
		.digest = key->digest,
		.turn = idem_claim_next_turn(key, found),
		.event_id = key->id,
		.event_id_len = key->idlen,
		.consumer = key->consumer,
		.consumer_len = key->consumerlen,
		.claimed_at = GetCurrentTimestamp(),
		.state = IDEM_ENTRY_FORGOTTEN,

		/*
		 * An order that expired before what it is about would bring that
		 * back. What it is about may be packed later than the order.
		 */
		.class = IDEM_RETENTION_FOR_EVER
	};

	idem_store_insert(store, &row, 1);
	IDEM_FAULT_POINT("claim-forgotten");
}

/*
 * Forget an event whose lock is held; false if nothing is remembered.  What the
 * transaction's snapshot does not see is a conflict, as for a claim.
 */
static bool
forget_locked(IdemStore *store, const IdemClaimKey *key)
{
	IdemRow		row;

	idem_store_probe(store, &key->digest, &row);
	if (row.status == IDEM_ROW_BUSY)
		idem_claim_report_busy(key);
	if (!row.in_snapshot)
		idem_claim_conflict(key);
	if (row.status == IDEM_ROW_NONE)
		return false;
	write_order(store, key, &row);
	return true;
}

bool
idem_forget_event(const char *id, int idlen, const char *consumer, int consumerlen)
{
	IdemStore  *store = idem_store_open(true);
	IdemKeyMaker keys;
	IdemClaimKey key;
	const IdemClaim *own;
	bool		forgotten;

	idem_keymaker_begin(&keys, consumer, consumerlen);
	idem_keymaker_set_locks(&keys, idem_consumer_policy(consumer, consumerlen).locks);
	idem_keymaker_make(&keys, id, idlen, &key);
	own = idem_state_find(&key);
	if (own != NULL && (own->state.phase == IDEM_PHASE_CLAIMED ||
						own->state.phase == IDEM_PHASE_COMPLETED))
		idem_claim_report_own(&key);
	if (!idem_lock_try(&key))
		idem_claim_report_busy(&key);
	forgotten = forget_locked(store, &key);
	idem_lock_release(&key);
	idem_keymaker_end(&keys);
	idem_store_close(store);
	return forgotten;
}
