/*-------------------------------------------------------------------------
 *
 * keyed_worker.c
 *		The background worker that shortens the keyed logs of a database.
 *
 * Who appends to a table of a log that has grown starts the worker, at each new page.
 * It lives as long as there is work, with or without preload.
 *
 * It takes the steps of keyed_turn.c, each in a transaction of its own, until no log
 * has one, and ends.  If a step has to wait for a dump, or somebody has a table that it
 * needs, the worker goes on with the other logs, and then waits without a transaction.
 * A step waits for no lock, so a DROP EXTENSION waits for one step at most; a command
 * that needs the database empty ends the process by SIGTERM or waits for its end.  It
 * runs as the bootstrap superuser, with settings of its own, and runs nobody's code.
 *
 * After an error it ends.  The next page that is filled starts another one.
 *
 * LOCKING: between the steps only the lock by which there is one worker of a
 * database (shared/worker.c), which nobody waits for.
 *
 * MEMORY: the list of logs, the time of the last start; of the worker, that of one step.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "storage/ipc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"

#include "compat.h"
#include "shared/catalog.h"
#include "shared/clock.h"
#include "shared/fault.h"
#include "shared/keyed_turn.h"
#include "shared/keyed_worker.h"
#include "shared/worker.h"

/* A process starts one worker at most in this time. */
#define START_PAUSE_MS	100

/* How often a worker looks whether a dump has ended */
#define DUMP_LOOK_MS	200

/*
 * How often it looks whether somebody has given a table back, and how many times in a row.
 * Writers of short transactions have it for moments; after a longer one the next page
 * that is filled starts another worker.
 */
#define BUSY_LOOK_MS	20
#define BUSY_LOOKS		100

static const IdemKeyedLog *logs[IDEM_KEYED_MAX_LOGS];
static int	nlogs = 0;
static IdemClock next_start = 0;

void
idem_keyed_worker_add(const IdemKeyedLog *log)
{
	if (nlogs == IDEM_KEYED_MAX_LOGS)
		elog(ERROR, "too many keyed logs");
	logs[nlogs++] = log;
}

int
idem_keyed_worker_logs(const IdemKeyedLog *const **all)
{
	*all = logs;
	return nlogs;
}

void
idem_keyed_worker_append(IdemKeyedAccess *access, IdemKeyedColumns *row)
{
	BackgroundWorker worker;
	IdemClock	now;

	if (!idem_keyed_access_append(access, row))
		return;
	now = idem_clock();
	if (now < next_start || !idem_singleton_is_needed(IDEM_SINGLETON_LOGS))
		return;
	next_start = idem_clock_plus_ms(now, START_PAUSE_MS);
	idem_singleton_describe(&worker, "idem_keyed_worker_main", "idempotency logs");
	worker.bgw_main_arg = ObjectIdGetDatum(MyDatabaseId);
	(void) RegisterDynamicBackgroundWorker(&worker, NULL);
}

/* Take a step of a log, if there is one, and the extension is there. */
static IdemKeyedStep
take_step(const IdemKeyedLog *log, IdemKeyedPass *pass)
{
	IdemKeyedStep step = IDEM_KEYED_NONE;

	idem_check_interrupts();
	idem_txn_begin();
	if (OidIsValid(idem_extension_oid()))
		step = idem_keyed_log_maintain(log, pass);
	IDEM_FAULT_POINT("keyed-step-taken");
	idem_txn_commit(false);
	IDEM_FAULT_POINT("keyed-step-committed");
	return step;
}

/* Take a step of each log; what came of them: has[] is true for what came of any. */
static void
take_step_of_each(IdemKeyedPass *passes, bool has[IDEM_KEYED_STEPS])
{
	memset(has, false, IDEM_KEYED_STEPS * sizeof(bool));
	for (int i = 0; i < nlogs; i++)
		has[take_step(logs[i], &passes[i])] = true;
}

/*
 * Take steps until there is none, somebody has what the next one needs for too long, or others
 * need the process more.
 */
static void
take_steps(void)
{
	IdemKeyedPass passes[IDEM_KEYED_MAX_LOGS] = {{0}};
	bool		has[IDEM_KEYED_STEPS];
	int			busy = 0;

	for (;;)
	{
		take_step_of_each(passes, has);
		if (idem_singleton_turn_is_over())
			break;
		busy = has[IDEM_KEYED_BUSY] && !has[IDEM_KEYED_TAKEN] ? busy + 1 : 0;
		if (has[IDEM_KEYED_TAKEN])
			continue;
		if (has[IDEM_KEYED_BUSY] && busy <= BUSY_LOOKS)
			idem_pause(BUSY_LOOK_MS);
		else if (has[IDEM_KEYED_WAITS])
			idem_pause(DUMP_LOOK_MS);
		else
			break;
	}
}

void
idem_keyed_worker_main(Datum arg)
{
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	idem_forced_maintenance();
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	if (!idem_singleton_become(IDEM_SINGLETON_LOGS))
		proc_exit(0);
	pgstat_report_activity(STATE_RUNNING, "shortening the logs");
	take_steps();
	pgstat_report_stat(true);
	proc_exit(0);
}
