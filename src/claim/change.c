/*-------------------------------------------------------------------------
 *
 * change.c
 *		Changes of the locks that guard a consumer's events.
 *
 * An event must not be guarded by the published lock for one transaction and by the
 * private lock for another one.  And no claim may lack a lock of a consumer with foreign
 * lockers.  But an operator may leave the transaction open that changes a consumer, and
 * claims must not wait for it.  So a change goes like this:
 *
 * 1. It is announced: the operator's transaction takes a lock that says what is changed
 *	  of which consumer, and sends an invalidation at once, not only at its commit.
 * 2. It waits for the transactions that have the store's lock by now, for a limited
 *	  time.  Each claim has that lock as long as it may be committed, in a prepared
 *	  transaction across a crash as well.  Who takes the lock later finds the
 *	  announcement, and takes both locks of an event, or goes by the rules for foreign
 *	  lockers.  Nobody waits for the announcement.
 * 3. It writes the row of the consumer, and commits or not.  The announcement falls after
 *	  the commit has sent its invalidation.
 *
 * Invariant: at each moment, either all undecided claims of a consumer have the lock of
 * the former policy, or all of them have the lock of the new one.  Claims with both
 * locks are in both groups.  Before step 2 is over those of the former policy are
 * left; after step 3 those with both locks, and those of the policy that counts.
 *
 * To look for announcements costs locks.  So a process looks only after an invalidation
 * of the table of consumers, as long as anybody is at a change.
 *
 * A crash leaves nothing, except of a prepared transaction: its lock is the announcement.
 * A process that is new looks once.
 *
 * LOCKING: private advisory locks: that of all changes, in share mode, then those of the
 * consumer, exclusively; the subtransaction keeps them.  Who looks has each for a moment,
 * if it is free.  A change waits under them for claims, which never wait for it.
 *
 * MEMORY: the names of the locks, in the caller's context.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/claim/change.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "lib/stringinfo.h"
#include "miscadmin.h"
#include "storage/lock.h"
#include "storage/proc.h"
#include "utils/inval.h"
#include "utils/memutils.h"

#include "claim/change.h"
#include "claim/lock.h"
#include "shared/clock.h"
#include "shared/empty.h"
#include "shared/fault.h"
#include "shared/lock_wait.h"
#include "store/store.h"

/* For how long a change waits for claims, if lock_timeout does not say it. */
#define WAIT_MS		60000

/* Names of the announcements.  Those of src/cursor go on with another letter. */
#define ANY_CHANGE		"@changes"
#define LOCKS_CHANGE	"@locks/"
#define FOREIGN_CHANGE	"@foreign lockers/"

/* May somebody be at a change? */
static bool may_be_changing = true;

void
idem_change_note(void)
{
	may_be_changing = true;
}

/* The lock of an announcement. */
static IdemClaimKey
announcement(const char *kind, const char *consumer, int len)
{
	StringInfoData bytes;
	IdemClaimKey key;

	initStringInfo(&bytes);
	appendStringInfoChar(&bytes, '\0');
	appendStringInfoString(&bytes, kind);
	appendBinaryStringInfo(&bytes, consumer, len);
	idem_lock_key_of(bytes.data, bytes.len, &key);
	return key;
}

/* Looking */

/* Has somebody else the announcement? */
static bool
is_announced(const char *kind, const char *consumer, int len)
{
	IdemClaimKey key = announcement(kind, consumer, len);
	bool		free = idem_lock_share_try(&key);

	if (free)
		idem_lock_share_release(&key);
	return !free;
}

IdemChange
idem_change_look(const char *consumer, int len)
{
	IdemChange	change = {0};
	IdemClaimKey any;

	AcceptInvalidationMessages();
	if (!may_be_changing)
		return change;

	/* Two who ask at once may disturb each other, and ask again. */
	any = announcement(ANY_CHANGE, "", 0);
	if (idem_lock_try(&any))
	{
		idem_lock_release(&any);
		may_be_changing = false;
		return change;
	}
	change.locks = is_announced(LOCKS_CHANGE, consumer, len);
	change.foreign_lockers = is_announced(FOREIGN_CHANGE, consumer, len);
	return change;
}

