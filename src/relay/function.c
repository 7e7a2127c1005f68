/*-------------------------------------------------------------------------
 *
 * function.c
 *		A relay to a SQL function of its own database.
 *
 * Claim, effect and position commit in one transaction, so a crash anywhere
 * leaves all of them or none: exactly once.  The claim, under the relay's name
 * as consumer, also refuses what comes a second time after replay, adoption or
 * a moved position.
 *
 * Each event is handled in a subtransaction of its own (handler.c).  An error
 * rolls the event back and parks it; the batch goes on.  What makes the whole
 * transaction fail at commit is isolated by repeating the batch one event at a
 * time; the one that fails alone is parked untried.
 *
 * What was in flight when the server went down is tried one event at a time as
 * well, each attempt on record before it is made (attempt.c).
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/function.c
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
#include "outbox/segment.h"
#include "relay/attempt.h"
#include "relay/function.h"
#include "relay/handler.h"
#include "relay/handler_reset.h"
#include "relay/parked.h"
#include "relay/position.h"
#include "relay/report.h"
#include "relay/slots.h"
#include "relay/txn.h"
#include "relay/witness.h"
#include "shared/clock.h"
#include "shared/durable.h"
#include "shared/error.h"
#include "shared/fault.h"

struct IdemFunctionRelay
{
	MemoryContext cxt;
	MemoryContext config_cxt;
	IdemRelayConfig *config;
	IdemRelayEntry *entry;
	IdemReader *reader;
	IdemPosition pos;
	bool		loaded;			/* pos is */
	bool		dirty;			/* pos is ahead of the log */
	IdemParkedIndex *parked;
	bool		parked_dirty;
	IdemHandler *handler;
	IdemAttempts attempts;
	bool		worked;			/* in this process: committed an event's
								 * outcome */
	bool		announcing;		/* the transaction puts an attempt on record */
	int			single;			/* so many batches of one event to come */
	bool		log_turn;		/* of the log; a parked event was tried last */
	bool		has_tried;		/* in the transaction: */
	pg_uuid_t	tried;			/* the event handled last */
	bool		has_suspect;
	pg_uuid_t	suspect;		/* alone made a commit fail; to be parked */
	IdemFailure suspect_failure;
	bool		drained;
	bool		catching_up;	/* cut the backlog at ticks */
	int64		done_last_seq;	/* last number given out when "done" was taken */
	int			failures;
	IdemClock	not_before;
};

IdemFunctionRelay *
idem_function_create(MemoryContext parent, IdemRelayConfig *config, MemoryContext config_cxt)
{
	MemoryContext cxt = AllocSetContextCreate(parent, "function relay", ALLOCSET_DEFAULT_SIZES);
	IdemFunctionRelay *relay = MemoryContextAllocZero(cxt, sizeof(*relay));

	relay->cxt = cxt;
	relay->config = config;
	relay->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, cxt);
	relay->handler = idem_handler_create(cxt);
	relay->entry = idem_relay_entry_take(MyDatabaseId, config->relay_id);
	relay->reader = idem_reader_create(cxt);
	relay->parked = idem_parked_index_create(cxt);
	relay->parked_dirty = true;
	return relay;
}

void
idem_function_configure(IdemFunctionRelay *relay, IdemRelayConfig *config,
						MemoryContext config_cxt, bool acted)
{
	MemoryContextDelete(relay->config_cxt);
	relay->config = config;
	relay->config_cxt = config_cxt;
	MemoryContextSetParent(config_cxt, relay->cxt);
	idem_handler_forget(relay->handler);
	idem_reader_reset(relay->reader);
	relay->loaded = false;
	relay->parked_dirty = true;
	relay->drained = false;
	if (acted)
	{
		relay->not_before = 0;
		relay->failures = 0;
	}
}

void
idem_function_destroy(IdemFunctionRelay *relay)
{
	idem_handler_forget(relay->handler);
	if (relay->entry)
		idem_relay_entry_release(relay->entry);
	MemoryContextDelete(relay->cxt);
}

void
idem_function_woken(IdemFunctionRelay *relay)
{
	relay->drained = false;
}

/* One event per transaction: some event makes a commit fail, or the server. */
static bool
is_alone(const IdemFunctionRelay *relay)
{
	return relay->single > 0 || idem_attempts_careful(&relay->attempts);
}

/*
 * Has the attempt to go on record first?  Then it does so now, and the rest
 * is for the next transaction.
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

static bool
is_suspect(const IdemFunctionRelay *relay, const pg_uuid_t *event_id)
{
	return relay->has_suspect && memcmp(&relay->suspect, event_id, UUID_LEN) == 0;
}

/* Handle an event, unless it is known what comes of that. */
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

