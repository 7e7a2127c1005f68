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
#include "outbox/reader.h"
#include "relay/config.h"
#include "relay/function.h"
#include "relay/launcher.h"
#include "relay/position.h"
#include "relay/process.h"
#include "relay/relay.h"
#include "relay/report.h"
#include "relay/retention.h"
#include "relay/spi.h"
#include "relay/stream.h"
#include "shared/catalog.h"

#define MAINTAIN_MS 5000

/*
 * What a relay may do also rests on roles, which other databases can change,
 * and on transactions prepared before a crash: neither tells us.
 */
#define RELOAD_MS 60000

/* One relay of this process: a stream or, in its own worker, a function. */
typedef struct WorkerRelay
{
	int			relay_id;
	IdemStream *stream;
	IdemFunctionRelay *function;
	bool		seen;			/* in the configuration just read */
} WorkerRelay;

static IdemWorkerSlot *my_slot = NULL;
static uint32 my_generation = 0;
static int	my_relay_id = 0;
static List *relays = NIL;		/* of WorkerRelay, in TopMemoryContext */
static char *identity = NULL;
static uint32 config_seen = 0;
static bool config_stale = true;
static TimestampTz next_reload = 0;
static int64 last_tick_seq = -1;
static TimestampTz next_maintenance = 0;
static WaitEventSet *wait_set = NULL;
static MemoryContext loop_cxt = NULL;

const char *
idem_relay_identity(void)
{
	return identity;
}

static void
worker_detach(int code, Datum arg)
{
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
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
	ok = OidIsValid(my_slot->dboid) && my_slot->wanted && my_slot->held_by == 0 &&
		my_slot->pid == 0;
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
		{"row_security", "off"},
		{"jit", "off"},
	};

	for (int i = 0; i < lengthof(settings); i++)
	{
		if (GetConfigOption(settings[i][0], true, false) != NULL)
			SetConfigOption(settings[i][0], settings[i][1], PGC_SUSET, PGC_S_OVERRIDE);
	}
}

static void
take_identity(void)
{
	char	   *now = idem_publish_identity();

	if (identity != NULL)
		pfree(identity);
	identity = MemoryContextStrdup(TopMemoryContext, now);
}

/*
 * The extension is gone, or the last relay: so is the mark on the database,
 * and this worker.  A relay that is being created holds the lock until its own
 * mark has committed, so either it is seen here, or its mark comes after.
 */
static void
leave_database(bool extension_is_there)
{
	idem_stream_begin();
	if (extension_is_there)
	{
		SPI_connect();
		idem_spi_run("LOCK TABLE %s.relays IN SHARE ROW EXCLUSIVE MODE", 0, NULL, NULL, NULL);
		SPI_finish();
		PopActiveSnapshot();
		PushActiveSnapshot(GetLatestSnapshot());
		if (idem_relay_configs() != NIL)
		{
			idem_stream_commit(false);
			config_stale = true;
			return;
		}
	}
	idem_launcher_enlist_database(false);
	idem_stream_commit(false);
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	if (my_slot->generation == my_generation)
		my_slot->wanted = false;
	LWLockRelease(idem_relay_shmem->lock);
	proc_exit(0);
}

static bool
is_function(const IdemRelayConfig *c)
{
	return c->kind != NULL && strcmp(c->kind, "function") == 0;
}

static bool
is_function_relay(List *configs, int relay_id)
{
	ListCell   *lc;

	foreach(lc, configs)
	{
		IdemRelayConfig *c = lfirst(lc);

		if (c->relay_id == relay_id)
			return is_function(c);
	}
	return false;
}

/*
 * Ask for (or release) the workers of function relays.  Their workers look at
 * "wanted" without the lock, so one that stays wanted is never cleared.
 */
