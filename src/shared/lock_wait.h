/*-------------------------------------------------------------------------
 *
 * lock_wait.h
 *		Waits for locks, and says in the error what was waited for, and for whom.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/lock_wait.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_LOCK_WAIT_H
#define IDEM_LOCK_WAIT_H

#include "postgres.h"

#include "storage/lock.h"
#include "utils/relcache.h"

/*
 * The names of an object for an error, palloc'd: such as: event "x".  Called only if
 * there is an error.
 */
typedef char *(*IdemLockTitle) (const void *arg);

/*
 * Take a lock, as LockAcquire does, and wait for at most so many milliseconds, 0: for
 * ever.  If it is not to be had in time, error 55P03 names the object and the process that has it.
 */
extern void idem_lock_acquire(const LOCKTAG *tag, LOCKMODE mode, int ms, IdemLockTitle title,
							  const void *arg);

/*
 * Lock a table of the extension for a call that must not fail because of the
 * extension's own maintenance.  Whoever empties a table has it for milliseconds, so the
 * lock is waited for a second at least, however short lock_timeout is.
 */
extern void idem_lock_table(Oid oid, LOCKMODE mode);

/* table_open after idem_lock_table. */
extern Relation idem_table_open_patiently(Oid oid, LOCKMODE mode);

/*
 * Do work with a lock_timeout of a second at least, for the server's locks that the
 * work takes for a moment: whoever extends a file has others wait.
 */
extern void idem_work_patiently(void (*work) (void *arg), void *arg);

/* Do work with a lock_timeout of so many milliseconds, whatever the session's is. */
extern void idem_work_with_timeout(int ms, void (*work) (void *arg), void *arg);

#endif							/* IDEM_LOCK_WAIT_H */
