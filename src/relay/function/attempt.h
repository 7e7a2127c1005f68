/*-------------------------------------------------------------------------
 *
 * attempt.h
 *		Which event was being handled when the server went down.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/attempt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_FUNCTION_ATTEMPT_H
#define IDEM_RELAY_FUNCTION_ATTEMPT_H

#include "postgres.h"

#include "utils/uuid.h"

#include "relay/config.h"
#include "relay/position/parked.h"

/* Zeroed memory is one that was not loaded. */
typedef struct IdemAttempts
{
	bool		loaded;

	/* What is tried one by one, each attempt on record before it is made */
	int			log_left;		/* so many events of the log to come */
	bool		repeats;		/* parked events, until none is due */

	bool		recorded;		/* the record names an event */
	bool		announced;		/* it is this process' own attempt */
	pg_uuid_t	event;			/* and that is the event */

	bool		killed;			/* the last attempt took the server down */
	pg_uuid_t	killer;			/* event in progress at the crash */
	bool		met;			/* its failure is recorded in this transaction */
	bool		closing;		/* this transaction clears the record */
	bool		passed;			/* all that a crash left was tried */
} IdemAttempts;

/* In a transaction, unless it is loaded: what does this start follow on? */
extern void idem_attempts_load(IdemAttempts *a, const IdemRelayConfig *config);

/* Are events tried one by one now, on record? */
extern bool idem_attempts_careful(const IdemAttempts *a);

/*
 * Did the last attempt of the event take the server down?  Then it has failed
 * already, and *failure says so.
 */
extern bool idem_attempts_killed(IdemAttempts *a, const IdemRelayConfig *config,
								 const pg_uuid_t *event_id, IdemFailure *failure);

/*
 * Must the attempt be put on record before it is made?  ..._announce does so;
 * once that transaction has committed, durably, say ..._announced, and try the
 * event in the next.
 */
extern bool idem_attempts_unannounced(const IdemAttempts *a, const pg_uuid_t *event_id);
extern void idem_attempts_announce(IdemAttempts *a, const IdemRelayConfig *config,
								   const pg_uuid_t *event_id);
extern void idem_attempts_announced(IdemAttempts *a);

/*
 * Close the record in the transaction of the outcome, as the last thing; then
 * say that it has committed, or was rolled back.  Does nothing in a
 * transaction of which nothing was on record.
 */
extern void idem_attempts_conclude(IdemAttempts *a, const IdemRelayConfig *config);
extern void idem_attempts_concluded(IdemAttempts *a, const IdemRelayConfig *config);
extern void idem_attempts_failed(IdemAttempts *a);

#endif							/* IDEM_RELAY_FUNCTION_ATTEMPT_H */
