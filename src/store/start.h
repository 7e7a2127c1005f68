/*-------------------------------------------------------------------------
 *
 * start.h
 *		Starts the packer of this database.
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

#endif							/* IDEM_STORE_START_H */
