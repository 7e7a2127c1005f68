/*-------------------------------------------------------------------------
 *
 * worker.c
 *		The process that runs the relays of a database.
 *
 * One worker per database runs all relays to sink programs, each as a stream
 * that never waits for its program.  A step of a stream may wait for the disk,
 * when a commit is flushed, and for lock_timeout at a lock; all relays of the
 * worker wait with it.  A relay to a SQL function has a worker of its own while
 * it has something to do, since its handler may take its time.  The database's
 * worker also asks for those workers, writes ticks, and empties the segments of
 * the outbox that no relay needs.
 *
 * The loop: serve interrupts, take configuration changes over, give each relay
 * a turn, then wait for the latch, a socket, or the earliest time at which
 * something is due.  An error in one relay opens that relay's breaker and
 * nothing else.  A worker ends when its extension is gone, when its database
 * has no relay any more, when it has to give way to other databases, and, if it runs a
 * function relay, when that relay rests or has to give way.
 *
 * LOCKING: no lock and no transaction is held across the wait of the loop, so
 * DROP EXTENSION has nothing to wait for.
 *
 * MEMORY: a context per relay, and one for the loop, which each turn resets.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/worker/worker.c
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
#include "storage/fd.h"
#include "storage/ipc.h"
#include "storage/lwlock.h"
#include "tcop/tcopprot.h"
#include "utils/guc.h"
#include "utils/memutils.h"
#include "utils/pidfile.h"
#include "utils/snapmgr.h"
#include "utils/wait_event.h"

#include "relay/child/process.h"
#include "relay/config.h"
#include "relay/difference_end.h"
#include "relay/function/function.h"
#include "relay/position/rest.h"
#include "relay/position/retention.h"
#include "relay/stream/stream.h"
#include "relay/witness.h"
#include "relay/worker/workers.h"
#include "relay/worker_slots.h"
#include "shared/catalog.h"
#include "shared/fault.h"
#include "shared/spi.h"
#include "shared/worker.h"

#ifdef IDEMPOTENCY_FAULT_POINTS
#define MAINTAIN_MS 200			/* tests wait for its fault points */
#else
#define MAINTAIN_MS 5000
#endif

/*
 * A relay's rights depend on roles, too, which other databases can change
 * unseen.
 */
#define RELOAD_MS 60000

/*
 * A thousand relays that are dropped one by one are a thousand changes.  So
 * each reading of the relays is followed by a gap of RELOAD_SHARE times the
 * time that the reading took.  The first change after the gap is read at once.
 * Events after a change wait for the next reading (difference_end.c), so the gap is
 * bounded.
 */
#define RELOAD_SHARE 4
#define RELOAD_MAX_GAP_MS INT64CONST(250)

/*
 * How long programs that are to end for other databases may take, those that may yet have answers
 * to the few events that they were sent, and how often to look whether they have.  What is cut off is
 * sent again: if it took longer than each turn, it would never get through.
 */
#define CLOSE_MS (2 * IDEM_SLICE_MS)
#define ANSWER_MS (30 * IDEM_SLICE_MS)
#define LEAVE_POLL_MS 50

static int	my_relay_id = 0;
static bool history_checked = false;	/* no position is ahead of the
										 * transaction ids, but of relays that
										 * are halted for it */
static bool begun = false;		/* the relays have been read at least once */
static bool giving_way = false; /* ends: the relay goes back to the database's
								 * worker */
static bool yield_seen = false; /* has seen the request to give way */
static uint32 news_seen = 0;
static IdemClock started_at = 0;
static IdemClock idle_since = 0;	/* since when the function relay is idle;
									 * 0: it is not */
static bool config_stale = true;
static IdemClock next_reload = 0;	/* latest next reading of the relays */
static IdemClock reload_after = 0;	/* earliest next reading */
static IdemComplaint reload_complaint;
static IdemComplaint maintenance_complaint;
static IdemComplaint loop_complaint;
static IdemClock next_maintenance = 0;
static MemoryContext loop_cxt = NULL;
static bool stopping = false;	/* a smart shutdown waits for clients */
static bool witnessed = true;	/* the witness allowed it at the relays' last
								 * turn */
static uint32 witness_news = 0; /* of which the relays have had a turn */

/*
 * As the worker ends: give up the slot and the entries, so that the launcher
 * and stat_relay see it.
 */
static void
worker_detach(int code, Datum arg)
{
	const char *event = my_relay_id != 0 ? idem_handler_event_in_hand() : NULL;

	IDEM_FAULT_POINT_NO_ERROR("worker-detach");

	/*
	 * The entry of a function relay that goes on stays.  So do the entries of
	 * function relays without a worker of their own when the database's
	 * worker ends.
	 */
	idem_slot_detach(event, my_relay_id == 0 || giving_way);
}

