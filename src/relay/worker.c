/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The process that runs the relays of a database.
 *
 * One worker per database runs all relays to sink programs, each as a stream
 * that never blocks; a relay to a SQL function has a worker of its own, since
 * its handler may take its time.  The database's worker also asks the launcher
 * for those, cuts the log into ticks, and empties what is no longer needed.
 *
 * The loop: serve interrupts, take configuration changes over, let each relay
 * do what it can, wait for the latch, a socket, or the earliest time any of
 * them named.  An error in one relay opens that relay's breaker and nothing
 * else.  A worker whose extension is gone, or whose database has no relay any
 * more, ends.
 *
 * LOCKING: no lock and no transaction across a wait, so DROP EXTENSION finds
 * nothing to wait for.
 *
 * MEMORY: a context per relay; one for a loop, reset each time.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "executor/spi.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/proc.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/snapmgr.h"
#include "utils/timestamp.h"
#include "utils/wait_event.h"

#include "compat.h"
#include "relay/children.h"
#include "relay/complaint.h"
#include "relay/config.h"
#include "relay/handler.h"
#include "relay/identity.h"
#include "relay/launcher.h"
#include "relay/process.h"
#include "relay/runner.h"
#include "relay/slots.h"
#include "relay/spi.h"
#include "relay/stream.h"
#include "relay/txn.h"
#include "relay/upkeep.h"
#include "relay/witness.h"
#include "relay/worker.h"
#include "shared/catalog.h"
#include "shared/clock.h"
#include "shared/fault.h"

#ifdef IDEMPOTENCY_FAULT_POINTS
#define MAINTAIN_MS 200			/* its fault points are to be passed soon */
#else
#define MAINTAIN_MS 5000
#endif

/*
 * What a relay may do also rests on roles, which other databases can change,
 * and on transactions prepared before a crash: neither tells us.
 */
#define RELOAD_MS 60000

static IdemWorkerSlot *my_slot = NULL;
static uint32 my_generation = 0;
static int	my_relay_id = 0;
static List *runners = NIL;		/* of IdemRunner, in TopMemoryContext */
static uint32 config_seen = 0;
static bool config_stale = true;
static IdemClock next_reload = 0;
static IdemComplaint reload_complaint;
static IdemComplaint maintenance_complaint;
static IdemComplaint loop_complaint;
static IdemClock next_maintenance = 0;
static WaitEventSet *wait_set = NULL;
static MemoryContext loop_cxt = NULL;
static bool witnessed = true;	/* before the relays had their turn */

static void
worker_detach(int code, Datum arg)
{
	const char *event = my_relay_id != 0 ? idem_handler_event_in_hand() : NULL;

	IDEM_FAULT_POINT_NO_ERROR("worker-detach");
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	if (event != NULL && my_slot->pid == MyProcPid)
		idem_slots_ended_in_handler(my_slot, event);
	if (my_slot->pid == MyProcPid)
	{
		my_slot->pid = 0;
		my_slot->procno = -1;
	}
	for (int i = 0; i < idem_relay_shmem->nrelays; i++)
	{
		IdemRelayEntry *entry = &idem_relay_entries[i];

		if (entry->pid == MyProcPid)
		{
			entry->dboid = InvalidOid;
			entry->relay_id = 0;
			entry->pid = 0;
		}
	}
	LWLockRelease(idem_relay_shmem->lock);
	idem_wake_launcher();
}

/*
 * Take the slot we were started for; false if it is not ours any more, or has
 * a worker already: a launcher that died had asked for it, and so has the next.
 */
static bool
worker_attach(int slotno, Oid *dboid)
{
	bool		ok;

	my_slot = &idem_worker_slots[slotno];
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	ok = OidIsValid(my_slot->dboid) && my_slot->wanted && my_slot->pid == 0 &&
		!idem_workers_held(my_slot->dboid);
	my_slot->starting = false;
	if (ok)
	{
		my_slot->pid = MyProcPid;
		my_slot->procno = IDEM_MY_PROCNO;
		my_slot->no_slot = false;
		my_generation = my_slot->generation;
		my_relay_id = my_slot->relay_id;
		*dboid = my_slot->dboid;
	}
	LWLockRelease(idem_relay_shmem->lock);
	return ok;
}

