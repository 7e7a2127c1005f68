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
 * rolls the event back and parks it; the batch goes on, for a second at most.
 * If the whole transaction fails at commit, the batch is repeated one event at
 * a time.  The event that fails alone is parked untried.
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

#include "miscadmin.h"
#include "storage/ipc.h"

#include "relay/function/function.h"
#include "relay/worker_slots.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"
#include "shared/worker.h"

/* While an operator's transaction has the relay's row, it is asked for so often. */
#define LOCK_RETRY_MS 50

typedef struct IdemFunctionCourier
{
	IdemRelay	relay;
	IdemReader *reader;
	bool		loaded;			/* the walk has a position */
	IdemParkedIndex *parked;
	bool		parked_dirty;
	IdemHandler *handler;
	IdemAttempts attempts;
	bool		worked;			/* this process has committed an event's
								 * outcome */
	IdemBlame	blame;			/* the relay's, with the verdicts of this
								 * transaction */
	bool		log_empty;		/* the outbox had nothing more at the last
								 * look, and nobody has enqueued since */
	bool		announcing;		/* the transaction puts an attempt on record */
	bool		log_turn;		/* the next batch is the outbox's, since
								 * parked events were tried last */
	bool		has_tried;		/* this transaction has tried an event */
	bool		has_judged;		/* it has a verdict of the handler */
	IdemClock	began;			/* when it began */
	bool		is_full;		/* it has no room, or no time, for another
								 * event */
	IdemClock	repeats_at;		/* parked events that took their time have it
								 * again then */
	int			repeats_window; /* most parked events of a transaction, since
								 * some took their time; 0: as many as fit */
	bool		passes_done;	/* the outbox's events were done before, as
								 * far as it was read: no probe yet */
	pg_uuid_t	tried;			/* the event that was tried last */
	IdemSuspects suspects;
	bool		awaits_wakeup;	/* the log has no event, or there is no room
								 * to park one */
} IdemFunctionCourier;

/* Go on with what the relay's former worker knew; the position is read in a step. */
static void
create(IdemRelay *relay)
{
	IdemFunctionCourier *courier = (IdemFunctionCourier *) relay;
	bool		repeats_turn = false;

	courier->handler = idem_handler_create(relay->cxt);
	relay->entry = idem_relay_entry_take(MyDatabaseId, relay->config->relay_id, true);

	/*
	 * Take over what the relay's former worker knew.  That worker gave way,
	 * or ended idle.  The delegate has waited for the end of its backoff.
	 */
	if (relay->entry != NULL)
	{
		IdemFunctionKept kept = idem_relay_entry_kept(relay->entry);

		relay->breaker = kept.breaker;
		relay->blame = kept.blame;
		relay->held = idem_engine_is_held(relay);
		relay->breaker.not_before = 0;
		courier->suspects.list[0].s = kept.suspect;
		courier->attempts.passed = kept.passed_crash;
		repeats_turn = kept.repeats_turn;
		idem_relay_entry_error(relay->entry, courier->suspects.list[0].message);
	}

	/*
	 * Whether a parked event is alone shows only in the outbox.  But a turn
	 * may be over with the outbox's transaction.
	 */
	courier->log_turn = !repeats_turn;
	idem_engine_show_trying(relay, IDEM_RELAY_STARTING, IDEM_WAIT_NOTHING);
	courier->reader = idem_reader_create(relay->cxt);
	courier->parked = idem_parked_index_create(relay->cxt);
	courier->parked_dirty = true;

}

/* Read everything again: function, position and parked events may be others. */
static void
configure(IdemRelay *relay, const IdemRelayChange *change)
{
	IdemFunctionCourier *courier = (IdemFunctionCourier *) relay;

	idem_handler_forget(courier->handler);
	idem_reader_reset(courier->reader);
	courier->loaded = false;
	courier->parked_dirty = true;
	courier->awaits_wakeup = courier->log_empty = false;
}

static void
destroy(IdemRelay *relay)
{
	idem_handler_forget(((IdemFunctionCourier *) relay)->handler);
}

