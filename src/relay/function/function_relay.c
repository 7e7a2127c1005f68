/*-------------------------------------------------------------------------
 *
 * function_relay.c
 *		A relay to a SQL function of its own database.
 *
 * Claim, effect and position commit in one transaction.  So a crash anywhere
 * leaves all of them or none: exactly once.  The claim, by consumer
 * "@relay/NAME", also refuses an event that comes a second time after a replay,
 * an adoption or a moved position.
 *
 * Each event is handled in a subtransaction of its own (handler.c).  An error
 * rolls the event back and parks it; the batch goes on.  If the whole
 * transaction fails at commit, the batch is repeated one event at a time.  The
 * event that fails alone is parked untried.
 *
 * Events that were in flight when the server went down are tried one at a time,
 * too, each attempt on record before it is made (attempt.c).
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function/function_relay.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "miscadmin.h"
#include "storage/ipc.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "compat.h"
#include "outbox/reader.h"
#include "relay/function/attempt.h"
#include "relay/function/function_relay.h"
#include "relay/function/handler.h"
#include "relay/function/handler_reset.h"
#include "relay/position/walk.h"
#include "relay/position/parked.h"
#include "relay/position/position.h"
#include "relay/report.h"
#include "relay/slots.h"
#include "relay/target.h"
#include "relay/witness.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/txn.h"

typedef struct IdemFunctionRelay
{
	MemoryContext cxt;
	MemoryContext config_cxt;
	IdemRelayConfig *config;
	IdemRelayEntry *entry;
	IdemReader *reader;
	IdemWalk	walk;
	bool		loaded;			/* the walk has a position */
	IdemParkedIndex *parked;
	bool		parked_dirty;
	IdemHandler *handler;
	IdemAttempts attempts;
	bool		worked;			/* this process has committed an event's
								 * outcome */
	bool		announcing;		/* the transaction puts an attempt on record */
	int			single;			/* batches of one event that are still to come */
	bool		log_turn;		/* the next batch is the outbox's, since
								 * parked events were tried last */
	bool		has_tried;		/* this transaction has tried an event */
	pg_uuid_t	tried;			/* the event that was tried last */
	bool		has_suspect;
	pg_uuid_t	suspect;		/* the event made a commit fail, alone in its
								 * transaction; it is to be parked */
	IdemFailure suspect_failure;
	char		suspect_message[IDEM_ERROR_LEN];
	bool		awaits_wakeup;	/* the log has no event, or there is no room
								 * to park one */
	int			failures;
	IdemClock	not_before;
} IdemFunctionRelay;

/*
 * Take over from the entry what the relay's former worker knew.  That worker
 * gave way, or ended idle.
 */
static void
recall(IdemFunctionRelay *relay)
{
	IdemRelayEntry *entry = relay->entry;

	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	relay->failures = entry->kept.failures;
	relay->single = entry->kept.single;
	relay->has_suspect = entry->kept.has_suspect;
	relay->suspect = entry->kept.suspect;
	strlcpy(relay->suspect_failure.sqlstate, entry->kept.sqlstate,
			sizeof(relay->suspect_failure.sqlstate));
	strlcpy(relay->suspect_message, entry->last_error, sizeof(relay->suspect_message));
	SpinLockRelease(&entry->mutex);
	relay->suspect_failure.counts = true;
	relay->suspect_failure.message = relay->suspect_message;
}

/*
 * Keep in the entry what the relay's next worker has to know, if this one gives
 * way.
 */
static void
keep(IdemFunctionRelay *relay)
{
	IdemRelayEntry *entry = relay->entry;

	if (entry == NULL)
		return;
	SpinLockAcquire(&entry->mutex);
	entry->kept.failures = relay->failures;
	entry->kept.not_before = relay->not_before;
	entry->kept.single = relay->single;
	entry->kept.has_suspect = relay->has_suspect;
	entry->kept.suspect = relay->suspect;
	strlcpy(entry->kept.sqlstate, relay->suspect_failure.sqlstate,
			sizeof(entry->kept.sqlstate));
	SpinLockRelease(&entry->mutex);
}

