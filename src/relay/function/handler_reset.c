/*-------------------------------------------------------------------------
 *
 * handler_reset.c
 *		The session that a handler finds, and what becomes of what it leaves.
 *
 * A worker authenticates as the bootstrap superuser, so a function that looks
 * at session_user would take each handler for a superuser's.  Therefore the
 * session is given to the relay's owner, as a login would give it: the setting
 * "session_authorization" becomes the owner's name, and so does its reset
 * value.  Like any other setting it reaches parallel workers.
 *
 * An extension cannot change the authenticated user, which stays the superuser.
 * The security-restricted operation keeps a handler from going back to that
 * user: in it the server refuses every way to set "role" and
 * "session_authorization".  So all code of the owner has to run inside of it.
 * COMMIT is outside, and would run the queries of held cursors and, before 18,
 * deferred triggers as whoever commits.  So the restricted operation refuses to
 * leave either to the COMMIT.
 *
 * What a handler leaves, and when it goes:
 *
 *		settings						with the event (handler.c)
 *		cursors							with the event
 *		temporary objects, LISTEN		before the commit
 *		locks of the transaction		with the commit, which comes early when
 *										they are many
 *		advisory locks of the session	after the commit, or the abort
 *		prepared statements				the same
 *		values of sequences				before the next batch
 *		what has no reset				with the process
 *
 * These things have no reset: functions that a language has compiled, with
 * types found along the search_path of the first call; interpreters and their
 * global variables; connections of dblink and postgres_fdw; loaded libraries;
 * names of settings; the seed of random().  The same owner may find them again,
 * as in every session.  Another owner must not: so a process has one owner.
 *
 * A crash leaves nothing.  After an error the caller aborts, and calls
 * idem_handler_reset before the next batch.
 *
 * LOCKING: the partitions of the lock table are locked one by one, shared, to
 * count this process's locks in them.
 *
 * MEMORY: none of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/handler_reset.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "catalog/namespace.h"
#include "commands/async.h"
#include "commands/prepare.h"
#include "commands/sequence.h"
#include "commands/trigger.h"
#include "miscadmin.h"
#include "nodes/parsenodes.h"
#include "storage/lock.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "utils/portal.h"

#include "relay/function/function.h"
#include "relay/worker_slots.h"

/*
 * The server makes room for max_locks_per_transaction locks per process.  The
 * claims of a batch may take one such share (claim/claim.c), and its handlers
 * another.
 */
#define SHARES 2

/*
 * The process remembers the name of each setting that a handler has set.  After
 * so many new names the process ends; otherwise a handler that makes names out
 * of ids would fill the memory.  A loaded library brings some dozens of names.
 */
#define MAX_NEW_SETTINGS 1000

static Oid	served = InvalidOid;	/* owner whose handlers this process runs */
static bool worn_out = false;	/* the process has to end after this batch */
static int	settings_before = 0;	/* names known before the first handler */
static int	locks_before_batch = 0; /* this process's, in the shared table */
static int	locks_before_event = 0;
static bool filled = false;		/* a subtransaction of the event held many
								 * locks and was rolled back */

bool
idem_handler_may_serve(Oid owner)
{
	if (!OidIsValid(served))
		return true;
	return served == owner && !worn_out;
}

/*
 * Count this process's locks in the shared table.  Locks in its own fast-path
 * slots take no room there.
 */
static int
count_shared_locks(void)
{
	int			n = 0;

	for (int i = 0; i < NUM_LOCK_PARTITIONS; i++)
	{
		LWLock	   *partition = LockHashPartitionLockByIndex(i);

		LWLockAcquire(partition, LW_SHARED);
		n += idem_compat_proclocks(&MyProc->myProcLocks[i]);
		LWLockRelease(partition);
	}
	return n;
}

/*
 * The assignment makes the owner the current user as well, which is undone at
 * once: the worker's own work goes on with its own rights.  The owner's name,
 * and whether he is a superuser, are looked up each time, since both can have
 * changed.
 */
void
idem_handler_session_begin(Oid owner)
{
	IdemHandlerRights saved;

	Assert(idem_handler_may_serve(owner));
	if (!OidIsValid(served))
		settings_before = idem_compat_num_settings();
	served = owner;
	idem_slot_serves(owner);
	GetUserIdAndSecContext(&saved.userid, &saved.sec_context);
	SetConfigOption("session_authorization", GetUserNameFromId(owner, false),
					PGC_BACKEND, PGC_S_OVERRIDE);
	idem_handler_rights_return(&saved);
	ResetSequenceCaches();		/* the worker has cached numbers of its own,
								 * too */
	locks_before_batch = locks_before_event = count_shared_locks();
	filled = false;
}

void
idem_handler_rights_take(Oid owner, IdemHandlerRights *saved)
{
	GetUserIdAndSecContext(&saved->userid, &saved->sec_context);
	SetUserIdAndSecContext(owner, saved->sec_context | SECURITY_RESTRICTED_OPERATION |
						   SECURITY_LOCAL_USERID_CHANGE);
}

void
idem_handler_rights_return(const IdemHandlerRights *saved)
{
	SetUserIdAndSecContext(saved->userid, saved->sec_context);
}

void
idem_handler_constraints_immediate(void)
{
	ConstraintsSetStmt stmt = {.type = T_ConstraintsSetStmt, .constraints = NIL, .deferred = false};

	AfterTriggerSetState(&stmt);
}

/*
 * An open cursor pins buffers and keeps a snapshot, and the next event would
 * find it under its name.  Closing a cursor may run code of the owner, so it is
 * done before the rights are returned.
 */
void
idem_handler_event_end(void)
{
	idem_handler_constraints_immediate();
	PortalHashTableDeleteAll();
}

/*
 * Are these more locks than a batch's handlers may hold in the shared lock
 * table?
 */
static bool
is_much(int locks)
{
	return locks >= SHARES * max_locks_per_xact;
}

bool
idem_handler_batch_is_full(void)
{
	filled = false;
	locks_before_event = count_shared_locks();
	return is_much(locks_before_event - locks_before_batch);
}

/*
 * The event holds its locks until its subtransaction is rolled back.  The
 * rollback would release lightweight locks first as well.
 */
bool
idem_handler_event_filled_table(void)
{
	LWLockReleaseAll();
	return filled || is_much(count_shared_locks() - locks_before_event);
}

/* A block with EXCEPTION releases the locks before the error reaches us. */
void
idem_handler_subtransaction_aborted(void)
{
	if (OidIsValid(served) && !filled)
		filled = is_much(count_shared_locks() - locks_before_event);
}

/*
 * The restricted operation refuses LISTEN and temporary tables, but not
 * functions and similar objects in pg_temp.  In older minor releases it does
 * not refuse types there either, which are found before all others.
 */
void
idem_handler_batch_end(void)
{
	Async_UnlistenAll();
	ResetTempTableNamespace();
}

/*
 * The worker itself holds no lock of the session: claims belong to
 * transactions.  Settings ended with their events; what code in C has set ends
 * here.
 */
void
idem_handler_reset(void)
{
	LockReleaseSession(USER_LOCKMETHOD);
	DropAllPreparedStatements();
	ResetAllOptions();
	worn_out |= idem_compat_num_settings() - settings_before > MAX_NEW_SETTINGS;
}
