/*-------------------------------------------------------------------------
 *
 * launcher.c
 *		The process that keeps a worker running per database with relays.
 *
 * A security label of the database, in pg_shseclabel, marks a database with
 * relays.  That shared catalog can be read without connecting to any database.
 * It is transactional, crash-safe, replicated, and cleaned up by DROP DATABASE.
 * (pg_db_role_setting would be more familiar, but cannot be read without a
 * database.) pg_dump --create carries the label along; a restored database then
 * has a worker, and relays that wait to be adopted.
 *
 * The launcher reads the labels at its start, when a process pokes it, and each
 * minute.  Then it starts missing workers.  The worker of a database occupies
 * slots in shared memory for further workers, one per function relay with
 * something to do, and the launcher starts those as well.
 *
 * A worker that ends is started again after a delay.  The delay grows while
 * workers end at once.  If a command needs a database empty, the launcher
 * starts no worker there until the command's backend has finished the command,
 * or is gone.
 *
 * Where there are more databases than slots or processes, databases take turns: a worker
 * gives way (slot_shares.c), and the database that has waited longest gets the slot.  A
 * database that allows no connections has no turn, and one whose worker cannot start has
 * one seldom.
 *
 * The launcher also asks the publish witness (witness_ask.c).  Its loop never waits
 * for the witness's command; on its way out it waits a second for the command's end.
 *
 * The launcher starts when recovery has finished, so a promoted standby relays
 * without anyone's help.  A crash leaves no state of the launcher; the next
 * launcher reads the catalog.
 *
 * LOCKING: none of its own; see worker_slots.c.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_database.h"
#include "catalog/pg_shseclabel.h"
#include "commands/seclabel.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "claim/lock.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "shared/fault.h"
#include "shared/worker.h"

#define LABEL_PROVIDER "idempotency"
#define LABEL_RELAYS "relays"
#define RESCAN_MS 60000L		/* safety net; commits poke the launcher */
#define BUSY_MS 200L			/* while something waits to be started */
#define NO_PROCESS_MS 1000L		/* how long to wait for processes of others to
								 * end */
#define WAITING_MS 1000L		/* while databases wait for their turn */
#define SET_ASIDE_MS 10000		/* how long a database has no turn whose
								 * worker cannot start */
#define CONNLIMIT_INVALID (-2)	/* datconnlimit after an interrupted DROP
								 * DATABASE; not in all headers */

/* A database that has relays, in the order of turns. */
typedef struct Turn
{
	Oid			dboid;
	IdemClock	not_before;
	bool		seen;			/* by the present scan */
	struct Turn *next;
} Turn;

static BackgroundWorkerHandle **handles = NULL; /* by slot number */
static IdemClock next_scan = 0; /* next scan of the catalog, unless poked
								 * earlier */
static Turn *turns = NULL;		/* in TopMemoryContext */

void
idem_launcher_register(void)
{
	BackgroundWorker worker;

	idem_singleton_describe(&worker, "idem_launcher_main", "idempotency launcher");
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_name, "idempotency launcher", BGW_MAXLEN);
	RegisterBackgroundWorker(&worker);
}

/* Who wants the label holds this lock in share mode, who takes it away exclusively. */
static IdemClaimKey
label_lock(void)
{
	static const char name[] = "\0@label";
	IdemClaimKey lock;

	idem_lock_key_of(name, sizeof(name) - 1, &lock);
	return lock;
}

/* IdemLockTitle of the lock of who writes the label. */
static char *
label_title(const void *arg)
{
	return pstrdup("the list of databases with relays");
}

/* Has the current database the label? */
static bool
is_labelled(void)
{
	ObjectAddress database;

	AcceptInvalidationMessages();
	ObjectAddressSet(database, DatabaseRelationId, MyDatabaseId);
	return GetSecurityLabel(&database, LABEL_PROVIDER) != NULL;
}

