/*-------------------------------------------------------------------------
 *
 * flight.c
 *	Waiting for the end of the transaction that executes a request.
 *
 * Of calls for one request one executes it, and the others may wait for its answer.  Such a
 * call sleeps on a condition variable that is chosen by the request.  A transaction that
 * has changed a request wakes its sleepers in the callbacks of COMMIT and ROLLBACK; the
 * server still holds the transaction's locks then, for some microseconds, so a sleeper
 * that was woken and finds the lock taken looks again at once, a few times.
 *
 * What gives no sign is looked for once a second: a savepoint that is rolled back, a
 * process that dies with the server, an event given back before its transaction ends.
 * Which requests a prepared transaction has changed, nobody remembers: COMMIT PREPARED and
 * ROLLBACK PREPARED wake all sleepers.
 *
 * Where the library is not preloaded there is no shared memory, and waiting means looking
 * again after a pause, as a claim does.
 *
 * INVARIANT: a sleeper is counted in nwaiters, once, until its call or its (sub)transaction
 * ends.
 *
 * A crash resets the shared memory with the server.
 *
 * LOCKING: the condition variables' spinlocks.
 *
 * MEMORY: 2 kB of shared memory.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/request/flight.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <limits.h>

#include "miscadmin.h"
#include "port/atomics.h"
#include "storage/condition_variable.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "claim/call.h"
#include "request/flight.h"
#include "shared/args.h"

#define NVARIABLES	128			/* a power of 2 */

#define LOOK_MS		1000		/* without a sign */
#define MAX_HURRY	6			/* pauses of 1, 2, 4 ... ms behind a sign */

typedef struct FlightShmem
{
	pg_atomic_uint32 nwaiters;
	ConditionVariable variables[NVARIABLES];
} FlightShmem;

static FlightShmem *shmem = NULL;	/* NULL: not preloaded */
static int	max_wait_ms = 60000;
static int	max_waiters = -1;

/* The variables of the requests that the transaction has changed */
static uint64 noted[NVARIABLES / 64];

/* Is this process counted as a waiter? */
static bool counted = false;

static int
variable_of(const pg_uuid_t *digest)
{
	return digest->data[UUID_LEN - 1] & (NVARIABLES - 1);
}

void
idem_flight_note(const pg_uuid_t *digest)
{
	int			n = variable_of(digest);

	noted[n / 64] |= UINT64CONST(1) << (n % 64);
}

/* Waking: raises nothing and allocates nothing */

/* Wake the sleepers of what the transaction has changed, and forget that. */
static void
wake_noted(void)
{
	for (int n = 0; n < NVARIABLES; n++)
	{
		if (noted[n / 64] == 0)
			n |= 63;
		else if (noted[n / 64] & (UINT64CONST(1) << (n % 64)))
			ConditionVariableBroadcast(&shmem->variables[n]);
	}
	memset(noted, 0, sizeof(noted));
}

void
idem_flight_wake_all(void)
{
	if (shmem == NULL)
		return;
	for (int n = 0; n < NVARIABLES; n++)
		ConditionVariableBroadcast(&shmem->variables[n]);
}

/* Stop counting this process as a waiter. */
void
idem_flight_leave(void)
{
	if (counted)
		pg_atomic_fetch_sub_u32(&shmem->nwaiters, 1);
	counted = false;
}

void
idem_flight_transaction_ended(void)
{
	idem_flight_leave();
	if (shmem != NULL)
		wake_noted();
}

void
idem_flight_transaction_prepared(void)
{
	memset(noted, 0, sizeof(noted));
}

/* Waiting */

/* Count this process as a waiter; false if there are too many. */
static bool
join(void)
{
	uint32		allowed = max_waiters >= 0 ? max_waiters : MaxConnections / 2;

	if (pg_atomic_fetch_add_u32(&shmem->nwaiters, 1) >= allowed)
	{
		pg_atomic_fetch_sub_u32(&shmem->nwaiters, 1);
		return false;
	}
	counted = true;
	return true;
}

void
idem_flight_begin(IdemFlight *flight, const pg_uuid_t *digest, long wait_ms)
{
	flight->digest = *digest;
	flight->begun = true;
	flight->start = idem_clock();
	flight->wait_ms = Min(wait_ms, max_wait_ms);
	flight->asleep = false;
	flight->hurry = MAX_HURRY;
}

/* For how long to sleep, in milliseconds: at most left_ms. */
static long
pause_ms(const IdemFlight *flight, int64 until_us, long left_ms)
{
	long		ms = flight->hurry < MAX_HURRY ? 1L << flight->hurry : LOOK_MS;

	if (until_us >= 0)
		ms = Min(ms, until_us / 1000 + 1);
	return Max(Min(ms, left_ms), 1);
}

bool
idem_flight_wait(IdemFlight *flight, int64 until_us)
{
	long		waited = (long) ((idem_clock() - flight->start) / 1000);
	ConditionVariable *variable;

	if (shmem == NULL)
		return idem_call_pause(flight->start, flight->wait_ms);
	if (waited >= flight->wait_ms)
		return false;
	variable = &shmem->variables[variable_of(&flight->digest)];
	if (!flight->asleep)
	{
		if (!join())
			return false;
		ConditionVariablePrepareToSleep(variable);
		flight->asleep = true;
		return true;
	}
	if (!ConditionVariableTimedSleep(variable, pause_ms(flight, until_us, flight->wait_ms - waited),
									 PG_WAIT_EXTENSION))
		flight->hurry = 0;
	else if (flight->hurry < MAX_HURRY)
		flight->hurry++;
	return true;
}

void
idem_flight_end(IdemFlight *flight)
{
	if (!flight->asleep)
		return;
	ConditionVariableCancelSleep();
	idem_flight_leave();
}

/* Starting */

Size
idem_flight_shmem_size(void)
{
	return sizeof(FlightShmem);
}

void
idem_flight_shmem_attach(void *base, bool found)
{
	shmem = base;
	if (found)
		return;
	pg_atomic_init_u32(&shmem->nwaiters, 0);
	for (int n = 0; n < NVARIABLES; n++)
		ConditionVariableInit(&shmem->variables[n]);
}

void
idem_flight_init(void)
{
	idem_define_int("idempotency.max_wait",
					"Longest time that claim_request waits for the answer of a request in progress.",
					"A waiting call holds a connection and a snapshot.",
					&max_wait_ms, 0, INT_MAX, PGC_SUSET, GUC_UNIT_MS);
	idem_define_int("idempotency.max_waiters",
					"Calls of claim_request that may wait at a time, in all databases.",
					"Further ones are told at once that the request is in progress. -1 means half of max_connections.",
					&max_waiters, -1, INT_MAX, PGC_SIGHUP, 0);
}
