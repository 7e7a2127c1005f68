/*-------------------------------------------------------------------------
 *
 * attempt.h
 *		Which event was being handled when the server went down.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/attempt.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_ATTEMPT_H
#define IDEM_RELAY_ATTEMPT_H

#include "postgres.h"

#include "utils/uuid.h"

#include "relay/config.h"
#include "relay/parked.h"

/* Zeroed memory is one that was not loaded. */
typedef struct IdemAttempts
{
	bool		loaded;

	/* What has to be tried alone, each attempt on record before it is made */
	int			log_left;		/* so many events of the log to come */
	bool		repeats;		/* parked events, until none is due */

	bool		open;			/* the record names an event */
	bool		announced;		/* it is this process' own attempt */
	pg_uuid_t	event;			/* and that is the event */

	bool		killed;			/* the server went down with this one, */
	pg_uuid_t	killer;
	bool		met;			/* which the transaction sets down now */
	bool		closing;		/* the record, in the transaction under way */
	bool		passed;			/* nothing of a crash is left */
} IdemAttempts;

/* In a transaction, unless it is loaded: what does this start follow on? */
extern void idem_attempts_load(IdemAttempts *a, const IdemRelayConfig *config);

/* Is there anything to be tried alone? */
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

#endif							/* IDEM_RELAY_ATTEMPT_H */
