/*-------------------------------------------------------------------------
 *
 * holder.c
 *		Names what holds a table up, for the views that say so.
 *
 * LOCKING: none of its own; the answer may be outdated at once.
 *
 * MEMORY: the list of holders, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/shared/holder.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/transam.h"
#include "access/twophase.h"
#include "miscadmin.h"
#include "storage/lock.h"

#include "shared/holder.h"

const char *
idem_holder(Oid oid, LOCKMODE mode, const char *session)
{
	LOCKTAG		tag;
	VirtualTransactionId *holders;
	int			n;
	bool		have_more;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, oid);
	holders = GetLockConflicts(&tag, mode, &n);
	for (int i = 0; i < n; i++)
	{
		if (VirtualTransactionIdIsRecoveredPreparedXact(holders[i]) ||
			TransactionIdIsValid(TwoPhaseGetXidByVirtualXID(holders[i], &have_more)))
			return "prepared transaction";
	}
	return n > 0 ? session : NULL;
}
