/*-------------------------------------------------------------------------
 *
 * xid.h
 *		Transaction ids with their epoch.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/xid.h
 *
 *-------------------------------------------------------------------------
 */
#ifndef IDEM_XID_H
#define IDEM_XID_H

#include "postgres.h"

#include "access/transam.h"

/*
 * Give an xid that is in use its epoch.  "next" was read later, so it is after
 * the xid.  That of a frozen row is before all others.
 */
static inline FullTransactionId
idem_xid_widen(TransactionId xid, FullTransactionId next)
{
	uint32		epoch = EpochFromFullTransactionId(next);

	if (!TransactionIdIsNormal(xid))
		return FullTransactionIdFromEpochAndXid(0, xid);
	if (xid > XidFromFullTransactionId(next))
		epoch--;
	return FullTransactionIdFromEpochAndXid(epoch, xid);
}

#endif							/* IDEM_XID_H */
