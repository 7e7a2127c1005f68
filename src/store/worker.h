/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The packer: a background worker that maintains the store of a database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/store/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_STORE_WORKER_H
#define IDEM_STORE_WORKER_H

#include "postgres.h"

/* Started by start.c, which says in bgw_extra for which database. */
extern PGDLLEXPORT void idem_store_worker_main(Datum arg);

#endif							/* IDEM_STORE_WORKER_H */