static void
request_function_workers(List *configs)
{
	bool		poke = false;
	ListCell   *lc;

	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	for (int i = 0; i < idem_relay_shmem->nworkers; i++)
	{
		IdemWorkerSlot *slot = &idem_worker_slots[i];

		if (slot->dboid == MyDatabaseId && slot->relay_id != 0 &&
			!is_function_relay(configs, slot->relay_id))
			slot->wanted = false;
	}
	foreach(lc, configs)
	{
		IdemRelayConfig *c = lfirst(lc);
		IdemWorkerSlot *slot;

		if (!is_function(c))
			continue;
		slot = idem_worker_slot_find(MyDatabaseId, c->relay_id);
		if (slot == NULL)
		{
			slot = idem_worker_slot_occupy(MyDatabaseId, c->relay_id);
			if (slot == NULL)
				ereport(LOG,
						(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
						 errmsg("no idempotency worker is left for relay \"%s\"", c->name),
						 errhint("Raise idempotency.max_workers.")));
		}
		if (slot != NULL)
		{
			slot->wanted = true;
			poke |= slot->pid == 0;
		}
	}
	LWLockRelease(idem_relay_shmem->lock);
	if (poke)
		idem_wake_launcher();
}

static bool
is_mine(const IdemRelayConfig *c)
{
	if (my_relay_id != 0)
		return c->relay_id == my_relay_id && (is_function(c) || c->kind == NULL);
	return !is_function(c);
}

static WorkerRelay *
find_relay(int relay_id)
{
	ListCell   *lc;

	foreach(lc, relays)
	{
		WorkerRelay *r = lfirst(lc);

		if (r->relay_id == relay_id)
			return r;
	}
	return NULL;
}

static void
drop_relay(WorkerRelay *r)
{
	if (r->stream)
		idem_stream_destroy(r->stream);
	if (r->function)
		idem_function_destroy(r->function);
	relays = list_delete_ptr(relays, r);
	pfree(r);
}

static void
add_relay(IdemRelayConfig *c, MemoryContext cxt)
{
	MemoryContext old = MemoryContextSwitchTo(TopMemoryContext);
	WorkerRelay *r = palloc0(sizeof(*r));

	r->relay_id = c->relay_id;
	r->seen = true;
	if (my_relay_id != 0)
		r->function = idem_function_create(TopMemoryContext, c, cxt);
	else
		r->stream = idem_stream_create(TopMemoryContext, c, cxt);
	relays = lappend(relays, r);
	MemoryContextSwitchTo(old);
}

/* Every relay gets a configuration in a context of its own. */
static void
apply_config(IdemRelayConfig *shared, bool acted)
{
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext, "relay configuration",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	IdemRelayConfig *c = idem_relay_config_copy(shared);
	WorkerRelay *r = find_relay(c->relay_id);

	MemoryContextSwitchTo(old);
	if (r == NULL)
		add_relay(c, cxt);
	else
	{
		r->seen = true;
		if (r->stream)
			idem_stream_configure(r->stream, c, cxt, acted);
		else
			idem_function_configure(r->function, c, cxt, acted);
	}
}

/* Read the relays of this database again. */
static void
reload_config(void)
{
	List	   *configs;
	ListCell   *lc;
	bool		acted;

	acted = config_seen != pg_atomic_read_u32(&my_slot->config);
	config_seen = pg_atomic_read_u32(&my_slot->config);
	config_stale = false;
	next_reload = TimestampTzPlusMilliseconds(GetCurrentTimestamp(), RELOAD_MS);
	idem_stream_begin();
	if (!OidIsValid(idem_extension_oid()))
	{
		idem_stream_commit(false);
		leave_database(false);
	}
	MemoryContextSwitchTo(loop_cxt);
	configs = idem_relay_configs();
	take_identity();
	idem_stream_commit(false);

	if (my_relay_id == 0)
		request_function_workers(configs);
	foreach(lc, relays)
		((WorkerRelay *) lfirst(lc))->seen = false;
	foreach(lc, configs)
	{
		if (is_mine(lfirst(lc)))
			apply_config(lfirst(lc), acted);
	}
	for (int i = list_length(relays) - 1; i >= 0; i--)
	{
		WorkerRelay *r = list_nth(relays, i);

		if (!r->seen)
			drop_relay(r);
	}
	if (wait_set)
		FreeWaitEventSet(wait_set);
	wait_set = NULL;
	if (configs == NIL && my_relay_id == 0)
		leave_database(true);
}

