/*-------------------------------------------------------------------------
 *
 * worker.c
 *		What background workers have in common: one at a time of a kind, settings,
 *		transactions, and whether the server starts after a crash.
 *
 * There is no shared memory of ours where the library is not preloaded.  So such a
 * worker holds a lock of its session, whose key no SQL function can take, and who wants
 * a worker looks whether somebody holds that lock.
 *
 * max_worker_processes may be fewer than relays and these workers of all databases need.
 * Relays take turns then, and so do these workers: one has a process, a step at least,
 * and the others end.  That, too, is a lock of the session, which has no database.
 *
 * A crash leaves nothing; whoever notices next that there is work starts a worker.
 *
 * LOCKING: the two locks just named, never waited for.  DROP EXTENSION does not wait for
 * them either.
 *
 * MEMORY: none.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <unistd.h>

#include "access/xact.h"
#include "access/xlog.h"
#include "catalog/pg_control.h"
#include "common/controldata_utils.h"
#include "miscadmin.h"
#include "storage/latch.h"
#include "storage/lock.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "shared/clock.h"
#include "shared/worker.h"

#define TRIES		5
#define PAUSE_US	1000L

/* While relays lack processes, a worker ends after its first step that ends later than that. */
#define TURN_MS		1000

/* The fourth field of the lock of the turn; see IdemSingleton. */
#define TURN		0x4954

bool		(*idem_singleton_relays_lack_processes) (void) = NULL;

static IdemClock began = 0;		/* when this process became a worker */
static bool has_turn = false;

static void
set_tag(LOCKTAG *tag, IdemSingleton kind)
{
	SET_LOCKTAG_ADVISORY(*tag, MyDatabaseId, 0, 0, kind);
}

static void
set_turn_tag(LOCKTAG *tag)
{
	SET_LOCKTAG_ADVISORY(*tag, InvalidOid, 0, 0, TURN);
}

static bool
relays_lack_processes(void)
{
	return idem_singleton_relays_lack_processes != NULL && idem_singleton_relays_lack_processes();
}

/* Does somebody hold the lock? */
static bool
is_held(const LOCKTAG *tag)
{
	if (idem_compat_try_lock(tag, ShareLock) == LOCKACQUIRE_NOT_AVAIL)
		return true;
	LockRelease(tag, ShareLock, false);
	return false;
}

/*
 * A process between two transactions cannot be seen among the holders of a
 * lock, so the lock is tried.  If the lock table is full, this is no time to
 * start a worker.
 */
bool
idem_singleton_is_at_work(IdemSingleton kind)
{
	LOCKTAG		tag;

	set_tag(&tag, kind);
	return is_held(&tag);
}

bool
idem_singleton_is_needed(IdemSingleton kind)
{
	LOCKTAG		turn;

	if (idem_singleton_is_at_work(kind))
		return false;
	set_turn_tag(&turn);
	return !relays_lack_processes() || !is_held(&turn);
}

/* Who looks for a worker has the lock for a moment, so it is tried again. */
bool
idem_singleton_become(IdemSingleton kind)
{
	LOCKTAG		tag;

	set_tag(&tag, kind);
	for (int i = 0; i < TRIES; i++)
	{
		if (LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL)
		{
			began = idem_clock();
			return true;
		}
		pg_usleep(PAUSE_US);
	}
	return false;
}

/* A process that nobody else needs, or that does what a session waits for, lacks no turn. */
bool
idem_singleton_lacks_turn(void)
{
	LOCKTAG		tag;

	if (began == 0 || !relays_lack_processes())
		return false;
	set_turn_tag(&tag);
	has_turn = has_turn || LockAcquire(&tag, ExclusiveLock, true, true) != LOCKACQUIRE_NOT_AVAIL;
	return !has_turn;
}

bool
idem_singleton_turn_is_over(void)
{
	return idem_singleton_lacks_turn() ||
		(has_turn && relays_lack_processes() && idem_clock() >= idem_clock_plus_ms(began, TURN_MS));
}

void
idem_pause(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
	idem_check_interrupts();
}

void
idem_singleton_describe(BackgroundWorker *worker, const char *function, const char *type)
{
	memset(worker, 0, sizeof(*worker));
	worker->bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker->bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker->bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker->bgw_library_name, "idempotency", sizeof(worker->bgw_library_name));
	strlcpy(worker->bgw_function_name, function, sizeof(worker->bgw_function_name));
	strlcpy(worker->bgw_type, type, BGW_MAXLEN);
	snprintf(worker->bgw_name, BGW_MAXLEN, "%s for database %u", type, MyDatabaseId);
}

/*
 * The settings that each of our workers needs.
 *
 * A worker is a session of its database, so settings of the database apply to
 * it, which are meant for the sessions of users.
 */

typedef struct Setting
{
	const char *name;
	const char *value;
} Setting;

/* Set those that this server has. */
static void
force(const Setting *settings, int n)
{
	for (int i = 0; i < n; i++)
	{
		if (GetConfigOption(settings[i].name, true, false) != NULL)
			SetConfigOption(settings[i].name, settings[i].value, PGC_SUSET, PGC_S_OVERRIDE);
	}
}

void
idem_forced_settings(void)
{
	static const Setting settings[] = {
		{"role", "none"},
		{"search_path", "pg_catalog, pg_temp"},
		{"lock_timeout", "0"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"transaction_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"exit_on_error", "off"},
		{"synchronous_commit", "local"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"session_replication_role", "origin"},
		{"row_security", "on"},
		{"jit", "off"},
		{"max_parallel_workers_per_gather", "0"},
		{"debug_parallel_query", "off"},
		{"force_parallel_mode", "off"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"debug_print_parse", "off"},
		{"debug_print_rewritten", "off"},
		{"debug_print_plan", "off"},
		{"idempotency.uncompleted_claims", "error"},
	};

	force(settings, lengthof(settings));
}

/*
 * These workers sort what others have written, so a limit on temporary files would stop
 * them for ever.  They wait for no lock of ours; if a catalog is locked, not for long.
 */
void
idem_forced_maintenance(void)
{
	static const Setting settings[] = {
		{"lock_timeout", "1s"},
		{"temp_file_limit", "-1"},
	};

	idem_forced_settings();
	force(settings, lengthof(settings));
}

/*
 * Transactions of a worker: READ COMMITTED, committed locally.
 */

/*
 * The caller's context, to switch back to: before 18 a commit leaves its
 * caller in TopMemoryContext, which nobody resets.
 */
static MemoryContext callers_context;

void
idem_txn_begin(void)
{
	callers_context = CurrentMemoryContext;
	SetCurrentStatementStartTimestamp();
	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
}

void
idem_txn_commit(bool synchronous)
{
	if (ActiveSnapshotSet())
		PopActiveSnapshot();
	if (synchronous)
		ForceSyncCommit();
	CommitTransactionCommand();
	MemoryContextSwitchTo(callers_context);
}

/*
 * Does this start count as one after a crash?  Yes after an end other than a
 * clean shutdown.  Yes in a standby, which may be promoted because the primary
 * did not survive an event.  Yes in a recovery to an earlier time: the targets
 * may be ahead of that time.  Asked before recovery begins, also when the
 * postmaster starts over after a crash.
 */
bool
idem_starts_after_crash(void)
{
	ControlFileData *control;
	bool		crc_ok;

	control = get_controlfile(DataDir, &crc_ok);
	return !crc_ok || control->state != DB_SHUTDOWNED ||
		access(STANDBY_SIGNAL_FILE, F_OK) == 0 || access(RECOVERY_SIGNAL_FILE, F_OK) == 0;
}
