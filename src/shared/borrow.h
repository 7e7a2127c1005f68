/*-------------------------------------------------------------------------
 *
 * borrow.h
 *		Gives locks back as soon as a reading function is done with them.
 *
 * A statement keeps the locks of what it reads to the end of the transaction.
 * What the views of the extension read must not: a monitor that leaves its
 * transaction open would keep segments and position logs from being emptied.
 * So a function that reads for a view runs its statements under a resource
 * owner of their own, which gives its locks back instead of handing them on.
 *
 * Use, around statements that only read:
 *
 *		ResourceOwner saved = idem_borrow_begin();
 *		...
 *		idem_borrow_end(saved);
 *
 * Invariant: nothing of the rows that were read points into a table afterwards;
 * values that are kept are detoasted before idem_borrow_end.  Locks that the
 * transaction holds by other owners, those of rows that it wrote among them,
 * stay.  An error needs no end: the owner is a child of the one that was current,
 * and falls with it.
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

/* Have an owner of their own for the locks taken from here on. */
static inline ResourceOwner
idem_borrow_begin(void)
{
	ResourceOwner saved = CurrentResourceOwner;

	CurrentResourceOwner = ResourceOwnerCreate(saved, "idempotency borrowed locks");
	return saved;
}

/*
 * Give the locks back.  The first and last step report, as a commit does, what else is
 * left open; the step of the locks is an abort's, which does not hand them on.
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
