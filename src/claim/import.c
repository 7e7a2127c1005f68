/*-------------------------------------------------------------------------
 *
 * import.c
 *		Remembers events as completed whose effect was made elsewhere.
 *
 * For whoever brings along a memory of events of their own.  Each event is
 * looked for under its lock, and gets an ordinary entry, as if it had been
 * claimed and completed; the packer makes it small later.
 *
 * A completion that is remembered already may be forgotten before the retention
 * is over that the import promises.  Then it gets another entry, with its times
 * and its result, which is remembered for as long as a new one.
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
 * MEMORY: the caller's context; one result at a time.
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

#include "claim/call.h"
#include "claim/claim.h"
#include "claim/consumer.h"
#include "claim/leased.h"
#include "claim/lock.h"
#include "claim/state.h"
#include "shared/fault.h"
#include "shared/uptime.h"
#include "store/retention.h"
#include "store/store.h"

/*
 * From that turn on an entry that is renewed is remembered for ever.  An event has
 * PG_INT16_MAX turns, and is renewed at most once for each time that it is packed.
 */
#define LAST_FINITE_TURN	(PG_INT16_MAX / 2)

/* One call's work on the events of one consumer. */
typedef struct Import
{
	IdemCall   *call;			/* collects no rows */
	int64		uptime;			/* when the call began (uptime.h) */
	bool		renews_only;	/* pass over events that are not completed */
	int64		imported;
	int64		renewed;

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
	idem_store_insert(import->call->store, import->entries, import->n);
	IDEM_FAULT_POINT("claim-import-written");
	for (int i = 0; i < import->n; i++)
		idem_lock_release(&import->locked[i]);
	IDEM_FAULT_POINT("claim-import-unlocked");
	import->n = 0;
}

/* Collect the entry of an event whose lock is held, after that row was found. */
static IdemNewEntry *
add_entry(Import *import, const IdemClaimKey *key, const IdemRow *found, TimestampTz completed_at)
{
	IdemNewEntry *entry;

	if (import->n == IDEM_STORE_CHUNK)
		flush_entries(import);
	import->locked[import->n] = *key;
	entry = &import->entries[import->n++];
	*entry = idem_claim_entry(key, idem_claim_next_turn(key, found), IDEM_ENTRY_COMPLETED,
							  import->call->policy.class, completed_at);
	entry->keep_id = import->call->policy.keep_ids;
	entry->completed_at = completed_at;
	return entry;
}

/*
 * Is a completion remembered for as long as an import promises from now on?  expires:
 * as in IdemRow.
 */
static bool
lasts(const Import *import, int16 class, int64 expires)
{
	int64		promised = import->call->policy.retention;
	int64		seconds = idem_retention_seconds(class);

	if (seconds == 0 || promised == 0)
		return seconds == 0;
	if (expires != 0)
		seconds = expires - import->uptime - IDEM_UPTIME_MAX_BACK;
	return seconds >= promised;
}

/*
 * Have a completion that was found remembered for longer.  If it has just expired,
 * it is imported like an event of which nothing was remembered.
 */
static void
renew(Import *import, const IdemClaimKey *key, const IdemRow *found, TimestampTz completed_at)
{
	IdemRow		row;
	Datum		result = (Datum) 0;
	bool		has_result = false;
	IdemNewEntry *entry;

	idem_store_look_up(import->call->store, &key->digest, &row, &result, &has_result);
	entry = add_entry(import, key, found, completed_at);
	if (row.status == IDEM_ROW_COMPLETED)
	{
		entry->claimed_at = row.claimed_at;
		entry->completed_at = row.completed_latest;
	}
	if (found->turn >= LAST_FINITE_TURN)
		entry->class = IDEM_RETENTION_FOR_EVER;
	if (has_result)
	{
		entry->has_result = true;
		entry->result = result;
		flush_entries(import);
		pfree(DatumGetPointer(result));
	}
	import->renewed++;
}

