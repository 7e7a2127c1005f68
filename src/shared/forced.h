/*-------------------------------------------------------------------------
 *
 * forced.h
 *		The settings that each of our workers needs.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/forced.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_FORCED_H
#define IDEM_FORCED_H

/*
 * Override settings that users may have set for the database: they must not
 * bind a worker.  Call it once, after the worker has connected.
 */
extern void idem_forced_settings(void);

/* The same for a worker that maintains tables, and runs nobody's code. */
extern void idem_forced_maintenance(void);

#endif							/* IDEM_FORCED_H */
