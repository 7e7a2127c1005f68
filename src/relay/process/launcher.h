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

/* Registers the launcher with the postmaster; at preload only. */
extern void idem_launcher_register(void);

/* Announces the label that marks databases with relays; in every process. */
extern void idem_launcher_init(void);

/*
 * Mark the current database as one that has relays, or take the mark away.  The
 * launcher finds the mark after a crash: it is a security label of the database,
 * transactional like everything else about relays.
 */
extern void idem_launcher_enlist_database(void);
extern void idem_launcher_delist_database(void);

extern PGDLLEXPORT void idem_launcher_main(Datum arg);

#endif							/* IDEM_RELAY_PROCESS_LAUNCHER_H */