static const char *
error_to_string(ErrorData *edata)
{
	return edata->message ? edata->message : "unknown error";
}

/*
 * After an error that no relay is to blame for: say it and start over.  The
 * extension may be gone, so the configuration is looked at again.
 */
static void
recover_from_error(void)
{
	MemoryContextSwitchTo(loop_cxt);
	EmitErrorReport();
	FlushErrorState();
	AbortCurrentTransaction();
	LWLockReleaseAll();
	config_stale = true;
}

/* One relay's turn; an error is that relay's.  True if it wants another. */
static bool
run_relay(WorkerRelay *r)
{
	volatile bool again = false;

	PG_TRY();
	{
		if (r->stream)
			idem_stream_step(r->stream);
		else
			again = idem_function_step(r->function);
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(loop_cxt);
		edata = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		LWLockReleaseAll();
		if (r->stream)
			idem_stream_failed(r->stream, error_to_string(edata));
		else
			idem_function_failed(r->function, unpack_sql_state(edata->sqlerrcode),
								 error_to_string(edata));

		/* Its tables may be gone: the extension is being dropped. */
		config_stale = true;
	}
	PG_END_TRY();
	return again;
}

/* Note where the log is, so that a long backlog can be cut there. */
static void
write_tick(void)
{
	int64		seq;
	IdemPosition tick = {NULL, NULL, 0};

	idem_stream_begin();
	seq = idem_outbox_last_seq();
	if (last_tick_seq < 0)
		last_tick_seq = seq;
	if (seq - last_tick_seq >= IDEM_TICK_EVENTS)
	{
		tick.done = idem_snap_current();
		(void) idem_position_append(IDEM_TICK_RELAY, 0, &tick);
		last_tick_seq = seq;
	}
	idem_stream_commit(false);
}

/* What every relay has behind it, durably, can be emptied after its retention. */
static void
empty_outbox(void)
{
	List	   *rows;
	IdemSnap  **done;
	int			n = 0;
	ListCell   *lc;

	idem_stream_begin();
	MemoryContextSwitchTo(loop_cxt);
	rows = idem_retention_positions();
	done = palloc(sizeof(IdemSnap *) * (list_length(rows) + 1));
	foreach(lc, rows)
		done[n++] = lfirst(lc);
	(void) idem_outbox_maintain(done, n);
	idem_stream_commit(false);
}

static void
maintain_log(void)
{
	idem_stream_begin();
	MemoryContextSwitchTo(loop_cxt);
	idem_position_maintain();
	idem_stream_commit(true);
}

static void
maintain(void)
{
	ListCell   *lc;

	foreach(lc, relays)
	{
		WorkerRelay *r = lfirst(lc);

		if (r->stream)
			idem_stream_persist(r->stream);
		else
			idem_function_persist(r->function);
	}
	if (my_relay_id != 0)
		return;
	maintain_log();
	idem_retention_check_lag();
	empty_outbox();
}

/* Maintenance may fail, e.g. for want of disk, without harm to the relays. */
static void
try_maintenance(TimestampTz now)
{
	next_maintenance = TimestampTzPlusMilliseconds(now, MAINTAIN_MS);
	PG_TRY();
	{
		maintain();
	}
	PG_CATCH();
	{
		recover_from_error();
	}
	PG_END_TRY();
}

static void
try_reload(void)
{
	PG_TRY();
	{
		reload_config();
	}
	PG_CATCH();
	{
		recover_from_error();
	}
	PG_END_TRY();
}

