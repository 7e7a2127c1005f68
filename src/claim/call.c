/*-------------------------------------------------------------------------
 *
 * call.c
 *		One call's work on the events of one consumer.
 *
 * A call opens the store once for all of its events, collects the rows that it
 * writes, and waits once for the durability of all that it answers "duplicate".
 *
 * LOCKING: as claim.c.
 *
 * MEMORY: the caller's context; 64 rows are collected at most.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/call.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "access/xlog.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "utils/timestamp.h"

#include "claim/call.h"
#include "claim/setting.h"
#include "lease/log.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/worker.h"
#include "store/retention.h"

/* Before the consumer of the rows of requests */
#define REQUEST_PREFIX	"@request/"

/* Pauses between tries of a waiting claim, in milliseconds */
#define MIN_PAUSE_MS	1
#define MAX_PAUSE_MS	50

IdemCall *
idem_call_begin(IdemStr consumer, bool early)
{
	IdemCall   *call = palloc(sizeof(IdemCall));

	call->store = idem_store_open(true);
	idem_keymaker_begin(&call->keys, consumer.data, consumer.len);

	/*
	 * A change of the consumer's locks waits for us, because we have the
	 * store's lock.
	 */
	call->policy = idem_consumer_policy(consumer.data, consumer.len);
	call->keys.locks = call->policy.locks;
	call->now = GetCurrentTimestamp();
	call->valid_until = NULL;
	call->saw_completed = false;
	call->commit_lsn = InvalidXLogRecPtr;
	call->nrows = 0;
	call->early = early;
	call->stays_busy = false;
	call->use.rel = NULL;
	call->leases = NULL;
	call->changes_leases = false;
	return call;
}

IdemKeyedAccess *
idem_call_leases(IdemCall *call)
{
	if (!call->changes_leases)
		idem_call_leave_leases(call);
	if (call->leases == NULL)
		call->leases = idem_keyed_access_open(&idem_lease_log, IDEM_KEYED_TO_WRITE);
	call->changes_leases = true;
	return call->leases;
}

bool
idem_call_may_be_leased(IdemCall *call)
{
	if (call->leases != NULL || idem_lease_use_is_known())
		return true;
	if (call->use.rel == NULL)
		idem_lease_use_open(&call->use);
	return idem_lease_use_look(&call->use);
}

void
idem_call_leave_leases(IdemCall *call)
{
	if (call->leases != NULL)
		idem_keyed_access_close(call->leases);
	call->leases = NULL;
	call->changes_leases = false;
}

/*
 * Write the collected rows.  Claims past the budget give their locks back:
 * from here on the row stands for the lock.
 */
static void
flush_rows(IdemCall *call)
{
	if (call->nrows == 0)
		return;
	IDEM_FAULT_POINT("claim-row-insert");
	idem_store_insert(call->store, call->rows, call->nrows);
	IDEM_FAULT_POINT("claim-row-inserted");

	for (int i = 0; i < call->nrows; i++)
	{
		IdemClaim  *claim = call->claims[i];
		IdemClaimState state = claim->state;

		state.row_kind = IDEM_CLAIM_OWN_ROW;
		state.row = call->rows[i].ref;
		state.phase = call->early ? IDEM_PHASE_CLAIMED : IDEM_PHASE_COMPLETED;
		idem_state_set(claim, &state);
		if (call->early)
		{
			idem_lock_release(&claim->key);
			IDEM_FAULT_POINT("claim-early-unlocked");
		}
	}
	call->nrows = 0;
}

void
idem_call_end(IdemCall *call)
{
	flush_rows(call);
	idem_call_leave_leases(call);
	if (call->use.rel != NULL)
		idem_lease_use_close(&call->use);
	idem_keymaker_end(&call->keys);
	idem_store_close(call->store);
	if (call->saw_completed)
	{
		IDEM_FAULT_POINT("claim-duplicate-seen");
		idem_durable_wait(idem_durable_target(call->commit_lsn));
	}
	pfree(call);
}

IdemNewEntry
idem_claim_entry(const IdemClaimKey *key, int16 turn, char state, int16 class,
				 TimestampTz claimed_at)
{
	IdemNewEntry entry = {
		.digest = key->digest, .turn = turn, .state = state, .class = class, .claimed_at = claimed_at,
		.event_id = key->id, .event_id_len = key->idlen,
		.consumer = key->consumer, .consumer_len = key->consumerlen
	};

	return entry;
}

/*
 * A request's row says so by its consumer, a name of the extension's own.  Views leave
 * such rows out: they would show the stored response.
 */