/* Go on with what the relay's former worker knew; the position is read in a step. */
static void *
create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "function relay", ALLOCSET_DEFAULT_SIZES);
	IdemFunctionRelay *relay = MemoryContextAllocZero(cxt, sizeof(*relay));

	relay->cxt = cxt;
	relay->config = config;
	relay->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, cxt);
	relay->handler = idem_handler_create(cxt);
	relay->entry = idem_relay_entry_take_function(MyDatabaseId, config->relay_id);
	recall(relay);
	relay->walk.cxt = cxt;
	relay->walk.fresh = IDEM_FRESH_CONFIRMED;
	relay->reader = idem_reader_create(cxt);
	relay->parked = idem_parked_index_create(cxt);
	relay->parked_dirty = true;
	return relay;
}

/* Read everything again: function, position and parked events may be others. */
static void
configure(void *arg, IdemRelayConfig *config, MemoryContext config_cxt, bool acted)
{
	IdemFunctionRelay *relay = arg;

	MemoryContextDelete(relay->config_cxt);
	relay->config = config;
	relay->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, relay->cxt);
	idem_handler_forget(relay->handler);
	idem_reader_reset(relay->reader);
	relay->loaded = false;
	relay->parked_dirty = true;
	relay->awaits_wakeup = false;
	if (acted)
	{
		relay->not_before = 0;
		relay->failures = 0;
	}
}

/* Give the entry up, unless another process has taken it. */
static void
destroy(void *arg)
{
	IdemFunctionRelay *relay = arg;

	idem_handler_forget(relay->handler);
	if (relay->entry)
		idem_relay_entry_release(relay->entry);
	MemoryContextDelete(relay->cxt);
}

/* Something committed: the next step takes a new snapshot. */
static void
woken(void *arg, TimestampTz stamp)
{
	((IdemFunctionRelay *) arg)->awaits_wakeup = false;
}

/*
 * Is one event tried per transaction?  Yes, after an event made a commit fail,
 * or may have taken the server down.
 */
static bool
works_one_by_one(const IdemFunctionRelay *relay)
{
	return relay->single > 0 || idem_attempts_careful(&relay->attempts);
}

/*
 * Must the attempt be put on record before it is made?  Then put it on record in
 * this transaction; the next one handles the event.
 */
static bool
must_announce(IdemFunctionRelay *relay, const pg_uuid_t *event_id)
{
	if (!idem_attempts_careful(&relay->attempts) ||
		!idem_attempts_unannounced(&relay->attempts, event_id))
		return false;
	idem_attempts_announce(&relay->attempts, relay->config, event_id);
	relay->announcing = true;
	return true;
}

/* Did the event, alone in its transaction, make a commit fail? */
static bool
is_suspect(const IdemFunctionRelay *relay, const pg_uuid_t *event_id)
{
	return relay->has_suspect && memcmp(&relay->suspect, event_id, UUID_LEN) == 0;
}

/*
 * Handle an event.  An event that took the server down, or made a commit fail,
 * counts as failed without being tried.
 */
static IdemHandled
try_event(IdemFunctionRelay *relay, const IdemEvent *ev, IdemFailure *failure)
{
	relay->has_tried = true;
	relay->tried = ev->event_id;
	if (idem_attempts_killed(&relay->attempts, relay->config, &ev->event_id, failure))
		return IDEM_HANDLED_FAILED;
	if (is_suspect(relay, &ev->event_id))
	{
		*failure = relay->suspect_failure;
		return IDEM_HANDLED_FAILED;
	}
	idem_report_waiting(relay->entry, IDEM_WAIT_FUNCTION);
	return idem_handler_run(relay->handler, relay->config, ev, failure);
}

/* Handle an event of the outbox, or park it. */
static void
work_event(IdemFunctionRelay *relay, const IdemEvent *ev, int64 *sent)
{
	IdemFailure failure = {0};
	IdemHandled handled;

	if (idem_parked_blocks(relay->parked, ev))
	{
		idem_parked_wait(relay->parked, relay->config, ev);
		return;
	}
	handled = try_event(relay, ev, &failure);
	if (handled == IDEM_HANDLED)
		(*sent)++;
	if (handled == IDEM_HANDLED || handled == IDEM_HANDLED_DUPLICATE)
		return;
	idem_report_error(relay->entry, failure.message);
	idem_parked_refuse(relay->parked, relay->config, ev, &failure);
	IDEM_FAULT_POINT("function-parked");
}