/*
 * In a transaction, which ends here: take the mark off the database, so that
 * the launcher does not start this worker again.  If an operator's open
 * transaction wants the mark, it stays, and the launcher starts another worker.
 */
static void
delist_database(void)
{
	bool		delisted = idem_launcher_delist_database();

	idem_txn_commit(false);
	if (delisted)
		idem_slot_resign();
}

/*
 * The last relay is gone: end, once no segment of the outbox and no table of
 * the log of positions is half emptied.  A session that creates a relay holds
 * a lock on "relays" that conflicts with this one until its mark has committed.  So
 * either the relay is seen here, or the mark comes after this removal.
 */
static void
leave_without_relays(void)
{
	if (!idem_upkeep_finish_emptying())
	{
		next_reload = idem_clock_plus_ms(idem_clock(), MAINTAIN_MS);
		return;
	}
	idem_txn_begin();
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
	delist_database();
	idem_stream_wait_byes();
	proc_exit(0);
}

/*
 * The relays of this worker: all relays of its database, or the one function
 * relay that it was started for, as long as that relay's kind is function or
 * unknown.
 */
static List *
read_configs(void)
{
	List	   *configs;
	const IdemRelayConfig *c;

	if (my_relay_id == 0)
		return idem_relay_configs();
	configs = idem_relay_config_with_id(my_relay_id);
	c = configs == NIL ? NULL : linitial(configs);
	return c != NULL && (idem_relay_is_function(c) || c->kind == NULL) ? configs : NIL;
}

/*
 * After a reading: let relays rest, and look at the times of parked events of
 * relays that rest.  At the first reading relays begin with a rest.  After a
 * crash, or in a standby that was promoted, each relay starts its program once
 * instead, so that a sink whose position contradicts is noticed.
 */
static void
look_at_rest(void)
{
	bool		first = !begun;

	idem_txn_begin();
	MemoryContextSwitchTo(loop_cxt);
	begun = true;
	if (first && !idem_slot_pass_crash())
		idem_relays_begin_with_rest();
	idem_rest_look_at_parked(NULL);
	idem_txn_commit(false);
}

/* Read the relays again and configure them. */
static void
reload_config(void)
{
	List	   *configs;
	IdemClock	began = idem_clock();

	config_stale = false;
	next_reload = idem_clock_plus_ms(began, RELOAD_MS);
	idem_difference_load_begin();
	idem_txn_begin();
	idem_difference_load_snapshot();
	if (!OidIsValid(idem_extension_oid()))
	{
		/* The tables are gone, too: end; there is nothing to finish. */
		delist_database();
		proc_exit(0);
	}
	MemoryContextSwitchTo(loop_cxt);
	configs = read_configs();
	if (!history_checked)
		history_checked = idem_retention_check_history(configs);
	idem_relay_identity_refresh();
	IDEM_FAULT_POINT("worker-config-read");
	idem_txn_commit(false);

	if (my_relay_id == 0)
		idem_slots_release_functions(configs);
	IDEM_FAULT_POINT("worker-config-apply");
	idem_relays_configure(configs, my_relay_id != 0);
	idem_difference_load_end();
	if (my_relay_id == 0)
	{
		look_at_rest();
		idem_upkeep_note_relays(configs);
	}
	reload_after = idem_clock();
	reload_after += Min((reload_after - began) * RELOAD_SHARE, RELOAD_MAX_GAP_MS * 1000);
	if (configs == NIL && my_relay_id == 0)
		leave_without_relays();
}

/*
 * Does the server stop?  A smart shutdown tells background workers nothing before the last client is
 * gone, and a program's session in a database of this server is a client.  Only the status that the
 * postmaster writes for pg_ctl says so.
 */
static bool
server_stops(void)
{
	FILE	   *file = AllocateFile("postmaster.pid", "r");
	char		line[MAXPGPATH];
	bool		stops = false;

	if (file == NULL)
		return false;
	for (int n = 1; fgets(line, sizeof(line), file) != NULL; n++)
		stops = n == LOCK_FILE_LINE_PM_STATUS && strncmp(line, PM_STATUS_STOPPING, strlen(PM_STATUS_STOPPING)) == 0;
	FreeFile(file);
	return stops;
}

/*
 * Each worker writes its relays' positions; the database's worker also runs
 * the upkeep.
 */
static void
maintain(void)
{
	stopping = stopping || (my_relay_id == 0 && server_stops());
	idem_relays_persist();
	if (my_relay_id == 0)
		idem_upkeep_run(loop_cxt);
}

/*
 * Do it; false after an error that no relay caused, or a cancel: it is logged, and
 * the configuration is read again, since the extension may be gone.
 */
