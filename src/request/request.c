/*-------------------------------------------------------------------------
 *
 * request.c
 *	Idempotency keys: requests whose answer is stored and given again.
 *
 * A request is a claim, or a lease, with three things more: a scope, a fingerprint and an
 * answer.  It has the same lock, the same rows in the dedup store and the same log as an
 * event of its consumer, and the same rules (claim/README.md, claim/lease.c).
 *
 * Invariant: of all executions of a request at most one commits its answer, and whoever is
 * told "replay" gets that answer, of a request with the same fingerprint.
 *
 * The fingerprint stands where the state of the request stands: in the log while the
 * request is leased, waits or is dead; in the stored answer when it is completed; in the
 * memory of the transaction that executes it as a whole (state.c), so that nobody else can
 * compare with it.  It is compared before anything else is said.
 *
 * A crash leaves the committed rows.
 *
 * LOCKING: as a claim; whoever cannot have the request's lock looks without it, and is told
 * of committed states only.
 *
 * MEMORY: an answer lives in a context below the caller's; each look begins with an empty
 * one.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/request.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "claim/call.h"
#include "claim/claim.h"
#include "claim/leased.h"
#include "claim/state.h"
#include "request/flight.h"
#include "request/request.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "store/retention.h"

/* One look at a request. */
typedef struct Look
{
	IdemCall   *call;
	IdemClaimKey key;
	const IdemRequestOrder *order;
	IdemRequestAnswer *answer;
} Look;

static void
make_key(IdemCall *call, const IdemRequestName *name, IdemClaimKey *key)
{
	idem_keymaker_request(&call->keys, name->scope.data, name->scope.len,
						  name->key.data, name->key.len, key);
}

/* Looking */

/* Are they fingerprints of different requests?  NULL compares with nothing. */
static bool
differs(const void *given, const void *known)
{
	return given != NULL && known != NULL &&
		(VARSIZE_ANY_EXHDR(given) != VARSIZE_ANY_EXHDR(known) ||
		 memcmp(VARDATA_ANY(given), VARDATA_ANY(known), VARSIZE_ANY_EXHDR(given)) != 0);
}

/*
 * For how many seconds a completion is remembered at least; 0: for ever.  The class was
 * chosen when the request was started; a retention that became longer since prolongs
 * nothing.
 */
static int64
retention_of(const IdemConsumerPolicy *policy, const IdemClaimState *state)
{
	int64		longest = idem_retention_seconds(state->class);

	if (longest == 0 || (policy->retention != 0 && policy->retention <= longest))
		return policy->retention;
	return longest;
}

/*
 * The answer to a request that is completed.  False if the completion cannot be found any
 * more, because it has just expired.
 */
static bool
replay(Look *look)
{
	IdemRequestAnswer *answer = look->answer;
	IdemRow		row;
	Datum		result;
	bool		has_result;
	int64		retention;

	idem_store_look_up(look->call->store, &look->key.digest, &row, &result, &has_result);
	if (row.status != IDEM_ROW_COMPLETED)
		return false;
	memset(&answer->response, 0, sizeof(answer->response));
	if (has_result)
		idem_response_parse(result, &answer->response);
	retention = has_result ? answer->response.retention : look->call->policy.retention;
	answer->completed_at = row.completed_at;
	answer->expires_at = retention == 0 ? 0 : row.completed_at + retention * USECS_PER_SEC;
	answer->result = differs(look->order->fingerprint, answer->response.fingerprint) ?
		IDEM_REQUEST_MISMATCH : IDEM_REQUEST_REPLAY;
	return true;
}

/* Is the request another one than that of the fingerprint?  Then say so. */
static bool
compare(Look *look, const void *fingerprint)
{
	if (!differs(look->order->fingerprint, fingerprint))
		return false;
	look->answer->result = IDEM_REQUEST_MISMATCH;
	return true;
}

/*
 * The answer while the transaction itself has the request.  What it completed in this
 * very command is not visible before the next one.
 */
static void
look_at_own(Look *look, const IdemClaim *own)
{
	look->call->stays_busy = true;
	if (own->state.phase == IDEM_PHASE_COMPLETED)
	{
		CommandCounterIncrement();
		(void) replay(look);
	}
	else if (own->state.phase == IDEM_PHASE_CLAIMED)
		compare(look, own->state.fingerprint);
	else
	{
		IdemClaimResult result = idem_leased_judge_own(&look->key, &look->answer->lease);

		if (!compare(look, look->answer->lease.fingerprint) && result == IDEM_CLAIM_DEAD)
			look->answer->result = IDEM_REQUEST_DEAD;
	}
}