/* Something committed: the next step takes a new snapshot. */
static void
woken(IdemRelay *relay, TimestampTz stamp)
{
	IdemFunctionCourier *courier = (IdemFunctionCourier *) relay;

	courier->awaits_wakeup = courier->log_empty = false;
}

/*
 * Must the attempt be put on record before it is made?  Then put it on record in
 * this transaction; the next one handles the event.
 */
static bool
must_announce(IdemFunctionCourier *courier, const pg_uuid_t *event_id)
{
	if (!idem_attempts_careful(&courier->attempts) ||
		!idem_attempts_unannounced(&courier->attempts, event_id))
		return false;
	idem_attempts_announce(&courier->attempts, courier->relay.config, event_id);
	courier->announcing = true;
	return true;
}

/*
 * Has the transaction had its time?  What its handlers locked is held until it commits, whichever
 * of them fails or waits for others.
 */
static bool
has_had_its_time(const IdemFunctionCourier *courier)
{
	return idem_clock() >= idem_clock_plus_ms(courier->began, IDEM_SLICE_MS);
}

/* The handler has had its say on the event: whose fault is a failure? */
static void
judge(IdemFunctionCourier *courier, const IdemEvent *ev, int64 parked_id, IdemHandled handled,
	  IdemFailure *failure)
{
	uint64		keys[IDEM_BLAME_KEYS] = {idem_parked_key(courier->relay.config, ev)};
	IdemBlameVerdict verdict = {.kind = failure->kind, .key = keys[0], .keys = IDEM_BLAME_KEYS};

	if (handled == IDEM_HANDLED)
		verdict.kind = IDEM_BLAME_ACCEPTED;
	else if (courier->log_empty)
		verdict.keys = idem_parked_keys(courier->parked, keys, 1, IDEM_BLAME_KEYS);
	verdict.first = parked_id == 0 || !idem_parked_was_refused(courier->parked, ev->seq, &verdict.previous);
	courier->has_judged = true;
	failure->counts = idem_blame_judge(&courier->blame, &verdict);
	failure->verdict = verdict.kind == IDEM_BLAME_NOTHING ? verdict.previous : courier->blame.verdicts;
	failure->backs_off |= !failure->counts && failure->kind != IDEM_BLAME_NOTHING;
}

/* What became of an event. */
typedef enum Worked
{
	WORKED_DONE,
	WORKED_BEFORE,				/* it was done before */
	WORKED_REFUSED,
	WORKED_NO_ROOM				/* the transaction had room for no more, as it
								 * seems: the event begins the next one */
} Worked;

/*
 * Try an event, of the outbox or parked.  REFUSED: it is parked,
 * or stays parked with its failure recorded.  An event that took the server down,
 * or made a commit fail, counts as failed without being tried.
 */
static Worked
work_event(IdemFunctionCourier *courier, const IdemEvent *ev, int64 parked_id, int64 *sent)
{
	IdemFailure failure = {0};
	IdemHandled handled = IDEM_HANDLED_FAILED;
	bool		is_first = !courier->has_tried;
	const IdemNotedSuspect *suspect = idem_suspects_find(&courier->suspects, &ev->event_id);

	courier->has_tried = true;
	courier->tried = ev->event_id;
	if (suspect != NULL)
	{
		failure.kind = IDEM_BLAME_REJECTED;
		failure.message = suspect->message;
		strlcpy(failure.sqlstate, suspect->s.sqlstate, sizeof(failure.sqlstate));
	}
	if (!idem_attempts_killed(&courier->attempts, courier->relay.config, &ev->event_id, &failure) && suspect == NULL)
	{
		idem_report_waiting_anew(courier->relay.entry, IDEM_WAIT_FUNCTION);
		handled = idem_handler_run(courier->handler, courier->relay.config, ev, &failure);
	}

	/*
	 * Leases and partitions of a transaction have a budget of locks, which
	 * the events before it may have used up.
	 */
	if (handled == IDEM_HANDLED_FAILED && !is_first &&
		strcmp(failure.sqlstate, unpack_sql_state(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED)) == 0)
		return WORKED_NO_ROOM;
	if (handled == IDEM_HANDLED_DUPLICATE)
		return WORKED_BEFORE;
	if (!failure.crashed)
		judge(courier, ev, parked_id, handled, &failure);
	if (handled == IDEM_HANDLED)
	{
		(*sent)++;
		return WORKED_DONE;
	}
	idem_report_refusal(courier->relay.entry, failure.message);
	if (parked_id != 0)
	{
		idem_parked_refuse_again(courier->parked, courier->relay.config, ev->seq, ev->xid,
								 parked_id, &failure);
		return WORKED_REFUSED;
	}
	idem_parked_refuse(courier->parked, courier->relay.config, ev, &failure);
	IDEM_FAULT_POINT("function-parked");
	return WORKED_REFUSED;
}

