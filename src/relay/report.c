/*-------------------------------------------------------------------------
 *
 * report.c
 *		What relays report about themselves: stat_relay and the server log.
 *
 * LOCKING: the entry's spinlock, held for straight-line code only.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/report.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "utils/timestamp.h"

#include "relay/report.h"
#include "shared/error.h"

static const char *const state_names[] = {
	[IDEM_RELAY_STARTING] = "starting",
	[IDEM_RELAY_STREAMING] = "streaming",
	[IDEM_RELAY_IDLE] = "idle",
	[IDEM_RELAY_OUTAGE] = "outage",
	[IDEM_RELAY_PAUSED] = "paused",
	[IDEM_RELAY_HALTED] = "halted",
	[IDEM_RELAY_UNADOPTED] = "unadopted",
	[IDEM_RELAY_DIVERGED] = "diverged",
	[IDEM_RELAY_FENCED] = "fenced",
	[IDEM_RELAY_MISCONFIGURED] = "misconfigured",
	[IDEM_RELAY_UNWITNESSED] = "unwitnessed"
};

static const char *const wait_names[] = {
	[IDEM_WAIT_NOTHING] = NULL,
	[IDEM_WAIT_EVENTS] = "events",
	[IDEM_WAIT_SINK] = "sink",
	[IDEM_WAIT_FUNCTION] = "function",
	[IDEM_WAIT_BACKOFF] = "backoff",
	[IDEM_WAIT_LOCK] = "lock",
	[IDEM_WAIT_PROGRAM_END] = "end of the former program",
	[IDEM_WAIT_RETRY] = "retry",
	[IDEM_WAIT_SYNC_STANDBY] = "synchronous standby",
	[IDEM_WAIT_OPERATOR] = "operator",
	[IDEM_WAIT_PARKED_ROOM] = "room for parked events",
	[IDEM_WAIT_WITNESS] = "witness",
	[IDEM_WAIT_PROGRAM] = "sink program",
	[IDEM_WAIT_WORKER] = "worker",
	[IDEM_WAIT_SLOT] = "worker slot",
	[IDEM_WAIT_PROCESS] = "worker slot (max_worker_processes)"
};

const char *
idem_state_name(IdemRelayState state)
{
	return state_names[state];
}

const char *
idem_wait_name(IdemRelayWait waiting)
{
	return wait_names[waiting];
}

/*
 * Log a change of state that an operator cares about, with the relay's last
 * error.
 */
static void
log_change(IdemRelayEntry *entry, const char *relay, IdemRelayState to)
{
	char		error[IDEM_ERROR_LEN];

	SpinLockAcquire(&entry->mutex);
	strlcpy(error, entry->last_error, sizeof(error));
	SpinLockRelease(&entry->mutex);
	if (to == IDEM_RELAY_STREAMING || to == IDEM_RELAY_PAUSED)
		ereport(LOG,
				(errmsg("relay \"%s\" is %s", relay, idem_state_name(to))));
	else
		ereport(LOG,
				(errcode(to == IDEM_RELAY_DIVERGED ? ERRCODE_IDEM_RELAY_DIVERGED :
						 to == IDEM_RELAY_UNADOPTED ? ERRCODE_IDEM_RELAY_UNADOPTED :
						 to == IDEM_RELAY_UNWITNESSED ? ERRCODE_IDEM_RELAY_UNWITNESSED :
						 ERRCODE_IDEM_SINK_OUTAGE),
				 errmsg("relay \"%s\" is %s", relay, idem_state_name(to)),
				 error[0] ? errdetail_internal("%s", error) : 0));
}

void
idem_report_state(IdemRelayEntry *entry, const char *relay,
				  IdemRelayState state, IdemRelayWait waiting)
{
	if (entry == NULL)
		return;
	if (entry->state == state && entry->waiting == waiting)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->state = state;
	entry->waiting = waiting;
	SpinLockRelease(&entry->mutex);

	/*
	 * A relay that tries again after a backoff passes through "starting" each
	 * time.  Log only a state after it that differs from the last logged one.
	 * "idle" is never logged.
	 */
	if (state == IDEM_RELAY_STARTING || state == IDEM_RELAY_IDLE || state == entry->logged)
		return;
	entry->logged = state;
	log_change(entry, relay, state);
}

void
idem_report_waiting(IdemRelayEntry *entry, IdemRelayWait waiting)
{
	if (entry == NULL || entry->waiting == waiting)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->waiting = waiting;
	SpinLockRelease(&entry->mutex);
}

void
idem_report_error(IdemRelayEntry *entry, const char *message)
{
	char		kept[IDEM_ERROR_LEN];

	if (entry == NULL)
		return;
	idem_copy_error(kept, message, sizeof(kept));
	SpinLockAcquire(&entry->mutex);
	strlcpy(entry->last_error, kept, sizeof(entry->last_error));
	entry->last_error_at = GetCurrentTimestamp();
	SpinLockRelease(&entry->mutex);
}

void
idem_report_ended(IdemRelayEntry *entry, const char *message)
{
	idem_report_error(entry, message);
	SpinLockAcquire(&entry->mutex);
	entry->state = IDEM_RELAY_OUTAGE;
	entry->waiting = IDEM_WAIT_BACKOFF;
	entry->pid = 0;
	entry->sent = entry->retried = 0;
	entry->rate = entry->rate_sum = 0;
	entry->rate_at = 0;
	SpinLockRelease(&entry->mutex);
}

void
idem_report_sink_pid(IdemRelayEntry *entry, pid_t pid)
{
	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->sink_pid = pid;
	SpinLockRelease(&entry->mutex);
}

/* The rate is an exponential average, weighted by the time since the last call. */
void
idem_report_counts(IdemRelayEntry *entry, int64 sent, int64 retried)
{
	TimestampTz now = GetCurrentTimestamp();

	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->sent += sent;
	entry->retried += retried;
	entry->rate_sum += sent;
	if (entry->rate_at == 0)
		entry->rate_at = now;
	if (now - entry->rate_at >= USECS_PER_SEC / 4)
	{
		double		seconds = (double) (now - entry->rate_at) / USECS_PER_SEC;
		double		weight = seconds / (seconds + IDEM_RATE_TAU);

		entry->rate += weight * (entry->rate_sum / seconds - entry->rate);
		entry->rate_sum = 0;
		entry->rate_at = now;
	}
	SpinLockRelease(&entry->mutex);
}
