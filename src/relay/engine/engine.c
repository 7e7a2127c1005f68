/*-------------------------------------------------------------------------
 *
 * engine.c
 *		A relay of a worker, of whichever kind: may it run, rest, breaker, errors.
 *
 * A relay runs unless, in this order,
 *
 *		another process has it
 *		its configuration bars it (idem_relay_is_barred)
 *		it was stopped: what is wrong only an operator can put right
 *		the publish witness forbids it
 *		it rests
 *
 * and its courier waits out the breaker's backoff.  An error in a relay's turn
 * rolls back the turn's work and opens that relay's breaker.  The other relays
 * of the worker do not notice.
 *
 * Breaker, stop and rest are in memory, and begin anew after a crash; what the
 * next worker of a function relay has to know is in the relay's entry.
 *
 * MEMORY: a context per relay below TopMemoryContext, with the configuration in
 * a context of its own.
 *
 * Copyright (c) 2026, the idempotency developers
 *
 * IDENTIFICATION
 *		src/relay/engine/engine.c
 *
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xact.h"
#include "miscadmin.h"
#include "storage/lwlock.h"
#include "utils/fmgrprotos.h"
#include "utils/memutils.h"

#include "relay/engine/engine.h"
#include "relay/position/parked.h"
#include "relay/witness.h"
#include "relay/worker_slots.h"
#include "shared/error.h"

/* Replace the configuration by a copy of this one. */
static void
take_config(IdemRelay *relay, const IdemRelayConfig *config)
{
	MemoryContext cxt = AllocSetContextCreate(relay->cxt, "relay configuration",
											  ALLOCSET_SMALL_SIZES);
	MemoryContext old = MemoryContextSwitchTo(cxt);
	IdemRelayConfig *copy = idem_relay_config_copy(config);

	MemoryContextSwitchTo(old);
	if (relay->config_cxt != NULL)
		MemoryContextDelete(relay->config_cxt);
	relay->config_cxt = cxt;
	relay->config = copy;
	relay->rester.config = copy;
}

IdemRelay *
idem_engine_create(const IdemCourier *courier, const IdemRelayConfig *config)
{
	MemoryContext cxt = AllocSetContextCreate(TopMemoryContext, "idempotency relay",
											  ALLOCSET_START_SMALL_SIZES);
	IdemRelay  *relay = MemoryContextAllocZero(cxt, courier->size);

	relay->courier = courier;
	relay->cxt = cxt;
	relay->walk.cxt = cxt;
	relay->walk.fresh = IDEM_FRESH_CONFIRMED;
	relay->rester.walk = &relay->walk;
	take_config(relay, config);
	courier->create(relay);
	return relay;
}

/* Does the configuration bar the relay?  For those that show nothing. */
static bool
is_barred(const IdemRelayConfig *config)
{
	IdemRelayState state;
	const char *message;

	return idem_relay_is_barred(config, &state, &message);
}

/*
 * Each look at the catalog passes all relays through here, and perhaps one in
 * a thousand has changed.  So a configuration that says nothing new is not
 * copied.  A relay that somebody acted on, or that may not run any more, rests
 * no more.
 */
void
idem_engine_configure(IdemRelay *relay, const IdemRelayConfig *config)
{
	const IdemRelayConfig *old = relay->config;
	bool		same_sink = idem_relay_config_same_sink(old, config);
	IdemRelayChange change = {.moved = old->epoch != config->epoch || strcmp(old->incarnation, config->incarnation) != 0,
	.same_sink = true};

	/* A row counts as changed even if it was written with the same values. */
	change.acted = old->row_xmin != config->row_xmin || !same_sink ||
		strcmp(old->problem ? old->problem : "", config->problem ? config->problem : "") != 0;
	if (change.acted)
		change.same_sink = old->problem == NULL && config->problem == NULL && same_sink;
	if (change.acted || is_barred(config))
		idem_engine_end_rest(relay);
	if (change.acted || strcmp(old->identity, config->identity) != 0 ||
		strcmp(old->server ? old->server : "", config->server ? config->server : "") != 0)
		take_config(relay, config);
	relay->barred = false;
	relay->courier->configure(relay, &change);
	if (!change.acted)
		return;
	relay->stopped = false;
	relay->breaker.failures = 0;
	relay->breaker.not_before = 0;
	relay->probe_at = 0;
	memset(&relay->pace, 0, sizeof(relay->pace));
	idem_engine_disprove(relay);
}

