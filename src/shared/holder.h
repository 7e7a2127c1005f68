/*-------------------------------------------------------------------------
 *
 * holder.h
 *		Names what holds a table up, for the views that say so.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/holder.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_HOLDER_H
#define IDEM_HOLDER_H

#include "postgres.h"

#include "storage/lock.h"

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

/* One who holds a lock that a lock of this mode conflicts with; NULL: nobody. */
extern IdemHolder *idem_find_holder(const LOCKTAG *tag, LOCKMODE mode);

/*
 * Who holds a lock on the relation that a lock of this mode conflicts with: "prepared
 * transaction", or the name that the caller gives to sessions; NULL: nobody does.  Locks
 * of this process do not count.
 */
extern const char *idem_holder(Oid oid, LOCKMODE mode, const char *session);

#endif							/* IDEM_HOLDER_H */
