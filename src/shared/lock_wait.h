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

/*
 * Do work with a lock_timeout of so many milliseconds, whatever the session's is.  report:
 * called, in the caller's memory context, to raise an error in the place of the server's
 * 55P03; NULL: the server's error stays.
 */
extern void idem_work_with_timeout(int ms, void (*work) (void *arg), void (*report) (void *arg),
								   void *arg);

/* Who holds a lock. */
typedef struct IdemHolder
{
	VirtualTransactionId vxid;	/* without a local id: a session without a
								 * transaction */
	int			pid;			/* 0: a prepared transaction */
} IdemHolder;

/*
 * All who hold a lock in one of the modes (LOCKBIT_ON), except this process; palloc'd.
 * *n: how many.  Looks at all locks of the server, so it is for commands and errors.
 */
extern IdemHolder *idem_holders(const LOCKTAG *tag, LOCKMASK modes, int *n);

/*
 * Who holds a lock on the relation that a lock of this mode conflicts with: "prepared
 * transaction", or the name that the caller gives to sessions; NULL: nobody does.  Locks
 * of this process do not count.
 */
extern const char *idem_holder(Oid oid, LOCKMODE mode, const char *session);

#endif							/* IDEM_LOCK_WAIT_H */