/*
 * Handle parked events that are due, in the transaction of the batch.  In key
 * order an event is passed over if an earlier event of its key stays parked.
 */
static int64
work_repeats(IdemFunctionCourier *courier, int limit, int64 *sent)
{
	bool		probes = idem_engine_is_held(&courier->relay) &&
	(idem_parked_index_hurry(courier->parked, &courier->relay.blame.whole.refused.key, 0) ||
	 idem_parked_index_hurry(courier->parked, NULL, 0));
	int			window = courier->repeats_window;
	IdemParkedTaking taking = {.limit = probes ? 1 : window > 0 ? Min(limit, window) : limit,
		.max_bytes = courier->relay.config->batch_bytes,
	.lone = idem_attempts_careful(&courier->attempts)};
	List	   *taken = idem_parked_take(courier->parked, &taking);
	int64	   *done = palloc(sizeof(int64) * Max(1, list_length(taken)));
	int			ndone = 0;
	int64		n = 0;
	bool		full = false;
	ListCell   *lc;

	/*
	 * An event that took the server down is never part of a batch: it
	 * switches the following transactions to one event at a time.
	 */
	if (taking.lone_left)
		courier->attempts.repeats = true;
	else if (taken == NIL || (!taking.alone && courier->parked->suspects == 0))
		courier->attempts.repeats = false;
	foreach(lc, taken)
	{
		IdemParkedEvent *p = lfirst(lc);
		int64		seq = p->event.seq;
		Worked		worked;

		if (full || courier->announcing || idem_parked_index_key_failed(courier->parked, seq) ||
			must_announce(courier, &p->event.event_id))
		{
			idem_parked_index_give_back(courier->parked, seq, false);
			continue;
		}
		worked = work_event(courier, &p->event, p->parked_id, sent);
		if (worked == WORKED_NO_ROOM)
		{
			idem_parked_index_give_back(courier->parked, seq, false);
			full = courier->is_full = true;
			continue;
		}
		if (worked != WORKED_REFUSED)
		{
			idem_parked_index_drop(courier->parked, seq);
			done[ndone++] = p->parked_id;
		}
		n++;
		full = courier->is_full = idem_handler_batch_is_full() || has_had_its_time(courier);
	}

	/*
	 * What else is there has at least as much time as events that take
	 * theirs. What was taken with one of them goes back behind all others, so
	 * little is.
	 */
	if (n > 0 && has_had_its_time(courier))
	{
		courier->repeats_at = 2 * idem_clock() - courier->began;
		courier->repeats_window = 1;
	}
	else if (n > 0)
		courier->repeats_window = window < limit ? 2 * window : 0;
	idem_parked_done(courier->relay.config, done, ndone);
	IDEM_FAULT_POINT("function-unparked");
	return n;
}

/* How many events behind the one that was tried are passed over, as a probe of a handler that refuses all? */
static int
unseen(const IdemFunctionCourier *courier)
{
	if (!idem_engine_is_held(&courier->relay) || idem_attempts_careful(&courier->attempts))
		return 0;
	return Min(idem_blame_unseen(&courier->blame), idem_parked_unseen_room(courier->parked));
}

/*
 * Handle the outbox's events of this batch, and park those that a probe passes over; true if
 * the difference came to its end.
 */
