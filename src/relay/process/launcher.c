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
 * The launcher also asks the publish witness (witness_ask.c).  Its loop never waits
 * for the witness's command; on its way out it waits a second for the command's end.
 *
 * The launcher starts when recovery has finished, so a promoted standby relays
 * without anyone's help.  A crash leaves no state of the launcher; the next
 * launcher reads the catalog.
 *
 * LOCKING: the lock of shmem.h, never held across a wait, a fork request or a
 * scan.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/process/launcher.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include <signal.h>

#include "access/genam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/xact.h"
#include "catalog/indexing.h"
#include "catalog/objectaddress.h"
#include "catalog/pg_database.h"
#include "catalog/pg_shseclabel.h"
#include "commands/seclabel.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "claim/lock.h"
#include "compat.h"
#include "relay/process/launcher.h"
#include "relay/process/witness_ask.h"
#include "relay/shmem.h"
#include "relay/slots.h"
#include "shared/clock.h"
#include "shared/fault.h"

#define LABEL_PROVIDER "idempotency"
#define LABEL_RELAYS "relays"
#define RESCAN_MS 60000L		/* safety net; commits poke the launcher */
#define BUSY_MS 200L			/* while something waits to be started */
#define MAX_RESTART_MS 10000
#define NO_PROCESS_MS 1000L		/* how long to wait for processes of others to
								 * end */

static BackgroundWorkerHandle **handles = NULL; /* by slot number */
static IdemClock next_scan = 0; /* next scan of the catalog, unless poked
								 * earlier */

void
idem_launcher_register(void)
{
	BackgroundWorker worker;

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = 1;
	strlcpy(worker.bgw_library_name, "idempotency", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "idem_launcher_main", sizeof(worker.bgw_function_name));
	strlcpy(worker.bgw_name, "idempotency launcher", BGW_MAXLEN);
	strlcpy(worker.bgw_type, "idempotency launcher", BGW_MAXLEN);
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

/* The databases that have relays, as a list of OIDs in the current context. */
static List *
scan_databases(void)
{
	MemoryContext caller = CurrentMemoryContext;
	List	   *result = NIL;
	Relation	rel;
	SysScanDesc scan;
	HeapTuple	tup;
	ScanKeyData key[2];

	StartTransactionCommand();
	PushActiveSnapshot(GetTransactionSnapshot());
	rel = table_open(SharedSecLabelRelationId, AccessShareLock);
	ScanKeyInit(&key[0], Anum_pg_shseclabel_classoid,
				BTEqualStrategyNumber, F_OIDEQ, ObjectIdGetDatum(DatabaseRelationId));
	ScanKeyInit(&key[1], Anum_pg_shseclabel_provider,
				BTEqualStrategyNumber, F_TEXTEQ, CStringGetTextDatum(LABEL_PROVIDER));
	scan = systable_beginscan(rel, InvalidOid, false, NULL, 2, key);
	while (HeapTupleIsValid(tup = systable_getnext(scan)))
	{
		MemoryContext old = MemoryContextSwitchTo(caller);

		result = lappend_oid(result, ((Form_pg_shseclabel) GETSTRUCT(tup))->objoid);
		MemoryContextSwitchTo(old);
	}
	systable_endscan(scan);
	table_close(rel, AccessShareLock);
	PopActiveSnapshot();
	CommitTransactionCommand();
	MemoryContextSwitchTo(caller);
	return result;
}

/*
 * Log that a database has no worker, once per RESCAN_MS: each scan finds the
 * same.
 */
static void
complain_of_slots(Oid database, bool no_process)
{
	static IdemClock complain_at = 0;
	IdemClock	now = idem_clock();

	if (now < complain_at)
		return;
	complain_at = idem_clock_plus_ms(now, RESCAN_MS);
	ereport(LOG,
			(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
			 errmsg("no idempotency worker is left for database %u", database),
			 no_process ? errhint("Raise max_worker_processes.") :
			 errhint("Raise idempotency.max_workers.")));
}

/*
 * Bring the slots in line with the catalog.  The own workers of databases come
 * before workers of function relays, whose slots the databases' workers
 * occupy.
 */
static void
reconcile_slots(List *databases)
{
	Oid		   *room = idem_slots_counting_room();
	Oid			left_out = InvalidOid;
	ListCell   *lc;

	IDEM_FAULT_POINT("launcher-registry-read");
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (!OidIsValid(slot->dboid))
			continue;
		if (!list_member_oid(databases, slot->dboid))
			slot->wanted = false;
	}
	idem_relay_shmem->databases_waiting = 0;
	foreach(lc, databases)
	{
		IdemWorkerSlot *slot = idem_worker_slot_find(lfirst_oid(lc), 0);

		if (slot == NULL)
			slot = idem_worker_slot_occupy(lfirst_oid(lc), 0);
		if (slot != NULL)
			slot->wanted = true;
		else
		{
			idem_relay_shmem->databases_waiting++;
			left_out = lfirst_oid(lc);
		}
	}
	if (OidIsValid(left_out))
		idem_slots_yield_to_database(room);
	LWLockRelease(idem_relay_shmem->lock);
	if (OidIsValid(left_out))
		complain_of_slots(left_out, false);
}