void
idem_engine_destroy(IdemRelay *relay)
{
	(void) idem_rest_leave(&relay->rester);
	if (relay->courier->destroy != NULL)
		relay->courier->destroy(relay);
	idem_relay_entry_forget(MyDatabaseId, relay->config->relay_id);
	idem_schedule_remove(relay);
	MemoryContextDelete(relay->cxt);
}

/* Tell the courier that its relay must not run; may be that it settles first. */
static bool
let_go(IdemRelay *relay, IdemRelayState state)
{
	if (relay->courier->hold != NULL && !relay->courier->hold(relay, state))
		return false;
	idem_schedule_withdraw(&relay->ticket);
	return true;
}

bool
idem_engine_may_run(IdemRelay *relay)
{
	bool		was_barred = relay->barred;
	IdemRelayState state;
	const char *message;

	relay->barred = idem_relay_is_barred(relay->config, &state, &message);
	if (relay->barred && let_go(relay, state))
	{
		if (message && !was_barred)
			idem_report_error(relay->entry, message);
		idem_engine_show(relay, state, IDEM_WAIT_OPERATOR);
		return false;
	}
	if (relay->stopped && !relay->barred)
		return false;
	if (idem_witness_allows())
		return true;
	(void) let_go(relay, IDEM_RELAY_UNWITNESSED);
	if (!idem_witness_report(relay->entry, relay->config->name))
		idem_engine_show_trying(relay, IDEM_RELAY_STARTING, IDEM_WAIT_WITNESS);
	return false;
}

IdemClock
idem_engine_run_time(const IdemRelay *relay)
{
	if (relay->away || relay->barred || relay->stopped || relay->rester.group != NULL ||
		relay->ticket.queue != NULL || !idem_witness_allows())
		return 0;
	return Max(relay->breaker.not_before, 1);
}

bool
idem_engine_is_quiet(const IdemRelay *relay)
{
	if (relay->away)
		return false;
	if (relay->rester.group != NULL)
		return true;
	return (relay->barred || relay->stopped) &&
		(relay->courier->holds_nothing == NULL || relay->courier->holds_nothing(relay));
}

bool
idem_engine_is_elsewhere(const IdemRelay *relay)
{
	return relay->away && idem_slots_state(relay->config->relay_id) != IDEM_SLOT_NOT_THERE;
}

/* A relay at rest waits for events, or for the time of a parked event. */
static void
show_rest(IdemRelay *relay)
{
	idem_engine_show(relay, IDEM_RELAY_IDLE, relay->rester.due != 0 ? IDEM_WAIT_RETRY : IDEM_WAIT_EVENTS);
}

void
idem_engine_rest(IdemRelay *relay, bool far)
{
	relay->breaker.failures = 0;
	idem_engine_disprove(relay);
	relay->walk.rested = true;
	idem_rest_join(&relay->rester, relay->walk.settled.base, far);
	show_rest(relay);
}

/*
 * A relay that was just created, moved or adopted starts once, so that a fault
 * of its server or function shows.  So does a relay whose last row does not say
 * what the sink has stored between two differences: what the relay passes at
 * rest is held against that.
 */
void
idem_engine_rest_at(IdemRelay *relay, const IdemPositionRow *row)
{
	IdemWalk   *walk = &relay->walk;

	if (idem_sink_idle_timeout_ms == 0 || row == NULL ||
		(row->kind != IDEM_POSITION_PASSED && row->kind != IDEM_POSITION_REACHED) ||
		row->pos.target != NULL || relay->away || relay->breaker.not_before != 0 ||
		is_barred(relay->config))
		return;
	walk->sink_stores = row->kind == IDEM_POSITION_PASSED;
	walk->fresh = row->fresh;
	walk->acked_row = row->acked_row;
	walk->acked_k = row->acked_k;
	idem_walk_stand(walk, &row->pos);
	walk->settled.seq = 0;
	idem_engine_rest(relay, true);
}

void
idem_engine_rise(IdemRelay *relay, const IdemSnap *base)
{
	IdemPosition pos = {unconstify(IdemSnap *, base), NULL, 0};

	idem_walk_stand(&relay->walk, &pos);
	if (relay->courier->rise != NULL)
		relay->courier->rise(relay);
}

void
idem_engine_end_rest(IdemRelay *relay)
{
	IdemSnap   *base = idem_rest_leave(&relay->rester);

	if (base == NULL)
		return;
	idem_engine_rise(relay, base);
	pfree(base);
}