/* Label the current database; NULL: take the label away. */
static void
set_label(const char *label)
{
	ObjectAddress database;

	ObjectAddressSet(database, DatabaseRelationId, MyDatabaseId);
	SetSecurityLabel(&database, LABEL_PROVIDER, label);
}

/*
 * A label that is there stays until the transaction ends, and is not written again:
 * another transaction that wants it would wait for this one.  So only the first relay of
 * a database holds up the second one.
 */
void
idem_launcher_enlist_database(void)
{
	static const char name[] = "\0@label is written";
	IdemClaimKey lock = label_lock();

	idem_lock_share(&lock);
	if (is_labelled())
		return;
	idem_lock_key_of(name, sizeof(name) - 1, &lock);
	idem_lock_wait_as(&lock, LockTimeout, label_title, NULL);
	if (!is_labelled())
		set_label(LABEL_RELAYS);
}

bool
idem_launcher_delist_database(void)
{
	IdemClaimKey lock = label_lock();

	if (!idem_lock_try(&lock))
		return false;
	set_label(NULL);
	return true;
}

/*
 * Check a security label of ours. relay_create sets the label.  By a command
 * only a superuser may set it, as the restore of a dump does.
 */
static void
check_label(const ObjectAddress *object, const char *label)
{
	if (!superuser())
		ereport(ERROR,
				(errcode(ERRCODE_INSUFFICIENT_PRIVILEGE),
				 errmsg("only superusers may set a label of \"%s\"", LABEL_PROVIDER),
				 errhint("relay_create sets it.")));
	if (object->classId != DatabaseRelationId ||
		(label != NULL && strcmp(label, LABEL_RELAYS) != 0))
		ereport(ERROR,
				(errcode(ERRCODE_INVALID_PARAMETER_VALUE),
				 errmsg("\"%s\" labels databases only, with \"%s\"",
						LABEL_PROVIDER, LABEL_RELAYS)));
}

void
idem_launcher_init(void)
{
	register_label_provider(LABEL_PROVIDER, check_label);
}

