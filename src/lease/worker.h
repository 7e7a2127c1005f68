/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The background worker that shortens the log of leases of a database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/lease/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LEASE_WORKER_H
#define IDEM_LEASE_WORKER_H

#include "postgres.h"

/* Main function of the worker.  arg: the database. */
extern PGDLLEXPORT void idem_lease_worker_main(Datum arg);

#endif							/* IDEM_LEASE_WORKER_H */
