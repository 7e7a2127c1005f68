/*-------------------------------------------------------------------------
 *
 * hooks.h
 *		Hooks in other sessions: their commands that concern relays.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/hooks.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_PROCESS_HOOKS_H
#define IDEM_RELAY_PROCESS_HOOKS_H

#include "postgres.h"

/*
 * Install the hooks, at preload only: without shared memory there are no
 * workers.
 */
extern void idem_hooks_init(void);

#endif							/* IDEM_RELAY_PROCESS_HOOKS_H */
