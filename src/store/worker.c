/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The packer: a background worker that maintains the store of a database.
 *
 * A claim that finds the current segment full starts it; so does the worker of
 * relays when it looks after the store, and claims_maintain().  It needs no
 * preload.  It takes steps (pack.c) until there is none, then stays for a few
 * seconds and looks now and then: under load the next segment is full soon, and
 * processes are not started for each.  The packer of claims_maintain() ends at
 * once.
 *
 * It runs as the bootstrap superuser, with settings of its own, and runs nobody's
 * code: it writes rows without the executor, and no statement.
 *
 * After an error it stays as well, and tries again after a second, then after
 * twice that, up to a minute.  So no other packer is started meanwhile, and a
 * disk that is full is not met by a storm of processes.  pg_stat_activity shows
 * the error as the packer's query.
 *
 * It ends when the extension is gone, when packing was switched off, and when a
 * command needs the database (pace.c).  The next claim that finds the current
 * segment full starts another one.
 *
 * LOCKING: no lock and no transaction is held while it waits, except the lock by
 * which others know it (shared/worker.c).
 *
 * MEMORY: a context that each turn resets.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"

#include "compat.h"
#include "shared/clock.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/worker.h"
#include "store/pace.h"
#include "store/pack.h"

#define STAY_MS			5000	/* after the last step */
#define LOOK_MS			200		/* between two looks */
#define FIRST_RETRY_MS	1000
#define MAX_RETRY_MS	60000

/*
 * How long the packer of claims_maintain() tries to get the packer's lock.  It
 * must end even if the session that waits for it has the lock.
 */
#define BUSY_MS			30000

static MemoryContext turn_context = NULL;
static int	failures = 0;		/* in a row */

/* Take steps until there is none. */
static IdemMaintained
maintain(int *steps)
{
	IdemMaintained result;

	MemoryContextSwitchTo(turn_context);
	MemoryContextReset(turn_context);
	pgstat_report_activity(STATE_RUNNING, "packing the store of claims");
	result = idem_store_maintain(steps);
	if (*steps > 0)
		failures = 0;
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	return result;
}

/* Take steps as they come, until none has come for a while. */
static void
run_for_a_while(void)
{
	IdemClock	end = idem_clock_plus_ms(idem_clock(), STAY_MS);
	int			steps;

	while (idem_clock() < end)
	{
		if (maintain(&steps) == IDEM_MAINTAINED_LEAVE)
			return;
		if (steps > 0)
			end = idem_clock_plus_ms(idem_clock(), STAY_MS);
		idem_pause(LOOK_MS);
	}
}

/* Wait after an error; true if the packer has to leave. */
static bool
rest(long ms)
{
	IdemClock	end = idem_clock_plus_ms(idem_clock(), ms);

	while (idem_clock() < end)
	{
		bool		leave;

		idem_pause(LOOK_MS);
		idem_txn_begin();
		leave = idem_pace_must_give_way();
		idem_txn_commit(false);
		if (leave)
			return true;
	}
	return false;
}

/*
 * In PG_CATCH: log the error unless it is the last one again, and show it as the
 * query.
 */
static void
note_error(void)
{
	static char last[256] = "";
	char		message[sizeof(last)];
	MemoryContext old = MemoryContextSwitchTo(turn_context);
	ErrorData  *edata = CopyErrorData();
	char		shown[320];

	idem_copy_error(message, edata->message ? edata->message : "", sizeof(message));
	/* the same error is logged at the 1st, 2nd, 4th, 8th ... failure in a row */
	if ((failures & (failures - 1)) == 0 || strcmp(last, message) != 0)
		EmitErrorReport();
	strlcpy(last, message, sizeof(last));
	snprintf(shown, sizeof(shown), "could not pack the store of claims: %s", last);
	FreeErrorData(edata);
	FlushErrorState();
	AbortCurrentTransaction();
	LWLockReleaseAll();
	pgstat_report_activity(STATE_IDLE, shown);
	MemoryContextSwitchTo(old);
}

/* Do what claims_maintain() waits for. */
static void
run_once(void)
{
	IdemClock	give_up = idem_clock_plus_ms(idem_clock(), BUSY_MS);
	int			steps;

	while (maintain(&steps) == IDEM_MAINTAINED_BUSY && idem_clock() < give_up)
		idem_pause(LOOK_MS / 10);
}

/*
 * Try until it works; the errors end here.  An error ends the process that does it once,
 * unless other merges are left.
 */
static void
run_in_spite_of_errors(bool once)
{
	volatile bool done = false;

	while (!done)
	{
		PG_TRY();
		{
			if (once)
				run_once();
			else if (failures == 0 || !rest(Min(FIRST_RETRY_MS << Min(failures - 1, 10), MAX_RETRY_MS)))
				run_for_a_while();
			done = true;
		}
		PG_CATCH();
		{
			done = idem_pace_gave_way();
			if (once && !done && !idem_store_failed_to_merge())
				PG_RE_THROW();
			if (!done)
			{
				failures++;
				note_error();
			}
		}
		PG_END_TRY();
	}
}

void
idem_store_worker_main(Datum arg)
{
	IdemPackerOrder order;

	memcpy(&order, MyBgworkerEntry->bgw_extra, sizeof(order));
	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(order.database, InvalidOid, 0);
	idem_forced_maintenance();
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	turn_context = AllocSetContextCreate(TopMemoryContext, "idempotency packer",
										 ALLOCSET_DEFAULT_SIZES);
	IDEM_FAULT_POINT_NO_ERROR("store-packer-started");
	if (order.once || idem_singleton_become(IDEM_SINGLETON_PACKER))
		run_in_spite_of_errors(order.once);
	proc_exit(0);
}