/*
 * Has the worker of a slot ended?  A worker that has detached counts as ended:
 * below a postmaster that is process 1 its process may stay for as long as the
 * kernel holds a sink program (children.c).
 */
static bool
worker_is_gone(int slotno)
{
	IdemWorkerSlot *slot = &idem_worker_slots[slotno];
	pid_t		pid;
	bool		detached;
	BgwHandleStatus status = GetBackgroundWorkerPid(handles[slotno], &pid);

	if (status != BGWH_STARTED)
		return status == BGWH_STOPPED;
	LWLockAcquire(idem_relay_shmem->lock, LW_SHARED);
	detached = slot->pid == 0 && !slot->starting;
	LWLockRelease(idem_relay_shmem->lock);
	return detached;
}

/*
 * Note workers that have ended, and set when their slots may get a worker
 * again.  They have detached by themselves; if such a slot has a process, it
 * is another worker's.
 */
static void
reap_workers(void)
{
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (handles[i] == NULL || !worker_is_gone(i))
			continue;
		pfree(handles[i]);
		handles[i] = NULL;
		IDEM_FAULT_POINT("launcher-worker-gone");

		LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
		slot->starting = false;
		if (slot->wanted)
		{
			int			delay = Min(MAX_RESTART_MS, 50 << Min(slot->failures, 10));

			slot->failures++;
			slot->not_before = idem_clock_plus_ms(idem_clock(), delay);
		}
		if (!slot->wanted && slot->pid == 0)
			idem_worker_slot_free(slot);
		if (idem_relay_shmem->databases_waiting > 0)
			next_scan = 0;
		LWLockRelease(idem_relay_shmem->lock);
	}
}

/*
 * Under the lock: may this slot's worker be started now?  A slot that is not
 * wanted is freed.  So is the slot of a function relay whose worker was asked
 * to give way and ended without freeing it: others would wait for the slot
 * through the launcher's delay.
 */
static bool
slot_is_startable(IdemWorkerSlot *slot, IdemClock now)
{
	if (!OidIsValid(slot->dboid) || slot->pid != 0 || slot->starting)
		return false;
	if (!slot->wanted || (slot->relay_id != 0 && slot->started && slot->yield))
	{
		idem_worker_slot_free(slot);
		return false;
	}
	return !idem_workers_held(slot->dboid) && slot->not_before <= now;
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

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	strlcpy(worker.bgw_library_name, "idempotency", sizeof(worker.bgw_library_name));
	strlcpy(worker.bgw_function_name, "idem_worker_main", sizeof(worker.bgw_function_name));
	if (relay_id == 0)
		snprintf(worker.bgw_name, BGW_MAXLEN, "idempotency relay for database %u", dboid);
	else
		snprintf(worker.bgw_name, BGW_MAXLEN,
				 "idempotency function relay %d for database %u", relay_id, dboid);
	strlcpy(worker.bgw_type, "idempotency relay", BGW_MAXLEN);
	worker.bgw_main_arg = Int32GetDatum(slotno);
	worker.bgw_notify_pid = MyProcPid;
	/* The handle must outlive this turn of the loop. */
	old = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &handles[slotno]);
	MemoryContextSwitchTo(old);
	return registered;
}

