/*-------------------------------------------------------------------------
 *
 * launcher.h
 *		The process that keeps a worker running per database with relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/launcher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_LAUNCHER_H
#define IDEM_RELAY_PROCESS_LAUNCHER_H

#include "postgres.h"

/* Register the launcher with the postmaster; at preload only. */
extern void idem_launcher_register(void);

/* Register the label that marks databases with relays; in every process. */
extern void idem_launcher_init(void);

/*
 * Mark the current database as one with relays, or remove the mark.  The mark
 * is a security label of the database.  It is transactional like everything
 * else about relays, and the launcher finds it after a crash.
 */
extern void idem_launcher_enlist_database(void);

/* False, and the mark stays, if a transaction that has not ended wants the mark. */
extern bool idem_launcher_delist_database(void);

extern PGDLLEXPORT void idem_launcher_main(Datum arg);

#endif							/* IDEM_RELAY_PROCESS_LAUNCHER_H */
