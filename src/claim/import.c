/*-------------------------------------------------------------------------
 *
 * import.c
 *		Remembers events as completed whose effect was made elsewhere.
 *
 * For whoever brings along a memory of events of their own.  Each event is
 * looked for under its lock, and gets an ordinary entry, as if it had been
 * claimed and completed; the packer makes it small later.  An event whose
 * completion is remembered already stays as it is.
 *
 * Once its row is written, the row stands for the lock, which is given back: a
 * claim by another transaction is "busy" until this one ends.  So one
 * transaction can import any number of events.  A chunk of locks is held at a
 * time.
 *
 * A crash, or a commit that is lost, leaves the events as they were.
 *
 * LOCKING: as claim.c.
 *
 * MEMORY: the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/import.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/leased.h"
#include "claim/lock.h"
#include "claim/call.h"
#include "claim/state.h"
#include "shared/fault.h"
#include "store/store.h"

/* One call's work on the events of one consumer. */
typedef struct Import
{
	IdemStore  *store;
	IdemKeyMaker keys;
	IdemConsumerPolicy policy;
	TimestampTz now;
	int64		imported;

	/* Entries to be written, and the locks of their events, which are held */
	int			n;
	IdemNewEntry entries[IDEM_STORE_CHUNK];
	IdemClaimKey locked[IDEM_STORE_CHUNK];
} Import;

/* Write the collected entries, and give the locks of their events back. */
static void
flush_entries(Import *import)
{
	if (import->n == 0)
		return;
	idem_store_insert(import->store, import->entries, import->n);
	IDEM_FAULT_POINT("claim-import-written");
	for (int i = 0; i < import->n; i++)
		idem_lock_release(&import->locked[i]);
	IDEM_FAULT_POINT("claim-import-unlocked");
	import->imported += import->n;
	import->n = 0;
}

/* Collect the entry of an event whose lock is held, after that row was found. */
static void
add_entry(Import *import, const IdemClaimKey *key, const IdemRow *found, TimestampTz completed_at)
{
	import->locked[import->n] = *key;
	import->entries[import->n++] = (IdemNewEntry)
	{
		.digest = key->digest,
			.turn = idem_claim_next_turn(key, found),
			.state = IDEM_ENTRY_COMPLETED,
			.keep_id = import->policy.keep_ids,
			.class = import->policy.class,
			.event_id = key->id,
			.event_id_len = key->idlen,
			.consumer = key->consumer,
			.consumer_len = key->consumerlen,
			.claimed_at = completed_at,
			.completed_at = completed_at
	};
	if (import->n == IDEM_STORE_CHUNK)
		flush_entries(import);
}

/* Import one event, unless its completion is remembered. */
static void
import_one(Import *import, const IdemClaimItem *item, TimestampTz completed_at)
{
	IdemClaimKey key;
	const IdemClaim *own;
	IdemRow		row;
	IdemLease	lease;

	idem_keymaker_make(&import->keys, item->id, item->idlen, &key);
	own = idem_state_find(&key);
	if (own != NULL && own->state.phase == IDEM_PHASE_COMPLETED)
		return;
	if (own != NULL && own->state.phase == IDEM_PHASE_CLAIMED)
		idem_claim_report_own(&key);
	if (!idem_lock_try(&key))
		idem_claim_report_busy(&key);
	idem_store_probe(import->store, &key.digest, &row);
	if (row.status == IDEM_ROW_BUSY)
		idem_claim_report_busy(&key);
	if (!row.in_snapshot)
		idem_claim_conflict(&key);
	if (row.status == IDEM_ROW_COMPLETED)
	{
		idem_lock_release(&key);
		return;
	}
	if (idem_lease_find(NULL, &key.digest, &lease))
		idem_leased_report_open(&key);
	add_entry(import, &key, &row, completed_at);
}

int64
idem_claims_import(const IdemClaimItem *items, int n, const char *consumer,
				   int consumerlen, const TimestampTz *completed_at)
{
	Import	   *import;
	IdemClaimItem **sorted;
	int64		imported;

	if (n == 0)
		return 0;
	import = palloc0(sizeof(Import));
	import->store = idem_store_open(true);
	idem_keymaker_begin(&import->keys, consumer, consumerlen);
	import->policy = idem_consumer_policy(consumer, consumerlen);
	if (import->policy.private_locks)
		idem_keymaker_private(&import->keys);
	import->now = GetCurrentTimestamp();

	/* Of repeats, which are neighbours, the first counts. */
	sorted = idem_claim_sort_items(items, n);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0 && idem_claim_same_id(sorted[i - 1], sorted[i]))
			continue;
		import_one(import, sorted[i],
				   completed_at != NULL ? completed_at[sorted[i] - items] : import->now);
	}
	flush_entries(import);
	pfree(sorted);
	idem_keymaker_end(&import->keys);
	idem_store_close(import->store);
	imported = import->imported;
	pfree(import);
	return imported;
}