/*
 * All max_worker_processes are in use.  A function relay gives its slot back,
 * and waits for its turn in the worker of its database.  A database's own
 * worker is tried again here, and a function relay is asked to give way to it.
 */
static void
note_no_process(IdemWorkerSlot *slot, Oid dboid, int relay_id)
{
	Oid		   *room = idem_slots_counting_room();

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	idem_relay_shmem->no_process = true;
	slot->starting = false;
	if (relay_id == 0)
		idem_slots_yield_to_database(room);
	else if (slot->pid == 0)
		idem_worker_slot_free(slot);
	LWLockRelease(idem_relay_shmem->lock);
	if (relay_id == 0)
		complain_of_slots(dboid, true);
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
	IdemWorkerSlot *slot = &idem_worker_slots[slotno];
	Oid			dboid;
	int			relay_id;
	bool		start = false;
	bool		pending = false;
	bool		no_process;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	dboid = slot->dboid;
	relay_id = slot->relay_id;
	no_process = function && idem_relay_shmem->no_process;
	if ((relay_id != 0) == function)
	{
		start = handles[slotno] == NULL && slot_is_startable(slot, now);
		pending = !start && OidIsValid(slot->dboid) && slot->wanted && slot->pid == 0;
	}
	if (start)
		slot->starting = true;
	LWLockRelease(idem_relay_shmem->lock);
	if (!start)
		return pending;

	IDEM_FAULT_POINT("launcher-slot-taken");
	if (no_process || !register_worker(slotno, dboid, relay_id))
	{
		note_no_process(slot, dboid, relay_id);
		return !function;
	}
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
	bool		had_none;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	had_none = idem_relay_shmem->no_process;
	idem_relay_shmem->no_process = false;
	LWLockRelease(idem_relay_shmem->lock);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
		pending |= start_worker(i, false, now);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
		pending |= start_worker(i, true, now);
	if (had_none && !idem_relay_shmem->no_process)
		idem_wake_workers();
	return pending;
}

/*
 * Detach as the launcher ends: backends must not wake the process that has its
 * number next.
 */
static void
launcher_detach(int code, Datum arg)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	idem_relay_shmem->launcher_pid = 0;
	idem_relay_shmem->launcher_procno = -1;
	LWLockRelease(idem_relay_shmem->lock);
}

/*
 * Attach: from here on backends can wake this process.  The first turn scans
 * in any case.
 */
static void
launcher_attach(void)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	idem_relay_shmem->launcher_pid = MyProcPid;
	idem_relay_shmem->launcher_procno = IDEM_MY_PROCNO;

	/*
	 * This launcher has no handles for workers that a former launcher
	 * started. They detach by themselves; until then their slots stay taken.
	 */
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
		idem_worker_slots[i].starting = false;
	LWLockRelease(idem_relay_shmem->lock);
	before_shmem_exit(launcher_detach, (Datum) 0);
	pg_atomic_write_u32(&idem_relay_shmem->launcher_wake, 1);
}

/*
 * Must the catalog be scanned: after a poke, or after RESCAN_MS?  A scan that
 * ends in an error is repeated at the launcher's next start.
 */
static bool
must_scan(void)
{
	bool		poked = pg_atomic_exchange_u32(&idem_relay_shmem->launcher_wake, 0) != 0;

	if (!poked && idem_clock() < next_scan)
		return false;
	next_scan = idem_clock_plus_ms(idem_clock(), RESCAN_MS);
	return true;
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
	if (pg_atomic_read_u32(&idem_relay_shmem->launcher_wake) != 0)
		return;
	if (idem_relay_shmem->no_process)
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
									 sizeof(*handles) * idem_relay_shmem->nworkers);
	cycle = AllocSetContextCreate(TopMemoryContext, "idempotency launcher",
								  ALLOCSET_DEFAULT_SIZES);
	launcher_attach();

	for (;;)
	{
		bool		pending;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}
		MemoryContextSwitchTo(cycle);
		MemoryContextReset(cycle);

		idem_witness_ask_serve();
		reap_workers();
		if (must_scan())
			reconcile_slots(scan_databases());
		pending = start_workers();
		pgstat_report_activity(STATE_IDLE, NULL);
		wait_for_something(pending);
	}
}
