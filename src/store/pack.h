/*-------------------------------------------------------------------------
 *
 * pack.h
 *		Closes segments, packs them into runs, merges runs, and empties what is
 *		no longer needed.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/pack.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_PACK_H
#define IDEM_STORE_PACK_H

#include "postgres.h"

#include "postmaster/bgworker.h"

/* What a packer is started for (bgw_extra). */
typedef struct IdemPackerOrder
{
	Oid			database;
	bool		once;			/* end when there is no step to take; else
								 * stay for a while */
} IdemPackerOrder;

/*
 * Register a packer for this database; false if all max_worker_processes are
 * in use.  handle: NULL, or gets a handle that this process is notified by.
 */
extern bool idem_packer_register(bool once, BackgroundWorkerHandle **handle);

/* The packer, a background worker that maintains the store of a database (worker.c). */
extern PGDLLEXPORT void idem_store_worker_main(Datum arg);

/* Why maintenance took no further step. */
typedef enum IdemMaintained
{
	IDEM_MAINTAINED,			/* there is none to take now */
	IDEM_MAINTAINED_BUSY,		/* somebody else holds the packer's lock */
	IDEM_MAINTAINED_LEAVE		/* the extension is gone, or somebody needs it
								 * or the database, or maintenance is off */
} IdemMaintained;

/*
 * Take steps until there is none to take now.  Begins and ends transactions of
 * its own: call it outside of a transaction, in a process that is connected to
 * the database.  Waits for no lock.  *steps: how many steps were taken.  After an
 * error the caller aborts the transaction.
 */
extern IdemMaintained idem_store_maintain(int *steps);

/*
 * A writer found the current segment as large as it may get: see to it that
 * somebody packs.  Never waits, never fails, and is cheap when a packer is at
 * work.
 */
extern void idem_store_request_maintenance(void);

/*
 * Call it when an entry that expires is written.  The time of the store goes on
 * only while a packer looks at it now and then.
 */
extern void idem_store_keep_time(void);

/*
 * Look whether there is a step to take, and see to it that somebody packs.  In a
 * transaction without a snapshot of its own; for processes that look now and
 * then.
 */
extern void idem_store_look_after(void);

/*
 * After an error: was a merge under way?  This process leaves that slot out for an hour, so it
 * is worth to go on at once.
 */
extern bool idem_store_failed_to_merge(void);

#endif							/* IDEM_STORE_PACK_H */