IdemNewEntry
idem_call_row(const IdemClaim *claim)
{
	const IdemClaimKey *key = &claim->key;
	IdemNewEntry row = idem_claim_entry(key, claim->state.turn, IDEM_ENTRY_KEPT, claim->state.class,
										claim->state.claimed_at);

	row.keep_id = claim->state.keep_id && key->scopelen == 0;
	row.event_id = idem_claim_id(key, &row.event_id_len);
	if (key->scopelen > 0)
	{
		row.consumer = psprintf("%s%.*s", REQUEST_PREFIX, key->consumerlen, key->consumer);
		row.consumer_len += strlen(REQUEST_PREFIX);
	}
	return row;
}

void
idem_call_add(IdemCall *call, IdemClaim *claim, Datum result, bool has_result)
{
	IdemNewEntry *row = &call->rows[call->nrows];

	if (claim->state.row_kind == IDEM_CLAIM_OWN_ROW)
	{
		idem_store_delete(call->store, &claim->key.digest, &claim->state.row);
		IDEM_FAULT_POINT("claim-row-deleted");
	}
	*row = idem_call_row(claim);
	row->state = IDEM_ENTRY_COMPLETED;
	row->completed_at = call->now;
	row->has_result = has_result;
	row->result = result;
	call->claims[call->nrows++] = claim;
	if (call->nrows == IDEM_STORE_CHUNK)
		flush_rows(call);
}

void
idem_call_check_give_up(const IdemClaim *claim)
{
	if (idem_state_is_needed(claim))
		ereport(ERROR,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg("cannot give up %s after a write that its claim has allowed",
						idem_claim_title(&claim->key)),
				 errdetail("A trigger lease_guard for consumer \"%s\" let this transaction write, since it has the claim.",
						   pnstrdup(claim->key.consumer, claim->key.consumerlen)),
				 errhint("Roll back, or to a savepoint that is older than the write; or complete it.")));
}

int64
idem_call_room(void)
{
	int			budget = idem_max_claim_locks >= 0 ? idem_max_claim_locks : max_locks_per_xact;

	return Max(0, budget - idem_state_counts()->locks);
}

bool
idem_call_within_budget(const IdemClaim *own)
{
	return (own != NULL && own->state.lock_kept) || idem_call_room() > 0;
}

void
idem_claim_report_conflict(const IdemClaimKey *key, const char *what)
{
	ereport(ERROR,
			(errcode(ERRCODE_T_R_SERIALIZATION_FAILURE),
			 errmsg("could not serialize access due to concurrent %s of %s", what, idem_claim_title(key)),
			 errdetail("Another transaction committed it for consumer \"%s\" after this one took its snapshot.",
					   pnstrdup(key->consumer, key->consumerlen)),
			 errhint("Retry the transaction.")));
}

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

/*
 * The program completes the claim if the function returns.  If the function asked, and
 * was told "duplicate" or "busy", it would leave the effect out, and the completion would
 * be committed without it.
 */
void
idem_claim_check_not_sinks(const IdemClaim *own)
{
	const IdemClaimKey *key;

	if (own->state.phase != IDEM_PHASE_CLAIMED || own->state.in_call)
		return;
	key = &own->key;
	if (strlen(idem_claimed_consumer) != key->consumerlen ||
		memcmp(idem_claimed_consumer, key->consumer, key->consumerlen) != 0)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
			 errmsg("the sink has claimed event \"%s\" for consumer \"%s\": its function must neither claim it again nor end the claim",
					pnstrdup(key->id, key->idlen), idem_claimed_consumer),
			 errdetail("The program of the postgres sink claims the event before it calls the function, and completes the claim when the function has returned."),
			 errhint("Make only the effect in the function, or claim there for another consumer; or set the option \"claim\" of the relay's server to \"off\", if the function is to claim by itself.")));
}

IdemClaimResult
idem_call_judge(IdemCall *call, const IdemClaimKey *key, const IdemRow *row)
{
	if (row->status == IDEM_ROW_BUSY)
		return IDEM_CLAIM_BUSY;

	/*
	 * The caller's snapshot is older than the row, so its statements see
	 * neither the row nor the effect.  Only a retry can see both.
	 */
	if (!row->in_snapshot)
		idem_claim_conflict(key);

	if (row->status != IDEM_ROW_COMPLETED)
		return IDEM_CLAIM_CLAIMED;
	call->saw_completed = true;
	call->commit_lsn = Max(call->commit_lsn, row->commit_lsn);
	return IDEM_CLAIM_DUPLICATE;
}