void
idem_engine_open_breaker(IdemRelay *relay, IdemRelayState state, const char *message, bool quotes)
{
	int64		ms = idem_relay_probe_ms(relay->config, relay->breaker.failures++);

	relay->breaker.fault = state;
	relay->breaker.not_before = idem_clock_plus_ms(idem_clock(), ms);
	if (quotes)
		idem_report_refusal(relay->entry, message);
	else
		idem_report_error(relay->entry, message);
	idem_engine_show(relay, state, IDEM_WAIT_BACKOFF);
}

void
idem_engine_stop(IdemRelay *relay, IdemRelayState state, const char *message)
{
	relay->stopped = true;
	idem_report_error(relay->entry, message);
	idem_engine_show(relay, state, IDEM_WAIT_OPERATOR);
}

bool
idem_engine_judged(IdemRelay *relay, int wait_ms)
{
	const IdemBlameLane *whole = &relay->blame.whole;
	bool		got_up = idem_blame_got_up(&relay->blame);

	if (relay->held && idem_clock() >= relay->probe_at)
		idem_blame_probed(&relay->blame);
	relay->held = idem_engine_is_held(relay);
	relay->probe_at = 0;
	if (!relay->held)
		return got_up;
	relay->probe_at = idem_clock_plus_ms(idem_clock(), Max(Min(wait_ms, IDEM_BLAME_MAX_PAUSE_MS),
														   idem_relay_probe_ms(relay->config, whole->probes)));
	if (whole->asked)
		relay->probe_at = Max(relay->probe_at, relay->pace.paused_until);
	if (whole->open)
		relay->breaker.fault = IDEM_RELAY_OUTAGE;
	return false;
}

void
idem_engine_disprove(IdemRelay *relay)
{
	relay->breaker.fault = IDEM_RELAY_STARTING;
}

void
idem_engine_progressed(IdemRelay *relay, bool passed, bool batch)
{
	if (passed)
	{
		relay->breaker.failures = 0;
		idem_engine_disprove(relay);
	}
	if (batch && relay->breaker.stepwise > 0)
		relay->breaker.stepwise--;
}

/* Take the relay back, show why it does not run, or give it its step. */
static bool
take_turn(IdemRelay *relay)
{
	if (idem_engine_is_elsewhere(relay))
		return false;
	if (relay->away)
		relay->courier->take_back(relay);
	if (!idem_engine_may_run(relay))
		return false;
	if (relay->rester.group == NULL)
		return relay->courier->step(relay);
	show_rest(relay);
	return false;
}

/*
 * Tell the server log of the dead letters of this turn, within the relay's allowance.
 * stat_relay and dead_letters have what the receiver said.
 */
static void
log_dead_letters(IdemRelay *relay)
{
	IdemDeadLetter letters[IDEM_DEAD_LETTERS_NAMED];
	int			more;
	int			n = idem_parked_take_dead(letters, &more);

	relay->log_dropped += n + more;
	for (int i = 0; i < n; i++)
	{
		char	   *id;

		if (!idem_report_may_log(&relay->log_paid_until))
			break;
		id = DatumGetCString(DirectFunctionCall1(uuid_out, UUIDPGetDatum(&letters[i].event_id)));
		ereport(LOG,
				(errcode(ERRCODE_IDEM_SINK_REJECTED),
				 errmsg("relay \"%s\": event %s is a dead letter, SQLSTATE %s",
						relay->config->name, id, letters[i].sqlstate)));
		pfree(id);
		relay->log_dropped--;
	}
	if (relay->log_dropped == 0 || n > 0 || !idem_report_may_log(&relay->log_paid_until))
		return;
	ereport(LOG,
			(errcode(ERRCODE_IDEM_SINK_REJECTED),
			 errmsg("relay \"%s\": " INT64_FORMAT " more events are dead letters",
					relay->config->name, relay->log_dropped)));
	relay->log_dropped = 0;
}

IdemRelayTurn
idem_engine_turn(IdemRelay *relay, MemoryContext error_cxt)
{
	volatile IdemRelayTurn turn = IDEM_TURN_DONE;

	PG_TRY();
	{
		if (take_turn(relay))
			turn = IDEM_TURN_AGAIN;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(error_cxt);
		edata = CopyErrorData();
		FlushErrorState();
		AbortCurrentTransaction();
		MemoryContextSwitchTo(error_cxt);
		LWLockReleaseAll();

		/* There is no message if memory ran out while the error was made. */
		relay->courier->failed(relay, edata->sqlerrcode,
							   edata->message ? edata->message : "unknown error");
		turn = IDEM_TURN_FAILED;
	}
	PG_END_TRY();
	log_dead_letters(relay);
	return turn;
}
