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

#include "storage/lockdefs.h"

/*
 * Who holds a lock on the relation that a lock of this mode conflicts with: "prepared
 * transaction", or the name that the caller gives to sessions; NULL: nobody does.  Locks
 * of this process do not count.
 */
extern const char *idem_holder(Oid oid, LOCKMODE mode, const char *session);

#endif							/* IDEM_HOLDER_H */