static bool
attempt(void (*action) (void), IdemComplaint *complaint)
{
	volatile bool ok = false;

	PG_TRY();
	{
		action();
		memset(complaint, 0, sizeof(*complaint));
		ok = true;
	}
	PG_CATCH();
	{
		MemoryContextSwitchTo(loop_cxt);
		idem_complaint_note(complaint);
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(loop_cxt);	/* before 18 the abort leaves
											 * another context */
		LWLockReleaseAll();
		config_stale = true;
	}
	PG_END_TRY();
	return ok;
}

/*
 * When a function relay's worker will end because it is idle; 0: it will not.
 */
static IdemClock
leave_time(void)
{
	if (my_relay_id == 0 || idle_since == 0 || idem_sink_idle_timeout_ms == 0)
		return 0;
	return idem_clock_plus_ms(idle_since, idem_sink_idle_timeout_ms);
}

/* End; the slot becomes free. */
static void
leave_to_others(void)
{
	idem_relays_persist();
	idem_slot_resign();
	giving_way = true;
	IDEM_FAULT_POINT("worker-gives-way");
	proc_exit(0);
}

/*
 * End and leave the relay to the database's worker, if the relay has been idle
 * long enough, or if others wait for a worker.  A wake-up at this moment is
 * not lost: its event is in the outbox, where the database's worker will find
 * it.
 */
static void
give_way(void)
{
	IdemClock	now = idem_clock();
	bool		idle;
	bool		may = idem_relays_may_leave(&idle);

	yield_seen = idem_slot_asked().yield;
	if (!idle)
		idle_since = 0;
	else if (idle_since == 0)
		idle_since = now;
	if (!may ||
		!((yield_seen && (idle || now >= idem_clock_plus_ms(started_at, IDEM_SLICE_MS))) ||
		  (leave_time() != 0 && now >= leave_time())))
		return;
	leave_to_others();
}

/*
 * In the worker of a database.  If it was asked to give way, let programs end, and leave
 * when all have ended, or when they have had time for it: a program that hangs must not
 * keep the slot.  What commits from now on is found when the database has its next turn.
 * busy: a relay wants another turn at once.
 */
static void
give_way_to_databases(bool busy)
{
	static IdemClock close_at = 0;	/* when programs with something to do are
									 * to end */
	IdemClock	now = idem_clock();

	idem_slot_rests(begun && !busy && idem_relays_at_rest());
	if (!idem_slot_asked().yield)
		return;
	if (!yield_seen)
		close_at = Max(now, idem_clock_plus_ms(started_at, IDEM_STAY_MS));
	yield_seen = true;
	if (!begun || now < idem_clock_plus_ms(started_at, IDEM_SLICE_MS))
		return;
	idem_relays_make_way(now >= close_at);
	if (now < idem_clock_plus_ms(close_at, idem_relays_may_be_answered() ? ANSWER_MS : CLOSE_MS) &&
		!(idem_relays_at_rest() && (!busy || now >= close_at)))
		return;
	leave_to_others();
}

/*
 * When to read a configuration that is stale after an error or a change of
 * settings.
 */
static IdemClock
stale_time(void)
{
	return Max(reload_complaint.retry_at, reload_after);
}

/*
 * How long, in ms, until something is due that no process wakes the worker
 * for.
 */
static long
wait_ms(void)
{
	IdemClock	first = config_stale ? Min(stale_time(), next_maintenance) : next_maintenance;
	IdemClock	due = idem_clock_earlier(idem_relays_next_time(), leave_time());
	long		left = idem_witness_ms_left();
	long		ms;

	due = idem_clock_earlier(due, idem_stream_byes_next_time());
	due = idem_clock_earlier(due, idem_children_next_time());
	if (due != 0)
		first = Min(first, due);
	if (idem_difference_config_changed())
		first = Min(first, reload_after);
	if (yield_seen && my_relay_id == 0)
		first = Min(first, idem_clock_plus_ms(idem_clock(), LEAVE_POLL_MS));
	if (yield_seen && idem_clock() < idem_clock_plus_ms(started_at, IDEM_SLICE_MS))
		first = Min(first, idem_clock_plus_ms(started_at, IDEM_SLICE_MS));
	ms = idem_clock_ms_until(first);

	/*
	 * Nobody wakes the worker when a yes of the witness runs out, and the
	 * relays are to show it.
	 */
	return witnessed && left >= 0 ? Min(ms, left) : ms;
}

/*
 * Do what other processes ask for: to end, to read settings, to read the
 * relays.
 */
static void
serve_interrupts(void)
{
	IdemClock	now;

	idem_check_interrupts();
	if (ConfigReloadPending)
	{
		ConfigReloadPending = false;
		ProcessConfigFile(PGC_SIGHUP);
		config_stale = true;
	}
	if (idem_slot_asked().end)
		proc_exit(0);
	now = idem_clock();
	if ((config_stale && now >= stale_time()) || now >= next_reload ||
		(idem_difference_config_changed() && now >= reload_after))
		(void) attempt(reload_config, &reload_complaint);
}

