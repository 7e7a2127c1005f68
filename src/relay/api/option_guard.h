/*-------------------------------------------------------------------------
 *
 * option_guard.h
 *		Lets only superusers change servers' options that are for superusers.
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

/*
 * Install the guard, in every process that has the library, preloaded or not.
 */
extern void idem_option_guard_init(void);

#endif							/* IDEM_RELAY_API_OPTION_GUARD_H */