/* The databases that allow no connections, as a list of OIDs. */
static List *
scan_closed_databases(void)
{
	Relation	rel = table_open(DatabaseRelationId, AccessShareLock);
	SysScanDesc scan = systable_beginscan(rel, InvalidOid, false, NULL, 0, NULL);
	List	   *result = NIL;
	HeapTuple	tup;

	while (HeapTupleIsValid(tup = systable_getnext(scan)))
	{
		Form_pg_database database = (Form_pg_database) GETSTRUCT(tup);

		if (!database->datallowconn || database->datconnlimit == CONNLIMIT_INVALID)
			result = lappend_oid(result, database->oid);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	return result;
}

/*
 * The databases that have relays and allow connections, as a list of OIDs in the current
 * context.
 */
static List *
scan_databases(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *result = NIL;
	List	   *closed;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tup;
	ScanKeyData key[2];

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	closed = scan_closed_databases();
	rel = table_open(SharedSecLabelRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_shseclabel_classoid,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(DatabaseRelationId));
	ScanKeyInit(&key[1], Anum_pg_shseclabel_provider,
				BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(LABEL_PROVIDER));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 2, key);
	while (HeapTupleIsValid(tup = systable_getnext(scan)))
	{
		Oid			dboid = ((Form_pg_shseclabel) GETSTRUCT(tup))->objoid;
		MemoryContext old = MemoryContextSwitchTo(caller);

		if (!list_member_oid(closed, dboid))
			result = lappend_oid(result, dboid);
		MemoryContextSwitchTo(old);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return result;
}

/* The place in the list of turns that points to the database's turn, or to NULL. */
static Turn **
find_turn(Oid dboid)
{
	Turn	  **place = &turns;

	while (*place != NULL && (*place)->dboid != dboid)
		place = &(*place)->next;
	return place;
}

/*
 * Bring the list of turns in line with the databases that have relays.  Returns those that
 * may have a turn now, in its order.
 */
static List *
order_by_turn(List *databases)
{
	IdemClock	now = idem_clock();
	List	   *result = NIL;
	Turn	  **place;
	ListCell   *lc;

	for (Turn *turn = turns; turn != NULL; turn = turn->next)
		turn->seen = false;
	foreach(lc, databases)
	{
		place = find_turn(lfirst_oid(lc));
		if (*place == NULL)
		{
			*place = MemoryContextAllocZero(TopMemoryContext, sizeof(Turn));
			(*place)->dboid = lfirst_oid(lc);
		}
		(*place)->seen = true;
	}
	for (place = &turns; *place != NULL;)
	{
		Turn	   *turn = *place;

		if (turn->seen)
		{
			if (turn->not_before <= now)
			{
				turn->not_before = 0;
				result = lappend_oid(result, turn->dboid);
			}
			place = &turn->next;
			continue;
		}
		*place = turn->next;
		pfree(turn);
	}
	return result;
}

/* The database has its turn: others that wait come before its next one. */
static void
end_turn(Oid dboid, IdemClock not_before)
{
	Turn	  **place = find_turn(dboid);
	Turn	   *turn = *place;

	if (turn == NULL)
		return;
	*place = turn->next;
	turn->next = NULL;
	turn->not_before = not_before;
	*find_turn(InvalidOid) = turn;
}

/*
 * Give the databases that have relays slots for their own workers, in the order of turns.
 * Databases that get none wait, and are looked at again soon.
 */
static void
give_slots(void)
{
	List	   *databases;
	List	   *left_out;

	next_scan = idem_clock_plus_ms(idem_clock(), RESCAN_MS);
	databases = scan_databases();
	IDEM_FAULT_POINT("launcher-registry-read");
	databases = order_by_turn(databases);
	left_out = idem_slots_reconcile(databases);
	for (Turn *turn = turns; turn != NULL; turn = turn->next)
	{
		if (turn->not_before != 0)
			next_scan = Min(next_scan, turn->not_before);
	}
	if (left_out == NIL)
		return;
	next_scan = Min(next_scan, idem_clock_plus_ms(idem_clock(), WAITING_MS));
	idem_shares_complain(linitial_oid(left_out), idem_slots_outnumber_processes());
}

/*
 * Note workers that have ended, and set when their slots may get a worker
 * again.  They have detached by themselves; if such a slot has a process, it
 * is another worker's.  A worker that has detached counts as ended: below a
 * postmaster that is process 1 its process may stay for as long as the kernel
 * holds a sink program (children.c).
 */
static void
reap_workers(void)
{
	for (int i = 0; i < idem_relay_max_workers; i++)
	{
		BgwHandleStatus status;
		pid_t		pid;
		Oid			failing;

		if (handles[i] == NULL)
			continue;
		status = GetBackgroundWorkerPid(handles[i], &pid);
		if (status != BGWH_STOPPED && !(status == BGWH_STARTED && idem_slot_is_detached(i)))
			continue;
		pfree(handles[i]);
		handles[i] = NULL;
		IDEM_FAULT_POINT("launcher-worker-gone");
		if (idem_slot_worker_gone(i, &failing))
			next_scan = 0;
		if (OidIsValid(failing))
			end_turn(failing, idem_clock_plus_ms(idem_clock(), SET_ASIDE_MS));
	}
}

/*
 * Register a worker.  False if all max_worker_processes are in use; stat_relay
 * then says so.
 */
static bool
register_worker(int slotno, Oid dboid, int relay_id)
{
	BackgroundWorker worker;
	MemoryContext old;
	bool		registered;

	idem_singleton_describe(&worker, "idem_worker_main", "idempotency relay");
	if (relay_id == 0)
		snprintf(worker.bgw_name, BGW_MAXLEN, "idempotency relay for database %u", dboid);
	else
		snprintf(worker.bgw_name, BGW_MAXLEN,
				 "idempotency function relay %d for database %u", relay_id, dboid);
	worker.bgw_main_arg = Int32GetDatum(slotno);
	worker.bgw_notify_pid = MyProcPid;
	/* The handle must outlive this turn of the loop. */
	old = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &handles[slotno]);
	MemoryContextSwitchTo(old);
	return registered;
}

