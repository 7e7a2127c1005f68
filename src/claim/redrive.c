/*-------------------------------------------------------------------------
 *
 * redrive.c
 *		What an operator does about dead events.
 *
 * Each event is decided under its lock, as any change of a lease.  If the events are
 * not named, the log is read for dead ones; a row that is found there is a hint
 * only, and the look under the lock decides.  Such a call passes over events that
 * somebody else is about to change.
 *
 * LOCKING: as claim.c; the locks of events that are named are waited for, in the
 * order of their ids.
 *
 * MEMORY: one event at a time.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/redrive.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "claim/call.h"
#include "claim/claim.h"
#include "claim/leased.h"
#include "claim/redrive.h"
#include "claim/state.h"
#include "lease/log.h"
#include "lease/token.h"
#include "shared/fault.h"

/* One call's work. */
typedef struct Redrive
{
	IdemCall   *call;
	bool		discard;
	const text *scope;			/* of requests; or NULL */
	int64		n;				/* how many were dead */
} Redrive;

/* Remember a dead event as completed. */
static void
discard_event(Redrive *redrive, const IdemClaimKey *key, const IdemRow *row, const IdemLease *lease)
{
	IdemClaim  *claim = idem_leased_note(redrive->call, key, row, lease, true);
	IdemClaimState state = claim->state;

	state.phase = IDEM_PHASE_COMPLETED;
	state.discarded = true;
	idem_state_set(claim, &state);
	idem_call_add(redrive->call, claim, (Datum) 0, false);
	idem_leased_end(redrive->call, key);
}

/*
 * Have a dead event wait, with all its attempts.  That the former ones began is kept: a
 * request that is released goes on to have their payload.
 */
static void
revive_event(Redrive *redrive, const IdemClaimKey *key, const IdemRow *row, IdemLease *lease)
{
	lease->state = IDEM_LEASE_WAITING;
	lease->attempt = 0;
	lease->redriven = true;
	lease->token = idem_token_draw_unflushed();
	lease->until = GetCurrentTimestamp();
	idem_leased_write(redrive->call, key, lease);
	(void) idem_leased_note(redrive->call, key, row, lease, false);
}

/* Decide on an event whose lock is held; false if it is not dead. */
static bool
decide(Redrive *redrive, const IdemClaimKey *key)
{
	IdemLease	lease;
	IdemRow		row;

	idem_store_probe(redrive->call->store, &key->digest, &row);
	if (!idem_lease_find(idem_call_leases(redrive->call), &key->digest, &lease) || lease.state != IDEM_LEASE_DEAD ||
		row.status == IDEM_ROW_BUSY || row.status == IDEM_ROW_COMPLETED)
	{
		idem_lease_free_values(&lease);
		return false;
	}
	if (!lease.in_snapshot || !row.in_snapshot)
		idem_leased_conflict(key);
	if (redrive->discard)
		discard_event(redrive, key, &row, &lease);
	else
		revive_event(redrive, key, &row, &lease);
	IDEM_FAULT_POINT("lease-redriven");
	idem_lease_free_values(&lease);
	redrive->n++;
	return true;
}

/* Make the key of an event, or of a request if there is a scope. */
static void
make_key(Redrive *redrive, const text *scope, const char *id, int idlen, IdemClaimKey *key)
{
	if (scope == NULL)
		idem_keymaker_make(&redrive->call->keys, id, idlen, key);
	else
		idem_keymaker_request(&redrive->call->keys, VARDATA_ANY(scope), VARSIZE_ANY_EXHDR(scope),
							  id, idlen, key);
}

/* Redrive an event or a request that the operator has named. */
static void
redrive_named(Redrive *redrive, const char *id, int idlen)
{
	IdemClaimKey key;
	const IdemClaim *own;

	make_key(redrive, redrive->scope, id, idlen, &key);
	own = idem_state_find(&key);
	idem_leased_check_budget(&key, own);
	if (own != NULL && own->state.lock_kept)
	{
		if (!idem_lock_try(&key))
			idem_leased_report_shared(&key);
	}
	else
	{
		idem_call_leave_leases(redrive->call);
		idem_lock_wait(&key);
	}
	if (!decide(redrive, &key))
		idem_lock_release(&key);
}

/* Does the operator want the dead ones of that scope? */
static bool
is_wanted(const Redrive *redrive, const text *scope)
{
	return redrive->scope == NULL ||
		(scope != NULL && VARSIZE_ANY_EXHDR(scope) == VARSIZE_ANY_EXHDR(redrive->scope) &&
		 memcmp(VARDATA_ANY(scope), VARDATA_ANY(redrive->scope), VARSIZE_ANY_EXHDR(scope)) == 0);
}

/* Redrive what the log names (callback of idem_lease_scan_dead). */
static bool
redrive_found(const text *scope, const text *id, void *arg)
{
	Redrive    *redrive = arg;
	IdemClaimKey key;
	const IdemClaim *own;

	if (!is_wanted(redrive, scope))
		return true;
	make_key(redrive, scope, VARDATA_ANY(id), VARSIZE_ANY_EXHDR(id), &key);
	own = idem_state_find(&key);
	if (!idem_call_within_budget(own))
		return false;
	if (idem_lock_try(&key) && !decide(redrive, &key))
		idem_lock_release(&key);
	return true;
}

int64
idem_redrive(const IdemClaimItem *items, int n, const char *consumer, int consumerlen,
			 const text *scope, bool discard)
{
	Redrive		redrive = {
		.call = idem_call_begin(consumer, consumerlen, false), .discard = discard, .scope = scope
	};

	if (n < 0)
		idem_lease_scan_dead(consumer, consumerlen, redrive_found, &redrive);
	else
	{
		IdemClaimItem **sorted = idem_claim_sort_items(items, n);

		for (int i = 0; i < n; i++)
		{
			CHECK_FOR_INTERRUPTS();
			redrive_named(&redrive, sorted[i]->id, sorted[i]->idlen);
		}
	}
	idem_call_end(redrive.call);
	return redrive.n;
}
