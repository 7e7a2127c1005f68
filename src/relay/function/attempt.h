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

/* What a worker knows of attempts.  Zeroed memory has not been loaded. */
typedef struct IdemAttempts
{
	bool		loaded;

	/*
	 * Events still to be tried one by one, each attempt on record before it
	 * is made:
	 */
	int			log_left;		/* events of the outbox, so many */
	bool		repeats;		/* parked events, until none is due */

	bool		recorded;		/* the record names an event */
	bool		announced;		/* this process has put its own attempt on
								 * record */
	pg_uuid_t	event;			/* event of that attempt */

	bool		killed;			/* the last attempt took the server down */
	pg_uuid_t	killer;			/* event in progress at the crash */
	bool		met;			/* its failure is recorded in this transaction */
	bool		closing;		/* this transaction clears the record */
	bool		passed;			/* all events that a crash left have been
								 * tried */
} IdemAttempts;

/*
 * Unless that was done, read the record of the last attempt, and find out
 * whether a crash left events to be tried one by one.  In a transaction.
 */
extern void idem_attempts_load(IdemAttempts *a, const IdemRelayConfig *config);

/* Are events tried one by one now, with each attempt on record? */
extern bool idem_attempts_careful(const IdemAttempts *a);

/*
 * Did the last attempt of the event take the server down?  Then that attempt
 * has failed, and *failure says so.
 */
extern bool idem_attempts_killed(IdemAttempts *a, const IdemRelayConfig *config,
								 const pg_uuid_t *event_id, IdemFailure *failure);

/*
 * Must the attempt be put on record before it is made?  ..._announce puts it on
 * record.  When that transaction has committed, durably, call ..._announced,
 * and try the event in the next transaction.
 */
extern bool idem_attempts_unannounced(const IdemAttempts *a, const pg_uuid_t *event_id);
extern void idem_attempts_announce(IdemAttempts *a, const IdemRelayConfig *config,
								   const pg_uuid_t *event_id);
extern void idem_attempts_announced(IdemAttempts *a);

/*
 * ..._conclude clears the record, as the last act of the transaction of the
 * outcome.  Then ..._concluded says that this transaction has committed,
 * ..._failed that it was rolled back.  Nothing happens in a transaction without
 * an attempt on record.
 */
extern void idem_attempts_conclude(IdemAttempts *a, const IdemRelayConfig *config);
extern void idem_attempts_concluded(IdemAttempts *a, const IdemRelayConfig *config);
extern void idem_attempts_failed(IdemAttempts *a);

#endif							/* IDEM_RELAY_FUNCTION_ATTEMPT_H */