/* Import one event, unless its completion is remembered for long enough. */
static void
import_one(Import *import, const IdemClaimItem *item, TimestampTz completed_at)
{
	IdemClaimKey key;
	const IdemClaim *own;
	IdemRow		row;
	IdemLease	lease;

	idem_keymaker_make(&import->call->keys, item->id.data, item->id.len, &key);
	own = idem_state_find(&key);
	if (own != NULL && own->state.phase == IDEM_PHASE_COMPLETED && lasts(import, own->state.class, 0))
		return;
	if (own != NULL && own->state.phase == IDEM_PHASE_CLAIMED)
		idem_claim_report_own(&key);
	if (!idem_lock_try(&key))
		idem_claim_report_busy(&key);
	idem_store_probe(import->call->store, &key.digest, &row);
	if (row.status == IDEM_ROW_BUSY)
		idem_claim_report_busy(&key);
	if (!row.in_snapshot)
		idem_claim_conflict(&key);
	if (row.status == IDEM_ROW_COMPLETED && !lasts(import, row.class, row.expires))
	{
		renew(import, &key, &row, completed_at);
		return;
	}
	if (row.status == IDEM_ROW_COMPLETED || import->renews_only)
	{
		idem_lock_release(&key);
		return;
	}
	if (idem_lease_find(NULL, &key.digest, &lease))
		idem_leased_report_open(&key);
	add_entry(import, &key, &row, completed_at);
	import->imported++;
}

int64
idem_claims_import(const IdemClaimItem *items, int n, IdemStr consumer, const TimestampTz *completed_at, bool renews_only)
{
	Import	   *import;
	IdemClaimItem **sorted;
	int64		done;

	if (n == 0)
		return 0;
	import = palloc0(sizeof(Import));
	import->call = idem_call_begin(consumer, false);

	import->uptime = idem_uptime_now();
	import->renews_only = renews_only;

	/* Of repeats, which are neighbours, the first counts. */
	sorted = idem_sort_by_id(items, sizeof(*items), n);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		if (i > 0 && idem_str_equal(sorted[i - 1]->id, sorted[i]->id))
			continue;
		import_one(import, sorted[i],
				   completed_at != NULL ? completed_at[sorted[i] - items] : import->call->now);
	}
	flush_entries(import);
	pfree(sorted);
	idem_call_end(import->call);

	done = renews_only ? import->renewed : import->imported;
	pfree(import);
	return done;
}

/*
 * Makes the store forget an event.
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
 */

/*
 * Forget an event whose lock is held; false if nothing is remembered.  What the
 * transaction's snapshot does not see is a conflict, as for a claim.
 */
static bool
forget_locked(IdemStore *store, const IdemClaimKey *key)
{
	IdemRow		row;
	IdemNewEntry order;

	idem_store_probe(store, &key->digest, &row);
	if (row.status == IDEM_ROW_BUSY)
		idem_claim_report_busy(key);
	if (!row.in_snapshot)
		idem_claim_conflict(key);
	if (row.status == IDEM_ROW_NONE)
		return false;

	/*
	 * An order that expired before what it is about would bring that back.
	 * What it is about may be packed later than the order.
	 */
	order = idem_claim_entry(key, idem_claim_next_turn(key, &row), IDEM_ENTRY_FORGOTTEN,
							 IDEM_RETENTION_FOR_EVER, GetCurrentTimestamp());
	idem_store_insert(store, &order, 1);
	IDEM_FAULT_POINT("claim-forgotten");
	return true;
}

bool
idem_forget_event(IdemStr id, IdemStr consumer)
{
	IdemCall   *call = idem_call_begin(consumer, false);
	IdemClaimKey key;
	const IdemClaim *own;
	bool		forgotten;

	idem_keymaker_make(&call->keys, id.data, id.len, &key);
	own = idem_state_find(&key);
	if (own != NULL && (own->state.phase == IDEM_PHASE_CLAIMED ||
						own->state.phase == IDEM_PHASE_COMPLETED))
		idem_claim_report_own(&key);
	if (!idem_lock_try(&key))
		idem_claim_report_busy(&key);
	forgotten = forget_locked(call->store, &key);
	idem_lock_release(&key);
	idem_call_end(call);
	return forgotten;
}