/* Try a parked event that is due; false if it stays parked, its failure recorded. */
static bool
work_repeat(IdemFunctionRelay *relay, const IdemParkedEvent *p, int64 *sent)
{
	IdemFailure failure = {0};
	IdemHandled handled = try_event(relay, &p->event, &failure);

	if (handled == IDEM_HANDLED)
		(*sent)++;
	if (handled == IDEM_HANDLED || handled == IDEM_HANDLED_DUPLICATE)
	{
		idem_parked_index_drop(relay->parked, p->event.seq);
		return true;
	}
	idem_report_error(relay->entry, failure.message);
	idem_parked_refuse_again(relay->parked, relay->config, p->event.seq, p->event.xid,
							 p->parked_id, &failure);
	return false;
}

/*
 * Select parked events.  An event that took the server down is never part of a
 * batch: it switches the following transactions to one event at a time.
 */
static List *
take_repeats(IdemFunctionRelay *relay, int limit)
{
	IdemParkedTaking taking = {.limit = limit, .max_bytes = relay->config->batch_bytes,
	.lone = idem_attempts_careful(&relay->attempts)};
	List	   *taken = idem_parked_take(relay->parked, &taking);

	if (taking.lone_left)
		relay->attempts.repeats = true;
	else if (taken == NIL || (!taking.alone && relay->parked->suspects == 0))
		relay->attempts.repeats = false;
	return taken;
}

/*
 * Handle parked events that are due, in the transaction of the batch.  In key
 * order an event is passed over if an earlier event of its key stays parked.
 */
static int64
work_repeats(IdemFunctionRelay *relay, int limit, int64 *sent)
{
	List	   *taken = take_repeats(relay, limit);
	int64	   *done = palloc(sizeof(int64) * Max(1, list_length(taken)));
	int			ndone = 0;
	int64		n = 0;
	bool		full = false;
	ListCell   *lc;

	foreach(lc, taken)
	{
		IdemParkedEvent *p = lfirst(lc);
		int64		seq = p->event.seq;

		if (full || relay->announcing || idem_parked_index_key_failed(relay->parked, seq) ||
			must_announce(relay, &p->event.event_id))
		{
			idem_parked_index_give_back(relay->parked, seq, false);
			continue;
		}
		if (work_repeat(relay, p, sent))
			done[ndone++] = p->parked_id;
		n++;
		full = idem_handler_batch_is_full();
	}
	idem_parked_done(relay->config, done, ndone);
	IDEM_FAULT_POINT("function-unparked");
	return n;
}

/* How much an event adds to batch_size, without detoasting it. */
static int64
event_size(const IdemEvent *ev)
{
	int64		size = ev->aggregate_type.len + ev->aggregate_id.len + ev->event_type.len;

	size += toast_raw_datum_size(ev->payload);
	if (ev->has_headers)
		size += toast_raw_datum_size(ev->headers);
	return size;
}

/*
 * Handle the outbox's events of this batch; true if the difference came to its
 * end.
 */
static bool
work_log(IdemFunctionRelay *relay, int limit, int64 *last_seq, int64 *sent, int *n)
{
	IdemEvent	ev;
	int64		bytes = 0;

	for (*n = 0; *n < limit && bytes < relay->config->batch_bytes;)
	{
		CHECK_FOR_INTERRUPTS();
		if (!idem_reader_next(relay->reader, &ev))
			return true;
		if (!idem_relay_wants(relay->config, &ev) ||
			idem_parked_has_seq(relay->parked, ev.seq))
		{
			*last_seq = ev.seq;
			continue;
		}
		if (must_announce(relay, &ev.event_id))
		{
			idem_reader_unget(relay->reader);
			return false;
		}
		*last_seq = ev.seq;
		bytes += event_size(&ev);
		work_event(relay, &ev, sent);
		(*n)++;
		if (idem_handler_batch_is_full())
			break;
	}
	return false;
}

