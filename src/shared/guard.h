/*-------------------------------------------------------------------------
 *
 * guard.h
 *		Keeps roles from waiting for the lock of a view that they do not
 *		own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/guard.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_GUARD_H
#define IDEM_GUARD_H

extern void idem_guard_init(void);

#endif							/* IDEM_GUARD_H */
