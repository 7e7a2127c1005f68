/*-------------------------------------------------------------------------
 *
 * report.c
 *		What relays report about themselves: stat_relay and the server log.
 *
 * What a crash leaves: no entry.  Workers take new ones.
 *
 * LOCKING: a lock guards which relay and which process have an entry; the entry's
 * spinlock guards what it says, and is held for straight-line code only.  Order: the lock
 * of worker_slots.c, this lock, the spinlock.  The process that has an entry is the only one
 * that writes state and last_error, and reads them without the spinlock.
 *
 * MEMORY: an array in shared memory, of idempotency.max_relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/report.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "storage/lwlock.h"
#include "storage/shmem.h"
#include "utils/timestamp.h"

#include "relay/report.h"
#include "shared/error.h"

/* Lines that an allowance has at once, and the time after which it has one more. */
#define LOG_BURST 20
#define LOG_INTERVAL_MS 1000

const char *const idem_state_names[] = {
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

const char *const idem_wait_names[] = {
	[IDEM_WAIT_NOTHING] = NULL,
	[IDEM_WAIT_EVENTS] = "events",
	[IDEM_WAIT_ANSWER] = "answer",
	[IDEM_WAIT_FUNCTION] = "function",
	[IDEM_WAIT_BACKOFF] = "backoff",
	[IDEM_WAIT_LOCK] = "lock",
	[IDEM_WAIT_PROGRAM_END] = "end of the former program",
	[IDEM_WAIT_RETRY] = "retry",
	[IDEM_WAIT_SYNC_STANDBY] = "synchronous standby",
	[IDEM_WAIT_OPERATOR] = "operator",
	[IDEM_WAIT_PARKED_ROOM] = "room for parked events",
	[IDEM_WAIT_WITNESS] = "witness",
	[IDEM_WAIT_TURN] = "turn of worker",
	[IDEM_WAIT_PROGRAM] = "sink program",
	[IDEM_WAIT_WORKER] = "worker",
	[IDEM_WAIT_SLOT] = "worker slot",
	[IDEM_WAIT_PROCESS] = "worker slot (max_worker_processes)"
};

/* Entries and who has them */

static IdemRelayEntry *entries = NULL;	/* NULL: the library is not preloaded */
static LWLock *lock = NULL;

int			idem_relay_max_relays = 1024;

Size
idem_relay_entries_size(void)
{
	return mul_size(idem_relay_max_relays, sizeof(IdemRelayEntry));
}

void
idem_relay_entries_attach(void *segment, bool found)
{
	entries = segment;
	lock = &GetNamedLWLockTranche("idempotency")[IDEM_LOCK_ENTRIES].lock;
	if (found)
		return;
	memset(entries, 0, idem_relay_entries_size());
	for (int i = 0; i < idem_relay_max_relays; i++)
		SpinLockInit(&entries[i].mutex);
}

/* Under the lock: the entry of a relay; NULL if there is none. */
static IdemRelayEntry *
find_entry(Oid dboid, int relay_id)
{
	for (int i = 0; i < idem_relay_max_relays; i++)
	{
		if (entries[i].dboid == dboid && entries[i].relay_id == relay_id)
			return &entries[i];
	}
	return NULL;
}

/* Under the lock, exclusively. */
static void
free_entry(IdemRelayEntry *entry)
{
	entry->dboid = InvalidOid;
	entry->relay_id = 0;
	entry->pid = 0;
}

/* Under the spinlock: the relay waits for that from now on. */
static void
begin_wait(IdemRelayEntry *entry, IdemRelayWait waiting)
{
	entry->waiting = waiting;
	entry->waiting_since = GetCurrentTimestamp();
}

IdemRelayEntry *
idem_relay_entry_take(Oid dboid, int relay_id, bool function)
{
	IdemRelayEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = find_entry(dboid, relay_id);
	if (entry == NULL)
	{
		entry = find_entry(InvalidOid, 0);
		if (entry != NULL)
		{
			/* It is one of a relay that has said nothing yet. */
			memset((char *) entry + offsetof(IdemRelayEntry, state), 0,
				   sizeof(*entry) - offsetof(IdemRelayEntry, state));
			entry->dboid = dboid;
			entry->relay_id = relay_id;
			entry->logged = IDEM_RELAY_STREAMING;
		}
	}
	if (entry != NULL)
	{
		entry->function = function;
		SpinLockAcquire(&entry->mutex);
		entry->state = entry->kept.breaker.fault;
		begin_wait(entry, IDEM_WAIT_NOTHING);
		entry->pid = MyProcPid;
		entry->sink_pid = 0;
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(lock);
	return entry;
}

void
idem_relay_entry_forget(Oid dboid, int relay_id)
{
	IdemRelayEntry *entry;

	LWLockAcquire(lock, LW_EXCLUSIVE);
	entry = find_entry(dboid, relay_id);
	if (entry != NULL && (entry->pid == MyProcPid || entry->pid == 0))
		free_entry(entry);
	LWLockRelease(lock);
}

void
idem_relay_entries_forget(Oid dboid, List *relay_ids)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_max_relays; i++)
	{
		if (entries[i].dboid == dboid && entries[i].pid == 0 &&
			!list_member_int(relay_ids, entries[i].relay_id))
			free_entry(&entries[i]);
	}
	LWLockRelease(lock);
}