/*
 * Does neither the outbox nor a parked event need a step, as far as is known?
 */
static bool
is_idle(const IdemFunctionRelay *relay)
{
	return relay->awaits_wakeup && relay->loaded && !relay->parked_dirty && !relay->parked->stale &&
		!idem_parked_index_is_due(relay->parked);
}

/* May the relay run now?  If not, show why. */
static bool
may_run(IdemFunctionRelay *relay)
{
	IdemRelayState state;
	const char *message;

	if (!idem_relay_is_barred(relay->config, &state, &message))
	{
		if (idem_witness_allows())
			return idem_clock() >= relay->not_before;
		relay->awaits_wakeup = false;	/* a later step has to report the
										 * state */
		idem_witness_report(relay->entry, relay->config->name);
		return false;
	}
	if (message)
		idem_report_error(relay->entry, message);
	idem_report_state(relay->entry, relay->config->name, state, IDEM_WAIT_OPERATOR);
	return false;
}

/* In a transaction: go on where the log of positions says. */
static void
load_position(IdemFunctionRelay *relay)
{
	IdemPositionRow *row = idem_position_last(relay->config->relay_id, relay->config->epoch);

	if (row == NULL)
		ereport(ERROR,
				(errcode(ERRCODE_IDEM_RELAY_DIVERGED),
				 errmsg("the log of positions has no position of relay \"%s\"",
						relay->config->name),
				 errhint("Use relay_adopt.")));
	idem_walk_stand(&relay->walk, &row->pos);
	idem_walk_start(&relay->walk);
	relay->loaded = true;
}

/*
 * Append the position.  It commits with the effects of the batch, which makes
 * them exactly once.
 */
static void
append_position(IdemFunctionRelay *relay)
{
	IdemPositionRow row = idem_walk_row(&relay->walk, relay->config, IDEM_POSITION_REACHED,
										&relay->walk.settled);

	(void) idem_position_append(&row);
	relay->walk.dirty = false;
}

/* What one transaction did. */
typedef struct StepCounts
{
	int64		sent;
	int64		repeated;		/* parked events tried */
	int			logged;			/* events of the outbox tried, or parked
								 * unseen */
	bool		began;			/* the step began a difference, with the
								 * newest snapshot */
} StepCounts;

/*
 * In a new transaction: load what is not loaded, and check that the handler can
 * be called.
 */
static void
prepare_step(IdemFunctionRelay *relay)
{
	if (!relay->loaded)
		load_position(relay);
	idem_attempts_load(&relay->attempts, relay->config);
	idem_handler_check(relay->handler, relay->config);
	if (relay->parked_dirty || relay->parked->stale)
	{
		relay->parked->careful = relay->attempts.repeats ? relay->config->batch_events : 0;
		idem_parked_index_load(relay->parked, relay->config);
		relay->parked_dirty = false;
	}
}

/*
 * Commit, then reset what the handlers left in the session, and clear the
 * record.
 */
static void
commit_step(IdemFunctionRelay *relay, const StepCounts *counts, IdemRelayWait waiting)
{
	if (counts->logged + counts->repeated > 0 && idem_durable_awaits_standby())
		idem_report_waiting(relay->entry, IDEM_WAIT_SYNC_STANDBY);
	if (relay->announcing)
	{
		idem_txn_commit(true);
		IDEM_FAULT_POINT("function-announced");
		idem_attempts_announced(&relay->attempts);
	}
	else
	{
		if (relay->has_tried)
			idem_handler_batch_end();
		idem_attempts_conclude(&relay->attempts, relay->config);
		idem_txn_commit(false);
		IDEM_FAULT_POINT("function-committed");
		idem_handler_reset();
		if (relay->has_tried && !relay->worked)
			idem_slots_function_worked(relay->config->relay_id);
		relay->worked |= relay->has_tried;
		idem_attempts_concluded(&relay->attempts, relay->config);
		if (relay->has_tried && is_suspect(relay, &relay->tried))
			relay->has_suspect = false;
		relay->failures = 0;
		if (relay->single > 0 && counts->logged + counts->repeated > 0)
			relay->single--;
		keep(relay);
	}
	if (waiting == IDEM_WAIT_EVENTS && idem_parked_index_next(relay->parked) != 0)
		waiting = IDEM_WAIT_RETRY;
	idem_report_counts(relay->entry, counts->sent, counts->repeated);
	idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_STREAMING, waiting);
}