/* Changing */

/* What a change waits for.  Other changes of the consumer come first. */
typedef struct ChangeWait
{
	const char *consumer;
	int			len;
	IdemClock	end;
	IdemHolder	holder;			/* of the store's lock */
} ChangeWait;

/* Milliseconds that are left, at least one. */
static int
ms_left(const ChangeWait *wait)
{
	return (int) Min(Max(idem_clock_ms_until(wait->end), 1), INT_MAX);
}

/* Callback: error 55P03, a transaction has not ended in time. */
static void
report_timeout(void *arg)
{
	const ChangeWait *wait = arg;

	ereport(ERROR,
			(errcode(ERRCODE_LOCK_NOT_AVAILABLE),
			 errmsg("could not change the locks of consumer \"%s\" while a transaction that may have claimed its events is open",
					pnstrdup(wait->consumer, wait->len)),
			 wait->holder.pid == 0 ?
			 errdetail("A prepared transaction has claimed events, of this consumer or another one.") :
			 errdetail("The transaction of process %d has claimed events, of this consumer or another one.",
					   wait->holder.pid),
			 wait->holder.pid == 0 ?
			 errhint("COMMIT PREPARED or ROLLBACK PREPARED what the view prepared_claims shows, and try again.") :
			 errhint("Try again when it has ended, or set lock_timeout to a longer time; nobody else waits meanwhile.")));
}

/* Callback: wait until a holder's transaction has ended. */
static void
wait_for_transaction(void *arg)
{
	const ChangeWait *wait = arg;

	(void) VirtualXactLock(wait->holder.vxid, true);
}

/* Wait for all who have the store's lock now as those have who claim. */
static void
wait_for_claims(ChangeWait *wait)
{
	LOCKTAG		tag;
	IdemHolder *holders;
	int			n;

	SET_LOCKTAG_RELATION(tag, MyDatabaseId, idem_store_lock_oid());
	holders = idem_holders(&tag, LOCKBIT_ON(RowExclusiveLock), &n);
	for (int i = 0; i < n; i++)
	{
		CHECK_FOR_INTERRUPTS();
		wait->holder = holders[i];
		if (LocalTransactionIdIsValid(wait->holder.vxid.localTransactionId) &&
			!VirtualXactLock(wait->holder.vxid, false))
			idem_work_with_timeout(ms_left(wait), wait_for_transaction, report_timeout, wait);
	}
	pfree(holders);
}

/* IdemLockTitle; arg: the ChangeWait. */
static char *
change_title(const void *arg)
{
	const ChangeWait *wait = arg;

	return psprintf("consumer \"%.*s\"", wait->len, wait->consumer);
}

/* Announce a change of the locks, or of foreign lockers. */
static void
announce(const ChangeWait *wait, const char *kind)
{
	IdemClaimKey key = announcement(kind, wait->consumer, wait->len);

	idem_lock_wait_as(&key, ms_left(wait), change_title, wait);
}

void
idem_change_announce(Oid consumers, const char *consumer, int len, IdemChange change)
{
	IdemClaimKey any = announcement(ANY_CHANGE, "", 0);
	ChangeWait	wait = {.consumer = consumer, .len = len};

	wait.end = idem_clock_plus_ms(idem_clock(), LockTimeout > 0 ? LockTimeout : WAIT_MS);
	idem_lock_share(&any);
	if (change.locks)
		announce(&wait, LOCKS_CHANGE);
	if (change.foreign_lockers)
		announce(&wait, FOREIGN_CHANGE);
	IDEM_FAULT_POINT("consumer-announced");

	/*
	 * All processes look for announcements from now on, not only from the
	 * commit on.
	 */
	idem_announce_change(consumers);
	wait_for_claims(&wait);
	IDEM_FAULT_POINT("consumer-claims-ended");
}