/*
 * Start the worker of a slot, if it is wanted and not there. function: look at
 * slots of function relays only, else at slots of databases' own workers only.
 * No process is started for a function while a database has no process for its
 * own worker.  Returns whether a start is pending.
 */
static bool
start_worker(int slotno, bool function, IdemClock now)
{
	IdemSlotStart start;

	if (!idem_slot_start(slotno, function, handles[slotno] == NULL, now, &start))
		return start.pending;
	IDEM_FAULT_POINT("launcher-slot-taken");
	if (idem_slots_lack_process() ||
		!register_worker(slotno, start.dboid, start.relay_id))
	{
		idem_slot_has_no_process(slotno, function);
		if (!function)
		{
			idem_shares_complain(start.dboid, true);
			next_scan = Min(next_scan, idem_clock_plus_ms(idem_clock(), NO_PROCESS_MS));
		}
		return false;
	}
	idem_slot_has_process();
	if (!function)
		end_turn(start.dboid, 0);
	IDEM_FAULT_POINT("launcher-worker-registered");
	return false;
}

/*
 * Start all workers that are wanted and not there, databases' own workers
 * first.  Each turn asks anew for processes, since processes of others come
 * and go.  When there are processes again, workers are woken: their relays
 * waited for that.  Returns whether a start is pending.
 */
static bool
start_workers(void)
{
	IdemClock	now = idem_clock();
	bool		pending = false;
	bool		had_none = idem_slots_lack_process();

	idem_slots_try_processes();
	for (int i = 0; i < idem_relay_max_workers; i++)
		pending |= start_worker(i, false, now);
	for (int i = 0; i < idem_relay_max_workers; i++)
		pending |= start_worker(i, true, now);
	if (had_none && !idem_slots_lack_process())
		idem_wake_workers();
	return pending;
}

/* Wait until a poke, a start or scan that is due, or news of the witness. */
static void
wait_for_something(bool pending)
{
	long		timeout = pending ? BUSY_MS : idem_clock_ms_until(next_scan);
	long		witness = idem_witness_ask_wait_ms();
	pgsocket	fd = idem_witness_ask_fd();

	/*
	 * A wait for a lock in this turn may have reset the latch; the flag is
	 * still set.
	 */
	pg_memory_barrier();
	if (idem_slots_launcher_is_poked())
		return;
	if (idem_slots_lack_process())
		timeout = Min(timeout, NO_PROCESS_MS);
	if (witness >= 0)
		timeout = Min(timeout, witness);
	(void) WaitLatchOrSocket(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH |
							 (fd == PGINVALID_SOCKET ? 0 : WL_SOCKET_READABLE),
							 fd, timeout, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

void
idem_launcher_main(Datum arg)
{
	MemoryContext cycle;

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	idem_witness_ask_init();
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnection(NULL, NULL, 0);

	handles = MemoryContextAllocZero(TopMemoryContext,
									 sizeof(*handles) * idem_relay_max_workers);
	cycle = AllocSetContextCreate(TopMemoryContext, "idempotency launcher",
								  ALLOCSET_DEFAULT_SIZES);
	idem_slots_launcher_attach();

	for (;;)
	{
		bool		pending;

		idem_check_interrupts();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		MemoryContextSwitchTo(cycle);
		MemoryContextReset(cycle);

		idem_witness_ask_serve();
		reap_workers();

		/*
		 * Bring the slots in line with the catalog after a poke, or after
		 * RESCAN_MS; a scan that ends in an error is repeated at the
		 * launcher's next start.  The own workers of databases come before
		 * workers of function relays, whose slots the databases' workers
		 * occupy.
		 */
		if (idem_slots_launcher_take_poke() || idem_clock() >= next_scan)
			give_slots();
		pending = start_workers();
		pgstat_report_activity(STATE_IDLE, NULL);
		wait_for_something(pending);
	}
}