static bool
work_log(IdemFunctionCourier *courier, int limit, int64 *last_seq, int64 *sent, int *n)
{
	IdemEvent	ev;
	int64		bytes = 0;
	int			passing = 0;
	int			before_now = 0; /* events that were done before */

	for (*n = 0; (*n < limit || passing > 0) && bytes < courier->relay.config->batch_bytes;)
	{
		int64		before = *last_seq;
		Worked		worked;

		CHECK_FOR_INTERRUPTS();
		if (!idem_reader_next(courier->reader, &ev))
			return true;
		if (!idem_relay_wants(courier->relay.config, &ev) ||
			idem_parked_has_seq(courier->parked, ev.seq) || idem_blocked_has(courier->parked, &ev))
		{
			*last_seq = ev.seq;
			continue;
		}
		if (*n < limit && must_announce(courier, &ev.event_id))
		{
			idem_reader_unget(courier->reader);
			return false;
		}
		*last_seq = ev.seq;
		bytes += idem_event_size(&ev);
		if (idem_parked_blocks(courier->parked, &ev))
			idem_blocked_wait(courier->parked, courier->relay.config, &ev, &courier->relay.walk.read);
		else if (*n == limit)
		{
			idem_parked_wait(courier->parked, courier->relay.config, &ev);
			passing--;
			continue;
		}
		else
		{
			worked = work_event(courier, &ev, 0, sent);
			if (worked == WORKED_NO_ROOM)
			{
				*last_seq = before;
				idem_reader_unget(courier->reader);
				courier->is_full = true;
				return false;
			}
			if (worked == WORKED_REFUSED && *n == limit - 1)
				passing = unseen(courier);

			/* It says nothing of the handler: a probe goes on to the next. */
			if (worked == WORKED_BEFORE && ++before_now < courier->relay.config->batch_events)
				continue;
			courier->passes_done = worked == WORKED_BEFORE;
		}
		if (*n < limit)
			(*n)++;
		if (passing == 0 && (idem_handler_batch_is_full() || has_had_its_time(courier)))
			break;
	}
	return false;
}

/*
 * Does neither the outbox nor a parked event need a step, as far as is known?
 */
static bool
is_idle(const IdemFunctionCourier *courier)
{
	return courier->awaits_wakeup && courier->loaded && !courier->parked_dirty && !courier->parked->stale &&
		(idem_clock() < courier->repeats_at || !idem_parked_index_is_due(courier->parked));
}

/* Is the target down, and the time of its next probe there? */
static bool
is_probe_time(const IdemFunctionCourier *courier)
{
	return idem_engine_is_held(&courier->relay) && courier->parked->total > 0 &&
		idem_clock() >= courier->relay.probe_at;
}

/*
 * May an event be tried?  While the handler refuses all, one is, after a pause; new events
 * of the outbox need not wait while few keys were refused.
 */
static bool
may_go_on(const IdemFunctionCourier *courier)
{
	return !idem_engine_is_held(&courier->relay) || idem_clock() >= courier->relay.probe_at || courier->passes_done ||
		(idem_blame_spares(&courier->relay.blame) && !courier->awaits_wakeup);
}

/* A later step has to report the state. */
static bool
hold(IdemRelay *relay, IdemRelayState state)
{
	((IdemFunctionCourier *) relay)->awaits_wakeup = false;
	return true;
}

/* The worker of a function relay has no other relay, so it has turns always. */
static bool
holds_nothing(const IdemRelay *relay)
{
	return false;
}

/*
 * Append the position.  It commits with the effects of the batch, which makes
 * them exactly once.
 */