void
idem_relay_entries_forget_others(List *databases)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_max_relays; i++)
	{
		if (OidIsValid(entries[i].dboid) && entries[i].pid == 0 &&
			!list_member_oid(databases, entries[i].dboid))
			free_entry(&entries[i]);
	}
	LWLockRelease(lock);
}

void
idem_relay_entries_leave(const char *ended, bool keep)
{
	LWLockAcquire(lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_max_relays; i++)
	{
		IdemRelayEntry *entry = &entries[i];

		if (entry->pid != MyProcPid)
			continue;
		if (ended != NULL)
		{
			/* It shows that until the relay's next process takes it. */
			idem_report_error(entry, ended);
			SpinLockAcquire(&entry->mutex);
			entry->state = entry->kept.breaker.fault = IDEM_RELAY_OUTAGE;
			begin_wait(entry, IDEM_WAIT_BACKOFF);
			entry->sent = entry->retried = 0;
			entry->rate = entry->rate_sum = 0;
			entry->rate_at = 0;
			SpinLockRelease(&entry->mutex);
		}
		if (entry->function && keep)
			entry->pid = 0;
		else
			free_entry(entry);
	}
	LWLockRelease(lock);
}

void
idem_relay_entries_check(int64 n)
{
	int64		others = 0;

	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < idem_relay_max_relays; i++)
		others += OidIsValid(entries[i].dboid) && entries[i].dboid != MyDatabaseId;
	LWLockRelease(lock);
	if (n + others < idem_relay_max_relays)
		return;
	ereport(ERROR,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("too many relays"),
			 errdetail("This database has " INT64_FORMAT " relays and others have " INT64_FORMAT
					   "; idempotency.max_relays is %d.", n, others, idem_relay_max_relays),
			 errhint("Raise idempotency.max_relays, or drop relays that are not needed.")));
}