/* One event of the log: handle, or park it. */
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

/* Try one that is due; false if it stays parked, which is on record then. */
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

/* Select parked events; what took the server down before makes the next ones careful. */
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
 * Parked events that are due; in the transaction of the batch.  In key order one
 * is passed over behind one of its key that stays.  An event that took the server
 * down before is never part of a batch: it makes the next ones careful.
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

/* What an event adds to batch_size, without being read for that. */
static int64
event_size(const IdemEvent *ev)
{
	int64		size = ev->aggregate_type.len + ev->aggregate_id.len + ev->event_type.len;

	size += toast_raw_datum_size(ev->payload);
	if (ev->has_headers)
		size += toast_raw_datum_size(ev->headers);
	return size;
}

/* The log's events of this batch; true if the difference came to its end. */
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

/* Neither the log nor parked events have anything for it, as far as it knows. */
static bool
is_idle(IdemFunctionRelay *relay)
{
	return relay->drained && relay->loaded && !relay->parked_dirty && !relay->parked->stale &&
		!idem_parked_index_is_due(relay->parked);
}

/* Why it must not run; reports the state.  True if it may. */
static bool
may_run(IdemFunctionRelay *relay)
{
	IdemRelayState state;
	const char *message;

	if (!idem_relay_is_barred(relay->config, &state, &message))
	{
		if (idem_witness_allows())
			return idem_clock() >= relay->not_before;
		relay->drained = false; /* so that its state is shown again later */
		idem_witness_report(relay->entry, relay->config->name);
		return false;
	}
	if (message)
		idem_report_error(relay->entry, message);
	idem_report_state(relay->entry, relay->config->name, state, IDEM_WAIT_OPERATOR);
	return false;
}

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
	idem_position_assign(relay->cxt, &relay->pos, &row->pos);
	relay->catching_up = true;
	relay->loaded = true;
}

/* The next difference; false if nothing is new. */
static bool
begin_difference(IdemFunctionRelay *relay)
{
	IdemSnap   *cur = idem_snap_current();
	IdemPosition next = {relay->pos.done, cur, 0};
	int64		last_seq = idem_outbox_last_seq();

	if (idem_snap_equal(cur, relay->pos.done))
		return false;
	if (relay->catching_up || last_seq - relay->done_last_seq > IDEM_TICK_EVENTS)
	{
		IdemPositionRow *tick = idem_position_tick_after(relay->pos.done);

		relay->catching_up = tick != NULL;
		if (tick != NULL)
			next.cur = tick->pos.done;
	}
	relay->done_last_seq = last_seq;
	idem_position_assign(relay->cxt, &relay->pos, &next);
	return true;
}

static void
advance(IdemFunctionRelay *relay, bool ended, int64 last_seq)
{
	IdemPosition after;

	after.done = ended ? relay->pos.cur : relay->pos.done;
	after.cur = ended ? NULL : relay->pos.cur;
	after.k = ended ? 0 : last_seq;
	idem_position_assign(relay->cxt, &relay->pos, &after);
}

static void
append_position(IdemFunctionRelay *relay)
{
	IdemPositionRow row = {.relay_id = relay->config->relay_id,
		.epoch = relay->config->epoch, .kind = IDEM_POSITION_REACHED,
	.fresh = IDEM_FRESH_NOT, .pos = relay->pos};

	(void) idem_position_append(&row);
}

/* What one transaction did. */
typedef struct StepCounts
{
	int64		sent;
	int64		repeated;		/* parked events tried */
	int			logged;			/* events of the log tried, or parked unseen */
	bool		began;			/* a difference: its snapshot is the newest */
} StepCounts;

/* In a new transaction: where it stands, and that it can work. */
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
	}
	if (waiting == IDEM_WAIT_EVENTS && idem_parked_index_next(relay->parked) != 0)
		waiting = IDEM_WAIT_RETRY;
	idem_report_counts(relay->entry, counts->sent, counts->repeated);
	idem_report_state(relay->entry, relay->config->name, IDEM_RELAY_STREAMING, waiting);
}

