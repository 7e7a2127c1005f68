/*-------------------------------------------------------------------------
 *
 * guard.h
 *		Keeps roles that do not own a view of ours from waiting for its lock.
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
