/*-------------------------------------------------------------------------
 *
 * request.h
 *	Idempotency keys: requests whose answer is stored and given again.
 *
 * A request is known by its consumer, a scope and a key.  The first call executes it,
 * and stores the answer; later ones get the answer.  Either the whole execution is one
 * transaction, or it takes several and holds a lease meanwhile.
 *
 * Strings are in the server encoding, not necessarily zero-terminated, and were checked
 * by the caller.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/request.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REQUEST_H
#define IDEM_REQUEST_H

#include "postgres.h"

#include "datatype/timestamp.h"
#include "utils/jsonb.h"

#include "claim/leased.h"
#include "lease/log.h"
#include "request/response.h"

/* In the order of the enum request_result */
typedef enum IdemRequestResult
{
	IDEM_REQUEST_STARTED,
	IDEM_REQUEST_REPLAY,
	IDEM_REQUEST_IN_PROGRESS,
	IDEM_REQUEST_MISMATCH,
	IDEM_REQUEST_DEAD
} IdemRequestResult;

typedef struct IdemRequestName
{
	IdemStr		consumer;
	IdemStr		scope;
	IdemStr		key;
} IdemRequestName;

/* How somebody wants to execute a request.  Pointers may be NULL. */
typedef struct IdemRequestOrder
{
	bytea	   *fingerprint;
	bool		has_lease;		/* else the transaction is the whole execution */
	int64		lease;			/* microseconds */
	Jsonb	   *request;		/* what is needed to execute it again */
	long		wait_ms;
} IdemRequestOrder;

typedef struct IdemRequestAnswer
{
	IdemRequestResult result;
	IdemLease	lease;			/* started: the attempt; dead: the attempts */
	int64		retry_after;	/* in progress: microseconds; -1: unknown */
	IdemResponse response;		/* replay */
	TimestampTz completed_at;
	TimestampTz expires_at;		/* 0: never */
} IdemRequestAnswer;

/*
 * Ask for a request, and start it if nobody has it.  While it is in progress, the call
 * waits for up to wait_ms milliseconds.  Errors: 40001 as of idem_claim_event.
 */
extern void idem_request_claim(const IdemRequestName *name, const IdemRequestOrder *order,
							   IdemRequestAnswer *answer);

/*
 * Note a recovery point, make the lease the transaction's claim, and have it last for
 * the duration from now on; 0: as the consumer's policy says.  work: NULL leaves what
 * was noted.  Errors as of idem_hold.
 */
extern TimestampTz idem_request_advance(const IdemRequestName *name, int64 token,
										int64 duration, text *recovery_point, Jsonb *work);

/*
 * All of these end an execution: by the token of its lease, or with token NULL the one
 * that this transaction has claimed or advanced.  Errors: as of idem_hold; ID002 if the
 * transaction has none.
 */

/* Store the answer. */
extern void idem_request_complete(const IdemRequestName *name, const int64 *token,
								  const IdemResponse *response);

/* The attempt failed: the next one goes on at the recovery point. */
extern IdemLeaseState idem_request_fail(const IdemRequestName *name, const int64 *token,
										const IdemLeaseRelease *failure);

/*
 * The execution did not begin.  If no former attempt began either, nothing is left of
 * the request, its fingerprint included.
 */
extern void idem_request_release(const IdemRequestName *name, const int64 *token);

#endif							/* IDEM_REQUEST_H */