/* The answer by what is committed, while somebody else has the lock. */
static void
look_without_lock(Look *look)
{
	IdemRequestAnswer *answer = look->answer;
	IdemRow		row;
	IdemLease	lease;

	idem_store_probe(look->call->store, &look->key.digest, &row);
	if (row.status == IDEM_ROW_COMPLETED)
	{
		(void) idem_call_judge(look->call, &look->key, &row);
		(void) replay(look);
		return;
	}

	/*
	 * what came after the snapshot is for the look with the lock, which says
	 * 40001
	 */
	if (!idem_lease_find(NULL, &look->key.digest, &lease) || !lease.in_snapshot)
		return;
	if (!compare(look, lease.fingerprint) && lease.state != IDEM_LEASE_DEAD &&
		idem_leased_left(&lease) > 0)
		answer->retry_after = idem_leased_left(&lease);
}

/* Starting */

/* The transaction executes the request as a whole. */
static void
start_claim(Look *look, const IdemRow *row)
{
	const IdemLease *lease = &look->answer->lease;
	const void *fingerprint = look->order->fingerprint != NULL ?
	(const void *) look->order->fingerprint : lease->fingerprint;
	IdemClaim  *claim = idem_state_get(&look->key);
	IdemClaimState state;

	/* the lock that a release has left counts once */
	if (claim->state.lock_kept)
		idem_lock_release(&look->key);
	idem_call_fill_state(look->call, &look->key, row, claim, IDEM_PHASE_CLAIMED, &state);
	state.has_lease = lease->state != IDEM_LEASE_FREE;
	state.fingerprint = idem_state_copy(fingerprint);
	idem_state_set(claim, &state);
	if (idem_state_counts()->pending == 1)
		idem_claims_ask_first();
	look->answer->lease.attempt++;
	look->answer->lease.token = 0;
}

/* Start a request whose lock is held, and that nobody has. */
static void
start(Look *look, const IdemRow *row)
{
	const IdemRequestOrder *order = look->order;
	IdemLease  *lease = &look->answer->lease;

	look->answer->result = IDEM_REQUEST_STARTED;
	idem_flight_note(&look->key.digest);
	if (!order->has_lease)
	{
		start_claim(look, row);
		return;
	}
	if (order->fingerprint != NULL)
		lease->fingerprint = (struct varlena *) order->fingerprint;
	if (order->request != NULL)
		lease->request = (struct varlena *) order->request;
	idem_attempt_begin(look->call, &look->key, row, order->lease, NULL, lease);
}

/* Judge by the log a request that the store lets be started. */
static void
look_into_log(Look *look, const IdemClaim *own, const IdemRow *row)
{
	IdemRequestAnswer *answer = look->answer;
	IdemLease  *lease = &answer->lease;

	(void) idem_lease_find(look->order->has_lease ? idem_call_leases(look->call) : NULL,
						   &look->key.digest, lease);
	if (!lease->in_snapshot || !lease->point_in_snapshot)
		idem_leased_conflict(&look->key);
	if (compare(look, lease->fingerprint))
		return;
	switch (idem_leased_judge_found(look->call, &look->key, own, lease))
	{
		case IDEM_CLAIM_CLAIMED:
			start(look, row);
			break;
		case IDEM_CLAIM_DEAD:
			answer->result = IDEM_REQUEST_DEAD;
			idem_flight_note(&look->key.digest);
			break;
		default:
			answer->retry_after = idem_leased_left(lease);
			break;
	}
}

/* The answer to a request whose lock is held. */
static void
look_locked(Look *look, const IdemClaim *own)
{
	IdemRow		row;

	idem_store_probe(look->call->store, &look->key.digest, &row);
	IDEM_FAULT_POINT("request-probed");
	switch (idem_call_judge(look->call, &look->key, &row))
	{
		case IDEM_CLAIM_CLAIMED:
			look_into_log(look, own, &row);
			break;
		case IDEM_CLAIM_DUPLICATE:
			if (!replay(look))
				look->call->saw_completed = false;
			break;
		default:
			break;
	}
	if (look->answer->result != IDEM_REQUEST_STARTED)
		idem_lock_release(&look->key);
}

/*
 * Look at the request once.  False if it is in progress, and another look may tell
 * more.
 */
