/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker that shortens the log of leases of a database.
 *
 * It takes the steps of keyed_turn.c, each in a transaction of its own, until
 * there is none, and ends.  If a step has to wait for a dump, or somebody has a
 * table that it needs, the worker waits without a transaction.  A step waits for no
 * lock, so a DROP EXTENSION waits for one step at most; a command that needs the
 * database empty ends the process by SIGTERM or waits for its end.  It runs as the bootstrap superuser, with
 * settings of its own, and runs nobody's code.
 *
 * After an error it ends.  The next page that is filled starts another one.
 *
 * LOCKING: between the steps only the lock by which there is one worker of a
 * database (singleton.c), which nobody waits for.
 *
 * MEMORY: that of one step.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"

#include "compat.h"
#include "lease/log.h"
#include "lease/worker.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/forced.h"
#include "shared/keyed_turn.h"
#include "shared/singleton.h"
#include "shared/txn.h"

/* How often a worker looks whether a dump has ended */
#define DUMP_LOOK_MS	200

/*
 * How often it looks whether somebody has given a table back, and how many times in a row.
 * Writers of short transactions have it for moments; after a longer one the next page
 * that is filled starts another worker.
 */
#define BUSY_LOOK_MS	20
#define BUSY_LOOKS		100

/* Take a step, if there is one, and the extension is there. */
static IdemKeyedStep
take_step(IdemKeyedPass *pass)
{
	IdemKeyedStep step = IDEM_KEYED_NONE;

	CHECK_FOR_INTERRUPTS();
	idem_txn_begin();
	if (OidIsValid(idem_extension_oid()))
		step = idem_keyed_log_maintain(&idem_lease_log, pass);
	IDEM_FAULT_POINT("lease-step-taken");
	idem_txn_commit(false);
	IDEM_FAULT_POINT("lease-step-committed");
	return step;
}

/* Wait for others between two looks. */
static void
pause_for(long ms)
{
	(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH, ms,
					 PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/* Take steps until there is none, or somebody has what the next one needs for too long. */
static void
take_steps(void)
{
	IdemKeyedPass pass = {0};
	IdemKeyedStep step;
	int			busy = 0;

	while ((step = take_step(&pass)) != IDEM_KEYED_NONE && busy < BUSY_LOOKS)
	{
		busy = step == IDEM_KEYED_BUSY ? busy + 1 : 0;
		if (step == IDEM_KEYED_BUSY)
			pause_for(BUSY_LOOK_MS);
		else if (step == IDEM_KEYED_WAITS)
			pause_for(DUMP_LOOK_MS);
	}
}

void
idem_lease_worker_main(Datum arg)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	idem_forced_settings();

	/* no lock of ours is waited for; if a catalog is locked, do not wait long */
	SetConfigOption("lock_timeout", "1s", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	if (!idem_singleton_become(IDEM_SINGLETON_LEASES))
		proc_exit(0);
	pgstat_report_activity(STATE_RUNNING, "shortening the log of leases");
	take_steps();
	pgstat_report_stat(true);
	proc_exit(0);
}