/*
 * Do the outbox's part of a step; false if the outbox has nothing, or there is
 * no room to park.
 */
static bool
step_log(IdemFunctionRelay *relay, int limit, StepCounts *counts, bool *ended)
{
	int64		last_seq;
	bool		newest;

	counts->began = relay->walk.read.target == NULL;
	if ((counts->began && !idem_walk_begin(&relay->walk, &newest)) ||
		relay->parked->total >= idem_max_parked)
		return false;
	last_seq = relay->walk.read.seq;
	IDEM_FAULT_POINT("function-snapshot-taken");
	idem_reader_seek(relay->reader, &relay->walk.read);
	*ended = work_log(relay, limit, &last_seq, &counts->sent, &counts->logged);
	idem_reader_suspend(relay->reader);
	idem_walk_read(&relay->walk, *ended, last_seq);
	idem_walk_advance(&relay->walk, &relay->walk.read);
	if (counts->logged > 0)
	{
		append_position(relay);
		IDEM_FAULT_POINT("function-position-appended");
	}
	if (relay->attempts.log_left > 0)
		relay->attempts.log_left = *ended ? 0 : relay->attempts.log_left - counts->logged;
	return true;
}

/*
 * Run one transaction: parked events that are due, half a batch at most, then
 * the outbox.  If events are tried one at a time, or if parked events fill the
 * transaction, parked events and the outbox take turns.
 */
static bool
step(void *arg)
{
	IdemFunctionRelay *relay = arg;
	StepCounts	counts = {0};
	bool		one_by_one;
	bool		log_turn;
	bool		ended = false;
	bool		full;
	int			limit;

	if (!may_run(relay) || is_idle(relay))
		return false;
	if (!idem_handler_may_serve(relay->config->owner))
		proc_exit(0);			/* the launcher starts another */
	relay->announcing = false;
	relay->has_tried = false;

	/*
	 * The end of the step decides whether to wait: events may wait behind a
	 * parked event that this step tries.
	 */
	relay->awaits_wakeup = false;
	idem_txn_begin();
	prepare_step(relay);
	one_by_one = works_one_by_one(relay);
	limit = one_by_one ? 1 : relay->config->batch_events;
	log_turn = relay->log_turn;
	relay->log_turn = false;
	if (relay->parked->total == 0)
		relay->attempts.repeats = false;
	else if (!log_turn)
		counts.repeated = work_repeats(relay, Max(1, limit / 2), &counts.sent);
	full = counts.repeated > 0 && idem_handler_batch_is_full();
	if (relay->announcing || full || (one_by_one && counts.repeated > 0))
	{
		relay->log_turn = counts.repeated > 0;
		commit_step(relay, &counts, IDEM_WAIT_EVENTS);
		return true;
	}
	if (!step_log(relay, Max(1, limit - (int) counts.repeated), &counts, &ended))
	{
		bool		no_room = relay->parked->total >= idem_max_parked;

		if (!no_room)
			relay->attempts.log_left = 0;
		commit_step(relay, &counts, no_room ? IDEM_WAIT_PARKED_ROOM : IDEM_WAIT_EVENTS);
		relay->awaits_wakeup = !log_turn && !relay->attempts.repeats;
		return counts.repeated > 0 || !relay->awaits_wakeup;
	}

	/*
	 * An event of the outbox that was put on record is tried next: the
	 * outcome of a parked event would clear the record.
	 */
	relay->log_turn = relay->announcing;
	commit_step(relay, &counts, IDEM_WAIT_EVENTS);

	/*
	 * The next snapshot differs whenever any transaction of the cluster came
	 * to an end in between.  A transaction that enqueued wakes the relay; the
	 * others are no reason to look again.  Only the step that took the newest
	 * snapshot may decide to wait: the wake-up of an event that committed
	 * after an older snapshot is spent.
	 */
	relay->awaits_wakeup = counts.logged == 0 && counts.repeated == 0 && counts.began && ended &&
		!relay->walk.catching_up && !log_turn && !relay->attempts.repeats;
	return !relay->awaits_wakeup;
}

