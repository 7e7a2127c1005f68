/*-------------------------------------------------------------------------
 *
 * flight.h
 *	Waiting for the end of the transaction that executes a request.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/flight.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_REQUEST_FLIGHT_H
#define IDEM_REQUEST_FLIGHT_H

#include "postgres.h"

#include "utils/uuid.h"

#include "shared/clock.h"

/* A call that waits for a request; put it on the stack. */
typedef struct IdemFlight
{
	pg_uuid_t	digest;
	bool		begun;
	IdemClock	start;
	long		wait_ms;
	bool		asleep;			/* queued for signs, and counted as a waiter */
	int			hurry;			/* pauses since something ended */
} IdemFlight;

/* Defines the settings; called once per process. */
extern void idem_flight_init(void);

/* The shared memory: its size, and its place in this process; found: it is initialised. */
extern Size idem_flight_shmem_size(void);
extern void idem_flight_shmem_attach(void *base, bool found);

/* The transaction has committed or aborted, or was prepared: wake, or forget, its waiters. */
extern void idem_flight_transaction_ended(void);
extern void idem_flight_transaction_prepared(void);

/* A subtransaction has aborted: this process waits no more. */
extern void idem_flight_leave(void);

/* A prepared transaction has ended, and nobody knows which requests it has changed. */
extern void idem_flight_wake_all(void);

/* This transaction changes the request: wake who waits for it when it ends. */
extern void idem_flight_note(const pg_uuid_t *digest);

/* wait_ms: 0 does not wait; more than idempotency.max_wait counts as that. */
extern void idem_flight_begin(IdemFlight *flight, const pg_uuid_t *digest, long wait_ms);

/*
 * The request is in progress: wait until something has ended, or for a while, and look
 * again.  The first call does not wait, so that no end between the look and the call is
 * missed.  until_us: the lease is over after so many microseconds; -1: unknown.  False if
 * the time is up, or if there are too many waiters.
 */
extern bool idem_flight_wait(IdemFlight *flight, int64 until_us);

/* The call is over. */
extern void idem_flight_end(IdemFlight *flight);

#endif							/* IDEM_REQUEST_FLIGHT_H */
