/*-------------------------------------------------------------------------
 *
 * keyed_worker.h
 *		The background worker that shortens the keyed logs of a database.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/keyed_worker.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_KEYED_WORKER_H
#define IDEM_KEYED_WORKER_H

#include "postgres.h"

#include "shared/keyed_log.h"

/* The most logs that the library may have. */
#define IDEM_KEYED_MAX_LOGS	4

/* Have the worker shorten a log; called once per process and log, by _PG_init. */
extern void idem_keyed_worker_add(const IdemKeyedLog *log);

/* The logs that were added; returns how many. */
extern int	idem_keyed_worker_logs(const IdemKeyedLog *const **logs);

/*
 * Append a row, as idem_keyed_access_append does.  If it is time for maintenance, start the
 * worker of this database, unless it is at work, or this process started one a moment ago.
 * Where no process is to be had, the logs grow until the next call.
 */
extern void idem_keyed_worker_append(IdemKeyedAccess *access, IdemKeyedColumns *row);

/* Main function of the worker.  arg: the database. */
extern PGDLLEXPORT void idem_keyed_worker_main(Datum arg);

#endif							/* IDEM_KEYED_WORKER_H */
