/*-------------------------------------------------------------------------
 *
 * borrow.h
 *		Gives locks back as soon as a reading function is done with them.
 *
 * A statement keeps the locks on the tables that it reads to the end of the
 * transaction.  The views of the extension must not keep such locks: a monitor
 * that leaves its transaction open would keep segments and logs of positions from
 * being emptied.  So a function that reads for a view runs its statements
 * under a resource owner of their own.  That owner gives its locks back
 * instead of handing them on.
 *
 * Use, around statements that only read:
 *
 *		ResourceOwner saved = idem_borrow_begin();
 *		...
 *		idem_borrow_end(saved);
 *
 * Invariant: after idem_borrow_end, no value that was read points into a
 * table: values that are kept are detoasted before.  Locks that the
 * transaction holds by other owners stay, e.g. the locks for rows that it
 * wrote.  After an error no end is needed: the owner is a child of the owner
 * that was current, and is released with its parent.
 *
 * LOCKING: none of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/borrow.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_BORROW_H
#define IDEM_BORROW_H

#include "postgres.h"

#include "utils/resowner.h"

/* Locks taken from here on belong to a resource owner of their own. */
static inline ResourceOwner
idem_borrow_begin(void)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = ResourceOwnerCreate(saved, "idempotency borrowed locks");
	return saved;
}

/*
 * Give the locks back.  The first and the last step report other resources
 * that are still open, as a commit does.  The step of the locks is that of an
 * abort, which does not hand them on.
 */
static inline void
idem_borrow_end(ResourceOwner saved)
{
	ResourceOwner borrowed = CurrentResourceOwner;

	CurrentResourceOwner = saved;
	ResourceOwnerRelease(borrowed, RESOURCE_RELEASE_BEFORE_LOCKS, true, false);
	ResourceOwnerRelease(borrowed, RESOURCE_RELEASE_LOCKS, false, false);
	ResourceOwnerRelease(borrowed, RESOURCE_RELEASE_AFTER_LOCKS, true, false);
	ResourceOwnerDelete(borrowed);
}

#endif							/* IDEM_BORROW_H */