static void
append_position(IdemFunctionCourier *courier)
{
	IdemPositionRow row = idem_walk_row(&courier->relay.walk, courier->relay.config, IDEM_POSITION_REACHED,
										&courier->relay.walk.settled);

	(void) idem_position_append(&row);
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
 * be called.  False if somebody has the relay's row locked, so that parked events must not be
 * touched.
 */
static bool
prepare_step(IdemFunctionCourier *courier)
{
	const IdemRelayConfig *config = courier->relay.config;

	if (!courier->loaded)
	{
		IdemPositionRow *row = idem_position_last(config->relay_id, config->epoch);

		if (row == NULL)
			ereport(ERROR,
					(errcode(ERRCODE_IDEM_RELAY_DIVERGED),
					 errmsg("the log of positions has no position of relay \"%s\"", config->name),
					 errhint("Use relay_adopt.")));
		idem_walk_stand(&courier->relay.walk, &row->pos);
		idem_walk_start(&courier->relay.walk);
		courier->loaded = true;
	}
	idem_attempts_load(&courier->attempts, config);
	idem_handler_check(courier->handler, config);
	if (courier->parked_dirty || courier->parked->stale)
	{
		courier->parked->careful = courier->attempts.repeats ? config->batch_events : 0;
		idem_parked_index_load(courier->parked, config, courier->relay.walk.settled.base);
		courier->parked_dirty = false;
	}
	if ((courier->parked->total > 0 || hash_get_num_entries(courier->parked->blocked) > 0) &&
		!idem_parked_share_relay(config))
		return false;
	if (idem_parked_wants_refill(courier->parked))
	{
		bool		wrote;

		(void) idem_blocked_refill(courier->parked, config, &courier->relay.walk.read, true, &wrote);
	}
	return true;
}

/*
 * Commit, then reset what the handlers left in the session, and clear the
 * record.
 */
static void
commit_step(IdemFunctionCourier *courier, const StepCounts *counts, IdemRelayWait waiting)
{
	if (counts->logged + counts->repeated > 0 && idem_durable_awaits_standby())
		idem_report_waiting(courier->relay.entry, IDEM_WAIT_SYNC_STANDBY);
	if (courier->announcing)
	{
		idem_txn_commit(true);
		IDEM_FAULT_POINT("function-announced");
		courier->attempts.recorded = courier->attempts.announced = true;
	}
	else
	{
		uint64		key;
		IdemNotedSuspect *suspect;

		if (courier->has_tried)
			idem_handler_batch_end();
		idem_attempts_conclude(&courier->attempts, courier->relay.config);
		idem_txn_commit(false);
		IDEM_FAULT_POINT("function-committed");
		idem_handler_reset();
		if (courier->has_tried && !courier->worked)
			idem_slot_went_well(true);
		courier->worked |= courier->has_tried;
		idem_attempts_concluded(&courier->attempts);
		suspect = courier->has_tried ? idem_suspects_find(&courier->suspects, &courier->tried) : NULL;
		if (suspect != NULL)
			suspect->s.is_set = false;
		idem_engine_progressed(&courier->relay, true, counts->logged + counts->repeated > 0);
		courier->relay.blame = courier->blame;
		if (courier->has_judged && idem_engine_judged(&courier->relay, 0))
			idem_parked_index_hurry_all(courier->parked);

		/* A commit without a verdict ends no outage of the handler. */
		if (courier->relay.blame.whole.open)
			courier->relay.breaker.fault = IDEM_RELAY_OUTAGE;
		if (idem_parked_keys(courier->parked, &key, 0, 1) == 0)
			idem_engine_disprove(&courier->relay);
		idem_relay_entry_keep(courier->relay.entry, &courier->relay.breaker, &courier->relay.blame,
							  &courier->suspects.list[courier->suspects.newest].s, courier->attempts.passed,
							  counts->logged > 0 && counts->repeated == 0);
	}
	if (waiting == IDEM_WAIT_EVENTS && idem_parked_index_next(courier->parked) != 0)
		waiting = IDEM_WAIT_RETRY;
	idem_report_counts(courier->relay.entry, counts->sent, counts->repeated);
	if (counts->sent > 0 || counts->repeated > 0)
		idem_report_got_on(courier->relay.entry);
	idem_engine_show_trying(&courier->relay, IDEM_RELAY_STREAMING, waiting);
}

/*
 * Do the outbox's part of a step; false if the outbox has nothing, or there is
 * no room to park.
 */
static bool
step_log(IdemFunctionCourier *courier, int limit, StepCounts *counts, bool *ended)
{
	int64		last_seq;
	bool		newest;

	counts->began = courier->relay.walk.read.target == NULL;
	if (counts->began && !idem_walk_begin(&courier->relay.walk, &newest))
	{
		courier->log_empty = newest;
		return false;
	}
	courier->log_empty = false;
	if (idem_parked_is_full(courier->parked))
		return false;
	last_seq = courier->relay.walk.read.seq;
	IDEM_FAULT_POINT("function-snapshot-taken");
	idem_reader_seek(courier->reader, &courier->relay.walk.read);
	*ended = work_log(courier, limit, &last_seq, &counts->sent, &counts->logged);
	idem_reader_suspend(courier->reader);
	idem_walk_read(&courier->relay.walk, *ended, last_seq);
	idem_walk_advance(&courier->relay.walk, &courier->relay.walk.read);
	idem_parked_index_log_moved(courier->parked);
	if (counts->logged > 0)
	{
		append_position(courier);
		courier->relay.walk.dirty = false;
		IDEM_FAULT_POINT("function-position-appended");
	}
	if (courier->attempts.log_left > 0)
		courier->attempts.log_left = *ended ? 0 : courier->attempts.log_left - counts->logged;
	return true;
}

/*
 * Run one transaction: parked events that are due, half a batch at most, then
 * the outbox.  If events are tried one at a time, or if parked events fill the
 * transaction, parked events and the outbox take turns.
 */
static bool
step(IdemRelay *relay)
{
	IdemFunctionCourier *courier = (IdemFunctionCourier *) relay;
	StepCounts	counts = {0};
	bool		one_by_one;
	bool		log_turn;
	bool		ended = false;
	int			limit;

	if (idem_clock() < relay->breaker.not_before || !may_go_on(courier) ||
		(is_idle(courier) && !is_probe_time(courier)))
		return false;
	if (!idem_handler_may_serve(courier->relay.config->owner))
		proc_exit(0);			/* the launcher starts another */
	courier->announcing = false;
	courier->has_tried = courier->has_judged = courier->is_full = false;
	courier->began = idem_clock();
	courier->blame = relay->blame;

	/*
	 * The end of the step decides whether to wait: events may wait behind a
	 * parked event that this step tries.
	 */
	courier->awaits_wakeup = false;
	idem_txn_begin();
	if (!prepare_step(courier))
	{
		/* Its worker is for others meanwhile. */
		idem_txn_commit(false);
		relay->breaker.not_before = idem_clock_plus_ms(idem_clock(), LOCK_RETRY_MS);
		idem_engine_show_trying(relay, IDEM_RELAY_STREAMING, IDEM_WAIT_LOCK);
		return false;
	}

	/*
	 * One event is tried per transaction after an event made a commit fail,
	 * or may have taken the server down.
	 */
	one_by_one = relay->breaker.stepwise > 0 || idem_attempts_careful(&courier->attempts);
	limit = one_by_one ? 1 : idem_blame_limit(&relay->blame, courier->relay.config->batch_events);
	log_turn = courier->log_turn || courier->passes_done;
	courier->log_turn = courier->passes_done = false;
	if (courier->parked->total == 0)
		courier->attempts.repeats = false;
	else if (!log_turn && (idem_engine_is_held(relay) ? is_probe_time(courier) : courier->began >= courier->repeats_at))
		counts.repeated = work_repeats(courier, Max(1, limit / 2), &counts.sent);
	if (courier->announcing || courier->is_full || (limit == 1 && counts.repeated > 0))
	{
		courier->log_turn = counts.repeated > 0;
		commit_step(courier, &counts, IDEM_WAIT_EVENTS);
		return true;
	}
	if (!step_log(courier, Max(1, limit - (int) counts.repeated), &counts, &ended))
	{
		bool		no_room = idem_parked_is_full(courier->parked);

		if (!no_room)
			courier->attempts.log_left = 0;
		commit_step(courier, &counts, no_room ? IDEM_WAIT_PARKED_ROOM : IDEM_WAIT_EVENTS);
		courier->awaits_wakeup = !log_turn && !courier->attempts.repeats;
		return counts.repeated > 0 || !courier->awaits_wakeup;
	}

	/*
	 * An event of the outbox that was put on record is tried next: the
	 * outcome of a parked event would clear the record.  One for which there
	 * was no room begins the next transaction.
	 */
	courier->log_turn = courier->announcing || courier->is_full;
	commit_step(courier, &counts, IDEM_WAIT_EVENTS);

	/*
	 * The next snapshot differs whenever any transaction of the cluster came
	 * to an end in between.  A transaction that enqueued wakes the relay; the
	 * others are no reason to look again.  Only the step that took the newest
	 * snapshot may decide to wait: the wake-up of an event that committed
	 * after an older snapshot is spent.
	 */
	courier->log_empty = counts.logged == 0 && counts.began && ended && !courier->relay.walk.catching_up;
	courier->awaits_wakeup = courier->log_empty && counts.repeated == 0 && !log_turn && !courier->attempts.repeats;
	return !courier->awaits_wakeup;
}

/*
 * The batch was rolled back: open the backoff, and find out whether an event is
 * to blame.
 */
static void
failed(IdemRelay *relay, int sqlerrcode, const char *message)
{
	IdemFunctionCourier *courier = (IdemFunctionCourier *) relay;
	bool		checking = idem_handler_was_checking(courier->handler);
	bool		of_event = courier->has_tried && !checking && !idem_handler_is_circumstance(sqlerrcode) &&
	ERRCODE_TO_CATEGORY(sqlerrcode) != ERRCODE_OPERATOR_INTERVENTION;

	/* Nothing of the transaction happened: read the position again. */
	idem_handler_forget(courier->handler);
	idem_reader_reset(courier->reader);
	courier->loaded = false;
	courier->parked_dirty = true;
	idem_handler_reset();

	/*
	 * The event was the only one, and the commit failed: the event is to
	 * blame.  It is not for a full disk, nor for a cancel by somebody.
	 */
	if (courier->relay.breaker.stepwise > 0 && of_event)
		idem_suspects_note(&courier->suspects, &courier->tried, sqlerrcode, message);
	courier->has_tried = false;
	courier->attempts.met = courier->attempts.closing = false;
	if (!checking)
		relay->breaker.stepwise = relay->config->batch_events;
	idem_engine_open_breaker(relay, checking ? IDEM_RELAY_MISCONFIGURED : IDEM_RELAY_OUTAGE, message,
							 of_event);
	idem_relay_entry_keep(relay->entry, &relay->breaker, &relay->blame, &courier->suspects.list[courier->suspects.newest].s,
						  courier->attempts.passed, false);
}

/*
 * May the worker leave the relay?  An attempt on record has to come to its end
 * first: in another process it would be taken for an attempt that took the
 * server down.
 */
static bool
may_leave(const IdemRelay *relay, bool *idle)
{
	const IdemFunctionCourier *courier = (const IdemFunctionCourier *) relay;
	IdemClock	at = idem_engine_run_time(relay);

	*idle = at == 0 || at > idem_clock() || is_idle(courier);
	return !courier->attempts.announced;
}

/*
 * When to step next.  Only the backoff and parked events have a time; a wake-up
 * comes by itself.
 */
static IdemClock
next_time(IdemRelay *relay)
{
	const IdemFunctionCourier *courier = (const IdemFunctionCourier *) relay;
	IdemClock	at = idem_engine_run_time(relay);

	if (at == 0 || at > idem_clock())
		return at;
	at = idem_parked_index_next(courier->parked);
	if (at != 0)
		at = Max(at, courier->repeats_at);

	/*
	 * The next probe is a parked event, unless all are dead or held back, or
	 * one of the outbox.
	 */
	if (idem_engine_is_held(relay) && (at != 0 || !is_idle(courier)))
		return Max(relay->probe_at, 1);
	return at;
}

/* Write a position that moved without an event being handled. */
static void
persist(IdemRelay *relay)
{
	IdemFunctionCourier *courier = (IdemFunctionCourier *) relay;

	if (!courier->relay.walk.dirty || !courier->loaded || courier->relay.walk.read.target != NULL)
		return;
	idem_txn_begin();
	append_position(courier);
	IDEM_FAULT_POINT("function-persist");
	idem_txn_commit(true);
	courier->relay.walk.dirty = false;
}

const IdemCourier idem_function_courier = {
	.size = sizeof(IdemFunctionCourier),
	.create = create,
	.configure = configure,
	.destroy = destroy,
	.hold = hold,
	.step = step,
	.failed = failed,
	.holds_nothing = holds_nothing,
	.woken = woken,
	.next_time = next_time,
	.persist = persist,
	.may_leave = may_leave
};
