/*-------------------------------------------------------------------------
 *
 * start.c
 *		Starts the packer of this database.
 *
 * A packer that stays for a while is the only one of the database (shared/worker.c).  One
 * that takes a step for whoever asks for it may work beside it.
 *
 * A crash leaves nothing; the next claim that notices starts a packer.
 *
 * LOCKING: none.
 *
 * MEMORY: the handle of a registered packer, in the current context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/start.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"

#include "shared/worker.h"
#include "store/start.h"

bool
idem_packer_register(bool once, BackgroundWorkerHandle **handle)
{
	BackgroundWorker worker;
	IdemPackerOrder order;

	memset(&order, 0, sizeof(order));
	order.database = MyDatabaseId;
	order.once = once;
	idem_singleton_describe(&worker, "idem_store_worker_main", "idempotency packer");
	memcpy(worker.bgw_extra, &order, sizeof(order));
	worker.bgw_notify_pid = handle == NULL ? 0 : MyProcPid;
	return RegisterDynamicBackgroundWorker(&worker, handle);
}