int16
idem_claim_next_turn(const IdemClaimKey *key, const IdemRow *row)
{
	if (row->turn == PG_INT16_MAX)
		ereport(ERROR,
				(errcode(ERRCODE_PROGRAM_LIMIT_EXCEEDED),
				 errmsg("%s was claimed anew too often", idem_claim_title(key)),
				 errdetail("An event has at most %d rows.", PG_INT16_MAX),
				 errhint("Complete an event whose claim is kept again and again, and use an event id once.")));
	return row->turn + 1;
}

void
idem_call_fill_state(const IdemCall *call, const IdemClaimKey *key, const IdemRow *row,
					 const IdemClaim *own, IdemClaimPhase phase, IdemClaimState *state)
{
	memset(state, 0, sizeof(*state));
	state->phase = phase;
	state->row_kind = row->status == IDEM_ROW_NONE ? IDEM_CLAIM_NO_ROW :
		IDEM_CLAIM_OLD_ROW;
	state->turn = idem_claim_next_turn(key, row);

	/* What stays of a kept claim must not outlive its completion. */
	state->class = row->status == IDEM_ROW_PROCESSING ? idem_retention_longer(call->policy.class, row->class) :
		call->policy.class;
	state->keep_id = call->policy.keep_ids;
	state->lock_kept = true;
	state->lock_subid = own != NULL && own->state.lock_kept ? own->state.lock_subid :
		GetCurrentSubTransactionId();
	state->claimed_at = call->now;
}

/*
 * Waiting means trying again.  A claimant may give the event's lock back long
 * before its claim is decided, so there is no single lock to wait for.  The
 * pause grows with the time waited already, which keeps many waiters cheap.
 */
bool
idem_call_pause(IdemClock start, long wait_ms)
{
	long		waited = (long) ((idem_clock() - start) / 1000);

	if (waited >= wait_ms)
		return false;
	idem_pause(Min(Max(MIN_PAUSE_MS, Min(waited / 8, MAX_PAUSE_MS)), wait_ms - waited));
	return true;
}

/*
 * Is an event too old to be claimed?
 *
 * An event that was completed longer ago than its consumer's retention may be
 * forgotten, and a late delivery of the event looks like an event that was never
 * seen.  Two things tell how old an event is: the caller's valid_until, and an
 * id that is a UUID of version 7, which begins with the time when the id was
 * made.  The id counts only for consumers that say so (expire_by_id_age).
 *
 * Invariant: an event that the store may have forgotten, by a retention that is
 * over, has an id of at least the retention's age: the id was made before the
 * completion was, and the store's time does not run faster than the clock.  So
 * the exact retention is compared, and not the class that the store rounds it up
 * to.  A clock that was set back breaks this for as long as it is behind.
 *
 * A crash leaves nothing, because nothing is written.
 */

#define UUID_TEXT_LENGTH	36

/* Where the canonical text of a UUID has its version, its variant, and the rest of its time. */
#define VERSION_AT			14
#define VARIANT_AT			19
#define TIME_REST_AT		9

/* Is the id the canonical text, which is lower case, of a UUID of version 7? */
static bool
is_uuid7(const char *id, int idlen)
{
	if (idlen != UUID_TEXT_LENGTH)
		return false;
	for (int i = 0; i < UUID_TEXT_LENGTH; i++)
	{
		bool		hyphen = i == 8 || i == 13 || i == 18 || i == 23;

		if (hyphen ? id[i] != '-' : !((id[i] >= '0' && id[i] <= '9') || (id[i] >= 'a' && id[i] <= 'f')))
			return false;
	}
	return id[VERSION_AT] == '7' && strchr("89ab", id[VARIANT_AT]) != NULL;
}

/*
 * When a UUID of version 7 was made, by its first 48 bits: milliseconds since 1970.  Their
 * two parts end with a hyphen.
 */
static TimestampTz
uuid7_time(const char *id)
{
	int64		ms = (int64) strtoll(id, NULL, 16) << 16 | strtoll(id + TIME_REST_AT, NULL, 16);

	return ms * 1000 -
		(POSTGRES_EPOCH_JDATE - UNIX_EPOCH_JDATE) * USECS_PER_DAY;
}

bool
idem_call_is_expired(const IdemCall *call, const IdemClaimKey *key, const TimestampTz *valid_until)
{
	const IdemConsumerPolicy *policy = &call->policy;

	if (valid_until != NULL)
		return *valid_until < call->now;
	if (!policy->expire_by_id_age || policy->retention == 0 || !is_uuid7(key->id, key->idlen))
		return false;
	return call->now - uuid7_time(key->id) > policy->retention * USECS_PER_SEC;
}