/*
 * Can the event be to blame for the error?  It cannot for a full disk, nor for
 * a cancel by somebody.
 */
static bool
may_be_of_event(int sqlerrcode)
{
	return !idem_handler_is_circumstance(sqlerrcode) &&
		ERRCODE_TO_CATEGORY(sqlerrcode) != ERRCODE_OPERATOR_INTERVENTION;
}

/*
 * The batch was rolled back: open the backoff, and find out whether an event is
 * to blame.
 */
static void
failed(void *arg, int sqlerrcode, const char *message)
{
	IdemFunctionRelay *relay = arg;
	int64		ms = idem_relay_backoff_ms(relay->config, relay->failures++);

	/* Nothing of the transaction happened: read the position again. */
	idem_handler_forget(relay->handler);
	idem_reader_reset(relay->reader);
	relay->loaded = false;
	relay->parked_dirty = true;
	idem_handler_clear(relay->handler);
	idem_handler_reset();
	idem_report_error(relay->entry, message);

	/*
	 * The event was the only one, and the commit failed: the event is to
	 * blame.
	 */
	if (relay->single > 0 && relay->has_tried && may_be_of_event(sqlerrcode))
	{
		relay->has_suspect = true;
		relay->suspect = relay->tried;
		relay->suspect_failure.counts = true;
		strlcpy(relay->suspect_failure.sqlstate, unpack_sql_state(sqlerrcode),
				sizeof(relay->suspect_failure.sqlstate));
		idem_copy_error(relay->suspect_message, message, sizeof(relay->suspect_message));
		relay->suspect_failure.message = relay->suspect_message;
	}
	relay->has_tried = false;
	idem_attempts_failed(&relay->attempts);
	relay->not_before = idem_clock_plus_ms(idem_clock(), ms);
	if (idem_handler_was_checking(relay->handler))
		idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_MISCONFIGURED, IDEM_WAIT_BACKOFF);
	else
	{
		relay->single = relay->config->batch_events;
		idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_OUTAGE, IDEM_WAIT_BACKOFF);
	}
	keep(relay);
}

/*
 * May the worker leave the relay?  An attempt on record has to come to its end
 * first: in another process it would be taken for an attempt that took the
 * server down.
 */
static bool
may_leave(const void *arg, bool *idle)
{
	const IdemFunctionRelay *relay = arg;
	IdemRelayState state;
	const char *message;

	*idle = idem_relay_is_barred(relay->config, &state, &message) ||
		!idem_witness_allows() || idem_clock() < relay->not_before || is_idle(relay);
	return !relay->attempts.announced;
}

/*
 * When to step next.  Only the backoff and parked events have a time; a wake-up
 * comes by itself.
 */
static IdemClock
next_time(void *arg)
{
	IdemFunctionRelay *relay = arg;
	IdemRelayState state;
	const char *message;

	if (idem_relay_is_barred(relay->config, &state, &message) || !idem_witness_allows())
		return 0;
	if (relay->not_before > idem_clock())
		return relay->not_before;
	return idem_parked_index_next(relay->parked);
}

/* Write a position that moved without an event being handled. */
static void
persist(void *arg)
{
	IdemFunctionRelay *relay = arg;

	if (!relay->walk.dirty || !relay->loaded || relay->walk.read.target != NULL)
		return;
	idem_txn_begin();
	append_position(relay);
	IDEM_FAULT_POINT("function-persist");
	idem_txn_commit(true);
}

/*
 * The worker of a function relay has no other relay.  So the relay has a step
 * in each turn, and never rests.
 */
const IdemRunnerOps idem_function_ops = {
	.create = create,
	.configure = configure,
	.destroy = destroy,
	.step = step,
	.failed = failed,
	.woken = woken,
	.next_time = next_time,
	.persist = persist,
	.may_leave = may_leave
};