/* Settings that users may have given to the database must not bind the worker. */
static void
force_settings(void)
{
	static const char *const settings[][2] = {
		{"role", "none"},
		{"search_path", "pg_catalog, pg_temp"},
		{"lock_timeout", "0"},
		{"statement_timeout", "0"},
		{"idle_in_transaction_session_timeout", "0"},
		{"transaction_timeout", "0"},
		{"idle_session_timeout", "0"},
		{"synchronous_commit", "local"},
		{"default_transaction_isolation", "read committed"},
		{"default_transaction_read_only", "off"},
		{"default_transaction_deferrable", "off"},
		{"session_replication_role", "origin"},
		{"row_security", "on"},
		{"jit", "off"},
		{"max_parallel_workers_per_gather", "0"},
		{"debug_parallel_query", "off"},
		{"force_parallel_mode", "off"},
		{"standard_conforming_strings", "on"},
		{"transform_null_equals", "off"},
		{"debug_print_parse", "off"},
		{"debug_print_rewritten", "off"},
		{"debug_print_plan", "off"},
		{"idempotency.uncompleted_claims", "error"},
	};

	for (int i = 0; i < lengthof(settings); i++)
	{
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}

	/*
	 * One process serves all programs of a database, and streams ask for
	 * locks that an operator's open transaction may have without a wait.  For
	 * what is left, such as a table that somebody locks: one relay fails and
	 * tries again, rather than all of them wait.  VACUUM gives up a table
	 * that it shortens sooner than this.
	 */
	if (my_relay_id == 0)
		SetConfigOption("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE);
}

/*
 * The extension is gone, or the last relay: so is the mark on the database,
 * and this worker, once no segment of the outbox is half emptied.  A relay that
 * is being created holds the lock until its own mark has committed, so either it
 * is seen here, or its mark comes after.
 */
static void
leave_database(bool extension_is_there)
{
	if (extension_is_there && !idem_upkeep_finish_emptying())
	{
		next_reload = idem_clock_plus_ms(idem_clock(), MAINTAIN_MS);
		return;
	}
	idem_txn_begin();
	if (extension_is_there)
	{
		SPI_connect();
		idem_spi_run("LOCK TABLE %s.relays IN SHARE ROW EXCLUSIVE MODE", 0, NULL, NULL, NULL);
		SPI_finish();
		PopActiveSnapshot();
		PushActiveSnapshot(GetLatestSnapshot());
		if (idem_relay_configs() != NIL)
		{
			idem_txn_commit(false);
			config_stale = true;
			return;
		}
	}
	idem_launcher_enlist_database(false);
	idem_txn_commit(false);
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	if (my_slot->generation == my_generation)
		my_slot->wanted = false;
	LWLockRelease(idem_relay_shmem->lock);
	if (extension_is_there)
		idem_stream_wait_byes();
	proc_exit(0);
}

/*
 * A relay whose kind is not known, since it has no anchor now, stays with the
 * function worker that has it: two workers must not share its entry of
 * stat_relay.
 */
static bool
is_mine(const IdemRelayConfig *c)
{
	if (my_relay_id != 0)
		return c->relay_id == my_relay_id && (idem_relay_is_function(c) || c->kind == NULL);
	if (c->kind == NULL)
		return !idem_slots_have_function(c->relay_id);
	return !idem_relay_is_function(c);
}

static IdemRunner *
find_runner(int relay_id)
{
	ListCell   *lc;

	foreach(lc, runners)
	{
		if (idem_runner_relay_id(lfirst(lc)) == relay_id)
			return lfirst(lc);
	}
	return NULL;
}

static void
apply_config(const IdemRelayConfig *c)
{
	IdemRunner *runner = find_runner(c->relay_id);
	MemoryContext old;

	if (runner != NULL)
	{
		idem_runner_configure(runner, c);
		return;
	}
	runner = idem_runner_create(c, my_relay_id != 0);
	old = MemoryContextSwitchTo(TopMemoryContext);
	runners = lappend(runners, runner);
	MemoryContextSwitchTo(old);
}

static bool
is_configured(List *configs, int relay_id)
{
	ListCell   *lc;

	foreach(lc, configs)
	{
		const IdemRelayConfig *c = lfirst(lc);

		if (c->relay_id == relay_id)
			return is_mine(c);
	}
	return false;
}

/* Take over what was read: relays that changed, came or went. */
static void
apply_configs(List *configs)
{
	ListCell   *lc;

	foreach(lc, configs)
	{
		if (is_mine(lfirst(lc)))
			apply_config(lfirst(lc));
	}
	for (int i = list_length(runners) - 1; i >= 0; i--)
	{
		IdemRunner *runner = list_nth(runners, i);

		if (is_configured(configs, idem_runner_relay_id(runner)))
			continue;
		runners = list_delete_nth_cell(runners, i);
		idem_runner_destroy(runner);
	}
}

/* Read the relays of this database again. */
static void
reload_config(void)
{
	List	   *configs;

	config_seen = pg_atomic_read_u32(&my_slot->config);
	config_stale = false;
	next_reload = idem_clock_plus_ms(idem_clock(), RELOAD_MS);
	idem_txn_begin();
	if (!OidIsValid(idem_extension_oid()))
	{
		idem_txn_commit(false);
		leave_database(false);
	}
	MemoryContextSwitchTo(loop_cxt);
	configs = idem_relay_configs();
	idem_relay_identity_refresh();
	IDEM_FAULT_POINT("worker-config-read");
	idem_txn_commit(false);

	if (my_relay_id == 0)
		idem_slots_request_functions(configs);
	IDEM_FAULT_POINT("worker-config-apply");
	apply_configs(configs);
	if (my_relay_id == 0)
		idem_upkeep_note_relays(configs);
	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = NULL;
	if (configs == NIL && my_relay_id == 0)
		leave_database(true);
}

/*
 * After an error that no relay is to blame for: say it and start over.  The
 * extension may be gone, so the configuration is looked at again.
 */
static void
recover_from_error(IdemComplaint *complaint)
{
	MemoryContextSwitchTo(loop_cxt);
	idem_complaint_note(complaint);
	FlushErrorState();
	AbortCurrentTransaction();
	MemoryContextSwitchTo(loop_cxt);	/* before 18 the abort leaves another */
	LWLockReleaseAll();
	config_stale = true;
}

static void
maintain(void)
{
	ListCell   *lc;

	foreach(lc, runners)
		idem_runner_persist(lfirst(lc));
	if (my_relay_id == 0)
		idem_upkeep_run(loop_cxt);
}

/* Maintenance may fail, e.g. for want of disk, without harm to the relays. */
static void
try_maintenance(IdemClock now)
{
	next_maintenance = idem_clock_plus_ms(now, MAINTAIN_MS);
	PG_TRY();
	{
		maintain();
		idem_complaint_clear(&maintenance_complaint);
	}
	PG_CATCH();
	{
		recover_from_error(&maintenance_complaint);
	}
	PG_END_TRY();
}

static void
try_reload(void)
{
	PG_TRY();
	{
		reload_config();
		idem_complaint_clear(&reload_complaint);
	}
	PG_CATCH();
	{
		recover_from_error(&reload_complaint);
	}
	PG_END_TRY();
}

static long
wait_ms(void)
{
	IdemClock	first = config_stale ? Min(reload_complaint.retry_at, next_maintenance) :
	next_maintenance;
	IdemClock	byes = idem_stream_byes_next_time();
	IdemClock	children = idem_children_next_time();
	long		left = idem_witness_ms_left();
	long		ms;
	ListCell   *lc;

	foreach(lc, runners)
	{
		IdemClock	t = idem_runner_next_time(lfirst(lc));

		if (t != 0 && t < first)
			first = t;
	}
	if (byes != 0)
		first = Min(first, byes);
	if (children != 0)
		first = Min(first, children);
	ms = idem_clock_ms_until(first);

	/*
	 * A yes of the witness runs out without a word, and the relays shall show
	 * it.
	 */
	return witnessed && left >= 0 ? Min(ms, left) : ms;
}

/*
 * The set is built anew each time some program came or went, which shows in
 * the descriptors; interest in writing is adjusted in place.
 */
static void
build_wait_set(void)
{
	ListCell   *lc;

	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = IDEM_CREATE_WAIT_EVENT_SET(2 * list_length(runners) + 2);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	foreach(lc, runners)
	{
		bool		writable;
		const IdemSinkProcess *process = idem_runner_process(lfirst(lc), &writable);

		if (process != NULL)
			AddWaitEventToSet(wait_set, WL_SOCKET_READABLE |
							  (writable ? WL_SOCKET_WRITEABLE : 0),
							  process->fd, NULL, NULL);
		if (process != NULL && process->output.fd >= 0)
			AddWaitEventToSet(wait_set, WL_SOCKET_READABLE, process->output.fd, NULL, NULL);
	}
}

/* A number that changes when the set of descriptors to wait for does. */
static uint64
wait_signature(void)
{
	uint64		sig = 0;
	ListCell   *lc;

	foreach(lc, runners)
	{
		bool		writable;
		const IdemSinkProcess *process = idem_runner_process(lfirst(lc), &writable);

		sig *= 31;
		if (process != NULL)
			sig += (uint64) process->pid * 4 + (process->output.fd >= 0 ? 2 : 0) + writable;
	}
	return sig;
}

static void
wait_for_something(long timeout)
{
	static uint64 built_for = 0;
	uint64		sig = wait_signature();
	WaitEvent	event;

	if (wait_set == NULL || sig != built_for)
	{
		build_wait_set();
		built_for = sig;
	}
	(void) WaitEventSetWait(wait_set, timeout, &event, 1, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

/* Tell the relays what committed since; coalesced by the committing backends. */
static void
take_wakeup(void)
{
	TimestampTz stamp;
	ListCell   *lc;

	if (pg_atomic_read_u32(&my_slot->wake) == 0)
		return;
	stamp = (TimestampTz) pg_atomic_read_u64(&my_slot->committed_at);
	pg_atomic_write_u32(&my_slot->wake, 0);
	IDEM_FAULT_POINT("worker-woken");
	pg_memory_barrier();
	foreach(lc, runners)
		idem_runner_woken(lfirst(lc), stamp);
}

/* Let each relay have its turn; true if some wants another at once. */
static bool
run_relays(void)
{
	bool		again = false;
	ListCell   *lc;

	foreach(lc, runners)
	{
		IdemRunnerTurn turn = idem_runner_turn(lfirst(lc), loop_cxt);

		again |= turn == IDEM_TURN_AGAIN;

		/* Its tables may be gone: the extension is being dropped. */
		config_stale |= turn == IDEM_TURN_FAILED;
	}
	return again;
}

static void
serve_interrupts(void)
{
	IdemClock	now;

	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		config_stale = true;
	}
	if (!my_slot->wanted || my_slot->generation != my_generation)
		proc_exit(0);
	now = idem_clock();
	if ((config_stale && now >= reload_complaint.retry_at) || now >= next_reload ||
		pg_atomic_read_u32(&my_slot->config) != config_seen)
		try_reload();
}

/*
 * Did anybody want something since the worker looked?  Whoever does sets a flag,
 * then the latch, and leaves the latch alone while the flag is set.  A wait for
 * a lock or for a flush resets the latch, so the latch alone does not tell.
 */
static bool
has_news(void)
{
	pg_memory_barrier();
	return pg_atomic_read_u32(&my_slot->wake) != 0 ||
		pg_atomic_read_u32(&my_slot->config) != config_seen ||
		ConfigReloadPending ||
		idem_children_have_ended() ||
		!my_slot->wanted || my_slot->generation != my_generation;
}

/* pg_cancel_backend means the statement of a handler, not the worker. */
static void
loop_once(void)
{
	IdemClock	now;
	bool		again;

	MemoryContextSwitchTo(loop_cxt);
	MemoryContextReset(loop_cxt);
	serve_interrupts();
	take_wakeup();
	idem_children_serve();
	witnessed = idem_witness_allows();
	again = run_relays();
	Assert(CurrentMemoryContext == loop_cxt);	/* nothing else is reset */
	idem_stream_serve_byes();
	if (my_relay_id == 0)
		idem_upkeep_tick();
	now = idem_clock();
	if (now >= next_maintenance)
		try_maintenance(now);
	if (again || has_news())
		return;
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	wait_for_something(wait_ms());
}

void
idem_worker_main(Datum arg)
{
	Oid			dboid;

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	if (!worker_attach(DatumGetInt32(arg), &dboid))
		proc_exit(0);
	before_shmem_exit(worker_detach, (Datum) 0);
	IDEM_FAULT_POINT_NO_ERROR("worker-attached");
	if (my_relay_id == 0)
		idem_children_init();
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);

	force_settings();
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	loop_cxt = AllocSetContextCreate(TopMemoryContext, "idempotency worker loop",
									 ALLOCSET_DEFAULT_SIZES);
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	if (!my_slot->ended_in_handler)
		my_slot->failures = 0;
	LWLockRelease(idem_relay_shmem->lock);

	for (;;)
	{
		PG_TRY();
		{
			loop_once();
			idem_complaint_clear(&loop_complaint);
		}
		PG_CATCH();
		{
			/* A cancel, or what no relay is to blame for: say it and go on. */
			recover_from_error(&loop_complaint);
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 100L, PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
		}
		PG_END_TRY();
	}
}
