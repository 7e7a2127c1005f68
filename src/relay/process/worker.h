/*-------------------------------------------------------------------------
 *
 * worker.h
 *		The process that runs the relays of a database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_WORKER_H
#define IDEM_RELAY_PROCESS_WORKER_H

#include "postgres.h"

/* The argument is the number of its slot. */
extern PGDLLEXPORT void idem_worker_main(Datum arg);

#endif							/* IDEM_RELAY_PROCESS_WORKER_H */
