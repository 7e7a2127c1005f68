/*-------------------------------------------------------------------------
 *
 * start.h
 *		Starts the packer of this database, and tells whether one is at work.
 *
 * Private to src/store.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/start.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_START_H
#define IDEM_STORE_START_H

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

/* Is a packer of this database at work that stays for a while? */
extern bool idem_packer_is_at_work(void);

/* Be that packer, as long as this process lives; false if another one is. */
extern bool idem_packer_go_to_work(void);

#endif							/* IDEM_STORE_START_H */