/*
 * Has any process asked for something since the worker looked?  A process that
 * asks sets a flag and then the latch, and leaves the latch alone while the
 * flag is set.  A wait for a lock or for a flush resets the latch, so the
 * latch alone is not enough.
 */
static bool
has_news(void)
{
	IdemSlotAsked asked;

	pg_memory_barrier();
	asked = idem_slot_asked();
	return asked.woken || asked.end || asked.news != news_seen ||
		(asked.yield && !yield_seen) ||
		(idem_difference_config_changed() && idem_clock() >= reload_after) ||
		ConfigReloadPending ||
		idem_children_have_ended();
}

/*
 * One turn of the loop. pg_cancel_backend cancels the statement of a handler,
 * not the worker.
 */
static void
loop_once(void)
{
	bool		was_witnessed = witnessed;
	uint32		news;
	bool		failed = false;
	WaitEvent	event;
	IdemClock	now;
	bool		again;

	MemoryContextSwitchTo(loop_cxt);
	MemoryContextReset(loop_cxt);
	idem_slot_takes_turn();
	serve_interrupts();
	news_seen = idem_slot_asked().news;
	pg_memory_barrier();
	if (idem_slot_asked().woken)
	{
		/* Something committed.  Committing backends coalesce wake-ups. */
		TimestampTz stamp = idem_slot_take_wakeup();

		IDEM_FAULT_POINT("worker-woken");
		pg_memory_barrier();
		idem_difference_woken();
		idem_relays_woken(stamp);
	}
	idem_children_serve();

	/*
	 * A relay at rest takes a turn only here.  A yes may run out without
	 * news.  A no to the first question is news, though nothing was allowed
	 * before.
	 */
	news = idem_witness_news();
	witnessed = idem_witness_allows();
	if (witnessed != was_witnessed || news != witness_news)
		idem_relays_activate_all();
	witness_news = news;
	again = idem_relays_run(loop_cxt, &failed);

	/* A failed relay's tables may be gone with a dropped extension. */
	config_stale |= failed;
	if (my_relay_id != 0)
		give_way();
	else if (stopping)
		idem_relays_make_way(true);
	else
		give_way_to_databases(again);
	Assert(CurrentMemoryContext == loop_cxt);	/* the only context that is
												 * reset */
	idem_stream_serve_byes();
	now = idem_clock();
	if (my_relay_id == 0)
		idem_upkeep_tick(now);
	if (now >= next_maintenance)
	{
		/*
		 * It may fail, e.g. for want of disk space, without harm to the
		 * relays.
		 */
		next_maintenance = idem_clock_plus_ms(now, MAINTAIN_MS);
		(void) attempt(maintain, &maintenance_complaint);
	}
	if (again || has_news())
		return;
	pgstat_report_stat(false);
	pgstat_report_activity(STATE_IDLE, NULL);

	/* Look at everything afterwards: the event itself is ignored. */
	(void) WaitEventSetWait(idem_relays_wait_set(), wait_ms(), &event, 1, PG_WAIT_EXTENSION);
	ResetLatch(MyLatch);
}

void
idem_worker_main(Datum arg)
{
	Oid			dboid;

	pqsignal(SIGTERM, die);
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	if (!idem_slot_attach(DatumGetInt32(arg), &dboid, &my_relay_id))
		proc_exit(0);
	before_shmem_exit(worker_detach, (Datum) 0);
	IDEM_FAULT_POINT_NO_ERROR("worker-attached");
	if (my_relay_id == 0)
		idem_children_init();
	BackgroundWorkerUnblockSignals();
	BackgroundWorkerInitializeConnectionByOid(dboid, InvalidOid, 0);

	started_at = idem_clock();
	idem_forced_settings();

	/*
	 * One process serves all programs of a database.  Where an operator's
	 * open transaction may have a lock, streams ask for the lock without a
	 * wait. All other locks, such as that of a table that somebody locks,
	 * have this timeout: one relay fails and tries again, so that the others
	 * do not wait for longer.  VACUUM gives up a table that it shortens
	 * sooner than this.
	 */
	if (my_relay_id == 0)
		SetConfigOption("lock_timeout", "100ms", PGC_SUSET, PGC_S_OVERRIDE);
	SetConfigOption("application_name", MyBgworkerEntry->bgw_name, PGC_USERSET, PGC_S_OVERRIDE);
	loop_cxt = AllocSetContextCreate(TopMemoryContext, "idempotency worker loop",
									 ALLOCSET_DEFAULT_SIZES);
	idem_slot_went_well(false);

	for (;;)
	{
		if (attempt(loop_once, &loop_complaint))
			continue;
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 100L, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}
