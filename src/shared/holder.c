/*-------------------------------------------------------------------------
 *
 * holder.c
 *		Names what holds a lock, for the views and errors that say so, and for commands
 *		that wait for them all.
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

#include "compat.h"
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

IdemHolder *
idem_holders(const LOCKTAG *tag, LOCKMASK modes, int *n)
{
	LockData   *data = GetLockStatusData();
	IdemHolder *holders = palloc(Max(data->nelements, 1) * sizeof(IdemHolder));

	*n = 0;
	for (int i = 0; i < data->nelements; i++)
	{
		const LockInstanceData *lock = &data->locks[i];

		CHECK_FOR_INTERRUPTS();
		if (memcmp(&lock->locktag, tag, sizeof(LOCKTAG)) != 0 || (lock->holdMask & modes) == 0 ||
			lock->pid == MyProcPid)
			continue;
		holders[(*n)++] = (IdemHolder)
		{
			.vxid = idem_compat_lock_vxid(lock), .pid = lock->pid
		};
	}
	return holders;
}

IdemHolder *
idem_find_holder(const LOCKTAG *tag, LOCKMODE mode)
{
	LOCKMASK	modes = 0;
	IdemHolder *holders;
	int			n;

	for (LOCKMODE held = AccessShareLock; held <= AccessExclusiveLock; held++)
	{
		if (DoLockModesConflict(held, mode))
			modes |= LOCKBIT_ON(held);
	}
	holders = idem_holders(tag, modes, &n);
	return n > 0 ? &holders[0] : NULL;
}