/* The log's part of a step; false if there is nothing in it, or no room. */
static bool
step_log(IdemFunctionRelay *relay, int limit, StepCounts *counts, bool *ended)
{
	int64		last_seq;

	counts->began = relay->pos.cur == NULL;
	if ((counts->began && !begin_difference(relay)) ||
		relay->parked->total >= idem_max_parked)
		return false;
	last_seq = relay->pos.k;
	IDEM_FAULT_POINT("function-snapshot-taken");
	idem_reader_seek(relay->reader, &relay->pos);
	*ended = work_log(relay, limit, &last_seq, &counts->sent, &counts->logged);
	idem_reader_suspend(relay->reader);
	advance(relay, *ended, last_seq);
	relay->dirty = true;
	if (counts->logged > 0)
	{
		append_position(relay);
		relay->dirty = false;
		IDEM_FAULT_POINT("function-position-appended");
	}
	if (relay->attempts.log_left > 0)
		relay->attempts.log_left = *ended ? 0 : relay->attempts.log_left - counts->logged;
	return true;
}

/*
 * One transaction: parked events that are due, half a batch at most, then the log.
 * Alone, or where the former fill the transaction, it is one or the other, by
 * turns.
 */
bool
idem_function_step(IdemFunctionRelay *relay)
{
	StepCounts	counts = {0};
	bool		alone;
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

	/* Until this step finds so: events may wait behind one that it repeats. */
	relay->drained = false;
	idem_txn_begin();
	prepare_step(relay);
	alone = is_alone(relay);
	limit = alone ? 1 : relay->config->batch_events;
	log_turn = relay->log_turn;
	relay->log_turn = false;
	if (relay->parked->total == 0)
		relay->attempts.repeats = false;
	else if (!log_turn)
		counts.repeated = work_repeats(relay, Max(1, limit / 2), &counts.sent);
	full = counts.repeated > 0 && idem_handler_batch_is_full();
	if (relay->announcing || full || (alone && counts.repeated > 0))
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
		relay->drained = !log_turn && !relay->attempts.repeats;
		return counts.repeated > 0 || !relay->drained;
	}

	/*
	 * What it has put on record it tries next, or a parked event would undo
	 * that.
	 */
	relay->log_turn = relay->announcing;
	commit_step(relay, &counts, IDEM_WAIT_EVENTS);

	/*
	 * The next snapshot differs whenever any transaction of the cluster came
	 * to an end in between.  One that enqueued wakes us: others are no reason
	 * to look again.  Only the step that took the newest snapshot may say so:
	 * an event that committed after an older one has spent its wake-up.
	 */
	return counts.logged > 0 || counts.repeated > 0 || !counts.began || !ended ||
		relay->catching_up || log_turn || relay->attempts.repeats;
}

/* Nor is it the event's doing when somebody cancels or ends the worker. */
static bool
may_be_of_event(int sqlerrcode)
{
	return !idem_handler_is_circumstance(sqlerrcode) &&
		ERRCODE_TO_CATEGORY(sqlerrcode) != ERRCODE_OPERATOR_INTERVENTION;
}

void
idem_function_failed(IdemFunctionRelay *relay, int sqlerrcode, const char *message)
{
	int64		ms = idem_relay_backoff_ms(relay->config, relay->failures++);

	/* Nothing of the transaction happened: read the position again. */
	idem_handler_forget(relay->handler);
	idem_reader_reset(relay->reader);
	relay->loaded = false;
	relay->parked_dirty = true;
	idem_handler_clear(relay->handler);
	idem_handler_reset();
	idem_report_error(relay->entry, message);

	/* Alone, and the commit fails still: it is this event's doing. */
	if (relay->single > 0 && relay->has_tried && may_be_of_event(sqlerrcode))
	{
		relay->has_suspect = true;
		relay->suspect = relay->tried;
		relay->suspect_failure.counts = true;
		strlcpy(relay->suspect_failure.sqlstate, unpack_sql_state(sqlerrcode),
				sizeof(relay->suspect_failure.sqlstate));
		relay->suspect_failure.message = MemoryContextStrdup(relay->cxt, message);
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
}

IdemClock
idem_function_next_time(IdemFunctionRelay *relay)
{
	IdemRelayState state;
	const char *message;

	if (idem_relay_is_barred(relay->config, &state, &message) || !idem_witness_allows())
		return 0;
	if (relay->not_before > idem_clock())
		return relay->not_before;
	return idem_parked_index_next(relay->parked);
}

void
idem_function_persist(IdemFunctionRelay *relay)
{
	if (!relay->dirty || !relay->loaded || relay->pos.cur != NULL)
		return;
	idem_txn_begin();
	append_position(relay);
	IDEM_FAULT_POINT("function-persist");
	idem_txn_commit(true);
	relay->dirty = false;
}