static bool
look_once(const IdemRequestName *name, const IdemRequestOrder *order, IdemFlight *flight,
		  IdemRequestAnswer *answer)
{
	Look		look = {.order = order, .answer = answer};
	const IdemClaim *own;
	bool		again;

	look.call = idem_call_begin(name->consumer, false);
	make_key(look.call, name, &look.key);
	if (!flight->begun)
		idem_flight_begin(flight, &look.key.digest, order->wait_ms);
	memset(answer, 0, sizeof(*answer));
	answer->result = IDEM_REQUEST_IN_PROGRESS;
	answer->retry_after = -1;
	own = idem_state_find(&look.key);
	if (own != NULL && own->state.phase != IDEM_PHASE_RELEASED)
		look_at_own(&look, own);
	else if (!idem_call_within_budget(own))
	{
		look.call->stays_busy = true;
		look_without_lock(&look);

		/*
		 * an answer can be given, and a lease seen; to execute it takes the
		 * lock
		 */
		if (answer->result == IDEM_REQUEST_IN_PROGRESS && answer->retry_after < 0)
			idem_leased_check_budget(&look.key, own);
	}
	else if (!idem_lock_try(&look.key))
		look_without_lock(&look);
	else
		look_locked(&look, own);
	again = answer->result == IDEM_REQUEST_IN_PROGRESS && !look.call->stays_busy;
	idem_call_end(look.call);
	return !again;
}

