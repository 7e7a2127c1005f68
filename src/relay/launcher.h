/*-------------------------------------------------------------------------
 *
 * launcher.h
 *		The process that keeps a worker running per database with relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/launcher.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_LAUNCHER_H
#define IDEM_RELAY_LAUNCHER_H

#include "postgres.h"

/* Registers the launcher with the postmaster; at preload only. */
extern void idem_launcher_register(void);

/* Announces the label that marks databases with relays; in every process. */
extern void idem_launcher_init(void);

/*
 * Mark (or unmark) the current database as one that has relays, where the
 * launcher finds it after a crash: a security label of the database,
 * transactional like everything else about relays.
 */
extern void idem_launcher_enlist_database(bool enlist);

extern PGDLLEXPORT void idem_launcher_main(Datum arg);

#endif							/* IDEM_RELAY_LAUNCHER_H */
