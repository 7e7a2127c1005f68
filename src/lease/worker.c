/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The background worker that shortens the log of leases of a database.
 *
 * It takes the steps of keyed_log.c, each in a transaction of its own, until
 * there is none, and ends.  A step waits for no lock, so a DROP EXTENSION waits
 * for one step at most; a command that needs the database empty ends the process
 * by SIGTERM or waits for its end.  It runs as the bootstrap superuser, with
 * settings of its own, and runs nobody's code.
 *
 * After an error it ends.  The next page that is filled starts another one.
 *
 * LOCKING: no lock is held between the steps.
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
#include "tcop/tcopprot.h"
#include "utils/guc.h"

#include "compat.h"
#include "lease/log.h"
#include "lease/worker.h"
#include "shared/catalog.h"
#include "shared/forced.h"
#include "shared/keyed_log.h"
#include "shared/txn.h"

/* Take a step, if there is one, and the extension is there. */
static bool
take_step(IdemKeyedPass *pass)
{
	bool		taken = false;

	CHECK_FOR_INTERRUPTS();
	idem_txn_begin();
	if (OidIsValid(idem_extension_oid()))
		taken = idem_keyed_log_maintain(&idem_lease_log, pass);
	idem_txn_commit(false);
	return taken;
}

void
idem_lease_worker_main(Datum arg)
{
	IdemKeyedPass pass = {0};

	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(DatumGetObjectId(arg), InvalidOid, 0);
	idem_forced_settings();

	/* no lock of ours is waited for; if a catalog is locked, do not wait long */
	SetConfigOption("lock_timeout", "1s", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	pgstat_report_activity(STATE_RUNNING, "shortening the log of leases");
	while (take_step(&pass))
		;
	pgstat_report_stat(true);
	proc_exit(0);
}
