/*-------------------------------------------------------------------------
 *
 * option_guard.h
 *		Keeps servers' options that are for superusers from everybody else.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/api/option_guard.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_RELAY_API_OPTION_GUARD_H
#define IDEM_RELAY_API_OPTION_GUARD_H

/* Installed in every process that has the library, preloaded or not. */
extern void idem_option_guard_init(void);

#endif							/* IDEM_RELAY_API_OPTION_GUARD_H */