void
idem_request_claim(const IdemRequestName *name, const IdemRequestOrder *order,
				   IdemRequestAnswer *answer)
{
	MemoryContext look_context = AllocSetContextCreate(CurrentMemoryContext, "idempotency request",
													   ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(look_context);
	IdemFlight	flight = {0};

	while (!look_once(name, order, &flight, answer) &&
		   idem_flight_wait(&flight, answer->retry_after))
	{
		CHECK_FOR_INTERRUPTS();
		MemoryContextReset(look_context);
	}
	idem_flight_end(&flight);
	MemoryContextSwitchTo(old);
}

/* Acting */

TimestampTz
idem_request_advance(const IdemRequestName *name, int64 token, int64 duration,
					 text *recovery_point, Jsonb *work)
{
	IdemCall   *call = idem_call_begin(name->consumer, false);
	IdemClaimKey key;
	IdemLease	lease;
	TimestampTz until;

	make_key(call, name, &key);
	(void) idem_hold(call, &key, token, IDEM_HOLD_ASSERTED, &lease);
	until = GetCurrentTimestamp() + (duration > 0 ? duration : call->policy.lease_duration);
	idem_hold_extend(call, &key, &lease, until);
	IDEM_FAULT_POINT("request-advanced");
	idem_leased_write_point(call, &key, token, recovery_point,
							work != NULL ? (struct varlena *) work : lease.work);
	idem_call_end(call);
	return until;
}

/* Error ID002.  claim: what the transaction has of that name, or NULL. */
pg_noreturn static void
report_not_started(const IdemClaimKey *key, const IdemClaim *claim)
{
	IdemClaimPhase phase = claim == NULL ? IDEM_PHASE_NONE : claim->state.phase;
	const IdemClaim *other = idem_state_find_of_other(key);
	const char *consumer = other == NULL ? NULL : pnstrdup(other->key.consumer, other->key.consumerlen);
	IdemLease	lease;
	bool		leased = phase == IDEM_PHASE_LEASED ||
	(phase == IDEM_PHASE_NONE && other == NULL &&
	 idem_lease_find(NULL, &key->digest, &lease) && lease.state == IDEM_LEASE_LEASED);

	ereport(ERROR,
			(errcode(ERRCODE_IDEM_CLAIM_NOT_HELD),
			 errmsg("%s was not started by this transaction", idem_claim_title(key)),
			 phase == IDEM_PHASE_COMPLETED ?
			 errdetail("It was completed already.") :
			 leased ?
			 errdetail("It is leased.") :
			 other != NULL ?
			 errdetail("This transaction has it for consumer \"%s\", not for \"%s\".", consumer,
					   pnstrdup(key->consumer, key->consumerlen)) : 0,
			 leased ?
			 errhint("Pass the token that claim_request returned.") :
			 other != NULL && phase != IDEM_PHASE_COMPLETED ?
			 errhint("Pass the consumer \"%s\", as to claim_request.", consumer) :
			 errhint("Call claim_request first, in the same transaction, and end the request once, if the answer is \"started\"; or claim it with a lease, and pass the token. In autocommit mode each statement is a transaction of its own.")));
}

/*
 * The execution that is to be ended, with the lock held exclusively.  *lease: what the
 * log has of the request.  Without a token it is the one that this transaction has begun
 * or advanced; error ID002 if there is none.
 */
static IdemClaim *
hold_to_end(IdemCall *call, const IdemRequestName *name, const int64 *token, IdemHold mode,
			IdemClaimKey *key, IdemLease *lease)
{
	IdemClaim  *claim;

	make_key(call, name, key);
	idem_flight_note(&key->digest);
	if (token != NULL)
		return idem_hold(call, key, *token, mode, lease);
	claim = idem_state_find(key);
	if (claim == NULL || (claim->state.phase != IDEM_PHASE_CLAIMED &&
						  claim->state.phase != IDEM_PHASE_ASSERTED))
		report_not_started(key, claim);
	if (claim->state.phase == IDEM_PHASE_ASSERTED && !idem_lock_try(key))
		idem_leased_report_shared(key);
	(void) idem_lease_find(NULL, &key->digest, lease);
	return claim;
}

void
idem_request_complete(const IdemRequestName *name, const int64 *token, const IdemResponse *response)
{
	IdemCall   *call = idem_call_begin(name->consumer, false);
	IdemResponse stored = *response;
	IdemClaimKey key;
	IdemLease	lease;
	IdemClaim  *claim = hold_to_end(call, name, token, IDEM_HOLD_TO_COMPLETE, &key, &lease);
	IdemClaimState state = claim->state;

	stored.fingerprint = (bytea *) (claim->state.fingerprint != NULL ? claim->state.fingerprint :
									lease.fingerprint);
	stored.retention = retention_of(&call->policy, &state);
	state.phase = IDEM_PHASE_COMPLETED;
	idem_state_set(claim, &state);
	IDEM_FAULT_POINT("request-completed");
	idem_call_add(call, claim, idem_response_form(&stored), true);
	if (lease.state != IDEM_LEASE_FREE)
		idem_leased_end(call, &key);
	idem_call_end(call);
}

IdemLeaseState
idem_request_fail(const IdemRequestName *name, const int64 *token, const IdemLeaseRelease *failure)
{
	IdemCall   *call = idem_call_begin(name->consumer, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemClaim  *claim = hold_to_end(call, name, token, IDEM_HOLD_TO_RELEASE, &key, &lease);
	IdemClaimState state = claim->state;
	IdemLeaseState result;

	if (claim->state.phase == IDEM_PHASE_CLAIMED)
	{
		idem_call_check_give_up(claim);

		/*
		 * The claim becomes the attempt that it would have been with a lease,
		 * so that it can fail: what it knows goes into the log.
		 */
		lease.attempt++;
		if (claim->state.fingerprint != NULL)
			lease.fingerprint = (struct varlena *) claim->state.fingerprint;
	}
	lease.at = GetCurrentTimestamp();
	idem_attempt_fail(&call->policy, failure, &lease);
	result = idem_attempt_write(call, &key, &lease);
	IDEM_FAULT_POINT("request-failed");
	state.phase = IDEM_PHASE_LEASED;
	state.has_lease = true;
	idem_state_set(claim, &state);
	idem_call_end(call);
	return result;
}

void
idem_request_release(const IdemRequestName *name, const int64 *token)
{
	IdemLeaseRelease release = {.retry_after = -1};
	IdemCall   *call = idem_call_begin(name->consumer, false);
	IdemClaimKey key;
	IdemLease	lease;
	IdemClaim  *claim = hold_to_end(call, name, token, IDEM_HOLD_TO_RELEASE, &key, &lease);
	IdemClaimState state = claim->state;

	if (claim->state.phase == IDEM_PHASE_CLAIMED)
	{
		idem_call_check_give_up(claim);
		state.phase = IDEM_PHASE_RELEASED;
		if (state.lock_subid >= GetCurrentSubTransactionId())
		{
			idem_lock_release(&key);
			state.lock_kept = false;
		}
	}
	else
	{
		lease.at = GetCurrentTimestamp();
		idem_attempt_give_back(&release, &lease);
		if (idem_attempt_never_began(&lease))
			lease.fingerprint = lease.request = NULL;
		(void) idem_attempt_write(call, &key, &lease);
		state.phase = IDEM_PHASE_LEASED;
	}
	IDEM_FAULT_POINT("request-released");
	idem_state_set(claim, &state);
	idem_call_end(call);
}