IdemRelayEntry *
idem_relay_entries_copy(bool all, int *n)
{
	IdemRelayEntry *copies = palloc(idem_relay_entries_size());

	*n = 0;
	LWLockAcquire(lock, LW_SHARED);
	for (int i = 0; i < idem_relay_max_relays; i++)
	{
		IdemRelayEntry *entry = &entries[i];

		if (entry->dboid != MyDatabaseId || (entry->pid == 0 && !all))
			continue;
		SpinLockAcquire(&entry->mutex);
		memcpy(&copies[(*n)++], entry, sizeof(*entry));
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(lock);
	return copies;
}

/* What is kept of function relays */

void
idem_relay_entry_keep(IdemRelayEntry *entry, const IdemBreaker *breaker, const IdemBlame *blame,
					  const IdemSuspect *suspect, bool passed_crash, bool repeats_turn)
{
	if (entry == NULL)
		return;

	/* A function is one destination.  Named lanes are memory of this process. */
	Assert(blame->named == NULL);
	SpinLockAcquire(&entry->mutex);
	entry->kept.breaker = *breaker;
	entry->kept.blame = *blame;
	entry->kept.suspect = *suspect;
	entry->kept.passed_crash = passed_crash;
	entry->kept.repeats_turn = repeats_turn;
	SpinLockRelease(&entry->mutex);
}

IdemFunctionKept
idem_relay_entry_kept(IdemRelayEntry *entry)
{
	IdemFunctionKept kept = {0};

	if (entry == NULL)
		return kept;
	SpinLockAcquire(&entry->mutex);
	kept = entry->kept;
	SpinLockRelease(&entry->mutex);
	return kept;
}

void
idem_relay_ends_keep(Oid dboid, int relay_id, const IdemFunctionEnds *ends, IdemClock not_before)
{
	IdemRelayEntry *entry;

	LWLockAcquire(lock, LW_SHARED);
	entry = find_entry(dboid, relay_id);
	if (entry != NULL)
	{
		SpinLockAcquire(&entry->mutex);
		entry->kept.ends = *ends;
		entry->kept.breaker.not_before = Max(entry->kept.breaker.not_before, not_before);
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(lock);
}

int
idem_relay_ends_recall(Oid dboid, int relay_id, IdemFunctionEnds *ends)
{
	IdemRelayEntry *entry;

	memset(ends, 0, sizeof(*ends));
	LWLockAcquire(lock, LW_SHARED);
	entry = find_entry(dboid, relay_id);
	if (entry != NULL)
		*ends = idem_relay_entry_kept(entry).ends;
	LWLockRelease(lock);
	return entry == NULL ? -1 : entry - entries;
}

void
idem_relay_entry_forget_failures(IdemRelayEntry *entry)
{
	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->kept.breaker.failures = entry->kept.ends.ends = 0;
	entry->kept.breaker.not_before = 0;
	entry->kept.breaker.fault = IDEM_RELAY_STARTING;
	SpinLockRelease(&entry->mutex);
}

bool
idem_relay_entry_is_idle(int number, Oid dboid, int relay_id)
{
	IdemRelayEntry *entry = &entries[number];
	IdemRelayWait waiting = IDEM_WAIT_NOTHING;

	LWLockAcquire(lock, LW_SHARED);
	if (entry->dboid == dboid && entry->relay_id == relay_id)
	{
		SpinLockAcquire(&entry->mutex);
		waiting = entry->waiting;
		SpinLockRelease(&entry->mutex);
	}
	LWLockRelease(lock);
	return waiting == IDEM_WAIT_EVENTS || waiting == IDEM_WAIT_BACKOFF ||
		waiting == IDEM_WAIT_RETRY;
}

/* What a relay says */

void
idem_relay_entry_error(IdemRelayEntry *entry, char error[IDEM_ERROR_LEN])
{
	SpinLockAcquire(&entry->mutex);
	strlcpy(error, entry->last_error, IDEM_ERROR_LEN);
	SpinLockRelease(&entry->mutex);
}

void
idem_report_state(IdemRelayEntry *entry, const char *relay,
				  IdemRelayState state, IdemRelayWait waiting)
{
	bool		well = state == IDEM_RELAY_STREAMING || state == IDEM_RELAY_PAUSED;
	char		error[IDEM_ERROR_LEN];

	if (entry == NULL)
		return;
	if (entry->state != state || entry->waiting != waiting)
	{
		SpinLockAcquire(&entry->mutex);
		entry->state = state;
		if (entry->waiting != waiting)
			begin_wait(entry, waiting);
		SpinLockRelease(&entry->mutex);
	}

	/*
	 * A relay comes out of each rest and each restart by way of "starting".
	 * Log only a state after it that differs from the last logged one. "idle"
	 * is never logged.  The relay's last error goes with a state that an
	 * operator cares about.
	 */
	if (state == IDEM_RELAY_STARTING || state == IDEM_RELAY_IDLE || state == entry->logged)
		return;
	entry->logged = state;
	idem_relay_entry_error(entry, error);
	ereport(LOG,
			(errcode(well ? ERRCODE_SUCCESSFUL_COMPLETION :
					 state == IDEM_RELAY_DIVERGED ? ERRCODE_IDEM_RELAY_DIVERGED :
					 state == IDEM_RELAY_UNADOPTED ? ERRCODE_IDEM_RELAY_UNADOPTED :
					 state == IDEM_RELAY_UNWITNESSED ? ERRCODE_IDEM_RELAY_UNWITNESSED :
					 ERRCODE_IDEM_SINK_OUTAGE),
			 errmsg("relay \"%s\" is %s", relay, idem_state_names[state]),
			 well ? 0 : entry->error_quotes ? errhint("last_error of stat_relay has the reason.") :
			 error[0] ? errdetail_internal("%s", error) : 0));
}

void
idem_report_waiting(IdemRelayEntry *entry, IdemRelayWait waiting)
{
	if (entry != NULL && entry->waiting != waiting)
		idem_report_waiting_anew(entry, waiting);
}

void
idem_report_waiting_anew(IdemRelayEntry *entry, IdemRelayWait waiting)
{
	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	begin_wait(entry, waiting);
	SpinLockRelease(&entry->mutex);
}

static void
set_error(IdemRelayEntry *entry, const char *message, bool quotes)
{
	char		kept[IDEM_ERROR_LEN];

	if (entry == NULL)
		return;
	idem_copy_error(kept, message, sizeof(kept));
	SpinLockAcquire(&entry->mutex);
	strlcpy(entry->last_error, kept, sizeof(entry->last_error));
	entry->last_error_at = GetCurrentTimestamp();
	entry->error_quotes = quotes;
	SpinLockRelease(&entry->mutex);
}

void
idem_report_error(IdemRelayEntry *entry, const char *message)
{
	set_error(entry, message, false);
}

void
idem_report_refusal(IdemRelayEntry *entry, const char *message)
{
	set_error(entry, message, true);
}

bool
idem_report_may_log(IdemClock *paid_until)
{
	IdemClock	now = idem_clock();
	IdemClock	from = Max(*paid_until, now);

	if (from > idem_clock_plus_ms(now, (LOG_BURST - 1) * LOG_INTERVAL_MS))
		return false;
	*paid_until = idem_clock_plus_ms(from, LOG_INTERVAL_MS);
	return true;
}

bool
idem_report_shows(const IdemRelayEntry *entry, IdemRelayState state, const char *error)
{
	return entry->state == state && strcmp(entry->last_error, error) == 0;
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

void
idem_report_got_on(IdemRelayEntry *entry)
{
	if (entry != NULL)
		idem_report_waiting_anew(entry, entry->waiting);
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
	if (sent > 0)
		entry->delivered_at = now;
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