static TimestampTz
relay_next_time(WorkerRelay *r)
{
	return r->stream ? idem_stream_next_time(r->stream) : idem_function_next_time(r->function);
}

static long
wait_ms(void)
{
	TimestampTz first = next_maintenance;
	ListCell   *lc;

	foreach(lc, relays)
	{
		TimestampTz t = relay_next_time(lfirst(lc));

		if (t != 0 && t < first)
			first = t;
	}
	return TimestampDifferenceMilliseconds(GetCurrentTimestamp(), first);
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
	wait_set = IDEM_CREATE_WAIT_EVENT_SET(list_length(relays) + 2);
	AddWaitEventToSet(wait_set, WL_LATCH_SET, PGINVALID_SOCKET, MyLatch, NULL);
	AddWaitEventToSet(wait_set, WL_EXIT_ON_PM_DEATH, PGINVALID_SOCKET, NULL, NULL);
	foreach(lc, relays)
	{
		WorkerRelay *r = lfirst(lc);

		if (r->stream && r->stream->process.fd >= 0)
			AddWaitEventToSet(wait_set, WL_SOCKET_READABLE |
							  (r->stream->writable_wanted ? WL_SOCKET_WRITEABLE : 0),
							  r->stream->process.fd, NULL, r);
	}
}

/* A number that changes when the set of descriptors to wait for does. */
static uint64
wait_signature(void)
{
	uint64		sig = 0;
	ListCell   *lc;

	foreach(lc, relays)
	{
		WorkerRelay *r = lfirst(lc);

		if (r->stream)
			sig = sig * 31 + (uint64) r->stream->process.pid * 2 + r->stream->writable_wanted;
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
	pg_memory_barrier();
	foreach(lc, relays)
	{
		WorkerRelay *r = lfirst(lc);

		if (r->stream)
			idem_stream_woken(r->stream, stamp);
		else
			idem_function_woken(r->function);
	}
}

static bool
run_relays(void)
{
	bool		again = false;
	ListCell   *lc;

	foreach(lc, relays)
		again |= run_relay(lfirst(lc));
	return again;
}

static void
serve_interrupts(void)
{
	CHECK_FOR_INTERRUPTS();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		config_stale = true;
	}
	if (!my_slot->wanted || my_slot->generation != my_generation)
		proc_exit(0);
	if (config_stale || pg_atomic_read_u32(&my_slot->config) != config_seen ||
		GetCurrentTimestamp() >= next_reload)
		try_reload();
}

/* pg_cancel_backend means the statement of a handler, not the worker. */
static void
loop_once(void)
{
	TimestampTz now;
	bool		again;

	MemoryContextSwitchTo(loop_cxt);
	MemoryContextReset(loop_cxt);
	serve_interrupts();
	take_wakeup();
	again = run_relays();
	if (my_relay_id == 0)
		write_tick();
	now = GetCurrentTimestamp();
	if (now >= next_maintenance)
		try_maintenance(now);
	if (again)
		return;
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);
	wait_for_something(config_stale ? 200L : wait_ms());
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
	idem_process_init();
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);

	force_settings();
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	loop_cxt = AllocSetContextCreate(TopMemoryContext, "idempotency worker loop",
									 ALLOCSET_DEFAULT_SIZES);
	LWLockAcquire(idem_relay_shmem->lock, LW_EXCLUSIVE);
	my_slot->failures = 0;
	LWLockRelease(idem_relay_shmem->lock);

	for (;;)
	{
		PG_TRY();
		{
			loop_once();
		}
		PG_CATCH();
		{
			/* A cancel, or what no relay is to blame for: say it and go on. */
			recover_from_error();
			(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
							 100L, PG_WAIT_EXTENSION);
			ResetLatch(MyLatch);
		}
		PG_END_TRY();
	}
}
